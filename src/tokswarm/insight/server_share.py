"""What each replica or provider served of a stage, where the responses name it.

Counts are of whole requests of the stage, warm-up and end included: a replica that joins late has few.
"""

import msgspec
import polars as pl

from tokswarm.insight.percentiles import percentiles
from tokswarm.measure.record import Outcome


class ServerShare(msgspec.Struct, frozen=True, kw_only=True):
    """One server's part of a stage. Ratios are 0 to 1."""

    requests: int
    """Answered by it, whatever the outcome."""
    ok: int
    output_tokens: int
    ttft_p50_ms: float | None
    """Of requests that ended ok; None: none did."""
    cached_ratio: float | None
    """Cached share of the prompt tokens of requests that ended ok; None: the server does not say."""


def server_shares(rows: pl.DataFrame) -> dict[str, ServerShare]:
    """The servers that the responses of these requests name, most requests first; empty when none does."""
    named = rows.filter(pl.col("served_by").is_not_null())
    parts = {str(key[0]): part for key, part in named.group_by("served_by")}
    return {name: _share(part) for name, part in sorted(parts.items(), key=lambda item: (-len(item[1]), item[0]))}


def _share(part: pl.DataFrame) -> ServerShare:
    ok = part.filter(pl.col("outcome") == Outcome.OK.value)
    ttft = percentiles(ok["ttft_ms"])
    told = ok.filter(pl.col("cached_tokens").is_not_null() & pl.col("prompt_tokens").is_not_null())
    prompt_tokens = int(told["prompt_tokens"].sum())
    return ServerShare(
        requests=len(part),
        ok=len(ok),
        output_tokens=int(part["output_tokens"].sum()),
        ttft_p50_ms=None if ttft is None else ttft.p50,
        cached_ratio=round(int(told["cached_tokens"].sum()) / prompt_tokens, 4) if prompt_tokens else None,
    )
