"""Answers that came from elsewhere: a gateway fell back to another provider, or another model answered.

What a gateway says counts (`fell_back`). Where the answer names a model, it also counts when that is neither the one
that was asked for, in whatever version, nor the one that usually answers, which may be its other name.
"""

import re
from collections import Counter
from collections.abc import Iterable

import msgspec
import polars as pl

from tokswarm.insight.figures import percent

SHOWN = 3
"""Names of servers or models in a sentence."""


class Fallbacks(msgspec.Struct, frozen=True, kw_only=True):
    """How many answers came from elsewhere, and from where."""

    requests: int
    known: int
    """Answers that name their model, or whose gateway says whether it fell back."""
    servers: dict[str, int]
    """Who answered instead, where the responses say so, most requests first."""
    models: dict[str, int]
    """Which models answered instead of the one asked for."""

    def line(self, whose: str) -> str:
        """For people; `whose`: the target, or empty."""
        names = [*self.servers, *(name for name in self.models if name not in self.servers)]
        by = f", by {', '.join(names[:SHOWN])}" if names else ""
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        of = f" of target {whose}" if whose else ""
        share = percent(self.requests / self.known)
        return f"fallback: {share} of the answers{of} came from another provider or model than asked for{by}{more}"


def is_version_of(answered: str, asked: str) -> bool:
    """Whether both names are of one model: path and case aside, the answer may add a date or a number."""
    answered, asked = (name.rpartition("/")[2].lower() for name in (answered, asked))
    return re.fullmatch(re.escape(asked) + r"([-@:.v]+\d[\d.-]*)?", answered) is not None


def usual_model(rows: pl.DataFrame, asked: str) -> str:
    """The model that answers of one target usually name: that which was asked for, else the most frequent."""
    counts = rows["model"].drop_nulls().value_counts().sort(["count", "model"], descending=[True, False])
    named = counts["model"].to_list()
    if not named or any(is_version_of(each, asked) for each in named):
        return asked
    return str(named[0])


def fallbacks(rows: pl.DataFrame, usual: str) -> Fallbacks | None:
    """Of the requests of one target; None: no answer says anything of it."""
    known = rows.filter(pl.col("model").is_not_null() | pl.col("fell_back").is_not_null())
    if known.is_empty():
        return None
    others = [name for name in known["model"].drop_nulls().unique() if not is_version_of(name, usual)]
    other_model = pl.col("model").is_in(others).fill_null(False)
    fell = known.filter(pl.col("fell_back").fill_null(False) | other_model)
    return Fallbacks(
        requests=len(fell),
        known=len(known),
        servers=_counts(fell["served_by"]),
        models=_counts(fell.filter(other_model)["model"]),
    )


def pooled(parts: Iterable[Fallbacks | None]) -> Fallbacks | None:
    """Several together; None: none of them says anything."""
    told = [part for part in parts if part is not None]
    if not told:
        return None
    return Fallbacks(
        requests=sum(part.requests for part in told),
        known=sum(part.known for part in told),
        servers=_added(part.servers for part in told),
        models=_added(part.models for part in told),
    )


def _added(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total.most_common())


def _counts(names: pl.Series) -> dict[str, int]:
    counts = names.drop_nulls().value_counts()
    return {str(name): int(count) for name, count in sorted(counts.iter_rows(), key=lambda row: (-row[1], row[0]))}
