import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokswarm.insight.percentiles import percentiles
from tokswarm.measure.histogram import Histogram, quantile_ms

values_ms = st.floats(0.001, 1e6).map(lambda value: round(value, 3))


@pytest.mark.parametrize(
    ("values", "p50", "p90", "p99"),
    [
        pytest.param([7.0], 7.0, 7.0, 7.0, id="one-value-is-every-percentile"),
        pytest.param([2.0, 1.0], 1.0, 2.0, 2.0, id="two"),
        pytest.param([float(i) for i in range(1, 11)], 5.0, 9.0, 10.0, id="p99-of-ten-is-the-largest"),
        pytest.param([float(i) for i in range(1, 101)], 50.0, 90.0, 99.0, id="a-hundred"),
        pytest.param([float(i) for i in range(1, 71)], 35.0, 63.0, 70.0, id="nine-tenths-of-seventy"),
    ],
)
def test_a_percentile_is_the_smallest_value_that_the_share_does_not_exceed(
    values: list[float], p50: float, p90: float, p99: float
) -> None:
    got = percentiles(pl.Series(values))
    assert got is not None
    assert (got.p50, got.p90, got.p99, got.count) == (p50, p90, p99, len(values))


def test_weights_count_a_value_that_many_times() -> None:
    got = percentiles(pl.Series([10.0, 30.0]), pl.Series([1, 2]))
    assert got is not None
    assert (got.p50, got.count) == (30.0, 3)


def test_nothing_has_no_percentiles() -> None:
    assert percentiles(pl.Series([], dtype=pl.Float64)) is None
    assert percentiles(pl.Series([None, None], dtype=pl.Float64)) is None
    assert percentiles(pl.Series([5.0]), pl.Series([0])) is None


def test_nulls_do_not_count() -> None:
    got = percentiles(pl.Series([None, 4.0, None]))
    assert got is not None
    assert (got.p50, got.count) == (4.0, 1)


@given(st.lists(st.tuples(values_ms, st.integers(0, 5)), min_size=1, max_size=40))
def test_weighting_equals_repeating(pairs: list[tuple[float, int]]) -> None:
    weighted = percentiles(pl.Series([v for v, _ in pairs]), pl.Series([w for _, w in pairs]))
    repeated = percentiles(pl.Series([v for v, w in pairs for _ in range(w)], dtype=pl.Float64))
    assert weighted == repeated


@given(st.lists(values_ms, min_size=1, max_size=60), st.integers(1, 59))
def test_pooled_percentiles_do_not_depend_on_order_or_on_how_records_were_split(values: list[float], cut: int) -> None:
    halves = pl.concat([pl.Series(values[cut:], dtype=pl.Float64), pl.Series(values[:cut], dtype=pl.Float64)])
    assert percentiles(halves) == percentiles(pl.Series(values))


@given(st.lists(values_ms, min_size=1, max_size=200))
def test_the_live_histogram_is_at_most_one_rank_and_its_error_below(values: list[float]) -> None:
    live = Histogram()
    for value in values:
        live.add(round(value * 1e6))
    exact = percentiles(pl.Series(values))
    assert exact is not None
    ordered = sorted(values)
    for q, reported in ((0.5, exact.p50), (0.9, exact.p90), (0.99, exact.p99)):
        seen = quantile_ms(live.buckets(), q)
        assert seen is not None
        at = ordered.index(reported)
        near = ordered[max(at - 1, 0) : at + 1]
        assert any(seen == pytest.approx(value, rel=1 / 64) for value in near)
