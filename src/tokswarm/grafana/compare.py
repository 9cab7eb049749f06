"""The board that lays two runs over each other, by the time since each began."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from tokswarm.grafana import queries as q
from tokswarm.grafana.frame import Section, board, one_of, other_run
from tokswarm.grafana.panels import (
    COUNT,
    MS,
    RATIO,
    REQ_PER_S,
    SECONDS,
    TOK_PER_S,
    AnyPanel,
    Curve,
    number,
    plane,
    rows,
)

_RUNS = ((q.RUN, "A"), (q.OTHER_RUN, "B"))
_READ = " A is Run, B is Run B; both are taken whole, whatever time range is chosen."

_COLUMNS = [
    ('count("request")', "requests"),
    ('sum("output_tokens")', "output tokens"),
    *(
        (f'percentile("{metric}_ms", {percent})', f"{metric.upper()} p{percent}")
        for metric in ("ttft", "tpot", "e2e")
        for percent in (50, 99)
    ),
]
_COUNTS = {"requests": COUNT, "output tokens": COUNT}


def _exact(title: str, unit: str, description: str, expression: str, *conditions: str) -> AnyPanel:
    return number(
        title,
        unit,
        description + _READ,
        *(q.requests_of_run(run, expression, name, *conditions) for run, name in _RUNS),
        width=4,
        no_value="not known",
    )


def _over_run_time(title: str, unit: str, description: str, field: str, *, expression: str = "sum") -> AnyPanel:
    name = {TOK_PER_S: "tok/s", MS: "ms", COUNT: "requests", REQ_PER_S: "per s"}[unit]
    return plane(
        title,
        SECONDS,
        unit,
        description + _READ,
        [
            (q.on_run_time(run, expression, field, f"{letter} {name}"), Curve(q.RUN_SECOND, f"{letter} {name}"))
            for run, letter in _RUNS
        ],
        joined=True,
    )


_NUMBERS = (
    number(
        "Mean output tokens per second",
        TOK_PER_S,
        "Mean over every second of each run, warm-up and drain included: choose one stage to compare loads. A"
        " difference below a few percent is within what two equal runs differ by." + _READ,
        *(q.mean_of_run(run, "output_tok_per_s", name) for run, name in _RUNS),
        decimals=0,
        width=4,
    ),
    _exact(
        "TTFT p99",
        MS,
        "Exact 99th percentile of time to first token of requests that ended ok. If it differs and ITL does not, look"
        " at queues and caches.",
        'percentile("ttft_ms", 99)',
        q.OK,
    ),
    _exact(
        "TPOT p50",
        MS,
        "Exact median of the mean time per output token. It is the speed of decoding: batch size, hardware, or"
        " interference by prefill.",
        'percentile("tpot_ms", 50)',
        q.OK,
    ),
    _exact(
        "Goodput share",
        RATIO,
        "Requests within every limit of their class, of those whose class has limits. The better run by this number is"
        " the better one to launch.",
        'sum("slo_met") * 1.0 / count("slo_met")',
    ),
    _exact(
        "Cached share",
        RATIO,
        "Prompt tokens from the prefix cache, of all. If it differs between runs of one mix, cache size or routing"
        " does.",
        q.OBSERVED,
        q.OK,
        q.CACHE_KNOWN,
    ),
    _exact(
        "Queue wait p99",
        MS,
        "Exact 99th percentile of the wait before the server took a request up, of requests that tell. The run with the"
        " longer wait was closer to saturation.",
        'percentile("queue_wait_ms", 99)',
    ),
)

_OVER_TIME = (
    _over_run_time(
        "Output tokens per second",
        TOK_PER_S,
        "Aggregate tok/s by the time since each run began. One line falling where the other does not is a cliff of that"
        " run: open its time on the cache-churn board.",
        "output_tok_per_s",
    ),
    _over_run_time(
        "Requests in flight",
        COUNT,
        "The load by the time since each run began. Runs of one mix in a closed loop lie on each other; if not, stages"
        " began at different times and the other panels compare different loads.",
        "in_flight",
    ),
    _over_run_time(
        "TTFT p99, worst second",
        MS,
        "99th percentile of time to first token, the worst second of each step. The run that leaves the other first"
        " bends first.",
        "ttft_p99_ms",
        expression="max",
    ),
    _over_run_time(
        "ITL p99, worst second",
        MS,
        "99th percentile of the gap between tokens, the worst second of each step. Higher at the same load: larger"
        " batches, slower steps, or more prefill between them.",
        "itl_p99_ms",
        expression="max",
    ),
    _over_run_time(
        "Queue wait p99, worst second",
        MS,
        "99th percentile of the wait the server reports, the worst second of each step. Growing within a stage means"
        " that this load cannot be kept up.",
        "queue_wait_p99_ms",
        expression="max",
    ),
    _over_run_time(
        "Failed requests per second",
        REQ_PER_S,
        "Requests that did not end ok. Where one run fails more, its latencies are those of the requests that got"
        " through, and not comparable.",
        "failed_per_s",
    ),
)

_TABLES = (
    rows(
        "Stage by stage",
        MS,
        "Requests that ended ok, exact, for each stage and run. Compare the two rows of a stage: this is the"
        " comparison that does not depend on when stages began.",
        q.runs_table(_COLUMNS, "stage", q.OK),
        units=_COUNTS,
        hide_time=True,
        width=24,
    ),
    rows(
        "Class by class",
        MS,
        "The same for each traffic class. A run may be better in one class and worse in another: decide by the class"
        " that has users waiting.",
        q.runs_table(_COLUMNS, "class", q.OK),
        units=_COUNTS,
        hide_time=True,
        width=16,
    ),
    rows(
        "How requests ended",
        COUNT,
        "Requests by outcome and run. If the shares differ, read them before any latency: a run that sheds load looks"
        " quicker than it is.",
        q.runs_table([('count("request")', "requests")], "outcome"),
        hide_time=True,
        width=8,
    ),
)


def compare() -> Dashboard:
    """Build the board."""
    return board(
        uid="tokswarm-compare",
        title="tokswarm: compare two runs",
        description="Two runs of the last 90 days laid over each other by the time since each began, and stage by"
        " stage.",
        sections=(
            Section("Whole runs", _NUMBERS),
            Section("Since the start of each run", _OVER_TIME),
            Section("Tables", _TABLES),
        ),
        more_variables=[
            other_run(),
            one_of("step", "Step", "Width of a point over run time.", ["1s", "5s", "10s", "30s", "60s"], "5s"),
        ],
        run_of_any_time=True,
        refresh="30s",
    )
