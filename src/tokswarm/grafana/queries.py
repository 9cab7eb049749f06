"""The InfluxQL the boards send: text only, in the dialect that InfluxDB 1.8, 2 and 3 share.

Measurements are unqualified, every tag is compared with a regular expression (so that one value, several
and "All" are written alike), and a query says `$timeFilter` in each of its parts, because a time range
does not travel out of a sub-query.
"""

# ruff: noqa: S608 - built from names of our own schema; what a user chooses is put in, and escaped, by Grafana

from collections.abc import Sequence
from typing import NamedTuple

from tokswarm.measure.histogram import LE_BOUNDS_MS
from tokswarm.measure.schema import EVENT, FLEET, REQUEST, SERVER, TOKEN, WINDOW, WORKER, le_names
from tokswarm.measure.window import ALL_CLASSES

RUN = '"run" =~ /^$run$/'
STAGE = '"stage" =~ /^$stage$/'
CLASS = '"class" =~ /^$class$/'
TARGET = '"target" =~ /^$target$/'
WORKERS = '"worker" =~ /^$worker$/'
ALL = f"\"class\" = '{ALL_CLASSES}'"
EACH = f"{CLASS} AND \"class\" != '{ALL_CLASSES}'"
OK = "\"outcome\" = 'ok'"
CACHE_KNOWN = '"cached_tokens" >= 0'
IDEAL_KNOWN = '"ideal_cached_tokens" >= 0'
LIMITED = '"slo_met" >= 0'
HAS_READ = '"reads" > 0'
OBSERVED = 'sum("cached_tokens") * 1.0 / sum("prompt_tokens")'
IDEAL = 'sum("ideal_cached_tokens") * 1.0 / sum("prompt_tokens")'
TIME = "$timeFilter"
PAST = "time > now() - 90d"
"""Where two runs are compared, which may lie days apart: whatever time range is chosen."""
OTHER_RUN = '"run" =~ /^$other$/'


class Query(NamedTuple):
    """One target of a panel: its text, and the name of its series in Grafana's alias notation."""

    text: str
    alias: str = "$col"
    table: bool = False


def _where(*conditions: str) -> str:
    return " AND ".join((RUN, *conditions, TIME))


def _by(step: str, tags: Sequence[str]) -> str:
    return ", ".join((f"time({step})", *(f'"{tag}"' for tag in tags)))


def _alias(tags: Sequence[str]) -> str:
    return " ".join((*(f"$tag_{tag}" for tag in tags), "$col"))


def _columns(pairs: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f'{expression} AS "{name}"' for expression, name in pairs)


def seconds(
    fields: Sequence[tuple[str, str]],
    outer: Sequence[tuple[str, str]],
    *,
    where: str = ALL,
    by: str = "",
    only: str | None = None,
) -> Query:
    """Fleet seconds: `fields` summed over the stages of each second, then `outer` over the interval.

    The sum comes first because two stages share a second while one drains; the mean of such seconds is
    right at every zoom, where a sum over the interval would grow with it. `only` is a condition on the summed
    seconds: InfluxDB takes x / 0 for 0, which would be drawn as if it had been measured.
    """
    tags = (by,) if by else ()
    inner = (
        f'SELECT {_columns([(f"sum({expression})", name) for expression, name in fields])} FROM "{FLEET.name}"'
        f" WHERE {_where(where, STAGE)} GROUP BY {_by('1s', tags)} fill(none)"
    )
    return Query(
        f"SELECT {_columns(outer)} FROM ({inner}) WHERE {f'{only} AND ' if only else ''}{TIME}"
        f" GROUP BY {_by('$__interval', tags)} fill(null)",
        f"$tag_{by}" if by else "$col",
    )


def rate(field: str, name: str) -> Query:
    """The mean of a fleet rate or gauge over the interval, all classes together."""
    return seconds([(f'"{field}"', "v")], [('mean("v")', name)])


def rate_by_class(field: str, name: str) -> Query:
    """The same for each class."""
    return seconds([(f'"{field}"', "v")], [('mean("v")', name)], where=EACH, by="class")


def percentiles(
    metric: str, quantiles: Sequence[str] = ("p50", "p90", "p99"), *, each_class: bool, prefix: str = ""
) -> Query:
    """Percentiles the master took from merged histograms, one second each.

    Where a point stands for several seconds it is the middle second's median and the worst second's
    p90 and p99: percentiles are never averaged.
    """
    columns = [
        (f'{"median" if quantile == "p50" else "max"}("{metric}_{quantile}_ms")', f"{prefix}{quantile}")
        for quantile in quantiles
    ]
    tags = ("class",) if each_class else ()
    return Query(
        f'SELECT {_columns(columns)} FROM "{FLEET.name}" WHERE {_where(EACH if each_class else ALL, STAGE)}'
        f" GROUP BY {_by('$__interval', tags)} fill(null)",
        _alias(tags),
    )


def limits(metric: str) -> Query:
    """The limit of each class that has one."""
    return Query(
        f'SELECT max("{metric}_limit_ms") AS "limit" FROM "{FLEET.name}" WHERE {_where(EACH, STAGE)}'
        f" GROUP BY {_by('$__interval', ('class',))} fill(null)",
        "$tag_class $col",
    )


def stages(columns: Sequence[tuple[str, str]]) -> Query:
    """A row for each stage, all classes together, means over its seconds."""
    return Query(
        f'SELECT {_columns(columns)} FROM "{FLEET.name}" WHERE {_where(ALL, STAGE)} GROUP BY "stage"', table=True
    )


def each_step(fields: Sequence[tuple[str, str]], outer: Sequence[tuple[str, str]], *, only: str | None = None) -> Query:
    """The same as `seconds`, as rows that hold a point of a plane each."""
    query = seconds(fields, outer, only=only)
    return Query(query.text.replace("fill(null)", "fill(none)"), table=True)


def fleet_range(columns: Sequence[tuple[str, str]]) -> Query:
    """One row over the whole time range, all classes together."""
    return Query(f'SELECT {_columns(columns)} FROM "{FLEET.name}" WHERE {_where(ALL, STAGE)}')


def requests(columns: Sequence[tuple[str, str]], *conditions: str, by: Sequence[str] = ()) -> Query:
    """Finished requests over the interval, exact."""
    return Query(
        f'SELECT {_columns(columns)} FROM "{REQUEST.name}" WHERE {_where(CLASS, STAGE, TARGET, *conditions)}'
        f" GROUP BY {_by('$__interval', by)} fill(null)",
        _alias(by),
    )


def outcomes_per_second() -> Query:
    """Finished requests per second by outcome; a second without any is a true zero."""
    return Query(
        f'SELECT count("request") * 1000.0 / $__interval_ms AS "per second" FROM "{REQUEST.name}"'
        f" WHERE {_where(CLASS, STAGE, TARGET)} GROUP BY {_by('$__interval', ('outcome',))} fill(0)",
        "$tag_outcome",
    )


def request_range(columns: Sequence[tuple[str, str]], *conditions: str) -> Query:
    """One row of all requests in the time range, exact."""
    return Query(f'SELECT {_columns(columns)} FROM "{REQUEST.name}" WHERE {_where(CLASS, STAGE, TARGET, *conditions)}')


def request_table(columns: Sequence[tuple[str, str]], *conditions: str, by: str = "class") -> Query:
    """A row for each class (or other tag), exact over the time range."""
    return Query(
        f'SELECT {_columns(columns)} FROM "{REQUEST.name}" WHERE {_where(CLASS, STAGE, TARGET, *conditions)}'
        f' GROUP BY "{by}"',
        table=True,
    )


def from_due(percent: int, name: str) -> Query:
    """A percentile of the time from when a request was due to its end, exact."""
    stays = f'SELECT "e2e_ms" + "schedule_lag_ms" AS "v" FROM "{REQUEST.name}" WHERE {_where(CLASS, STAGE, TARGET, OK)}'
    return Query(
        f'SELECT percentile("v", {percent}) AS "{name}" FROM ({stays}) WHERE {TIME}'
        f" GROUP BY time($__interval) fill(null)"
    )


def last_failures() -> Query:
    """The newest requests that did not end ok."""
    return Query(
        f'SELECT "outcome", "status", "error", "class", "worker" FROM "{REQUEST.name}"'
        f" WHERE {_where(CLASS, STAGE, TARGET)} AND \"outcome\" != 'ok' ORDER BY time DESC LIMIT 50",
        table=True,
    )


def heatmap(metric: str) -> Query:
    """Counts in the coarse buckets of one histogram, named by their upper bound in ms."""
    names = (*(str(bound) for bound in LE_BOUNDS_MS), "+Inf")
    columns = [(f'sum("{field}")', name) for field, name in zip(le_names(metric), names, strict=True)]
    return Query(
        f'SELECT {_columns(columns)} FROM "{WINDOW.name}" WHERE {_where(CLASS, STAGE)}'
        f" GROUP BY {_by('$__interval', ())} fill(null)"
    )


def workers(columns: Sequence[tuple[str, str]], *conditions: str, each: bool = True) -> Query:
    """What the load generators measured of themselves."""
    tags = ("worker",) if each else ()
    return Query(
        f'SELECT {_columns(columns)} FROM "{WORKER.name}" WHERE {_where(WORKERS, *conditions)}'
        f" GROUP BY {_by('$__interval', tags)} fill(null)",
        _alias(tags),
    )


def server(columns: Sequence[tuple[str, str]]) -> Query:
    """What each replica of the target said of itself."""
    return Query(
        f'SELECT {_columns(columns)} FROM "{SERVER.name}" WHERE {_where(TARGET)}'
        f" GROUP BY {_by('$__interval', ('replica',))} fill(null)",
        _alias(("replica",)),
    )


def server_sum(field: str, name: str) -> Query:
    """All replicas together: the sum of their means, since they are not asked at one moment.

    The outer query has no time range: InfluxDB answers nothing at all when a bucket of the inner one begins before it,
    as the first one does wherever a range begins within a step.
    """
    inner = (
        f'SELECT mean("{field}") AS "v" FROM "{SERVER.name}" WHERE {_where(TARGET)}'
        f" GROUP BY {_by('$__interval', ('replica',))} fill(none)"
    )
    return Query(f'SELECT sum("v") AS "{name}" FROM ({inner}) GROUP BY time($__interval) fill(none)')


def server_worst(field: str, name: str) -> Query:
    """The largest value of any replica."""
    return Query(
        f'SELECT max("{field}") AS "{name}" FROM "{SERVER.name}" WHERE {_where(TARGET)}'
        f" GROUP BY time($__interval) fill(null)"
    )


def server_range(columns: Sequence[tuple[str, str]]) -> Query:
    """One row of all replicas over the time range."""
    return Query(f'SELECT {_columns(columns)} FROM "{SERVER.name}" WHERE {_where(TARGET)}')


def server_table(columns: Sequence[tuple[str, str]]) -> Query:
    """A row for each replica over the time range."""
    return Query(
        f'SELECT {_columns(columns)} FROM "{SERVER.name}" WHERE {_where(TARGET)} GROUP BY "replica"', table=True
    )


def utilisation() -> Query:
    """ρ = λ / μ: mean arrivals a second over the ends a second of the busiest ten seconds in the time range."""
    tens = (
        f'SELECT mean("offered_per_s") AS "o", mean("finished_per_s") AS "f" FROM "{FLEET.name}"'
        f" WHERE {_where(ALL, STAGE)} GROUP BY time(10s) fill(none)"
    )
    return Query(f'SELECT mean("o") / max("f") AS "ρ" FROM ({tens})')


_LITTLE_RAW = (
    'SELECT "finished_per_s" - "failed_per_s" AS "f", ("finished_per_s" - "failed_per_s") * "e2e_mean_ms" AS "w",'
    f' "in_flight" AS "n" FROM "{FLEET.name}" WHERE {_where(ALL, STAGE)}'
)
_LITTLE_SECONDS = (
    'SELECT sum("f") AS "f", sum("w") AS "w", sum("n") AS "n"'
    f" FROM ({_LITTLE_RAW}) WHERE {TIME} GROUP BY time(1s) fill(none)"
)


def stays() -> Query:
    """λW, exact: ends a second times their mean stay is the sum of the stays of those that ended, over the interval."""
    return requests([('sum("e2e_ms") / $__interval_ms', "λW")])


def chosen_in_flight() -> Query:
    """L of the classes chosen."""
    return seconds([('"in_flight"', "n")], [('mean("n")', "L in flight")], where=EACH)


def little_range() -> Query:
    """λW ÷ L over the time range, of requests that end ok; 1 where the law holds."""
    ratio = 'mean("f") * sum("w") / sum("f") / 1000 / mean("n")'
    return Query(f'SELECT {ratio} AS "λW ÷ L" FROM ({_LITTLE_SECONDS}) WHERE {TIME}')


def events_table() -> Query:
    """The newest events of the run."""
    return Query(
        f'SELECT "kind", "title", "text" FROM "{EVENT.name}" WHERE {_where()} ORDER BY time DESC LIMIT 100',
        table=True,
    )


def events_of(*kinds: str) -> Query:
    """The newest events of some kinds."""
    chosen = " OR ".join(f"\"kind\" = '{kind}'" for kind in kinds)
    return Query(
        f'SELECT "kind", "title", "text" FROM "{EVENT.name}" WHERE {_where(f"({chosen})")}'
        " ORDER BY time DESC LIMIT 100",
        table=True,
    )


_VERDICT = "\"kind\" = 'verdict'"


def verdict() -> Query:
    """The last word on the run."""
    return Query(f'SELECT last("title") AS "verdict" FROM "{EVENT.name}" WHERE {_where(_VERDICT)}', table=True)


# --- one request -----------------------------------------------------------------------------------

_REQUEST_ID = '"request" = $request'


def one_request(columns: Sequence[tuple[str, str]]) -> Query:
    """The request whose id is chosen, as one row."""
    return Query(f'SELECT {_columns(columns)} FROM "{REQUEST.name}" WHERE {_where(_REQUEST_ID)}', table=True)


def tokens_of_request(name: str) -> Query:
    """Tokens that had come with each arrival, at its moment."""
    return Query(f'SELECT "index" + "n" AS "{name}" FROM "{TOKEN.name}" WHERE {_where(_REQUEST_ID)}')


def gaps_of_request(x: str, y: str) -> Query:
    """The gap before each arrival, over the tokens that came before it."""
    return Query(
        f'SELECT "index" AS "{x}", "itl_us" * 0.001 AS "{y}" FROM "{TOKEN.name}" WHERE {_where(_REQUEST_ID)}',
        table=True,
    )


def longest_gaps(count: int) -> Query:
    """The longest gaps between tokens, with the request and the place in its answer."""
    return Query(
        f'SELECT top("itl_us", {count}) AS "gap", "request", "index", "class", "worker" FROM "{TOKEN.name}"'
        f" WHERE {_where(CLASS)}",
        table=True,
    )


def slowest_requests(field: str, name: str, count: int) -> Query:
    """The requests with the highest value."""
    return Query(
        f'SELECT top("{field}", {count}) AS "{name}", "request", "class", "stage", "output_tokens", "queue_wait_ms"'
        f' FROM "{REQUEST.name}" WHERE {_where(CLASS, STAGE, TARGET)}',
        table=True,
    )


# --- two runs --------------------------------------------------------------------------------------

_EITHER = f"({RUN} OR {OTHER_RUN})"
RUN_SECOND = "run s"


def _past(*conditions: str) -> str:
    return " AND ".join((*conditions, PAST))


def on_run_time(run: str, expression: str, field: str, name: str) -> Query:
    """Seconds of one run, all classes, placed by the time since its start."""
    inner = (
        f'SELECT max("run_second") AS "s", {expression}("{field}") AS "v" FROM "{FLEET.name}"'
        f" WHERE {_past(run, ALL, STAGE)} GROUP BY time(1s) fill(none)"
    )
    over = "mean" if expression == "sum" else expression
    return Query(
        f'SELECT min("s") AS "{RUN_SECOND}", {over}("v") AS "{name}" FROM ({inner}) WHERE {PAST}'
        f" GROUP BY time($step) fill(none)",
        table=True,
    )


def mean_of_run(run: str, field: str, name: str) -> Query:
    """The mean second of one run."""
    inner = (
        f'SELECT sum("{field}") AS "v" FROM "{FLEET.name}" WHERE {_past(run, ALL, STAGE)} GROUP BY time(1s) fill(none)'
    )
    return Query(f'SELECT mean("v") AS "{name}" FROM ({inner}) WHERE {PAST}')


def requests_of_run(run: str, expression: str, name: str, *conditions: str) -> Query:
    """One value over all requests of one run, exact."""
    return Query(
        f'SELECT {expression} AS "{name}" FROM "{REQUEST.name}" WHERE {_past(run, CLASS, STAGE, TARGET, *conditions)}'
    )


def runs_table(columns: Sequence[tuple[str, str]], by: str, *conditions: str) -> Query:
    """A row for each value of a tag and run, exact."""
    return Query(
        f'SELECT {_columns(columns)} FROM "{REQUEST.name}" WHERE {_past(_EITHER, CLASS, STAGE, TARGET, *conditions)}'
        f' GROUP BY "{by}", "run"',
        table=True,
    )


STAGE_EVENTS = (
    f'SELECT "title", "text", "end_ms", "kind" FROM "{EVENT.name}"'
    f' WHERE {RUN} AND "kind" = \'stage\' AND "end_ms" > 0 AND {TIME}'
)
"""Stages as regions. Grafana drops an annotation row with an empty column, so regions and instants are two queries."""

CLIFF_EVENTS = f'SELECT "title", "text", "kind" FROM "{EVENT.name}" WHERE {RUN} AND "kind" = \'cliff\' AND {TIME}'
"""Falls of tok/s with their cause, in a color of their own."""

OTHER_EVENTS = (
    f'SELECT "title", "text", "kind" FROM "{EVENT.name}"'
    f" WHERE {RUN} AND \"kind\" != 'stage' AND \"kind\" != 'cliff' AND {TIME}"
)
"""Everything else, as instants."""


def tag_values(measurement: str, tag: str, *, of_run: bool, time: str = TIME) -> str:
    """The values of a tag in the time range; InfluxDB 3 looks at the last day only unless a time is given."""
    return f'SHOW TAG VALUES FROM "{measurement}" WITH KEY = "{tag}" WHERE {f"{RUN} AND " if of_run else ""}{time}'
