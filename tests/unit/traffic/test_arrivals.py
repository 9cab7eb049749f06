"""Arrivals agree with theory: gaps, variation, expected counts and courses, with fixed seeds."""

import math
import random
from collections.abc import Callable, Iterator
from itertools import islice, pairwise, takewhile
from statistics import fmean, pstdev

import pytest
from kolmogorov import critical_distance, distance

from tokswarm.traffic.arrivals import gamma_draw, mean_rate_per_s, offsets_ns, weibull_shape
from tokswarm.traffic.plan import BurstCycle, OpenLoop, RateSegment

RAMP = OpenLoop(rate_per_s=21, arrivals="poisson", course=[RateSegment(100, 2, 40)])
STEPS = OpenLoop(rate_per_s=20, arrivals="poisson", course=[RateSegment(20, 30, 30), RateSegment(40, 15, 15)])
BURSTS = OpenLoop(rate_per_s=10, arrivals="poisson", bursts=BurstCycle(5, 20, 4, 0.25))
SILENT = OpenLoop(rate_per_s=10, arrivals="poisson", bursts=BurstCycle(5, 20, 5, 0))


def load(arrivals: str, rate_per_s: float = 50, cv: float | None = None) -> OpenLoop:
    return OpenLoop(rate_per_s=rate_per_s, arrivals=arrivals, cv=cv)


def until(one: OpenLoop, end_s: float, seed: int = 0) -> list[int]:
    return list(takewhile(lambda ns: ns < end_s * 1e9, offsets_ns(one, random.Random(seed))))


def gaps_s(offsets: list[int]) -> list[float]:
    return [(later - sooner) / 1e9 for sooner, later in pairwise(offsets)]


def weibull_cdf(cv: float, mean: float) -> Callable[[float], float]:
    shape = weibull_shape(cv)
    scale = mean / math.gamma(1 + 1 / shape)
    return lambda x: 1 - math.exp(-((x / scale) ** shape))


def gamma_cdf(cv: float, mean: float) -> Callable[[float], float]:
    """The regularised incomplete gamma function by its series: slow, and good enough for an oracle."""
    shape = 1 / cv**2

    def cdf(x: float) -> float:
        z = shape * x / mean
        if z <= 0:
            return 0.0
        if z > 60 + 20 * shape:
            return 1.0
        term = total = 1 / shape
        k = 1
        while term > 1e-15 * total:
            term *= z / (shape + k)
            total += term
            k += 1
        return min(1.0, total * math.exp(shape * math.log(z) - z - math.lgamma(shape)))

    return cdf


def test_constant_arrivals_are_multiples_of_the_gap_without_drift() -> None:
    offsets = list(islice(offsets_ns(load("constant", 3.0), random.Random(1)), 3_000_001))
    assert offsets[:4] == [0, 333_333_333, 666_666_667, 1_000_000_000]
    assert offsets[-1] == 1_000_000 * 10**9


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("arrivals", "cv", "cdf"),
    [
        pytest.param("poisson", None, lambda x: 1 - math.exp(-x * 50), id="poisson"),
        pytest.param("gamma", 0.5, gamma_cdf(0.5, 0.02), id="gamma-even"),
        pytest.param("gamma", 1.0, lambda x: 1 - math.exp(-x * 50), id="gamma-as-poisson"),
        pytest.param("gamma", 4.0, gamma_cdf(4.0, 0.02), id="gamma-clustered"),
        pytest.param("weibull", 0.5, weibull_cdf(0.5, 0.02), id="weibull-even"),
        pytest.param("weibull", 3.0, weibull_cdf(3.0, 0.02), id="weibull-clustered"),
    ],
)
def test_gaps_are_of_the_asked_kind(arrivals: str, cv: float | None, cdf: Callable[[float], float], seed: int) -> None:
    gaps = gaps_s(list(islice(offsets_ns(load(arrivals, 50, cv), random.Random(seed)), 8001)))
    # A gap of the clustered kinds is often shorter than the nanosecond to which due times are rounded.
    assert distance(gaps, cdf, above=1e-7) < critical_distance(8000, alpha=0.001)


@pytest.mark.parametrize("arrivals", ["gamma", "weibull"])
@pytest.mark.parametrize("cv", [0.1, 0.5, 2.0, 4.0])
def test_gaps_have_the_asked_variation_and_rate(arrivals: str, cv: float) -> None:
    gaps = gaps_s(list(islice(offsets_ns(load(arrivals, 50, cv), random.Random(7)), 150_001)))
    assert fmean(gaps) == pytest.approx(0.02, rel=4 * cv / math.sqrt(150_000))
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.06)


@pytest.mark.parametrize(
    ("arrivals", "cv"), [("poisson", None), ("gamma", 4.0), ("gamma", 0.4), ("weibull", 3.0), ("weibull", 0.4)]
)
def test_the_expected_number_is_exact_from_the_first_second_on(arrivals: str, cv: float | None) -> None:
    counts = [len(until(load(arrivals, 5, cv), 4, seed)) for seed in range(4000)]
    # Of a gamma process begun with a whole gap of cv 4 there would be 27 or so, begun with an arrival 14.
    assert fmean(counts) == pytest.approx(20, abs=4 * pstdev(counts) / math.sqrt(len(counts)))


def test_poisson_arrivals_in_a_second_vary_as_much_as_their_mean() -> None:
    counts = [0] * 2000
    for offset in until(load("poisson", 20), 2000, seed=11):
        counts[offset // 10**9] += 1
    assert pstdev(counts) ** 2 / fmean(counts) == pytest.approx(1.0, abs=0.1)


def test_gamma_draws_have_mean_and_variance_of_their_shape() -> None:
    rng = random.Random(3)
    for shape in (0.0625, 0.7, 1.0, 9.0):
        draws = [gamma_draw(shape, rng) for _ in range(60_000)]
        assert fmean(draws) == pytest.approx(shape, rel=0.06)
        assert pstdev(draws) ** 2 == pytest.approx(shape, rel=0.1)


@pytest.mark.parametrize("cv", [0.02, 0.1, 0.5, 1.0, 3.0, 20.0])
def test_the_shape_of_a_weibull_distribution_gives_its_variation(cv: float) -> None:
    shape = weibull_shape(cv)
    ratio = math.exp(math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape))
    assert math.sqrt(ratio - 1) == pytest.approx(cv, rel=1e-6)


def test_the_same_seed_gives_the_same_arrivals_and_another_does_not() -> None:
    for one in (load("poisson"), load("gamma", cv=3.0), load("weibull", cv=2.0), RAMP, BURSTS):
        first, again, other = (list(islice(offsets_ns(one, random.Random(seed)), 50)) for seed in (1, 1, 2))
        assert first == again != other
        assert first == sorted(first)


# --- courses --------------------------------------------------------------------------------------


def ramp_mass(t: float) -> float:
    return 2 * t + 38 * t * t / 200


def steps_mass(t: float) -> float:
    turns, rest = divmod(t, 60)
    return turns * 1200 + min(rest, 20) * 30 + max(rest - 20, 0) * 15


def bursts_mass(t: float) -> float:
    turns, rest = divmod(t, 25)
    return turns * 250 + min(rest, 5) * 40 + max(rest - 5, 0) * 2.5


def silent_mass(t: float) -> float:
    turns, rest = divmod(t, 25)
    return turns * 250 + min(rest, 5) * 50


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("one", "mass", "length_s"),
    [
        pytest.param(RAMP, ramp_mass, 100, id="ramp"),
        pytest.param(STEPS, steps_mass, 180, id="steps-over-again"),
        pytest.param(BURSTS, bursts_mass, 250, id="bursts"),
        pytest.param(SILENT, silent_mass, 250, id="bursts-with-silence"),
    ],
)
def test_arrivals_of_a_course_are_spread_as_its_rate(
    one: OpenLoop, mass: Callable[[float], float], length_s: float, seed: int
) -> None:
    offsets = [ns / 1e9 for ns in until(one, length_s, seed)]
    total = mass(length_s)
    assert len(offsets) == pytest.approx(total, abs=4 * math.sqrt(total))
    assert distance(offsets, lambda t: mass(t) / total) < critical_distance(len(offsets), alpha=0.001)
    assert mean_rate_per_s(one, length_s) * length_s == pytest.approx(total, rel=1e-9)


def simpson(rate: Callable[[float], float], end: float) -> float:
    steps = 2000
    return sum(rate((k + 0.5) * end / steps) for k in range(steps)) * end / steps


def test_constant_gaps_on_a_ramp_fall_where_its_integral_is_a_whole_number() -> None:
    ramp = OpenLoop(rate_per_s=21, arrivals="constant", course=[RateSegment(100, 2, 40)])
    offsets = until(ramp, 100)
    assert len(offsets) == 2100
    for k in (0, 1, 700, 2099):
        assert simpson(lambda t: 2 + 0.38 * t, offsets[k] / 1e9) == pytest.approx(k, abs=1e-5)


def test_a_falling_ramp_ends_where_it_should() -> None:
    falling = OpenLoop(rate_per_s=5, arrivals="constant", course=[RateSegment(10, 10, 0)])
    offsets = until(falling, 10)
    assert len(offsets) == 50
    assert offsets == sorted(offsets)
    assert offsets[25] / 1e9 == pytest.approx(10 - math.sqrt(50), abs=1e-6)


def test_the_variation_of_gaps_is_kept_when_the_rate_changes() -> None:
    clustered = OpenLoop(rate_per_s=10, arrivals="gamma", cv=2.0, bursts=BurstCycle(500, 1500, 3, 1 / 3))
    offsets = until(clustered, 20_000, seed=5)
    inside = [gap for gap, at in zip(gaps_s(offsets), offsets, strict=False) if at / 1e9 % 2000 < 490]
    assert pstdev(inside) / fmean(inside) == pytest.approx(2.0, rel=0.05)
    assert 1 / fmean(inside) == pytest.approx(30, rel=0.05)


def test_long_courses_do_not_drift() -> None:
    pulse = OpenLoop(rate_per_s=10, arrivals="constant", bursts=BurstCycle(0.1, 0.2, 3, 0))
    offsets: Iterator[int] = offsets_ns(pulse, random.Random(1))
    last = next(islice(offsets, 299_997, None))
    assert last == pytest.approx(99_999 * 0.3e9, abs=100_000_000)
