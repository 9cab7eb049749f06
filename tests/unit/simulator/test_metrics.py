"""The counts behind /metrics."""

import pytest

from tokswarm.simulator.metrics import BoundedHistogram


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        pytest.param(0.0, [1, 1, 1], id="below"),
        pytest.param(0.5, [1, 1, 1], id="at-a-bound-belongs-to-it"),
        pytest.param(0.51, [0, 1, 1], id="above-a-bound"),
        pytest.param(7.0, [0, 0, 1], id="beyond-all"),
    ],
)
def test_value_counts_in_every_bucket_whose_bound_it_does_not_exceed(value: float, counts: list[int]) -> None:
    histogram = BoundedHistogram((0.5, 2.0))
    histogram.observe(value)
    assert histogram.cumulative() == list(zip(("0.5", "2.0", "+Inf"), counts, strict=True))
    assert histogram.sum == value
