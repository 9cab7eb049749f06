"""Histograms keep durations within 0.8 % and merge without loss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokswarm.measure import histogram

durations = st.integers(0, 2**53 - 1)


@given(durations)
def test_a_bucket_holds_its_value_and_stands_for_it_within_the_stated_error(value_ns: int) -> None:
    index = histogram.bucket_of(value_ns)
    low, high = histogram.bucket_bounds_ns(index)
    assert low <= value_ns < high
    assert abs(histogram.bucket_middle_ns(index) - value_ns) <= value_ns / 128
    assert index < histogram.BUCKET_COUNT


@given(durations, durations)
def test_buckets_keep_the_order_of_values(first_ns: int, second_ns: int) -> None:
    low, high = sorted((first_ns, second_ns))
    assert histogram.bucket_of(low) <= histogram.bucket_of(high)


@given(st.lists(durations), st.lists(durations))
def test_merging_equals_counting_everything_together(left: list[int], right: list[int]) -> None:
    def counted(values: list[int]) -> histogram.Buckets:
        made = histogram.Histogram()
        for value in values:
            made.add(value)
        return made.buckets()

    assert histogram.merge([counted(left), counted(right)]) == counted(left + right)


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=50), st.floats(0, 1))
def test_a_quantile_is_within_the_stated_error_of_the_sorted_values(values: list[int], q: float) -> None:
    made = histogram.Histogram()
    for value in values:
        made.add(value)
    exact_ms = next(v for i, v in enumerate(sorted(values), 1) if i / len(values) >= q) / 1e6
    got_ms = histogram.quantile_ms(made.buckets(), q)
    assert got_ms == pytest.approx(exact_ms, rel=1 / 128)


def test_nothing_counted_has_no_quantile_and_no_mean() -> None:
    assert histogram.quantile_ms({}, 0.5) is None
    assert histogram.mean_ms({}) is None


def test_a_quantile_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 0 to 1"):
        histogram.quantile_ms({5: 1}, 99)


def test_taking_hands_over_and_starts_again() -> None:
    made = histogram.Histogram()
    made.add(1_000_000, weight=3)
    assert histogram.total(made.take()) == 3
    assert made.take() == {}


def test_coarse_buckets_count_every_value_once() -> None:
    made = histogram.Histogram()
    for value_ms in (0.5, 1.5, 1.6, 70_000):
        made.add(int(value_ms * 1e6))
    counts = histogram.le_counts(made.buckets())
    assert (counts[0], counts[1], counts[-1], sum(counts)) == (1, 2, 1, 4)


def test_a_duration_beyond_the_last_bucket_counts_in_it() -> None:
    assert histogram.bucket_of(2**60) == histogram.BUCKET_COUNT - 1
