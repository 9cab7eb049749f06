"""Exact percentiles of pooled values, weighted or not, by the same rank rule as the live histograms."""

import math

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

    The q-quantile is the value at rank floor(q * (count - 1)), from 0, in sorted order: always a
    value that occurred (docs/metrics.md#percentiles).
    """
    if weights is None:
        ordered = values.drop_nulls().sort()
        if ordered.is_empty():
            return None
        count = len(ordered)
        p50, p90, p99 = (ordered[math.floor(q * (count - 1))] for q in (0.5, 0.9, 0.99))
        return Percentiles(p50=ms(p50), p90=ms(p90), p99=ms(p99), count=count)
    table = pl.DataFrame({"value": values, "weight": weights}).filter(pl.col("value").is_not_null())
    table = table.filter(pl.col("weight") > 0).sort("value")
    if table.is_empty():
        return None
    reached = table["weight"].cum_sum()
    count = int(reached[-1])
    places = (int(reached.search_sorted(math.floor(q * (count - 1)) + 1, side="left")) for q in (0.5, 0.9, 0.99))
    p50, p90, p99 = (table["value"][place] for place in places)
    return Percentiles(p50=ms(p50), p90=ms(p90), p99=ms(p99), count=count)


def ms(value: float) -> float:
    """Milliseconds to the microsecond, which is what the stamps are good for."""
    return round(float(value), 3)
