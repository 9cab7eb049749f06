"""What a worker saw in one second: counters and mergeable histograms per class and stage, and its own health."""

import msgspec

from tokswarm.measure.histogram import Buckets


class WindowRow(msgspec.Struct, kw_only=True, array_like=True):
    """One class in one stage in one second. Counts are of that second; `in_flight` is at its end."""

    class_name: str
    stage: str
    started: int = 0
    """Requests sent."""
    offered: int = 0
    """Requests that were due (open loop) or whose user was free (closed loop)."""
    dropped: int = 0
    """Arrivals that were due and never sent: too many requests were open, or the stage had ended a second before."""
    late: int = 0
    """Requests sent more than 10 ms after they were due."""
    finished: dict[str, int] = msgspec.field(default_factory=dict)
    """Outcome to count."""
    in_flight: int = 0
    output_tokens: int = 0
    """Tokens that arrived in this second, whole stage or not, plus what `usage` corrected at the end of a request."""
    prompt_tokens: int = 0
    """Prompt tokens of requests that ended ok, as the server counted them."""
    cached_tokens: int = 0
    """Prompt tokens served from the cache, of the requests whose server says so."""
    cache_known_prompt_tokens: int = 0
    """Prompt tokens of the requests whose server says how many were cached."""
    ideal_cached_tokens: int = 0
    """Prompt tokens an unlimited cache would have had, of the same requests."""
    slo_met: int = 0
    slo_known: int = 0
    """Requests that ended, of classes with limits (failed ones did not meet them)."""
    ttft: Buckets = msgspec.field(default_factory=dict)
    itl: Buckets = msgspec.field(default_factory=dict)
    """Gaps between token arrivals, each counted once: how many tokens one brought is known at the end only."""
    e2e: Buckets = msgspec.field(default_factory=dict)
    queue_wait: Buckets = msgspec.field(default_factory=dict)
    """As the server reported it per request; empty when it does not."""
    schedule_lag: Buckets = msgspec.field(default_factory=dict)
    asked_prompt_tokens: int = 0
    """Planned prompt tokens of the requests sent."""
    asked_max_tokens: int = 0
    """The most tokens that the requests sent may be answered with."""
    open_max_tokens: int = 0
    """The same of all requests in flight at the second's end, what has come of them already included."""
    abandoned_turns: int = 0
    """Turns that were never sent, because an earlier one of their session failed."""


class Window(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="w1"):
    """One worker's second. `sequence` counts from 0 without gaps, so a missing window is seen."""

    worker: str
    second_unix: int
    sequence: int
    rows: list[WindowRow]


class WorkerSecond(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="h1"):
    """How the worker itself did in one second: the grounds of a run's verdict."""

    worker: str
    second_unix: int
    loop_lag_p99_ms: float
    loop_lag_max_ms: float
    cpu_ratio: float
    """CPU time of the process per second of wall time, 1 = one core."""
    schedule_lag_p99_ms: float | None
    """None: nothing was sent in this second."""
    in_flight: int
    sockets: int
    rss_bytes: int
    log_bytes: int
    """Size of the record log so far."""
    log_lost: int
    """Records that could not be written to the log, so far."""
    sink_backlog_bytes: int
    """Logged, not yet delivered to the database; 0 without one."""
    sink_error: str
    """Why the last write failed; empty when it did not."""
    reads: int
    """Socket reads that brought tokens."""
    merged_arrivals: int
    """Token arrivals that shared a read with the one before."""
    unstamped_arrivals: int
    log_removed: int = 0
    """Requests removed from the log to make room, so far: they are in the database, and in no report."""


class FleetSecond(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="f1"):
    """One second of the whole fleet for one class, or for all (`class_name` is `_all`)."""

    second_unix: int
    class_name: str
    stage: str
    workers: int
    """Workers whose window is in it."""
    output_tok_per_s: int
    prompt_tok_per_s: int
    offered_per_s: int
    started_per_s: int
    finished: dict[str, int]
    """Outcome to requests that ended so in this second."""
    in_flight: int
    dropped: int
    late: int
    goodput_per_s: int | None
    """Requests that met the limits of their class; None: no class has limits."""
    goodput_ratio: float | None
    cached_ratio: float | None
    """Share of prompt tokens from the cache; None: the server does not say, or nothing ended."""
    ideal_cached_ratio: float | None
    ttft_p50_ms: float | None = None
    ttft_p90_ms: float | None = None
    ttft_p99_ms: float | None = None
    itl_p50_ms: float | None = None
    itl_p90_ms: float | None = None
    itl_p99_ms: float | None = None
    e2e_p50_ms: float | None = None
    e2e_p90_ms: float | None = None
    e2e_p99_ms: float | None = None
    e2e_mean_ms: float | None = None
    queue_wait_p50_ms: float | None = None
    queue_wait_p90_ms: float | None = None
    queue_wait_p99_ms: float | None = None
    schedule_lag_p99_ms: float | None = None
    abandoned_turns: int = 0
    """Turns that were never sent, because an earlier one of their session failed."""
    run_second: int | None = None
    """Seconds since the first one of the run, so that two runs can be laid over each other."""
    ttft_limit_ms: float | None = None
    """The class's limit on time to first token; None: it has none, or these are all classes."""
    itl_limit_ms: float | None = None
    e2e_limit_ms: float | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="e1"):
    """Something that happened in a run and belongs on every graph: a stage, a lost worker, a cliff."""

    unix_ns: int
    kind: str
    title: str
    text: str
    end_unix_ns: int | None = None


ALL_CLASSES = "_all"
