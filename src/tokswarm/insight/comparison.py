"""Two targets under the same mirrored load, compared: ratios of pooled figures with their intervals.

Requests of one time share what happened then, a burst or a slow moment of the machine, so they are no independent
draws. The measured window is cut into blocks of time, the same for both targets; blocks are drawn with replacement,
many times, and both targets are measured anew from the requests of the same drawn blocks (docs/metrics.md#comparison).
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import polars as pl

from tokswarm.insight.measured_window import MeasuredWindow
from tokswarm.measure.record import Outcome

BLOCKS = 20
FEWEST_BLOCKS = 10
"""With requests of both targets; below, a figure has no interval."""
RESAMPLES = 500
CONFIDENCE = 0.95
_P50, _P99 = 50, 99


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of two targets."""

    figure: str
    """ttft_p50_ms or _p99_ms, itl_… and e2e_… alike, output_tok_per_s, ok_ratio or goodput_ratio."""
    first: float
    other: float
    ratio: float
    """other / first."""
    low: float | None
    high: float | None
    """95 % interval of the ratio; None: the stage is too short for one."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A target against the first one."""

    first: str
    other: str
    ratios: list[Ratio]
    """Of what was measured of both."""

    def ratio(self, figure: str) -> Ratio | None:
        """Of one figure; None: it was not measured of both."""
        return next((each for each in self.ratios if each.figure == figure), None)


class _Values(NamedTuple):
    """Ascending values, each with its block and how often it counts."""

    value: pl.Series
    block: pl.Series
    weight: pl.Series


def compare(rows: pl.DataFrame, window: MeasuredWindow, names: Sequence[str]) -> list[Comparison]:
    """Each later target of a stage against the first that has requests in the window; empty with fewer than two."""
    if window.length_s <= 0:
        return []
    length_ns = window.end_unix_ns - window.begin_unix_ns
    inside = rows.with_columns(block=(pl.col("sent_unix_ns") - window.begin_unix_ns) * BLOCKS // length_ns)
    parts = {name: inside.filter(pl.col("target") == name) for name in names}
    parts = {name: part for name, part in parts.items() if not _in_window(part).is_empty()}
    if len(parts) < 2:
        return []
    rng = random.Random(1)  # noqa: S311 - the same interval each time a report is made
    draws = [[0] * BLOCKS for _ in range(RESAMPLES)]
    for draw in draws:
        for block in rng.choices(range(BLOCKS), k=BLOCKS):
            draw[block] += 1
    weights = [pl.Series(draw, dtype=pl.Int64) for draw in draws]
    first, *others = [(name, _Measured(part, window, weights)) for name, part in parts.items()]
    return [Comparison(first=first[0], other=name, ratios=_ratios(first[1], measured)) for name, measured in others]


def _in_window(part: pl.DataFrame) -> pl.DataFrame:
    return part.filter((pl.col("block") >= 0) & (pl.col("block") < BLOCKS))


class _Measured:
    """One target: each figure as measured, and of each resample."""

    def __init__(self, part: pl.DataFrame, window: MeasuredWindow, weights: Sequence[pl.Series]) -> None:
        sent = _in_window(part)
        self.blocks = sent["block"].n_unique()
        ok = sent.filter(pl.col("outcome") == Outcome.OK.value)
        timed = ok.filter(~pl.col("coalesced"))
        self.figures: dict[str, list[float | None]] = {}
        """The figure of all blocks, then those of the resamples."""
        whole = pl.Series([1] * BLOCKS, dtype=pl.Int64)
        draws = [whole, *weights]
        for name, values in (
            ("ttft", _column(timed, "ttft_ms")),
            ("itl", _gaps(timed)),
            ("e2e", _column(ok, "e2e_ms")),
        ):
            if values is not None:
                pairs = [_quantiles(values, draw) for draw in draws]
                self.figures[f"{name}_p50_ms"] = [None if pair is None else pair[0] for pair in pairs]
                self.figures[f"{name}_p99_ms"] = [None if pair is None else pair[1] for pair in pairs]
        tokens = _tokens(part, window)
        self.figures["output_tok_per_s"] = [int((tokens * draw).sum()) / window.length_s for draw in draws]
        self.figures["ok_ratio"] = _shares(sent, pl.col("outcome") == Outcome.OK.value, draws)
        limited = sent.filter(pl.col("slo_met").is_not_null())
        if not limited.is_empty():
            self.figures["goodput_ratio"] = _shares(limited, pl.col("slo_met"), draws)


def _ratios(first: _Measured, other: _Measured) -> list[Ratio]:
    has_interval = min(first.blocks, other.blocks) >= FEWEST_BLOCKS
    ratios = []
    for figure, (one, *ones) in first.figures.items():
        another, *others = other.figures.get(figure, [None])
        if not one or another is None:
            continue
        drawn = sorted(b / a for a, b in zip(ones, others, strict=True) if a and b is not None)
        low = high = None
        if has_interval and drawn:
            cut = round(len(drawn) * (1 - CONFIDENCE) / 2)
            low, high = round(drawn[cut], 4), round(drawn[-1 - cut], 4)
        ratios.append(
            Ratio(
                figure=figure,
                first=round(one, 4),
                other=round(another, 4),
                ratio=round(another / one, 4),
                low=low,
                high=high,
            )
        )
    return ratios


def _column(part: pl.DataFrame, name: str) -> _Values | None:
    return _values(part.select(value=pl.col(name), block="block", weight=pl.lit(1, pl.Int64)))


def _gaps(timed: pl.DataFrame) -> _Values | None:
    gaps = (
        timed.filter(pl.col("arrivals_ns").list.len() > 1)
        .select("block", value=pl.col("arrivals_ns").list.diff(), weight="arrival_tokens")
        .explode("value", "weight")
        .select(value=(pl.col("value") / 1e4).round() / 1e2, block="block", weight=pl.col("weight").cast(pl.Int64))
    )
    return _values(gaps)


def _values(table: pl.DataFrame) -> _Values | None:
    """In milliseconds; what is alike is put together."""
    table = table.filter(pl.col("value").is_not_null()).group_by("value", "block").agg(pl.col("weight").sum())
    if table.is_empty():
        return None
    table = table.sort("value", "block")
    return _Values(table["value"], table["block"], table["weight"])


def _quantiles(values: _Values, draw: pl.Series) -> tuple[float, float] | None:
    """Median and 99th percentile as `percentiles` has them, each block counted as often as it was drawn."""
    reached = (draw[values.block] * values.weight).cum_sum()
    count = int(reached[-1])
    if not count:
        return None
    p50, p99 = (
        float(values.value[int(reached.search_sorted(-(-pct * count // 100), side="left"))]) for pct in (_P50, _P99)
    )
    return p50, p99


def _tokens(part: pl.DataFrame, window: MeasuredWindow) -> pl.Series:
    """Tokens that arrived in each block; those of an answer that was not streamed arrive at its end."""
    streamed = pl.col("arrivals_ns").list.len() > 0
    arrivals = (
        part.filter(streamed)
        .select("sent_unix_ns", "arrivals_ns", "arrival_tokens")
        .explode("arrivals_ns", "arrival_tokens")
        .select(at=pl.col("sent_unix_ns") + pl.col("arrivals_ns"), tokens=pl.col("arrival_tokens").cast(pl.Int64))
    )
    done = pl.col("sent_unix_ns") + pl.col("done_ns") - pl.col("sent_ns")
    whole = part.filter(~streamed).select(at=done, tokens=pl.col("output_tokens").cast(pl.Int64))
    length_ns = window.end_unix_ns - window.begin_unix_ns
    counts = (
        pl.concat([arrivals, whole])
        .with_columns(block=(pl.col("at") - window.begin_unix_ns) * BLOCKS // length_ns)
        .group_by("block")
        .agg(pl.col("tokens").sum())
    )
    by_block: dict[int, int] = dict(counts.iter_rows())
    return pl.Series([by_block.get(block, 0) for block in range(BLOCKS)], dtype=pl.Int64)


def _shares(part: pl.DataFrame, is_counted: pl.Expr, draws: Sequence[pl.Series]) -> list[float | None]:
    counts = part.group_by("block").agg(pl.len().alias("all"), is_counted.sum().alias("counted"))
    by_block = {block: (every, counted) for block, every, counted in counts.iter_rows()}
    every, counted = (
        pl.Series([by_block.get(block, (0, 0))[place] for block in range(BLOCKS)], dtype=pl.Int64) for place in (0, 1)
    )
    shares: list[float | None] = []
    for draw in draws:
        total = int((every * draw).sum())
        shares.append(int((counted * draw).sum()) / total if total else None)
    return shares
