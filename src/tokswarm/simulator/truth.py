"""What truly happened to each request, for tests and for the curious: GET /sim/truth.

Kept for the latest requests only; `sequence` counts on without gaps, so what has been dropped is seen.
"""

from array import array
from collections import deque
from itertools import islice

import msgspec

from tokswarm.simulator.answers import Accepted, OpenAnswer
from tokswarm.simulator.engine import Progress

MAX_REQUESTS = 20_000
MAX_TOKENS = 2_000_000
"""Bounds of what is kept; beyond, the oldest go."""
PAGE_REQUESTS = 500
"""Most lines in one answer."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A provider that did not take a request."""

    provider: str
    status: int


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """How a request came to the replica that served it, or that none did."""

    model: str
    provider: str
    """The one that took it; else the last that was asked."""
    replica: str | None
    """None: no replica took it."""
    arrival_ns: int
    """When the server received it."""
    refused: tuple[Refused, ...] = ()
    """Who refused it before, in order."""
    priority: int = 0


class RequestTruth(msgspec.Struct, frozen=True, kw_only=True):
    """One request that ended. All `_ns` are of the server's monotonic clock, which local clients share."""

    sequence: int
    """Place in the order of ending, from 0."""
    id: str
    """The id in the response."""
    outcome: str
    """stop, length, abort: the client left, or rejected: no provider took it."""
    status: int | None
    """Of the response; None: none was sent."""
    model: str
    provider: str
    """Who took it; when nobody did, the last that was asked."""
    replica: str | None
    """None: no replica took it."""
    refused: tuple[Refused, ...]
    """Providers that refused it and with which status, in order; each was an attempt."""
    priority: int
    prompt_tokens: int
    output_tokens: int
    """Emitted; with an abort fewer than were due."""
    cached_tokens: int
    recomputed_tokens: int
    """Computed again after preemptions."""
    preemptions: int
    arrival_ns: int
    """When the server had received it."""
    routed_ns: int | None
    """When a replica got it, after the latency of every provider on its way; None: none did."""
    admitted_ns: int | None
    """Start of the first step that served it; None: it never came to one."""
    first_token_ns: int | None
    ended_ns: int
    """Last token, or when the client was seen to have left."""
    queue_ms: float | None
    """routed_ns to admitted_ns."""
    prefill_ms: float | None
    emitted_ns: "array[int]"
    """When each token was written to the socket; without a stream, when it was ready."""
    due_ns: "array[int]"
    """When the model wanted each token out."""


class TruthLog:
    """The latest requests that ended."""

    def __init__(self) -> None:
        self._kept: deque[RequestTruth] = deque()
        self._tokens = 0
        self._next = 0

    def add(self, progress: Progress, answer: OpenAnswer, passage: Passage, *, outcome: str, ended_ns: int) -> None:
        """Keep a request that ended."""
        request, stamps_ns = progress.request, answer.stamps_ns
        admitted_ns = progress.admitted_ns
        first_ns = stamps_ns[0] if stamps_ns else None
        self._keep(
            RequestTruth(
                sequence=self._next,
                id=answer.accepted.public_id,
                outcome=outcome,
                status=200 if outcome != "abort" or answer.exchange.streaming else None,
                model=passage.model,
                provider=passage.provider,
                replica=passage.replica,
                refused=passage.refused,
                priority=passage.priority,
                prompt_tokens=request.prompt_tokens,
                output_tokens=len(stamps_ns),
                cached_tokens=progress.cached_tokens,
                recomputed_tokens=progress.recomputed_tokens,
                preemptions=progress.preemptions,
                arrival_ns=passage.arrival_ns,
                routed_ns=request.arrival_ns,
                admitted_ns=admitted_ns,
                first_token_ns=first_ns,
                ended_ns=ended_ns,
                queue_ms=None if admitted_ns is None else (admitted_ns - request.arrival_ns) / 1e6,
                prefill_ms=None if admitted_ns is None or first_ns is None else (first_ns - admitted_ns) / 1e6,
                emitted_ns=stamps_ns,
                due_ns=answer.due_ns,
            )
        )

    def add_unserved(
        self, accepted: Accepted, passage: Passage, *, outcome: str, status: int | None, ended_ns: int
    ) -> None:
        """Keep a request that no replica took."""
        self._keep(
            RequestTruth(
                sequence=self._next,
                id=accepted.public_id,
                outcome=outcome,
                status=status,
                model=passage.model,
                provider=passage.provider,
                replica=None,
                refused=passage.refused,
                priority=passage.priority,
                prompt_tokens=accepted.prompt_tokens,
                output_tokens=0,
                cached_tokens=0,
                recomputed_tokens=0,
                preemptions=0,
                arrival_ns=passage.arrival_ns,
                routed_ns=None,
                admitted_ns=None,
                first_token_ns=None,
                ended_ns=ended_ns,
                queue_ms=None,
                prefill_ms=None,
                emitted_ns=array("q"),
                due_ns=array("q"),
            )
        )

    def _keep(self, row: RequestTruth) -> None:
        self._kept.append(row)
        self._next += 1
        self._tokens += row.output_tokens
        while len(self._kept) > MAX_REQUESTS or self._tokens > MAX_TOKENS:
            self._tokens -= self._kept.popleft().output_tokens

    def lines(self, since: int) -> bytes:
        """JSON lines of the requests from `since` on, at most PAGE_REQUESTS: ask again from the last + 1."""
        if not self._kept:
            return b""
        skip = max(0, since - self._kept[0].sequence)
        return msgspec.json.Encoder(enc_hook=_as_list).encode_lines(islice(self._kept, skip, skip + PAGE_REQUESTS))


def _as_list(value: object) -> list[int]:
    if isinstance(value, array):
        return value.tolist()
    raise NotImplementedError(f"{type(value)} has no JSON form")
