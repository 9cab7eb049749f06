"""Fits a mix to requests that were recorded: classes, lengths, arrivals and shared prefixes, and says how well it fits.

How far a fit is off is its Kolmogorov-Smirnov distance: the largest difference between the share of recorded
values up to x and the share the fit gives. A simple distribution is taken where it is within CLOSE, else the
histogram of what was recorded.
"""

import math
import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice, pairwise
from statistics import NormalDist, fmean, pstdev

import msgspec

from tokswarm.traffic.arrivals import LARGEST_CV, SMALLEST_CV, offsets_ns
from tokswarm.traffic.distribution import Sampler
from tokswarm.traffic.lengths_file import binned
from tokswarm.traffic.mix import (
    Arrivals,
    Constant,
    Distribution,
    Exponential,
    Lognormal,
    Normal,
    Output,
    Poisson,
    Prompt,
    SharedPrefix,
    TrafficClass,
    Varied,
)
from tokswarm.traffic.plan import OpenLoop
from tokswarm.traffic.preview import known_tokens
from tokswarm.traffic.replay import ReplayRows
from tokswarm.traffic.trace import TraceRow

CLOSE = 0.03
HISTOGRAM_BINS = 40
_GRID = 4000
_GAPS = 20_000
_EVEN_CV = 0.05
_SHARED_FROM = 0.02
"""Sharing less of the prompts than this is left out."""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """One fitted part of a mix."""

    what: str
    kind: str
    distance: float
    """Kolmogorov-Smirnov distance."""


class FittedMix(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a mix that come out of recorded requests."""

    classes: list[TrafficClass]
    rate_per_s: float
    arrivals: Arrivals
    duration_s: float
    fits: list[Fit]
    known_ratio: float
    """Share of the prompt tokens that an unlimited cache would have had."""
    fitted_known_ratio: float
    """The same of the fitted mix in the long run."""


def fit_mix(
    rows: Sequence[TraceRow], *, class_names: Sequence[str] | None, classes: int, block_tokens: int
) -> FittedMix:
    """Fit a mix to two or more requests. `class_names`: of each; None: told apart by length into `classes`."""
    names = list(class_names) if class_names is not None else _by_length(rows, classes)
    members: dict[str, list[TraceRow]] = defaultdict(list)
    for name, row in zip(names, rows, strict=True):
        members[name].append(row)
    fits: list[Fit] = []
    known = known_of(rows, block_tokens)
    known_ratio = known / sum(row.prompt_tokens for row in rows)
    fitted: list[TrafficClass] = []
    for name, part in sorted(members.items(), key=lambda item: (-len(item[1]), item[0])):
        prompt, prompt_fit = fit_lengths([row.prompt_tokens for row in part], f"{name}: prompt tokens")
        output, output_fit = fit_lengths([row.output_tokens for row in part], f"{name}: output tokens")
        fits += [prompt_fit, output_fit]
        fitted.append(
            TrafficClass(
                name=name,
                weight=len(part),
                prompt=Prompt(tokens=prompt, shared_prefix=_prefix(part, block_tokens)),
                output=Output(max_tokens=output, ignore_eos=True),
            )
        )
    arrivals, arrivals_fit = fit_arrivals([row.offset_ns for row in rows])
    span_s = (rows[-1].offset_ns - rows[0].offset_ns) / 1e9
    return FittedMix(
        classes=fitted,
        rate_per_s=(len(rows) - 1) / span_s if span_s > 0 else float(len(rows)),
        arrivals=arrivals,
        duration_s=span_s,
        fits=[*fits, arrivals_fit],
        known_ratio=known_ratio,
        fitted_known_ratio=_fitted_known_ratio(fitted),
    )


# --- lengths --------------------------------------------------------------------------------------


def fit_lengths(lengths: Sequence[int], what: str) -> tuple[Distribution, Fit]:
    """The simplest distribution that is close, else a histogram."""
    mean, sd = fmean(lengths), pstdev(lengths)
    smallest, largest = min(lengths), max(lengths)
    if smallest == largest:
        return Distribution(fixed=smallest), Fit(what=what, kind="fixed", distance=0.0)
    logs = [math.log(length) for length in lengths]
    middle, spread = fmean(logs), pstdev(logs)
    p99 = math.exp(middle + NormalDist().inv_cdf(0.99) * spread)
    candidates = {
        "lognormal": Distribution(lognormal=Lognormal(p50=_short(math.exp(middle)), p99=_short(p99))),
        "normal": Distribution(normal=Normal(mean=_short(mean), sd=_short(sd))),
        "exponential": Distribution(exponential=Exponential(mean=_short(mean))),
    }
    fits = {kind: msgspec.structs.replace(one, min=smallest, max=largest) for kind, one in candidates.items()}
    best = min(fits, key=lambda kind: lengths_distance(lengths, fits[kind]))
    distance = lengths_distance(lengths, fits[best])
    if distance <= CLOSE:
        return fits[best], Fit(what=what, kind=best, distance=distance)
    histogram = Distribution(empirical=binned(Counter(lengths), HISTOGRAM_BINS))
    return histogram, Fit(what=what, kind="empirical", distance=lengths_distance(lengths, histogram))


def lengths_distance(lengths: Sequence[int], fitted: Distribution) -> float:
    """Between recorded lengths and a distribution, which is drawn from at evenly spaced probabilities."""
    sampler = Sampler(fitted)
    return sample_distance(sorted(lengths), sorted(sampler.draw(_Even(k)) for k in range(_GRID)))


def sample_distance(one: Sequence[float], other: Sequence[float]) -> float:
    """The two-sample distance of ascending values."""
    return max(abs(bisect_right(one, x) / len(one) - bisect_right(other, x) / len(other)) for x in {*one, *other})


class _Even(random.Random):
    """Gives one fixed number: the middle of the k-th of _GRID equal parts."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self._value = (k + 0.5) / _GRID

    def random(self) -> float:
        return self._value


def _short(value: float) -> float:
    """Four digits: no fit is better than that."""
    return float(f"{value:.4g}")


# --- classes --------------------------------------------------------------------------------------


def _by_length(rows: Sequence[TraceRow], classes: int) -> list[str]:
    """Names of the classes of each request: k-means on the logarithms of both lengths, largest class first."""
    if classes == 1:
        return ["all"] * len(rows)
    points = [(math.log(row.prompt_tokens), math.log(row.output_tokens)) for row in rows]
    ordered = sorted(points)
    centres = [ordered[(2 * k + 1) * len(ordered) // (2 * classes)] for k in range(classes)]
    nearest: list[int] = []
    for _ in range(30):
        before = nearest
        nearest = [min(range(classes), key=lambda k, at=point: math.dist(at, centres[k])) for point in points]  # type: ignore[misc]
        if nearest == before:
            break
        for k in range(classes):
            members = [point for point, at in zip(points, nearest, strict=True) if at == k]
            if members:
                centres[k] = (fmean(x for x, _ in members), fmean(y for _, y in members))
    ranks = {k: rank for rank, (k, _) in enumerate(Counter(nearest).most_common(), start=1)}
    return [f"class-{ranks[k]}" for k in nearest]


# --- arrivals -------------------------------------------------------------------------------------


def fit_arrivals(due_ns: Sequence[int]) -> tuple[Arrivals, Fit]:
    """The kind of gaps whose distance is least, with the recorded variation."""
    gaps = [float(later - sooner) for sooner, later in pairwise(due_ns)][:_GAPS]
    mean = fmean(gaps)
    if mean == 0:
        return Arrivals(poisson=Poisson()), Fit(what="gaps", kind="poisson", distance=1.0)
    cv = pstdev(gaps) / mean
    if cv < _EVEN_CV:
        even = sample_distance(sorted(gaps), [mean])
        return Arrivals(constant=Constant()), Fit(what=f"gaps (cv {cv:.3g})", kind="constant", distance=even)
    varied = Varied(cv=_short(min(max(cv, SMALLEST_CV), LARGEST_CV)))
    candidates = {
        "poisson": Arrivals(poisson=Poisson()),
        "gamma": Arrivals(gamma=varied),
        "weibull": Arrivals(weibull=varied),
    }
    distances = {
        kind: _gaps_distance(gaps, OpenLoop(1e9 / mean, kind, cv=None if kind == "poisson" else varied.cv))
        for kind in candidates
    }
    best = min(distances, key=lambda kind: distances[kind])
    if distances["poisson"] <= min(distances[best] + 0.005, CLOSE):
        best = "poisson"
    return candidates[best], Fit(what=f"gaps (cv {cv:.3g})", kind=best, distance=distances[best])


def _gaps_distance(gaps: Sequence[float], load: OpenLoop) -> float:
    drawn = list(islice(offsets_ns(load, random.Random(1)), _GAPS + 1))  # noqa: S311 - an estimate, the same each time
    return sample_distance(sorted(gaps), sorted(float(later - sooner) for sooner, later in pairwise(drawn)))


# --- prefixes -------------------------------------------------------------------------------------


def known_of(rows: Sequence[TraceRow], block_tokens: int) -> int:
    """Prompt tokens of recorded requests that an unlimited prefix cache would have had."""
    starts = [0]
    blocks: list[int] = []
    for row in rows:
        blocks.extend(row.blocks)
        starts.append(len(blocks))
    prompts = [row.prompt_tokens for row in rows]
    return known_tokens(ReplayRows([], prompts, [], starts, blocks), block_tokens)


def _prefix(rows: Sequence[TraceRow], block_tokens: int) -> SharedPrefix | None:
    """As many groups as first blocks, each as long as what a request found known on average."""
    known = known_of(rows, block_tokens)
    if known < _SHARED_FROM * sum(row.prompt_tokens for row in rows):
        return None
    groups = len({row.blocks[0] for row in rows if row.blocks})
    return SharedPrefix(groups=groups, tokens=max(1, round(known / len(rows))))


def _fitted_known_ratio(classes: Sequence[TrafficClass]) -> float:
    shared = total = 0.0
    for one in classes:
        prompt = Sampler(one.prompt.lengths)
        drawn = [prompt.draw(_Even(k)) for k in range(0, _GRID, 4)]
        prefix = 0 if one.prompt.shared_prefix is None else one.prompt.shared_prefix.tokens
        shared += one.weight * fmean(min(prefix, tokens) for tokens in drawn)
        total += one.weight * fmean(drawn)
    return shared / total
