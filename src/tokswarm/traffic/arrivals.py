"""When requests are due in an open loop: endless ascending offsets in ns from the start of the stage.

Two steps. A *renewal process* of mean rate 1 gives positions S_0 < S_1 < … with gaps of the asked kind
and variation. A *course* λ(t), made of straight pieces, stretches them: the k-th arrival is due at
Λ⁻¹(S_k), where Λ(t) = ∫₀ᵗ λ. So a Poisson process stays one at any course, and the variation of the
others is kept at any rate.

The first gap comes from the distribution of the rest of a gap that is under way when the stage begins.
Then the expected number of arrivals up to t is exactly Λ(t); begun with a whole gap (or with an arrival),
a process of cv 4 would send about 7.5 requests more or fewer than its rate says. Constant gaps begin at 0.
"""

import math
import random
from collections.abc import Callable, Iterator
from itertools import count

from tokswarm.traffic.plan import BurstCycle, OpenLoop, RateSegment

SMALLEST_CV, LARGEST_CV = 0.02, 20.0
"""Of gaps: below they are equal, beyond nearly all arrivals fall together."""


def offsets_ns(load: OpenLoop, rng: random.Random) -> Iterator[int]:
    """The schedule of a load; endless."""
    positions = _positions(load, rng)
    if load.course is None and load.bursts is None:
        scale_ns = 1e9 / load.rate_per_s
        return (round(position * scale_ns) for position in positions)
    return _stretched(positions, pieces(load))


def mean_rate_per_s(load: OpenLoop, duration_s: float) -> float:
    """Mean of the course over the first `duration_s`: what is expected to come, exactly."""
    if duration_s <= 0:
        return load.rate_per_s
    total = 0.0
    for start_s, piece in pieces(load):
        if start_s >= duration_s:
            break
        total += _mass(piece, min(piece.duration_s, duration_s - start_s))
    return total / duration_s


# --- gaps -----------------------------------------------------------------------------------------


def _positions(load: OpenLoop, rng: random.Random) -> Iterator[float]:
    """Arrivals of mean rate 1."""
    match load.arrivals:
        case "constant":
            return map(float, count())
        case "poisson":
            gap = _exponential(rng)
            return _summed(gap(), gap)
        case "gamma" if load.cv is not None:
            return _gamma_positions(load.cv, rng)
        case "weibull" if load.cv is not None:
            return _weibull_positions(load.cv, rng)
    raise ValueError(f"there are no arrivals of the kind {load.arrivals!r} with cv {load.cv}")


def _summed(first: float, gap: Callable[[], float]) -> Iterator[float]:
    position = first
    while True:
        yield position
        position += gap()


def _exponential(rng: random.Random) -> Callable[[], float]:
    return lambda: -math.log(1.0 - rng.random())


def _gamma_positions(cv: float, rng: random.Random) -> Iterator[float]:
    """Gaps of shape 1/cv² and mean 1; the gap under way at the start is drawn by its length: shape + 1."""
    shape = cv**-2
    first = rng.random() * gamma_draw(shape + 1, rng) / shape
    return _summed(first, lambda: gamma_draw(shape, rng) / shape)


def _weibull_positions(cv: float, rng: random.Random) -> Iterator[float]:
    """Gaps of mean 1; the gap under way at the start, drawn by its length, is a power of a gamma draw."""
    shape = weibull_shape(cv)
    scale = 1 / math.gamma(1 + 1 / shape)
    first = rng.random() * scale * gamma_draw(1 + 1 / shape, rng) ** (1 / shape)
    exponential = _exponential(rng)
    return _summed(first, lambda: scale * exponential() ** (1 / shape))


def weibull_shape(cv: float) -> float:
    """The shape k whose distribution has this variation: Γ(1 + 2/k) / Γ(1 + 1/k)² = 1 + cv²."""
    wanted = math.log1p(cv * cv)
    low, high = 0.05, 100.0 / min(cv, 1.0)
    for _ in range(200):
        middle = math.sqrt(low * high)
        if math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle) > wanted:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def gamma_draw(shape: float, rng: random.Random) -> float:
    """One draw of the gamma distribution of scale 1, by Marsaglia and Tsang (2000), from `random()` alone.

    Only that method of the generator is promised to stay the same in every version of Python, and all
    workers of a fleet must draw the same schedule.
    """
    if shape < 1:
        return gamma_draw(shape + 1, rng) * math.pow(1.0 - rng.random(), 1 / shape)
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    while True:
        x = math.sqrt(-2 * math.log(1.0 - rng.random())) * math.cos(2 * math.pi * rng.random())
        v = (1 + c * x) ** 3
        if v > 0 and math.log(1.0 - rng.random()) < 0.5 * x * x + d - d * v + d * math.log(v):
            return d * v


# --- course ---------------------------------------------------------------------------------------


def pieces(load: OpenLoop) -> Iterator[tuple[float, RateSegment]]:
    """The straight pieces of a load's rate, bursts included, each with its start in s; endless."""
    course = load.course if load.course is not None else [RateSegment(math.inf, load.rate_per_s, load.rate_per_s)]
    bursts = _burst_pieces(load.bursts)
    burst_end_s, factor = next(bursts)
    at_s = 0.0
    for start_s, segment in _repeated(course):
        end_s = start_s + segment.duration_s
        while at_s < end_s:
            while burst_end_s <= at_s:
                burst_end_s, factor = next(bursts)
            until_s = min(end_s, burst_end_s)
            yield (
                at_s,
                RateSegment(
                    until_s - at_s,
                    factor * _rate_at(segment, at_s - start_s),
                    factor * _rate_at(segment, until_s - start_s),
                ),
            )
            at_s = until_s


def _repeated(course: list[RateSegment]) -> Iterator[tuple[float, RateSegment]]:
    """Each segment with its start, which is computed from the number of its round, so that rounding never adds up."""
    period_s = sum(segment.duration_s for segment in course)
    for turn in count():
        start_s = turn * period_s if turn else 0.0
        for segment in course:
            yield start_s, segment
            start_s += segment.duration_s


def _burst_pieces(bursts: BurstCycle | None) -> Iterator[tuple[float, float]]:
    """Ends and factors."""
    if bursts is None:
        yield math.inf, 1.0
        return
    period_s = bursts.on_s + bursts.off_s
    for turn in count():
        yield turn * period_s + bursts.on_s, bursts.on_factor
        yield (turn + 1) * period_s, bursts.off_factor


def _rate_at(segment: RateSegment, at_s: float) -> float:
    if math.isinf(segment.duration_s):
        return segment.from_per_s
    return segment.from_per_s + (segment.to_per_s - segment.from_per_s) * at_s / segment.duration_s


def _mass(piece: RateSegment, length_s: float) -> float:
    """∫λ over the first `length_s` of a piece."""
    end_per_s = _rate_at(piece, length_s)
    return (piece.from_per_s + end_per_s) / 2 * length_s


def _stretched(positions: Iterator[float], course: Iterator[tuple[float, RateSegment]]) -> Iterator[int]:
    start_s, piece = next(course)
    before, mass = 0.0, _mass(piece, piece.duration_s)
    for position in positions:
        while position >= before + mass:
            before += mass
            start_s, piece = next(course)
            mass = _mass(piece, piece.duration_s)
        yield round((start_s + _time_of(position - before, piece)) * 1e9)


def _time_of(mass: float, piece: RateSegment) -> float:
    """The x with ∫₀ˣ λ = mass: the root of rate·x + slope·x²/2, in the form that loses no digits."""
    rate = piece.from_per_s
    slope = 0.0 if math.isinf(piece.duration_s) else (piece.to_per_s - rate) / piece.duration_s
    if slope == 0:
        return mass / rate
    root = rate + math.sqrt(max(rate * rate + 2 * slope * mass, 0.0))
    return min(2 * mass / root, piece.duration_s) if root > 0 else 0.0
