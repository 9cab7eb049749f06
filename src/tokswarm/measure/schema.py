"""The database schema: each measurement, tag and field declared once, with type, unit and meaning.

Line protocol, boards, documentation and their tests read this table. Tags are few and low in
cardinality; ids and texts are fields; a field never changes its type.
"""

import enum
from typing import NamedTuple

from tokswarm.measure.histogram import LE_BOUNDS_MS


class FieldType(enum.StrEnum):
    """How a field is written; fixed for the life of the schema."""

    INTEGER = "integer"
    FLOAT = "float"
    TEXT = "text"


class Field(NamedTuple):
    """One field of a measurement."""

    name: str
    type: FieldType
    unit: str
    meaning: str


class Measurement(NamedTuple):
    """One measurement: what a point of it stands for, its tags and its fields."""

    name: str
    point: str
    tags: tuple[str, ...]
    fields: tuple[Field, ...]


_I, _F, _T = FieldType.INTEGER, FieldType.FLOAT, FieldType.TEXT
_QUANTILES = ("p50", "p90", "p99")


def _percentiles(name: str, what: str, quantiles: tuple[str, ...] = _QUANTILES) -> tuple[Field, ...]:
    return tuple(Field(f"{name}_{q}_ms", _F, "ms", f"{q[1:]}th percentile of {what}") for q in quantiles)


def le_names(prefix: str) -> tuple[str, ...]:
    """Field names of the coarse buckets of one histogram, in the order of `histogram.le_counts`."""
    return (*(f"{prefix}_le_{bound}ms" for bound in LE_BOUNDS_MS), f"{prefix}_le_inf")


def _le_fields(prefix: str) -> tuple[Field, ...]:
    return tuple(
        Field(name, _I, "", f"count in this bucket of {prefix} alone (not cumulative)") for name in le_names(prefix)
    )


TOKEN = Measurement(
    "llm_token",
    "token arrival (arrivals of one request within 10 µs are one point)",
    ("run", "worker", "class"),
    (
        Field("itl_us", _I, "µs", "gap to the arrival before; absent on a request's first"),
        Field("n", _I, "tokens", "tokens in this arrival; their sum over a run is its output tokens"),
        Field("index", _I, "tokens", "tokens of the request that came before this arrival"),
        Field("request", _I, "", "id of the request"),
        Field("share", _F, "ratio", "share of the requests that have their tokens here; absent without a budget"),
    ),
)

REQUEST = Measurement(
    "llm_request",
    "finished request",
    ("run", "worker", "class", "stage", "target", "outcome"),
    (
        Field("request", _I, "", "id of the request, unique in the run"),
        Field("ttft_ms", _F, "ms", "sent to first token"),
        Field("ttfo_ms", _F, "ms", "sent to first token that is not reasoning"),
        Field("tpot_ms", _F, "ms", "mean time per output token after the first arrival"),
        Field("e2e_ms", _F, "ms", "sent to done"),
        Field("headers_ms", _F, "ms", "sent to response head"),
        Field("connect_ms", _F, "ms", "time to open the connection; absent when one was kept"),
        Field("schedule_lag_ms", _F, "ms", "actual minus planned start, without connect_ms"),
        Field("queue_wait_ms", _F, "ms", "wait before the server took the request up"),
        Field("queue_wait_source", _T, "", "server or estimated"),
        Field("prompt_tokens", _I, "tokens", "prompt tokens as the server counted them"),
        Field("prompt_tokens_planned", _I, "tokens", "prompt tokens the mix asked for"),
        Field("max_tokens", _I, "tokens", "limit on output tokens sent with the request"),
        Field("output_tokens", _I, "tokens", "output tokens"),
        Field("output_tokens_source", _T, "", "usage, or chunks (an estimate)"),
        Field("reasoning_tokens", _I, "tokens", "of them reasoning"),
        Field("cached_tokens", _I, "tokens", "prompt tokens served from the prefix cache"),
        Field("ideal_cached_tokens", _I, "tokens", "prompt tokens an unlimited cache would have had"),
        Field("slo_met", _I, "", "1 met every limit of its class, 0 did not; absent without limits"),
        Field("status", _I, "", "HTTP status"),
        Field("error", _T, "", "what went wrong, short"),
        Field("served_by", _T, "", "replica or provider named by the response"),
        Field("retry_after_ms", _F, "ms", "how long the server asks to wait"),
        Field("processing_ms", _F, "ms", "the server's or gateway's own time by its headers"),
        Field("remaining_requests", _I, "requests", "left of the server's rate limit"),
        Field("remaining_tokens", _I, "tokens", "left of the server's rate limit"),
        Field("finish_reason", _T, "", "as the server said"),
        Field("merged_arrivals", _I, "", "arrivals that shared a read with the one before"),
        Field("session", _I, "", "number of its session in the stage; absent outside sessions"),
        Field("turn", _I, "", "which turn of the session it is, from 1"),
        Field(
            "share", _F, "ratio", "share of the requests that have their tokens in llm_token; absent without a budget"
        ),
        Field("sampled", _I, "", "1 its tokens are in llm_token, 0 they are not; absent without a budget"),
        Field("itls_us", _T, "µs", "all gaps of the request: base64 of zlib of int64, the first from sent"),
    ),
)

WINDOW = Measurement(
    "llm_window",
    "worker × class × stage × second",
    ("run", "worker", "class", "stage"),
    (
        Field("started", _I, "requests", "sent"),
        Field("offered", _I, "requests", "due"),
        Field("dropped", _I, "requests", "due and never sent"),
        Field("abandoned_turns", _I, "requests", "never sent, as an earlier turn of their session failed"),
        Field("late", _I, "requests", "sent more than 10 ms late"),
        Field("finished", _I, "requests", "ended, whatever the outcome"),
        Field("failed", _I, "requests", "ended with an outcome other than ok"),
        Field("in_flight", _I, "requests", "sent, not done, at the end of the second"),
        Field("output_tokens", _I, "tokens", "arrived"),
        Field("prompt_tokens", _I, "tokens", "of requests that ended ok"),
        Field("cached_tokens", _I, "tokens", "served from the prefix cache"),
        Field("ideal_cached_tokens", _I, "tokens", "an unlimited cache would have had"),
        *_le_fields("ttft"),
        *_le_fields("itl"),
        *_le_fields("e2e"),
    ),
)

FLEET = Measurement(
    "llm_fleet",
    "class (and _all) × stage × second, merged by the master",
    ("run", "class", "stage"),
    (
        Field("workers", _I, "", "workers whose window is in it"),
        Field("output_tok_per_s", _I, "tokens/s", "output tokens that arrived"),
        Field("prompt_tok_per_s", _I, "tokens/s", "prompt tokens of requests that ended ok"),
        Field("offered_per_s", _I, "requests/s", "due"),
        Field("started_per_s", _I, "requests/s", "sent (achieved rate)"),
        Field("finished_per_s", _I, "requests/s", "ended, whatever the outcome"),
        Field("failed_per_s", _I, "requests/s", "ended with an outcome other than ok"),
        Field("rate_limited_per_s", _I, "requests/s", "refused with 429"),
        Field("in_flight", _I, "requests", "sent, not done"),
        Field("dropped", _I, "requests", "due and never sent"),
        Field("abandoned_turns", _I, "requests", "never sent, as an earlier turn of their session failed"),
        Field("late", _I, "requests", "sent more than 10 ms late"),
        Field("goodput_per_s", _I, "requests/s", "met the limits of their class"),
        Field("goodput_ratio", _F, "ratio", "share that met the limits of their class"),
        Field("cached_ratio", _F, "ratio", "share of prompt tokens served from the prefix cache"),
        Field("ideal_cached_ratio", _F, "ratio", "the share an unlimited cache would have had"),
        *_percentiles("ttft", "time to first token"),
        *_percentiles("itl", "gap between token arrivals"),
        *_percentiles("e2e", "sent to done"),
        Field("e2e_mean_ms", _F, "ms", "mean of sent to done (W of Little's law)"),
        *_percentiles("queue_wait", "queue wait as the server reports it"),
        Field("schedule_lag_p99_ms", _F, "ms", "99th percentile of actual minus planned start"),
        Field("run_second", _I, "s", "since the first second of the run: the axis on which two runs are compared"),
        Field("ttft_limit_ms", _F, "ms", "the class's limit on time to first token; absent without one, and for _all"),
        Field("itl_limit_ms", _F, "ms", "its limit on the gap between token arrivals"),
        Field("e2e_limit_ms", _F, "ms", "its limit on sent to done"),
    ),
)

WORKER = Measurement(
    "llm_worker",
    "worker × second",
    ("run", "worker"),
    (
        Field("loop_lag_p99_ms", _F, "ms", "99th percentile of how late the worker's own 5 ms timer was"),
        Field("loop_lag_max_ms", _F, "ms", "the longest such lag"),
        Field("cpu_ratio", _F, "ratio", "CPU time per wall time, 1 = one core"),
        Field("schedule_lag_p99_ms", _F, "ms", "99th percentile of actual minus planned start"),
        Field("in_flight", _I, "requests", "sent, not done"),
        Field("sockets", _I, "", "open connections to the target"),
        Field("rss_bytes", _I, "bytes", "resident memory"),
        Field("log_bytes", _I, "bytes", "record log so far"),
        Field("log_lost", _I, "records", "could not be written to the record log, so far"),
        Field("log_removed", _I, "requests", "removed from the record log to make room, once delivered, so far"),
        Field("sink_backlog_bytes", _I, "bytes", "logged, not yet in the database"),
        Field("reads", _I, "", "socket reads that brought tokens"),
        Field("merged_arrivals", _I, "", "token arrivals that shared a read with the one before"),
        Field("unstamped_arrivals", _I, "", "token arrivals without a kernel stamp"),
    ),
)

SERVER = Measurement(
    "llm_server",
    "replica of the target × scrape of its metrics, a second apart; rates and waits are of the time since the last one",
    ("run", "target", "replica"),
    (
        Field("up", _I, "", "1 the metrics were read, 0 they were not: then nothing else is known"),
        Field("engine", _T, "", "what the server is, by the names of its metrics: vllm, sglang, tgi, …"),
        Field("version", _T, "", "its version; absent when it does not say"),
        Field("scrape_ms", _F, "ms", "how long it took to read the metrics"),
        Field("running", _I, "requests", "in the server's batch"),
        Field("waiting", _I, "requests", "in the server's queue"),
        Field("paused", _I, "requests", "set aside: swapped out, paused or retracted"),
        Field("kv_use_ratio", _F, "ratio", "KV cache in use; cached blocks that nobody uses count as free"),
        Field("kv_capacity_tokens", _I, "tokens", "size of the KV cache"),
        Field("hit_ratio", _F, "ratio", "share of prompt tokens (or blocks) that came from the prefix cache"),
        Field("prompt_tok_per_s", _F, "tokens/s", "prompt tokens taken up, cached ones included"),
        Field("cached_tok_per_s", _F, "tokens/s", "of them from the prefix cache"),
        Field("generation_tok_per_s", _F, "tokens/s", "tokens generated"),
        Field("recomputed_tok_per_s", _F, "tokens/s", "computed again, as they had been given up before"),
        Field("preemptions_per_s", _F, "1/s", "requests that had to give their KV blocks back"),
        Field("evictions_per_s", _F, "1/s", "cached KV blocks given up for other use (vLLM: of those it samples)"),
        Field("evicted_tok_per_s", _F, "tokens/s", "cached tokens given up, where the server counts tokens"),
        Field("finished_per_s", _F, "requests/s", "ended well"),
        Field("aborted_per_s", _F, "requests/s", "ended by their client or the server"),
        Field("failed_per_s", _F, "requests/s", "ended with an error"),
        Field("rejected_per_s", _F, "requests/s", "not taken, as a limit was reached"),
        Field("queue_wait_mean_ms", _F, "ms", "mean wait in the server's queue, of requests it observed since"),
        *_percentiles("queue_wait", "that wait, within the bounds of the server's buckets"),
        Field("ttft_mean_ms", _F, "ms", "mean time to first token as the server sees it"),
        *_percentiles("ttft", "that time, within the bounds of the server's buckets"),
        Field("prefill_mean_ms", _F, "ms", "mean time from the queue to the first token"),
        Field("replicas_ready", _I, "", "replicas that a gateway has"),
    ),
)

EVENT = Measurement(
    "llm_event",
    "event",
    ("run", "kind"),
    (
        Field("title", _T, "", "one line"),
        Field("text", _T, "", "what happened"),
        Field("end_ms", _I, "ms since 1970", "when it ended; absent for an instant"),
    ),
)

MEASUREMENTS = (TOKEN, REQUEST, WINDOW, FLEET, WORKER, SERVER, EVENT)
