"""A metrics text as readings: what each engine, rank or replica in it says, by quantity. Pure.

Samples are put to the part of the text they are of by the labels that tell parts apart. A sample with
fewer of them than others (vLLM's rejections have no `engine`) goes to the one part that agrees with it;
when several do it makes a part of its own, so that sums over the parts stay right.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tokswarm.scrape.engines import PICKS, Engine, Kind, Pick, Quantity
from tokswarm.scrape.exposition import Sample, samples

MAX_PARTS = 64
"""A text with more is read as one part: tags in the database stay few."""

Identity = tuple[tuple[str, str], ...]
"""Labels that name a part, and their values."""
SeriesKey = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of one counter or histogram."""


class HistogramSeries(NamedTuple):
    """One histogram as it stands: cumulative counts by upper bound in seconds, and the sum."""

    buckets: dict[float, float]
    sum_s: float
    observed: float


class Reading(NamedTuple):
    """What one part of a text says. Of each quantity the best alternative that the text has."""

    engine: Engine
    identity: Identity
    gauges: dict[Quantity, float]
    counters: dict[Quantity, dict[SeriesKey, float]]
    histograms: dict[Quantity, dict[SeriesKey, HistogramSeries]]


class Part(NamedTuple):
    """Names a part within one text."""

    engine: str
    identity: Identity


class Snapshot(NamedTuple):
    """A whole text, and which process it is of where it says so."""

    parts: dict[Part, Reading]
    process: float | None
    """`process_start_time_seconds`; None: the text has none."""


_PROCESS = "process_start_time_seconds"
_WANTED = frozenset((*PICKS, _PROCESS))


def read_text(text: str) -> Snapshot:
    """The readings of a text; none of them when no engine's names are in it."""
    process: float | None = None
    found: dict[Part, list[tuple[Pick, Sample]]] = {}
    for sample in samples(text, _WANTED):
        if sample.name == _PROCESS:
            process = sample.value
            continue
        for pick in PICKS[sample.name]:
            if pick.series.holds(sample.labels) and _speaks(pick.engine, sample.labels):
                part = Part(pick.engine.name, _identity(pick.engine, sample.labels))
                found.setdefault(part, []).append((pick, sample))
    if len(found) > MAX_PARTS:
        found = _as_one(found)
    parts = {part: _reading(part, picked) for part, picked in _joined(found).items()}
    return Snapshot({part: reading for part, reading in parts.items() if _is_sure(reading)}, process)


def _speaks(engine: Engine, labels: dict[str, str]) -> bool:
    return all(labels.get(label, "0") == "0" for label in engine.copies)


def _identity(engine: Engine, labels: dict[str, str]) -> Identity:
    return tuple((label, labels[label]) for label in engine.identity if label in labels)


def _is_sure(reading: Reading) -> bool:
    sure_by = reading.engine.sure_by
    return sure_by is None or sure_by in reading.gauges


_Found = dict[Part, list[tuple[Pick, Sample]]]


def _as_one(found: _Found) -> _Found:
    whole: _Found = {}
    for part, picked in found.items():
        whole.setdefault(Part(part.engine, ()), []).extend(picked)
    return whole


def _joined(found: _Found) -> _Found:
    """Parts with fewer labels go to the one part of their engine that agrees, where it is one."""
    joined: _Found = {}
    for part in found:
        agreeing = [other for other in found if other != part and _agrees(part, other)]
        whole = [other for other in agreeing if not any(_agrees(other, third) for third in agreeing if third != other)]
        if len(whole) == 1:
            joined.setdefault(whole[0], []).extend(found[part])
        else:
            joined.setdefault(part, []).extend(found[part])
    return joined


def _agrees(part: Part, other: Part) -> bool:
    """Whether the other has all the labels of this one, and more."""
    return (
        part.engine == other.engine
        and len(part.identity) < len(other.identity)
        and set(part.identity) <= set(other.identity)
    )


def _reading(part: Part, picked: list[tuple[Pick, Sample]]) -> Reading:
    best: dict[Quantity, int] = {}
    for pick, _ in picked:
        best[pick.quantity] = min(pick.alternative, best.get(pick.quantity, pick.alternative))
    by_quantity: dict[Quantity, list[tuple[Pick, Sample]]] = {}
    for pick, sample in picked:
        if pick.alternative == best[pick.quantity]:
            by_quantity.setdefault(pick.quantity, []).append((pick, sample))
    reading = Reading(picked[0][0].engine, part.identity, {}, {}, {})
    for quantity, pairs in by_quantity.items():
        of_it = [sample for _, sample in pairs]
        match quantity.kind:
            case Kind.COUNTER:
                reading.counters[quantity] = {
                    (sample.name, _series_labels(sample)): sample.value for sample in _numbers(of_it)
                }
            case Kind.HISTOGRAM:
                reading.histograms[quantity] = _histograms(pairs)
            case Kind.INFO:
                capacity = [tokens for sample in of_it if (tokens := _capacity(sample.labels)) is not None]
                if capacity:
                    reading.gauges[Quantity.KV_TOKENS] = sum(capacity)
            case kind:
                values = [sample.value for sample in _numbers(of_it)]
                if values:
                    reading.gauges[quantity] = sum(values) / (len(values) if kind is Kind.MEAN else 1)
    return reading


def _numbers(of_it: Iterable[Sample]) -> Iterator[Sample]:
    return (sample for sample in of_it if math.isfinite(sample.value))


def _series_labels(sample: Sample) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))


def _histograms(pairs: list[tuple[Pick, Sample]]) -> dict[SeriesKey, HistogramSeries]:
    buckets: dict[SeriesKey, dict[float, float]] = {}
    sums: dict[SeriesKey, float] = {}
    counts: dict[SeriesKey, float] = {}
    for pick, sample in pairs:
        if not math.isfinite(sample.value):
            continue
        key = (pick.series.name, _series_labels(sample))
        if sample.name.endswith("_sum"):
            sums[key] = sample.value
        elif sample.name.endswith("_count"):
            counts[key] = sample.value
        else:
            try:
                buckets.setdefault(key, {})[float(sample.labels["le"])] = sample.value
            except (KeyError, ValueError):
                continue
    return {
        key: HistogramSeries(buckets.get(key, {}), sums[key], count) for key, count in counts.items() if key in sums
    }


def _capacity(labels: dict[str, str]) -> float | None:
    """Tokens that vLLM's cache holds, by the labels of its configuration; None: they do not say."""
    try:
        if labels.get("kv_cache_size_tokens", "None") != "None":
            return float(labels["kv_cache_size_tokens"])
        return float(labels["num_gpu_blocks"]) * float(labels["block_size"])
    except (KeyError, ValueError):
        return None
