"""A seeded order has every number once."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokswarm.traffic.permutation import Permutation


@settings(max_examples=50)
@given(st.integers(1, 700), st.integers(0, 2**64 - 1))
def test_every_number_comes_once(count: int, seed: int) -> None:
    order = Permutation(count, seed)
    assert sorted(order.at(place) for place in range(count)) == list(range(count))


def test_the_order_is_another_one_for_another_seed_and_none_that_is_seen() -> None:
    one, other = ([Permutation(1000, seed).at(place) for place in range(1000)] for seed in (1, 2))
    assert one == [Permutation(1000, 1).at(place) for place in range(1000)]
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 10
    assert sum(abs(a - b) == 1 for a, b in pairwise(one)) < 10


def test_a_place_outside_is_refused() -> None:
    with pytest.raises(ValueError, match="place is 5, expected 0 to 4"):
        Permutation(5, 1).at(5)
    with pytest.raises(ValueError, match="count is 0, expected at least 1"):
        Permutation(0, 1)
