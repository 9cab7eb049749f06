"""The board about tokens per second: how they grow with the load, who gets them, and what one user is left with."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from tokswarm.grafana import queries as q
from tokswarm.grafana.frame import Section, board
from tokswarm.grafana.panels import COUNT, REQ_PER_S, TOK_PER_S, Curve, Overlay, lines, number, plane, rows

_PER_REQUEST = [('mean("t") / mean("n")', "tok/s per request")]
_TOKENS_AND_LOAD = [('"output_tok_per_s"', "t"), ('"in_flight"', "n")]

_NOW = (
    number(
        "Output tokens per second",
        TOK_PER_S,
        "Output tokens that reached the clients, whole fleet, newest second. Compare it with the highest stage in the"
        " table below: if more load no longer raises it, the endpoint is saturated.",
        q.rate("output_tok_per_s", "tok/s"),
        decimals=0,
        width=6,
    ),
    number(
        "Tokens per second per request",
        TOK_PER_S,
        "What one user gets now: output tok/s divided by requests in flight. Below about 10 tok/s people read faster"
        " than the answer comes: lower the batch size or add replicas.",
        q.seconds(_TOKENS_AND_LOAD, _PER_REQUEST, only='"n" > 0'),
        decimals=1,
        width=6,
    ),
    number(
        "Requests in flight",
        COUNT,
        "Requests sent and not yet done, newest second. If it climbs at a steady offered rate, the endpoint finishes"
        " less than it is given: see the queue-wait board.",
        q.rate("in_flight", "in flight"),
        decimals=0,
        width=6,
    ),
    number(
        "Requests finished per second",
        REQ_PER_S,
        "Requests that ended, whatever the outcome, newest second. Beside tok/s it shows whether answers got longer or"
        " fewer: both falling means less work is done.",
        q.rate("finished_per_s", "finished"),
        decimals=1,
        width=6,
    ),
)

_BEND = (
    plane(
        "Tok/s over requests in flight, by stage",
        COUNT,
        TOK_PER_S,
        "One point for each stage: mean tok/s over mean requests in flight. It grows in proportion while the batch has"
        " room, and flattens at the bend; a point below an earlier one means that more load made it worse.",
        [
            (
                q.stages([('mean("in_flight")', "in flight"), ('mean("output_tok_per_s")', "tok/s")]),
                Curve("in flight", "tok/s"),
            )
        ],
        joined=False,
    ),
    plane(
        "Tok/s over requests in flight, every second",
        COUNT,
        TOK_PER_S,
        "The same for every second of the time range. A cloud around one curve is a steady endpoint; a second cloud"
        " below it are the seconds of cliffs: choose their time range and open the cache-churn board.",
        [
            (
                q.each_step(_TOKENS_AND_LOAD, [('mean("n")', "in flight"), ('mean("t")', "tok/s")]),
                Curve("in flight", "tok/s"),
            )
        ],
        joined=False,
    ),
    plane(
        "Tok/s of one request over requests in flight, every second",
        COUNT,
        TOK_PER_S,
        "What one user gets as the load grows. It falls slowly while decoding shares its steps, and steeply where"
        " requests begin to wait: promise a speed from the left of that place.",
        [
            (
                q.each_step(_TOKENS_AND_LOAD, [('mean("n")', "in flight"), *_PER_REQUEST], only='"n" > 0'),
                Curve("in flight", "tok/s per request"),
            )
        ],
        joined=False,
    ),
    rows(
        "Stages in the time range",
        COUNT,
        "Means over the seconds of each stage, with its best second. Use it for reports: the first stage whose tok/s"
        " is no longer higher than the one before is past the bend.",
        q.stages(
            [
                ('mean("in_flight")', "in flight"),
                ('mean("output_tok_per_s")', "tok/s"),
                ('max("output_tok_per_s")', "best second"),
                ('mean("finished_per_s")', "finished/s"),
                ('mean("failed_per_s")', "failed/s"),
            ]
        ),
        units={"tok/s": TOK_PER_S, "best second": TOK_PER_S, "finished/s": REQ_PER_S, "failed/s": REQ_PER_S},
        hide_time=True,
    ),
)

_TIME = (
    lines(
        "Output tokens per second against requests in flight",
        TOK_PER_S,
        "Aggregate tok/s (left) over the load that caused it (right, dashed). Where the dashed line climbs and the"
        " other does not, the curve bends; a fall at a steady load is a cliff (red mark).",
        q.rate("output_tok_per_s", "tok/s"),
        q.rate("in_flight", "in flight"),
        right=Overlay("in flight", COUNT),
    ),
    lines(
        "Output tokens per second by class",
        TOK_PER_S,
        "The same tokens by traffic class, stacked. A class that thins out while its requests are still sent is being"
        " crowded out by another one: compare max_tokens and prompt lengths of the two.",
        q.rate_by_class("output_tok_per_s", "tok/s"),
        stacked=True,
    ),
    lines(
        "Tokens per second per request in flight",
        TOK_PER_S,
        "What one user gets: output tok/s divided by requests in flight. It falls with batching even on a healthy"
        " server; a sudden step down at a steady load is interference, recompute or queueing.",
        q.seconds(_TOKENS_AND_LOAD, _PER_REQUEST, only='"n" > 0'),
        width=8,
    ),
    lines(
        "Requests offered, sent and finished",
        REQ_PER_S,
        "Offered: due by the plan. Sent: started. Finished: ended, whatever the outcome. Sent below offered means the"
        " generator is late or full (see the generator-health board); finished below sent means that work piles up in"
        " the endpoint.",
        q.rate("offered_per_s", "offered"),
        q.rate("started_per_s", "sent"),
        q.rate("finished_per_s", "finished"),
        width=8,
    ),
    lines(
        "Requests in flight by class",
        COUNT,
        "Requests sent and not done, stacked. A class that takes more and more of the places at a steady load gets its"
        " answers slower than the others: look for it on the latency board.",
        q.rate_by_class("in_flight", "in flight"),
        stacked=True,
        width=8,
    ),
    lines(
        "Output tokens of ended requests by target",
        TOK_PER_S,
        "Output tokens of the requests that ended, a second, by the endpoint they were sent to: all of a request count"
        " where it ended. With one endpoint it is the line above, coarser; of mirrored traffic the lines compare the"
        " endpoints.",
        q.requests([('sum("output_tokens") * 1000.0 / $__interval_ms', "tok/s")], by=("target",)),
        width=8,
    ),
    lines(
        "Server: tokens generated by replica",
        TOK_PER_S,
        "What each replica says it generates. One below the others at the same load is cold, throttled or gets the"
        " expensive requests: take it out of the routing and compare.",
        q.server([('mean("generation_tok_per_s")', "tok/s")]),
        stacked=True,
        width=8,
    ),
    lines(
        "Server: requests in the batch by replica",
        COUNT,
        "Requests each replica decodes at one time. Unequal at equal replicas: the router prefers some, by prefix or by"
        " mistake; a level that nobody exceeds is the configured batch size.",
        q.server([('mean("running")', "running")]),
        stacked=True,
        width=8,
    ),
)


def throughput() -> Dashboard:
    """Build the board."""
    return board(
        uid="tokswarm-throughput",
        title="tokswarm: throughput and concurrency",
        description="How aggregate tok/s grows with requests in flight, where it bends, who gets the tokens, and what"
        " one user is left with.",
        sections=(Section("Now", _NOW), Section("The bend", _BEND), Section("Over time", _TIME)),
    )
