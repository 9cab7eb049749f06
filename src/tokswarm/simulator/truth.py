"""What truly happened to each request, for tests and for the curious: GET /sim/truth.

Kept for the latest requests only; `sequence` counts on without gaps, so what has been dropped is seen.
"""

from array import array
from collections import deque
from itertools import islice

import msgspec

from tokswarm.simulator.answers import OpenAnswer
from tokswarm.simulator.engine import Progress

MAX_REQUESTS = 20_000
MAX_TOKENS = 2_000_000
"""Bounds of what is kept; beyond, the oldest go."""
PAGE_REQUESTS = 500
"""Most lines in one answer."""


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """How a request came to the replica that served it."""

    model: str
    provider: str
    """The pool that answered."""
    replica: str
    arrival_ns: int
    """When the server received it; the engine counts from when the replica got it."""
    attempts: int = 1
    """Providers that were asked, the one that answered included."""
    priority: int = 0


class RequestTruth(msgspec.Struct, frozen=True, kw_only=True):
    """One request that ended. All `_ns` are of the server's monotonic clock, which local clients share."""

    sequence: int
    """Place in the order of ending, from 0."""
    id: str
    """The id in the response."""
    outcome: str
    """stop, length, or abort: the client left."""
    model: str
    provider: str
    replica: str
    attempts: int
    priority: int
    prompt_tokens: int
    output_tokens: int
    """Emitted; with an abort fewer than were due."""
    cached_tokens: int
    recomputed_tokens: int
    """Computed again after preemptions."""
    preemptions: int
    arrival_ns: int
    admitted_ns: int | None
    """Start of the first step that served it; None: it never came to one."""
    first_token_ns: int | None
    ended_ns: int
    """Last token, or when the client was seen to have left."""
    queue_ms: float | None
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
        self._kept.append(
            RequestTruth(
                sequence=self._next,
                id=answer.accepted.public_id,
                outcome=outcome,
                model=passage.model,
                provider=passage.provider,
                replica=passage.replica,
                attempts=passage.attempts,
                priority=passage.priority,
                prompt_tokens=request.prompt_tokens,
                output_tokens=len(stamps_ns),
                cached_tokens=progress.cached_tokens,
                recomputed_tokens=progress.recomputed_tokens,
                preemptions=progress.preemptions,
                arrival_ns=request.arrival_ns,
                admitted_ns=admitted_ns,
                first_token_ns=first_ns,
                ended_ns=ended_ns,
                queue_ms=None if admitted_ns is None else (admitted_ns - request.arrival_ns) / 1e6,
                prefill_ms=None if admitted_ns is None or first_ns is None else (first_ns - admitted_ns) / 1e6,
                emitted_ns=stamps_ns,
                due_ns=answer.due_ns,
            )
        )
        self._next += 1
        self._tokens += len(stamps_ns)
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
