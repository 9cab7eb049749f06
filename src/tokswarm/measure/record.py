"""One finished request, as the client saw it: the value every later stage reads.

Times ending in `_ns` are monotonic integers of one worker and mean nothing on another host;
`sent_unix_ns` alone places the request in time.
"""

import enum
from array import array

import msgspec


class Outcome(enum.StrEnum):
    """How a request ended; definitions in docs/metrics.md#outcomes."""

    OK = "ok"
    HTTP_ERROR = "http_error"
    RATE_LIMITED = "rate_limited"
    CONTEXT_LENGTH = "context_length"
    IN_BAND_ERROR = "in_band_error"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    TIMEOUT = "timeout"
    RESET = "reset"
    TLS = "tls"
    PROTOCOL = "protocol"
    CLIENT_LIMIT = "client_limit"
    ABORTED = "aborted"
    LOST = "lost"


class TokenSource(enum.StrEnum):
    """Where a count of output tokens comes from; CHUNKS is an estimate."""

    USAGE = "usage"
    CONTINUOUS_USAGE = "continuous_usage"
    CHUNKS = "chunks"


class QueueWaitSource(enum.StrEnum):
    """Who measured a queue wait."""

    SERVER = "server"
    ESTIMATED = "estimated"


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False, array_like=True, tag="r1"):
    """One finished request. Fields are only ever appended: the record log keeps them by position."""

    request_id: int
    """Unique in the run: worker index << 40 | sequence."""
    slot: int
    """Unique among the worker's requests in flight at one time; keeps database points apart."""
    class_name: str
    stage: str
    target: str
    outcome: Outcome
    planned_ns: int
    """When it was due; in a closed loop, when its user became free."""
    sent_ns: int
    """When the first byte of the request was handed to the kernel (of the try that counts)."""
    sent_unix_ns: int
    """`sent_ns` on the wall clock of the worker."""
    done_ns: int
    headers_ns: int | None = None
    """Arrival of the response head; None: none came."""
    first_token_ns: int | None = None
    """Arrival of the first token of any kind with text; None: none came."""
    first_output_ns: int | None = None
    """Arrival of the first token that is not reasoning; None: none came."""
    last_token_ns: int | None = None
    connect_ms: float | None = None
    """Time to open the connection; None: a kept one was used."""
    status: int | None = None
    error: str | None = None
    """What went wrong, short, secrets removed; None for ok."""
    served_by: str | None = None
    prompt_tokens_planned: int = 0
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    output_tokens: int = 0
    output_tokens_source: TokenSource = TokenSource.CHUNKS
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens the server took from its prefix cache; None: the server does not say."""
    ideal_cached_tokens: int | None = None
    """Prompt tokens an unlimited cache would have had; None: not known to the generator."""
    queue_wait_ms: float | None = None
    queue_wait_source: QueueWaitSource | None = None
    finish_reason: str | None = None
    slo_met: bool | None = None
    """Met every per-request limit of its class; None: the class has no limits."""
    merged_arrivals: int = 0
    """Arrivals that shared a read, and so a stamp, with the arrival before them."""
    unstamped_arrivals: int = 0
    """Arrivals stamped by the user clock because the kernel gave no stamp."""
    arrivals: bytes = b""
    """int64, native order: ns from `sent_ns` to each token arrival."""
    arrival_tokens: bytes = b""
    """uint32, native order: tokens in each arrival; empty: one each."""
    coalesced: bool = False
    """Something between delivered the tokens in a few bursts: TTFT and ITL say nothing of the server."""
    retry_after_ms: float | None = None
    """How long the server asks to wait."""
    processing_ms: float | None = None
    """The server's or gateway's own time by its headers; of a stream, to the head."""
    remaining_requests: int | None = None
    """Left of the server's rate limit."""
    remaining_tokens: int | None = None
    session: int | None = None
    """Number of its session, unique in its stage; None: it belongs to none."""
    turn: int | None = None
    """Which turn of the session it is, from 1."""
    model: str | None = None
    """Which model the answer says it is from; None: it does not say."""
    fell_back: bool | None = None
    """A gateway between says that another provider or model than the first took it; None: nobody says."""
    token_share: float | None = None
    """Share of the requests whose tokens go into the database as points, drawn by id; None: no budget, all of them."""

    @property
    def ttft_ms(self) -> float | None:
        """Sent to first token, ms (docs/metrics.md#ttft)."""
        return None if self.first_token_ns is None else (self.first_token_ns - self.sent_ns) / 1e6

    @property
    def ttfo_ms(self) -> float | None:
        """Sent to first token that is not reasoning, ms (docs/metrics.md#ttfo)."""
        return None if self.first_output_ns is None else (self.first_output_ns - self.sent_ns) / 1e6

    @property
    def e2e_ms(self) -> float:
        """Sent to done, ms (docs/metrics.md#e2e)."""
        return (self.done_ns - self.sent_ns) / 1e6

    @property
    def schedule_lag_ms(self) -> float:
        """Actual minus planned start, ms, without opening a connection (docs/metrics.md#schedule-lag)."""
        since_due_ms = (self.sent_ns - self.planned_ns) / 1e6
        return since_due_ms if self.connect_ms is None else since_due_ms - self.connect_ms

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per output token after the first arrival, ms (docs/metrics.md#tpot); None below two tokens."""
        if self.first_token_ns is None or self.last_token_ns is None:
            return None
        counts = self.token_counts()
        if not counts:
            return None
        rest = self.output_tokens - counts[0]
        return (self.last_token_ns - self.first_token_ns) / rest / 1e6 if rest > 0 else None

    def arrival_offsets_ns(self) -> "array[int]":
        """Time from `sent_ns` to each token arrival."""
        offsets = array("q")
        offsets.frombytes(self.arrivals)
        return offsets

    def token_counts(self) -> "array[int]":
        """Tokens in each arrival; their sum is `output_tokens` when any token arrived."""
        counts = array("I")
        if self.arrival_tokens:
            counts.frombytes(self.arrival_tokens)
            return counts
        return array("I", [1]) * (len(self.arrivals) // 8)
