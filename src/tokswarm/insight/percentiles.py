"""Exact percentiles of pooled values, weighted or not."""

import msgspec
import polars as pl


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution in three numbers; `count` is what they rest on (ITL: tokens, else requests)."""

    p50: float
    p90: float
    p99: float
    count: int


def percentiles(values: pl.Series, weights: pl.Series | None = None) -> Percentiles | None:
    """The percentiles of all values that are not null, each counted `weight` times; None when there is none.

    The p-th percentile is the smallest value that at least p % of the count do not exceed: always a
    value that occurred, and of few values the p99 is the largest (docs/metrics.md#percentiles).
    """
    if weights is None:
        weights = pl.repeat(1, len(values), dtype=pl.Int64, eager=True)
    table = pl.DataFrame({"value": values, "weight": weights}).filter(pl.col("value").is_not_null())
    table = table.filter(pl.col("weight") > 0).sort("value")
    if table.is_empty():
        return None
    reached = table["weight"].cum_sum()
    count = int(reached[-1])
    # Whole numbers: 0.9 * 70 is not 63 in every order of floating-point steps.
    ranks = (-(-pct * count // 100) for pct in (50, 90, 99))
    p50, p90, p99 = (table["value"][int(reached.search_sorted(rank, side="left"))] for rank in ranks)
    return Percentiles(p50=ms(p50), p90=ms(p90), p99=ms(p99), count=count)


def ms(value: float) -> float:
    """Milliseconds to the microsecond, which is what the stamps are good for."""
    return round(float(value), 3)
