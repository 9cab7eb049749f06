"""The board about waiting: how long requests queue, as clients and servers see it, and whether Little's law holds."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from tokswarm.grafana import queries as q
from tokswarm.grafana.frame import Section, board
from tokswarm.grafana.panels import COUNT, MS, RATIO, REQ_PER_S, Curve, Overlay, lines, number, plane, rows

_HAS_WAIT = '"queue_wait_ms" >= 0'

_NOW = (
    number(
        "Queue wait p99",
        MS,
        "99th percentile of the wait before the server takes a request up, as the server reports it, newest second."
        " Near zero: the batch has room."
        " Rising at a steady load: the endpoint is past saturation and will not recover until the load falls.",
        q.percentiles("queue_wait", ["p99"], each_class=False, prefix="queue wait "),
        no_value="not reported",
        width=4,
    ),
    number(
        "Share of TTFT spent waiting",
        RATIO,
        "Queue wait as a share of time to first token, over all requests of the time range that report a wait. Below"
        " 10 % the first token costs prefill;"
        " above half, more replicas help and a faster prefill does not.",
        q.request_range([('sum("queue_wait_ms") / sum("ttft_ms")', "waiting")], q.OK, _HAS_WAIT),
        thresholds=((None, "green"), (0.1, "orange"), (0.5, "red")),
        no_value="not reported",
        width=4,
    ),
    number(
        "Where the waits come from",
        COUNT,
        "Requests with a queue wait, and those of them whose wait the server itself measured. The rest are estimates"
        " (time to first token less the unloaded"
        " one for that prompt length): trust their trend, not their milliseconds.",
        q.request_range([('count("queue_wait_ms")', "with a wait")]),
        q.request_range([('count("queue_wait_ms")', "measured by the server")], "\"queue_wait_source\" = 'server'"),
        no_value="not reported",
        width=4,
    ),
    number(
        "Little's law: λW ÷ L",
        RATIO,
        "Rate of ends times mean stay of requests that end ok, divided by the requests in flight, over the time range."
        " 100 % within a few percent in a steady stage. Below: requests pile up or fail after long"
        " (or the range covers a ramp); above: a backlog drains. Far off in a steady stage: do not trust the run.",
        q.little_range(),
        decimals=0,
        width=4,
    ),
    number(
        "Sent of offered",
        RATIO,
        "Requests sent, of those due by the plan, in the time range. Below 100 % the endpoint saw less load than"
        " asked for: see late and dropped arrivals"
        " on the overview.",
        q.fleet_range([('sum("started_per_s") * 1.0 / sum("offered_per_s")', "sent")]),
        thresholds=((None, "red"), (0.98, "orange"), (0.995, "green")),
    ),
    number(
        "ρ: arrivals over what can be served",
        RATIO,
        "λ / μ: mean arrivals a second, over the ends a second of the busiest ten seconds in the time range. True"
        " where the range has a saturated stretch, else too high. Above 70 % waits grow steeply, at 100 % without end.",
        q.utilisation(),
        thresholds=((None, "green"), (0.7, "orange"), (0.95, "red")),
        decimals=0,
        width=4,
    ),
)

_WAIT = (
    lines(
        "Queue wait",
        MS,
        "Percentiles of the wait before the server takes a request up, as it reports it, all classes. A knee here"
        " against the load is where the batch is full;"
        " p50 leaving zero means that everybody waits, not only bursts.",
        q.percentiles("queue_wait", each_class=False),
    ),
    lines(
        "Time to first token against queue wait",
        MS,
        "Both on one axis, p50 and p99. The distance between the pairs is prefill, network and tokenising: if it"
        " stays and both rise, it is queueing;"
        " if the distance grows, prefill got dearer: see the cache-churn board.",
        q.percentiles("ttft", ["p50", "p99"], each_class=False, prefix="TTFT "),
        q.percentiles("queue_wait", ["p50", "p99"], each_class=False, prefix="queue wait "),
    ),
    lines(
        "Queue wait p99 by class",
        MS,
        "Who waits. All classes alike: first come, first served. One class more than the others: its prompts need"
        " more free blocks to be admitted,"
        " or the gateway ranks it lower.",
        q.percentiles("queue_wait", ["p99"], each_class=True),
    ),
    rows(
        "Waits in the time range",
        MS,
        "Exact percentiles over every request that ended ok and has a queue wait, by class. Choose one stage above to"
        " compare loads.",
        q.request_table(
            [
                ('count("queue_wait_ms")', "requests"),
                *((f'percentile("queue_wait_ms", {percent})', f"queue wait p{percent}") for percent in (50, 90, 99)),
                *((f'percentile("ttft_ms", {percent})', f"TTFT p{percent}") for percent in (50, 99)),
            ],
            q.OK,
            _HAS_WAIT,
        ),
        units={"requests": COUNT},
        hide_time=True,
    ),
)

_SERVER = (
    lines(
        "Queue wait: client and server side",
        MS,
        "p99 as each answer tells it (client), and of the server's own histogram, worst replica: bounded by its"
        " buckets. They agree within a bucket; the server's alone high: requests that others send, or that failed,"
        " waited.",
        q.percentiles("queue_wait", ["p50", "p99"], each_class=False, prefix="client "),
        q.server_worst("queue_wait_p50_ms", "server p50"),
        q.server_worst("queue_wait_p99_ms", "server p99"),
    ),
    lines(
        "Server: running and waiting",
        COUNT,
        "Requests in the batch and in the queue, all replicas, with the client's requests in flight (right, dashed). In"
        " flight without being in either: on the network, in a gateway's own queue, or being tokenised.",
        q.server_sum("running", "running"),
        q.server_sum("waiting", "waiting"),
        q.rate("in_flight", "in flight"),
        right=Overlay("in flight", COUNT),
    ),
    lines(
        "Server: waiting by replica",
        COUNT,
        "Requests in each replica's queue. One long queue beside empty ones is the router's doing: prefix affinity"
        " without a limit, or a replica that is slow; all long: more replicas.",
        q.server([('max("waiting")', "waiting")]),
        stacked=True,
    ),
    lines(
        "Server: time to first token",
        MS,
        "Mean queue wait and mean prefill of the servers, and the TTFT p99 of the clients (right, dashed). What the"
        " clients see beyond the two means is spread, network and tokenising.",
        q.server([('mean("queue_wait_mean_ms")', "queue wait"), ('mean("prefill_mean_ms")', "prefill")]),
        q.percentiles("ttft", ["p99"], each_class=False, prefix="client TTFT "),
        right=Overlay("client TTFT p99", MS),
    ),
    rows(
        "Replicas in the time range",
        COUNT,
        "Means and worst values of each replica. A replica with a larger wait at no larger batch is slower: compare its"
        " hardware, its KV cache and who is routed to it.",
        q.server_table(
            [
                ('mean("running")', "running"),
                ('mean("waiting")', "waiting"),
                ('max("waiting")', "most waiting"),
                ('mean("queue_wait_mean_ms")', "mean wait"),
                ('max("queue_wait_p99_ms")', "worst p99 wait"),
                ('max("kv_use_ratio")', "fullest KV"),
                ('sum("rejected_per_s")', "rejected"),
            ]
        ),
        width=24,
        height=5,
        units={"mean wait": MS, "worst p99 wait": MS, "fullest KV": RATIO},
        hide_time=True,
    ),
)

_QUEUEING = (
    plane(
        "Queue wait p99 over arrivals, by stage",
        REQ_PER_S,
        MS,
        "One point for each stage: its mean p99 wait over its arrivals a second. Near zero, then a knee, then a wall: ρ"
        " passes 0.7 at the knee. Run left of it.",
        [
            (
                q.stages([('mean("offered_per_s")', "arrivals"), ('mean("queue_wait_p99_ms")', "queue wait p99")]),
                Curve("arrivals", "queue wait p99"),
            )
        ],
        joined=False,
        width=24,
    ),
    lines(
        "Little's law: L beside λW",
        COUNT,
        "L: requests in flight as counted. λW: ends per second times their mean stay, whatever the outcome. They lie on"
        " each other in a steady stage; λW below L while the queue fills,"
        " above while it drains. A lasting gap in a steady stage means requests vanish or are counted twice.",
        q.chosen_in_flight(),
        q.stays(),
        interval="10s",
    ),
    lines(
        "Requests in flight by class",
        COUNT,
        "Requests sent and not done, stacked. In an open loop a slope that does not flatten says that the offered"
        " rate is above what the endpoint can finish.",
        q.rate_by_class("in_flight", "in flight"),
        stacked=True,
    ),
    lines(
        "Offered against finished",
        REQ_PER_S,
        "Requests due, sent and ended per second. The load at which finished stops following offered is the capacity"
        " for this mix.",
        q.rate("offered_per_s", "offered"),
        q.rate("started_per_s", "sent"),
        q.rate("finished_per_s", "finished"),
        width=8,
    ),
    lines(
        "Shed load",
        REQ_PER_S,
        "Requests refused with 429, and all that failed. Shedding caps the queue: waits stop growing while this"
        " rises. Decide whether clients retry before launch.",
        q.rate("rate_limited_per_s", "rate limited"),
        q.rate("failed_per_s", "failed"),
        width=8,
    ),
    lines(
        "Schedule lag p99",
        MS,
        "Actual minus planned start, worst second. It is the generator's own queue: above 10 ms, waits measured from"
        " the send are too small,"
        " and the run needs more workers.",
        q.percentiles("schedule_lag", ["p99"], each_class=False, prefix="schedule lag "),
        width=8,
    ),
)


def queue_wait() -> Dashboard:
    """Build the board."""
    return board(
        uid="tokswarm-queue-wait",
        title="tokswarm: queue wait",
        description="Waiting in front of the model: how long, who, at which load, and whether the measurements obey"
        " Little's law.",
        sections=(
            Section("Now", _NOW),
            Section("Waiting, as answers tell it", _WAIT),
            Section("Waiting, as servers tell it", _SERVER),
            Section("Arrivals, stays and ends", _QUEUEING),
        ),
    )
