"""Queue wait when the server does not report it: TTFT beyond what the same prompt takes unloaded.

    unloaded TTFT(x) = intercept + slope * x        x: prompt tokens that were not cached
    wait = max(0, TTFT - unloaded TTFT(x))

The line is a least-squares fit on the requests of the run's least loaded stage.
"""

import msgspec
import polars as pl

from tokswarm.measure.record import Outcome

UNLOADED_IN_FLIGHT_MAX = 4.0
"""A least loaded stage with more requests in flight queues itself; its TTFT is no base."""

FIT_REQUESTS_MIN = 5
"""Fewer requests than this make no line."""


class UnloadedTtft(msgspec.Struct, frozen=True, kw_only=True):
    """TTFT of an unloaded server as a line over uncached prompt tokens."""

    intercept_ms: float
    slope_ms_per_token: float
    requests: int
    """How many requests it was fitted on."""


UNCACHED_TOKENS = pl.coalesce("prompt_tokens", "prompt_tokens_planned") - pl.col("cached_tokens").fill_null(0)
"""Prompt tokens the server had to compute; all of them when it does not say what was cached."""


def fit_unloaded(requests: pl.DataFrame) -> UnloadedTtft | None:
    """Fit the line on requests of a stage that was not loaded; None when there are too few.

    A slope below 0 means that prompt length did not show; then the mean stands for all lengths.
    """
    points = requests.filter(
        pl.col("outcome") == Outcome.OK.value, ~pl.col("coalesced"), pl.col("ttft_ms").is_not_null()
    )
    if len(points) < FIT_REQUESTS_MIN:
        return None
    sums = points.select(x=UNCACHED_TOKENS.cast(pl.Float64), y="ttft_ms").select(
        x_mean=pl.col("x").mean(),
        y_mean=pl.col("y").mean(),
        xx=((pl.col("x") - pl.col("x").mean()) ** 2).sum(),
        xy=((pl.col("x") - pl.col("x").mean()) * (pl.col("y") - pl.col("y").mean())).sum(),
    )
    x_mean, y_mean, xx, xy = sums.row(0)
    slope = max(xy / xx, 0.0) if xx > 0 else 0.0
    return UnloadedTtft(intercept_ms=y_mean - slope * x_mean, slope_ms_per_token=slope, requests=len(points))


def estimated_wait_ms(fit: UnloadedTtft) -> pl.Expr:
    """The estimate for each request that has a TTFT; null for the others."""
    unloaded_ms = (fit.intercept_ms + fit.slope_ms_per_token * UNCACHED_TOKENS).clip(lower_bound=0.0)
    return (pl.col("ttft_ms") - unloaded_ms).clip(lower_bound=0.0)
