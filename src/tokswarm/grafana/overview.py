"""The board to open first, one screen: are we fine, where does tok/s bend, and can the numbers be trusted."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from tokswarm.grafana import queries as q
from tokswarm.grafana.frame import Section, board
from tokswarm.grafana.panels import (
    COUNT,
    MS,
    RATIO,
    REQ_PER_S,
    TOK_PER_S,
    WORDS,
    Curve,
    Overlay,
    lines,
    number,
    plane,
    rows,
    word,
)

_NOW = (
    word(
        "Verdict",
        "What the master thinks of the run's numbers, said when it ends. Suspect or invalid: the reasons and the"
        " seconds concerned are in Events of the run; do not share latencies of those seconds.",
        q.verdict(),
        column="verdict",
        colors={"the run is valid": "green", "the run is suspect": "orange", "the run is invalid": "red"},
        no_value="not yet",
        width=3,
    ),
    number(
        "Output tokens per second",
        TOK_PER_S,
        "Output tokens that reached the clients, whole fleet. If it stays flat while requests in flight grow, the"
        " endpoint is past its bend:"
        " look at tokens per second per request, then at the queue-wait and cache-churn boards.",
        q.rate("output_tok_per_s", "tok/s"),
        decimals=0,
        width=3,
    ),
    number(
        "Requests in flight",
        COUNT,
        "Requests sent and not yet done. In a closed loop it equals the concurrency of the stage; in an open loop a"
        " steady climb means that work arrives faster than it is finished.",
        q.rate("in_flight", "in flight"),
        decimals=0,
        width=3,
    ),
    number(
        "TTFT p99",
        MS,
        "99th percentile of time to first token, all classes, newest second. When it rises alone, prompts wait for a"
        " place: see the queue-wait board. When it rises together with ITL, the steps themselves got slower.",
        q.percentiles("ttft", ["p99"], each_class=False, prefix="TTFT "),
        width=3,
    ),
    number(
        "Goodput share",
        RATIO,
        "Requests that met every limit of their class, of those whose class has limits, in the time range. This is"
        " the number to promise; below 99 % the load is more than the endpoint can serve as promised.",
        q.request_range([('sum("slo_met") * 1.0 / count("slo_met")', "within limits")]),
        thresholds=((None, "red"), (0.95, "orange"), (0.99, "green")),
        no_value="no limits set",
        width=3,
    ),
    number(
        "Failed share",
        RATIO,
        "Requests that did not end ok, of all that ended in the time range. Above 1 %, find the kind and the text in"
        " Last failures before reading any latency: failed requests are quick and flatter the rest.",
        q.fleet_range([('sum("failed_per_s") * 1.0 / sum("finished_per_s")', "failed")]),
        thresholds=((None, "green"), (0.01, "orange"), (0.05, "red")),
        width=3,
    ),
    number(
        "Cached share",
        RATIO,
        "Prompt tokens the server took from its prefix cache, of all prompt tokens, in the time range. Far below what"
        " the mix repeats: the cache is too small for its prefixes, see the cache-churn board.",
        q.request_range([(q.OBSERVED, "cached")], q.OK, q.CACHE_KNOWN),
        no_value="not reported",
        width=3,
    ),
    number(
        "Generator lag p99",
        MS,
        "How late the load generators' own timers were, worst worker. Above 2 ms token stamps begin to suffer, above"
        " 10 ms the generator is the bottleneck: add workers or lower the load, and do not trust the seconds"
        " concerned.",
        q.workers([('max("loop_lag_p99_ms")', "loop lag p99")], each=False),
        thresholds=((None, "green"), (2, "orange"), (10, "red")),
        width=3,
    ),
    lines(
        "Output tokens per second against requests in flight",
        TOK_PER_S,
        "Aggregate tok/s (left) over the load that caused it (right, dashed). Where the dashed line climbs and the"
        " other does not, the curve bends;"
        " where tok/s falls at a steady load there is a cliff (red mark): compare its seconds with the cache-churn"
        " board.",
        q.rate("output_tok_per_s", "tok/s"),
        q.rate("in_flight", "in flight"),
        right=Overlay("in flight", COUNT),
    ),
    plane(
        "Where it bends: tok/s over requests in flight, by stage",
        COUNT,
        TOK_PER_S,
        "One point for each stage: its mean tok/s over its mean requests in flight. A line from the origin through the"
        " first point is what ten users would get if ten times one held; the stage that falls off it is the bend, and"
        " the load to stay below.",
        [
            (
                q.stages([('mean("in_flight")', "in flight"), ('mean("output_tok_per_s")', "tok/s")]),
                Curve("in flight", "tok/s"),
            )
        ],
        joined=False,
    ),
    lines(
        "TTFT p99 by class with its limit",
        MS,
        "99th percentile of time to first token in each second, and the limit the class was given (red). A class that"
        " stays above its limit cannot be promised at this load: see the latency board.",
        q.percentiles("ttft", ["p99"], each_class=True),
        q.limits("ttft"),
        width=8,
        height=7,
        limits=True,
    ),
    lines(
        "Requests finished by outcome",
        REQ_PER_S,
        "How requests ended, per second. rate_limited means load was shed on purpose; timeout, reset and truncated"
        " mean that the endpoint or something before it gave way: look for the texts in Last failures.",
        q.outcomes_per_second(),
        width=8,
        height=7,
        stacked=True,
        bars=True,
    ),
    lines(
        "Server: running, waiting, KV cache in use",
        COUNT,
        "What the servers say of themselves, all replicas: requests in the batch and in the queue (left), the fullest"
        " KV cache (right, dashed). Waiting with a full cache: memory is the limit; waiting with room: the batch size"
        " is.",
        q.server_sum("running", "running"),
        q.server_sum("waiting", "waiting"),
        q.server_worst("kv_use_ratio", "KV use"),
        width=8,
        height=7,
        right=Overlay("KV use", RATIO),
    ),
    rows(
        "Events of the run",
        WORDS,
        "Stages, cliffs and their causes, lost workers, trouble with the database, and the verdict: what the master"
        " wrote down, newest first. Read it before sharing numbers: a verdict of suspect or invalid names the seconds"
        " that do not count.",
        q.events_table(),
        width=14,
        height=6,
    ),
    rows(
        "Last failures",
        WORDS,
        "The newest 50 requests that did not end ok. One worker only: its machine or network; one class only: its"
        " prompts or limits; all: the endpoint.",
        q.last_failures(),
        width=10,
        height=6,
    ),
)


def overview() -> Dashboard:
    """Build the board."""
    return board(
        uid="tokswarm-overview",
        title="tokswarm: launch overview",
        description="An LLM endpoint under load on one screen: are we fine, where does tok/s bend, what went wrong, and"
        " can the numbers be trusted.",
        sections=(Section(None, _NOW),),
    )
