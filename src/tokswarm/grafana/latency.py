"""The board about latency by traffic class: percentiles with the class's limits, distributions, goodput."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from tokswarm.grafana import queries as q
from tokswarm.grafana.frame import Section, board
from tokswarm.grafana.panels import COUNT, MS, RATIO, REQ_PER_S, heat, lines, number, rows

_GOOD_SHARE = 'sum("slo_met") * 1.0 / count("slo_met")'
_PER_SECOND = "* 1000.0 / $__interval_ms"

_CLASS_COLUMNS = [
    ('count("request")', "requests"),
    ('sum("output_tokens")', "output tokens"),
    *(
        (f'percentile("{metric}_ms", {percent})', f"{metric.upper()} p{percent}")
        for metric in ("ttft", "tpot", "e2e")
        for percent in (50, 99)
    ),
]

_SECONDS_NOTE = (
    " Each second's percentiles come from histograms merged over all workers;"
    " zoomed out, p50 is the middle second's and p99 the worst second's."
)


def _with_limit(metric: str, title: str, description: str, *, width: int = 8) -> object:
    return lines(
        title,
        MS,
        description + _SECONDS_NOTE,
        q.percentiles(metric, ["p50", "p99"], each_class=True),
        q.limits(metric),
        limits=True,
        width=width,
        height=9,
    )


_GOODPUT = (
    number(
        "Goodput share",
        RATIO,
        "Requests that met every limit of their class, of those whose class has limits, in the time range. This is"
        " the number to promise; below 99 % the load is more than the endpoint can serve as promised.",
        q.request_range([(_GOOD_SHARE, "within limits")]),
        thresholds=((None, "red"), (0.95, "orange"), (0.99, "green")),
        no_value="no limits set",
        width=4,
        height=7,
    ),
    lines(
        "Goodput share by class",
        RATIO,
        "Requests within every limit of their class, of those that ended. The class that falls first decides how much"
        " load can be promised; failed requests count as missed.",
        q.requests([(_GOOD_SHARE, "within limits")], q.LIMITED, by=("class",)),
        width=10,
        height=7,
    ),
    lines(
        "Goodput by class",
        REQ_PER_S,
        "Requests per second within their limits. It grows with the load, then falls although throughput does not: the"
        " highest place of this curve is the load to run at.",
        q.requests([(f'sum("slo_met") {_PER_SECOND}', "good requests")], q.LIMITED, by=("class",)),
        width=10,
        height=7,
        stacked=True,
    ),
)

_PERCENTILES = (
    _with_limit(
        "ttft",
        "Time to first token by class",
        "Sent to first token, and the limit of the class (red). If p99 leaves p50 behind, some requests wait: see the"
        " queue-wait board.",
    ),
    _with_limit(
        "itl",
        "Gap between tokens (ITL) by class",
        "Gap between token arrivals, and the limit of the class (red). Spikes of p99 are decode steps held up by"
        " somebody's prefill: look for cache churn or for a class with long prompts.",
    ),
    _with_limit(
        "e2e",
        "Whole request by class",
        "Sent to done, and the limit of the class (red). It grows with answer length too: compare it only between runs"
        " of one mix.",
    ),
)

_DISTRIBUTIONS = (
    heat(
        "Time to first token, distribution",
        "Requests by time to first token, each row a bucket up to the bound beside it. Two bands mean two"
        " populations: cached and not, or queued and not. The second band widening is the queue building up.",
        "ttft",
        width=8,
    ),
    heat(
        "Gap between tokens, distribution",
        "Tokens by the gap before them, each row a bucket up to the bound beside it. The main band rising is the"
        " batch growing; a faint band far above it is decode stopped by prefill or preemption.",
        "itl",
        width=8,
    ),
    heat(
        "Whole request, distribution",
        "Requests by the time from sent to done, each row a bucket up to the bound beside it. Bands are answer"
        " lengths; all of them rising together is the endpoint, one of them alone is a class.",
        "e2e",
        width=8,
    ),
)

_TABLES = (
    rows(
        "Classes in the time range",
        MS,
        "Requests that ended ok, exact percentiles from every request of the time range and stages chosen. Use this"
        " table for reports; choose one stage above to read one load.",
        q.request_table(_CLASS_COLUMNS, q.OK),
        units={"requests": COUNT, "output tokens": COUNT},
        hide_time=True,
    ),
    rows(
        "Stages in the time range",
        MS,
        "The same for each stage, classes chosen together. Read it downwards: the stage where p99 grows faster than the"
        " load is the one to stay below.",
        q.request_table(_CLASS_COLUMNS, q.OK, by="stage"),
        units={"requests": COUNT, "output tokens": COUNT},
        hide_time=True,
    ),
    rows(
        "Targets in the time range",
        MS,
        "The same for each endpoint of the mix. Of mirrored traffic each got the same requests: what differs here is"
        " the endpoint; of weighted or routed traffic compare classes first.",
        q.request_table(_CLASS_COLUMNS, q.OK, by="target"),
        units={"requests": COUNT, "output tokens": COUNT},
        hide_time=True,
    ),
    lines(
        "From sent and from due: whole request p99",
        MS,
        "Exact p99 of the time from sending, and from when the request was due. They differ where the generator or its"
        " bound on open requests held requests back: then users would have waited as long as the second line says.",
        q.requests([('percentile("e2e_ms", 99)', "from sent p99")], q.OK),
        q.from_due(99, "from due p99"),
    ),
)


def latency() -> Dashboard:
    """Build the board."""
    return board(
        uid="tokswarm-latency",
        title="tokswarm: latency by class",
        description="Latency of each traffic class with its limits, as distributions and percentiles, and the goodput"
        " that comes out of it.",
        sections=(
            Section("Goodput", _GOODPUT),
            Section("Percentiles and limits", _PERCENTILES),  # type: ignore[arg-type]
            Section("Distributions", _DISTRIBUTIONS),
            Section("Tables", _TABLES),
        ),
    )
