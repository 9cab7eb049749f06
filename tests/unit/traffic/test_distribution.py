"""Draws agree with theory: quantiles, means and bounds, with fixed seeds."""

import math
import random
from collections import Counter
from collections.abc import Callable
from statistics import NormalDist, fmean, pstdev, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kolmogorov import critical_distance, whole_number_distance

from tokswarm.traffic.distribution import Sampler, Weighted
from tokswarm.traffic.mix import Distribution, Empirical, Exponential, Geometric, Lognormal, Normal, Uniform

LOGNORMAL_SIGMA = math.log(4142 / 1020) / NormalDist().inv_cdf(0.99)
HISTOGRAM = Empirical(edges=[10, 20, 100, 101, 501], weights=[3, 0, 2, 5])


def draws(distribution: Distribution, count: int = 20_000, seed: int = 5) -> list[int]:
    rng = random.Random(seed)
    sampler = Sampler(distribution)
    return [sampler.draw(rng) for _ in range(count)]


def lognormal_by_moments(x: float) -> float:
    variance = math.log(1 + (150 / 200) ** 2)
    return NormalDist(math.log(200) - variance / 2, math.sqrt(variance)).cdf(math.log(x)) if x > 0 else 0.0


def histogram(k: int) -> float:
    """P(X ≤ k) of HISTOGRAM: 10…19 weigh 3, 100 weighs 2, 101…500 weigh 5."""
    return (3 * min(max(k - 9, 0), 10) / 10 + 2 * (k >= 100) + 5 * min(max(k - 100, 0), 400) / 400) / 10


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("distribution", "cdf"),
    [
        pytest.param(Distribution(fixed=42), lambda k: float(k >= 42), id="fixed"),
        pytest.param(Distribution(uniform=Uniform(low=3, high=70)), lambda k: min(max(k - 2, 0) / 68, 1), id="uniform"),
        pytest.param(
            Distribution(normal=Normal(mean=700, sd=80)), lambda k: NormalDist(700, 80).cdf(k + 0.5), id="normal"
        ),
        pytest.param(
            Distribution(lognormal=Lognormal(p50=1020, p99=4142)),
            lambda k: NormalDist(math.log(1020), LOGNORMAL_SIGMA).cdf(math.log(max(k, 0) + 0.5)),
            id="lognormal-by-quantiles",
        ),
        pytest.param(
            Distribution(lognormal=Lognormal(mean=200, sd=150)),
            lambda k: lognormal_by_moments(k + 0.5),
            id="lognormal-by-moments",
        ),
        pytest.param(
            Distribution(exponential=Exponential(mean=100)),
            lambda k: 1 - math.exp(-(k + 0.5) / 100) if k >= 1 else 0.0,
            id="exponential",
        ),
        pytest.param(
            Distribution(geometric=Geometric(mean=3)), lambda k: 1 - (2 / 3) ** k if k >= 1 else 0.0, id="geometric"
        ),
        pytest.param(
            Distribution(choice={5: 1, 7: 2, 1024: 1}),
            lambda k: 0.25 * (k >= 5) + 0.5 * (k >= 7) + 0.25 * (k >= 1024),
            id="choice",
        ),
        pytest.param(Distribution(empirical=HISTOGRAM), histogram, id="empirical"),
        pytest.param(
            Distribution(geometric=Geometric(mean=30), min=10, max=60),
            lambda k: 0.0 if k < 10 else 1.0 if k >= 60 else 1 - (29 / 30) ** k,
            id="geometric-within-bounds",
        ),
    ],
)
def test_draws_follow_their_distribution(distribution: Distribution, cdf: Callable[[int], float], seed: int) -> None:
    assert whole_number_distance(draws(distribution, 10_000, seed), cdf) < critical_distance(10_000, alpha=0.001)


def test_an_empirical_distribution_takes_both_ends_and_no_empty_bin() -> None:
    seen = Counter(draws(Distribution(empirical=HISTOGRAM), 40_000))
    assert min(seen) == 10
    assert max(seen) == 500
    assert not any(20 <= value < 100 for value in seen)
    assert seen[100] / 40_000 == pytest.approx(0.2, abs=0.01)


def test_a_geometric_distribution_of_mean_one_is_always_one() -> None:
    assert set(draws(Distribution(geometric=Geometric(mean=1)), 50)) == {1}


def test_fixed_is_always_the_same() -> None:
    assert set(draws(Distribution(fixed=42), 100)) == {42}


def test_uniform_takes_every_whole_number_alike_and_no_other() -> None:
    seen = Counter(draws(Distribution(uniform=Uniform(low=3, high=7))))
    assert sorted(seen) == [3, 4, 5, 6, 7]
    assert all(abs(count - 4000) < 4 * math.sqrt(4000) for count in seen.values())


def test_normal_has_its_mean_and_deviation() -> None:
    values = draws(Distribution(normal=Normal(mean=700, sd=80)))
    assert fmean(values) == pytest.approx(700, abs=3)
    assert pstdev(values) == pytest.approx(80, rel=0.02)


def test_lognormal_by_quantiles_has_them() -> None:
    values = draws(Distribution(lognormal=Lognormal(p50=1020, p99=4142)))
    percentiles = quantiles(values, n=100)
    assert percentiles[49] == pytest.approx(1020, rel=0.02)
    assert percentiles[98] == pytest.approx(4142, rel=0.05)


def test_lognormal_by_moments_has_them() -> None:
    values = draws(Distribution(lognormal=Lognormal(mean=200, sd=150)))
    assert fmean(values) == pytest.approx(200, rel=0.02)
    assert pstdev(values) == pytest.approx(150, rel=0.06)


def test_exponential_has_its_mean_and_tail() -> None:
    values = draws(Distribution(exponential=Exponential(mean=100)))
    assert fmean(values) == pytest.approx(100, rel=0.03)
    assert sum(value > 230 for value in values) / len(values) == pytest.approx(math.exp(-2.3), rel=0.1)


def test_choice_follows_its_weights() -> None:
    seen = Counter(draws(Distribution(choice={1024: 9, 4096: 1, 7: 0})))
    assert set(seen) == {1024, 4096}
    assert seen[4096] / 20_000 == pytest.approx(0.1, abs=0.01)


def test_bounds_take_what_is_beyond_them() -> None:
    values = draws(Distribution(normal=Normal(mean=10, sd=20), min=5, max=15))
    below = NormalDist(10, 20).cdf(5.5)
    assert (min(values), max(values)) == (5, 15)
    assert sum(value == 5 for value in values) / len(values) == pytest.approx(below, abs=0.02)


@given(
    st.one_of(
        st.builds(
            lambda mean, sd: Distribution(normal=Normal(mean=mean, sd=sd)), st.floats(0.1, 10), st.floats(0, 1e6)
        ),
        st.builds(lambda mean: Distribution(exponential=Exponential(mean=mean)), st.floats(1e-3, 1e12)),
        st.builds(lambda mean: Distribution(geometric=Geometric(mean=mean)), st.floats(1, 1e12)),
        st.just(Distribution(empirical=HISTOGRAM)),
        st.builds(
            lambda p50, ratio: Distribution(lognormal=Lognormal(p50=p50, p99=p50 * ratio)),
            st.floats(1e-3, 1e9),
            st.floats(1, 1e9),
        ),
    ),
    st.integers(0, 2**32),
)
def test_every_draw_is_a_whole_number_from_one_to_the_largest(distribution: Distribution, seed: int) -> None:
    sampler, rng = Sampler(distribution), random.Random(seed)
    for value in (sampler.draw(rng) for _ in range(20)):
        assert isinstance(value, int)
        assert 1 <= value <= 10_000_000


def test_each_draw_takes_one_number_of_the_stream() -> None:
    for distribution in (
        Distribution(fixed=1),
        Distribution(normal=Normal(mean=9, sd=4)),
        Distribution(choice={1: 1}),
        Distribution(geometric=Geometric(mean=2)),
        Distribution(empirical=HISTOGRAM),
    ):
        used, fresh = random.Random(3), random.Random(3)
        Sampler(distribution).draw(used)
        fresh.random()
        assert used.random() == fresh.random()


def test_weights_of_zero_are_never_drawn() -> None:
    rng = random.Random(1)
    weighted = Weighted([0, 2, 0, 6, 0])
    seen = Counter(weighted.draw(rng) for _ in range(8000))
    assert set(seen) == {1, 3}
    assert seen[1] / 8000 == pytest.approx(0.25, abs=0.02)
