"""The board about one request: its tokens one by one, beside what the fleet went through at the same time."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from tokswarm.grafana import queries as q
from tokswarm.grafana.frame import Section, board, typed
from tokswarm.grafana.panels import COUNT, MS, WORDS, Curve, Link, Overlay, lines, plane, rows

_LONGEST = 20
_OPEN = Link(
    "request",
    "Show its tokens",
    "/d/tokswarm-request?var-request=${__value.raw}&${ds:queryparam}&${run:queryparam}&${class:queryparam}"
    "&${stage:queryparam}&${target:queryparam}&${worker:queryparam}&${__url_time_range}",
)
_COLUMNS = [
    *((f'"{name}"', name) for name in ("class", "stage", "outcome", "worker", "target", "status")),
    *((f'"{name}"', name) for name in ("prompt_tokens", "cached_tokens", "ideal_cached_tokens", "output_tokens")),
    *((f'"{name}_ms"', name) for name in ("queue_wait", "ttft", "tpot", "e2e", "schedule_lag")),
    ('"sampled"', "sampled"),
]
_COUNTS = dict.fromkeys(("prompt_tokens", "cached_tokens", "ideal_cached_tokens", "output_tokens"), COUNT)
_WORDS = dict.fromkeys(("class", "stage", "outcome", "worker", "target", "status", "request", "sampled"), WORDS)

_FIND = (
    rows(
        "Slowest first tokens",
        MS,
        f"The {_LONGEST} requests of the time range that waited longest for their first token. Click an id to see its"
        " tokens; if they share a class, a stage or a few seconds, that is where to look.",
        q.slowest_requests("ttft_ms", "TTFT", _LONGEST),
        units={**_WORDS, "output_tokens": COUNT},
        link=_OPEN,
        highest_first="TTFT",
    ),
    rows(
        "Longest gaps between tokens",
        "µs",
        f"The {_LONGEST} longest gaps of the time range and where in its answer each came. Click an id to see its"
        " tokens; many requests with a gap at one moment were held up together, by a prefill or a preemption.",
        q.longest_gaps(_LONGEST),
        units={**_WORDS, "index": COUNT},
        link=_OPEN,
        highest_first="gap",
    ),
)

_REQUEST = (
    rows(
        "The request",
        MS,
        "What is known of the request chosen; sampled 0: its tokens are not in the database, only in the records."
        " Empty: click an id above, or type one in; ids are in the records of the run too. A long queue_wait explains"
        " a long ttft, few cached_tokens of many ideal ones explain the rest.",
        q.one_request(_COLUMNS),
        units={**_WORDS, **_COUNTS},
        width=24,
        height=4,
    ),
    lines(
        "Tokens received",
        COUNT,
        "Tokens of the answer that had come, at the moment each arrived. A straight line is an even stream; a step is a"
        " pause of the server or a proxy that collects tokens; no points: this request was not sampled.",
        q.tokens_of_request("tokens"),
    ),
    plane(
        "Gap before each token",
        COUNT,
        MS,
        "The gap before each arrival, over the tokens that came before it. Regular spikes are other prompts being taken"
        " up; one tall spike is a preemption or a stalled connection: compare the panel below.",
        [(q.gaps_of_request("token", "gap"), Curve("token", "gap"))],
        joined=True,
    ),
)

_AROUND = (
    lines(
        "Gap between tokens of all requests",
        MS,
        "ITL of the whole fleet in the same seconds. If the request's spikes are here too, everybody was held up: look"
        " at the cache-churn board; if not, it was this request's own connection or preemption.",
        q.percentiles("itl", each_class=False),
        width=8,
    ),
    lines(
        "Requests in flight and waiting",
        COUNT,
        "The load while the request was under way, and what the servers had in their queues (dashed). A gap that begins"
        " when the queue grows was caused by others' prompts.",
        q.rate("in_flight", "in flight"),
        q.server_sum("waiting", "waiting"),
        right=Overlay("waiting", COUNT),
        width=8,
    ),
    lines(
        "Server: preemptions and evictions",
        "cps",
        "Requests that had to give their KV blocks back, and cached blocks given up, a second, all replicas. A"
        " preemption in the second of a gap is its most likely cause: give the server more memory or a lower batch"
        " size.",
        q.server_sum("preemptions_per_s", "preemptions"),
        q.server_sum("evictions_per_s", "evictions"),
        width=8,
    ),
)


def one_request() -> Dashboard:
    """Build the board."""
    return board(
        uid="tokswarm-request",
        title="tokswarm: tokens of one request",
        description="One request token by token: find the slow ones, and see what the fleet and the servers went"
        " through at the same moment.",
        sections=(Section("Find one", _FIND), Section("The request", _REQUEST), Section("At the same time", _AROUND)),
        refresh="",
        more_variables=[typed("request", "Request", "Id of a request; a click in the tables puts it in.", "0")],
    )
