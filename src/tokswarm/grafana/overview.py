"""The board to open first: is the endpoint fine, where does tok/s bend, and can the numbers be trusted."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from tokswarm.grafana import queries as q
from tokswarm.grafana.panels import COUNT, MS, RATIO, REQ_PER_S, TOK_PER_S, Overlay, board, heat, lines, number, rows

_CLASS_COLUMNS = [
    ('count("request")', "requests"),
    ('sum("output_tokens")', "output tokens"),
    *(
        (f'percentile("{metric}_ms", {percent})', f"{metric.upper()} p{percent}")
        for metric in ("ttft", "tpot", "e2e")
        for percent in (50, 99)
    ),
]

_NOW = (
    number(
        "Output tokens per second",
        TOK_PER_S,
        "Output tokens that reached the clients, whole fleet. If it stays flat while requests in flight grow, the"
        " endpoint is past its bend:"
        " look at tokens per second per request, then at the queue-wait and cache-churn boards.",
        q.rate("output_tok_per_s", "tok/s"),
        decimals=0,
    ),
    number(
        "Requests in flight",
        COUNT,
        "Requests sent and not yet done. In a closed loop it equals the concurrency of the stage; in an open loop a"
        " steady climb"
        " means that work arrives faster than it is finished.",
        q.rate("in_flight", "in flight"),
        decimals=0,
    ),
    number(
        "Failed share",
        RATIO,
        "Requests that did not end ok, of all that ended in the time range. Above 1 %, find the kind and the text in"
        " the section Errors"
        " before reading any latency: failed requests are quick and flatter the rest.",
        q.fleet_range([('sum("failed_per_s") * 1.0 / sum("finished_per_s")', "failed")]),
        thresholds=((None, "green"), (0.01, "orange"), (0.05, "red")),
    ),
    number(
        "TTFT p99",
        MS,
        "99th percentile of time to first token, all classes, newest second. When it rises alone, prompts wait for a"
        " place:"
        " see the queue-wait board. When it rises together with ITL, the steps themselves got slower.",
        q.percentiles("ttft", ["p99"], each_class=False, prefix="TTFT "),
    ),
    number(
        "Goodput share",
        RATIO,
        "Requests that met every limit of their class, of those whose class has limits, in the time range. This is"
        " the number to promise;"
        " below 99 % the load is more than the endpoint can serve as promised.",
        q.request_range([('sum("slo_met") * 1.0 / count("slo_met")', "within limits")]),
        thresholds=((None, "red"), (0.95, "orange"), (0.99, "green")),
        no_value="no limits set",
    ),
    number(
        "Generator lag p99",
        MS,
        "How late the load generators' own timers were, worst worker. Above 2 ms token stamps begin to suffer, above"
        " 10 ms the generator is"
        " the bottleneck: add workers or lower the load, and do not trust the seconds concerned.",
        q.workers([('max("loop_lag_p99_ms")', "loop lag p99")], each=False),
        thresholds=((None, "green"), (2, "orange"), (10, "red")),
    ),
)

_THROUGHPUT = (
    lines(
        "Output tokens per second against requests in flight",
        TOK_PER_S,
        "Aggregate tok/s (left) over the load that caused it (right, dashed). Where the dashed line climbs and the"
        " other does not, the curve bends;"
        " where tok/s falls at a steady load there is a cliff: compare its seconds with the cache-churn board.",
        q.rate("output_tok_per_s", "tok/s"),
        q.rate("in_flight", "in flight"),
        right=Overlay("in flight", COUNT),
    ),
    lines(
        "Output tokens per second by class",
        TOK_PER_S,
        "The same tokens by traffic class, stacked. A class that thins out while its requests are still sent is being"
        " crowded out by another one:"
        " compare max_tokens and prompt lengths of the two.",
        q.rate_by_class("output_tok_per_s", "tok/s"),
        stacked=True,
    ),
    lines(
        "Tokens per second per request in flight",
        TOK_PER_S,
        "What one user gets: output tok/s divided by requests in flight. It falls with batching even on a healthy"
        " server;"
        " a sudden step down at a steady load is interference, recompute or queueing.",
        q.seconds(
            [('"output_tok_per_s"', "t"), ('"in_flight"', "n")],
            [('mean("t") / mean("n")', "tok/s per request")],
            only='"n" > 0',
        ),
        width=8,
    ),
    lines(
        "Requests offered, sent and finished",
        REQ_PER_S,
        "Offered: due by the plan. Sent: started. Finished: ended, whatever the outcome. Sent below offered means the"
        " generator is late or full (section"
        " Load generator); finished below sent means that work piles up in the endpoint.",
        q.rate("offered_per_s", "offered"),
        q.rate("started_per_s", "sent"),
        q.rate("finished_per_s", "finished"),
        width=8,
    ),
    lines(
        "Requests finished by outcome",
        REQ_PER_S,
        "How requests ended, per second. rate_limited means load was shed on purpose; timeout, reset and truncated"
        " mean that the endpoint or something"
        " before it gave way: look for the texts in Last failures.",
        q.outcomes_per_second(),
        width=8,
        stacked=True,
        bars=True,
    ),
)

_SECONDS_NOTE = (
    " Each second's percentiles come from histograms merged over all workers;"
    " zoomed out, p50 is the middle second's and p90, p99 the worst second's."
)

_LATENCY = (
    lines(
        "Time to first token by class",
        MS,
        "Sent to first token."
        + _SECONDS_NOTE
        + " If p99 leaves p50 behind, some requests wait: see the queue-wait board.",
        q.percentiles("ttft", each_class=True),
    ),
    lines(
        "Gap between tokens (ITL) by class",
        MS,
        "Gap between token arrivals, each token counted."
        + _SECONDS_NOTE
        + " Spikes of p99 are decode steps held up by somebody's prefill:"
        " look for cache churn or for a class with long prompts.",
        q.percentiles("itl", each_class=True),
    ),
    heat(
        "Time to first token, distribution",
        "Requests by time to first token, each row a bucket up to the bound beside it. Two bands mean two"
        " populations: cached and not, or queued and not."
        " The second band widening is the queue building up.",
        "ttft",
    ),
    heat(
        "Gap between tokens, distribution",
        "Tokens by the gap before them, each row a bucket up to the bound beside it. The main band rising is the"
        " batch growing; a faint band far above it is"
        " decode stopped by prefill or preemption.",
        "itl",
    ),
    lines(
        "Whole request by class",
        MS,
        "Sent to done." + _SECONDS_NOTE + " It grows with answer length too: compare it only between runs of one mix.",
        q.percentiles("e2e", each_class=True),
    ),
    rows(
        "Classes in the time range",
        MS,
        "Requests that ended ok, exact percentiles from every request of the time range and stages chosen. Use this"
        " table for reports; choose one stage above"
        " to read one load.",
        q.request_table(_CLASS_COLUMNS, q.OK),
        units={"requests": COUNT, "output tokens": COUNT},
        hide_time=True,
    ),
)

_ERRORS = (
    lines(
        "Failed and rate-limited requests",
        REQ_PER_S,
        "Requests per second that did not end ok, and those of them refused with 429. Rate limiting alone: the limit"
        " is reached, read Retry-After;"
        " other failures: see the texts beside.",
        q.rate("failed_per_s", "failed"),
        q.rate("rate_limited_per_s", "rate limited"),
    ),
    rows(
        "Last failures",
        "none",
        "The newest 50 requests that did not end ok. One worker only: its machine or network; one class only: its"
        " prompts or limits; all: the endpoint.",
        q.last_failures(),
    ),
)

_GENERATOR = (
    lines(
        "Loop lag",
        MS,
        "How late each worker's own 5 ms timer was: 99th percentile and longest. Above one token interval the stamps"
        " of that second are merged;"
        " add workers, or move other work off the machine.",
        q.workers([('max("loop_lag_p99_ms")', "p99"), ('max("loop_lag_max_ms")', "longest")]),
        width=8,
    ),
    lines(
        "Schedule lag p99",
        MS,
        "Actual minus planned start of requests. Above 10 ms the load is not the planned one: the worker is short of"
        " CPU, or its bound on open"
        " requests is reached.",
        q.workers([('max("schedule_lag_p99_ms")', "p99")]),
        width=8,
    ),
    lines(
        "CPU of workers",
        RATIO,
        "CPU time per wall time, 100 % is one core, and a worker uses one. Above 80 % add a worker per free core"
        " before raising the load.",
        q.workers([('mean("cpu_ratio")', "CPU")]),
        width=8,
    ),
    lines(
        "Backlog and lost records",
        "bytes",
        "Records logged on the worker's disk and not yet in the database; and records that could not be logged at all"
        " (right). A growing backlog:"
        " the database is slow or away, nothing is lost. Any lost record: the worker's disk is full.",
        q.workers([('max("sink_backlog_bytes")', "backlog")]),
        q.workers([('max("log_lost")', "lost records")], each=False),
        width=8,
        right=Overlay("lost records", COUNT),
    ),
    lines(
        "Late and dropped arrivals",
        REQ_PER_S,
        "Requests sent more than 10 ms after they were due, and arrivals never sent because the worker's bound on"
        " open requests was reached."
        " Anything but zero belongs in the report: the endpoint saw less load than planned.",
        q.rate("late", "late"),
        q.rate("dropped", "dropped"),
        width=8,
    ),
    lines(
        "Merged token stamps",
        RATIO,
        "Token arrivals that shared a read, and so a stamp, with the one before, per read. Some are normal when the"
        " server sends tokens in pairs;"
        " a rise together with loop lag means the generator is too slow for this token rate.",
        q.workers([('sum("merged_arrivals") * 1.0 / sum("reads")', "merged")]),
        width=8,
    ),
    rows(
        "Events of the run",
        "none",
        "Stages, lost workers, trouble with the database, and the verdict: what the master wrote down. Read it before"
        " sharing numbers: a verdict"
        " of suspect or invalid names the seconds that do not count.",
        q.events_table(),
        width=24,
        height=7,
    ),
)


def overview() -> Dashboard:
    """Build the board."""
    return board(
        uid="tokswarm-overview",
        title="tokswarm: launch overview",
        description="An LLM endpoint under load, as its users see it: throughput, latency by class, errors, and whether"
        " the load generator can be trusted.",
        sections=(
            ("Now", _NOW),
            ("Throughput", _THROUGHPUT),
            ("Latency", _LATENCY),
            ("Errors", _ERRORS),
            ("Load generator", _GENERATOR),
        ),
        with_worker=True,
    )
