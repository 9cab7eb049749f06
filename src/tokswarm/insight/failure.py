"""What went wrong most often, in the words of the server: a count of failures does not say what to mend."""

import msgspec
import polars as pl

from tokswarm.measure.record import Outcome

KEPT = 3
"""Different texts kept of a stage."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which requests failed."""

    outcome: str
    error: str
    """The whole text, secrets removed."""
    count: int


def common_failures(requests: pl.DataFrame) -> tuple[Failure, ...]:
    """The most frequent errors of a group of requests, most frequent first."""
    failed = requests.filter(pl.col("outcome") != Outcome.OK.value, pl.col("error").is_not_null())
    counts = failed.group_by("outcome", "error").len(name="count")
    most = counts.sort("count", "outcome", "error", descending=[True, False, False]).head(KEPT)
    return tuple(Failure(**row) for row in most.iter_rows(named=True))
