"""Arrivals come at the asked rate, evenly or as a Poisson process."""

import random
from itertools import islice, pairwise, takewhile
from statistics import fmean, pstdev

import pytest

from tokswarm.traffic.arrivals import constant_offsets_ns, poisson_offsets_ns


def test_constant_arrivals_are_multiples_of_the_gap_without_drift() -> None:
    offsets = list(islice(constant_offsets_ns(3.0), 3_000_001))
    assert offsets[:4] == [0, 333_333_333, 666_666_667, 1_000_000_000]
    assert offsets[-1] == 1_000_000 * 10**9


@pytest.mark.parametrize("seed", range(4))
def test_poisson_arrivals_have_the_rate_and_gaps_with_a_variation_of_one(seed: int) -> None:
    offsets = list(takewhile(lambda ns: ns < 400e9, poisson_offsets_ns(50.0, random.Random(seed))))
    gaps = [later - sooner for sooner, later in pairwise(offsets)]
    assert len(offsets) / 400 == pytest.approx(50, rel=0.03)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1.0, abs=0.03)
    assert offsets == sorted(offsets)


def test_poisson_arrivals_in_a_second_vary_as_much_as_their_mean() -> None:
    offsets = list(takewhile(lambda ns: ns < 2000e9, poisson_offsets_ns(20.0, random.Random(11))))
    counts = [0] * 2000
    for offset in offsets:
        counts[offset // 10**9] += 1
    assert pstdev(counts) ** 2 / fmean(counts) == pytest.approx(1.0, abs=0.1)


def test_the_same_seed_gives_the_same_arrivals_and_another_does_not() -> None:
    first, again, other = (list(islice(poisson_offsets_ns(5.0, random.Random(seed)), 50)) for seed in (1, 1, 2))
    assert first == again != other
