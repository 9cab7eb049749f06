"""The InfluxQL the boards send: text only, in the dialect that InfluxDB 1.8, 2 and 3 share.

Measurements are unqualified, every tag is compared with a regular expression (so that one value, several
and "All" are written alike), and a query says `$timeFilter` in each of its parts, because a time range
does not travel out of a sub-query.
"""

# ruff: noqa: S608 - built from names of our own schema; what a user chooses is put in, and escaped, by Grafana

from collections.abc import Sequence
from typing import NamedTuple

from tokswarm.measure.histogram import LE_BOUNDS_MS
from tokswarm.measure.schema import EVENT, FLEET, REQUEST, WINDOW, WORKER, le_names
from tokswarm.measure.window import ALL_CLASSES

RUN = '"run" =~ /^$run$/'
STAGE = '"stage" =~ /^$stage$/'
CLASS = '"class" =~ /^$class$/'
WORKERS = '"worker" =~ /^$worker$/'
ALL = f"\"class\" = '{ALL_CLASSES}'"
EACH = f"{CLASS} AND \"class\" != '{ALL_CLASSES}'"
OK = "\"outcome\" = 'ok'"
TIME = "$timeFilter"


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


def fleet_range(columns: Sequence[tuple[str, str]]) -> Query:
    """One row over the whole time range, all classes together."""
    return Query(f'SELECT {_columns(columns)} FROM "{FLEET.name}" WHERE {_where(ALL, STAGE)}')


def requests(columns: Sequence[tuple[str, str]], *conditions: str, by: Sequence[str] = ()) -> Query:
    """Finished requests over the interval, exact."""
    return Query(
        f'SELECT {_columns(columns)} FROM "{REQUEST.name}" WHERE {_where(CLASS, STAGE, *conditions)}'
        f" GROUP BY {_by('$__interval', by)} fill(null)",
        _alias(by),
    )


def outcomes_per_second() -> Query:
    """Finished requests per second by outcome; a second without any is a true zero."""
    return Query(
        f'SELECT count("request") * 1000 / $__interval_ms AS "per second" FROM "{REQUEST.name}"'
        f" WHERE {_where(CLASS, STAGE)} GROUP BY {_by('$__interval', ('outcome',))} fill(0)",
        "$tag_outcome",
    )


def request_range(columns: Sequence[tuple[str, str]], *conditions: str) -> Query:
    """One row of all requests in the time range, exact."""
    return Query(f'SELECT {_columns(columns)} FROM "{REQUEST.name}" WHERE {_where(CLASS, STAGE, *conditions)}')


def request_table(columns: Sequence[tuple[str, str]], *conditions: str) -> Query:
    """A row for each class, exact over the time range."""
    return Query(
        f'SELECT {_columns(columns)} FROM "{REQUEST.name}" WHERE {_where(CLASS, STAGE, *conditions)} GROUP BY "class"',
        table=True,
    )


def last_failures() -> Query:
    """The newest requests that did not end ok."""
    return Query(
        f'SELECT "outcome", "status", "error", "class", "worker" FROM "{REQUEST.name}"'
        f" WHERE {_where(CLASS, STAGE)} AND \"outcome\" != 'ok' ORDER BY time DESC LIMIT 50",
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


def workers(columns: Sequence[tuple[str, str]], *, each: bool = True) -> Query:
    """What the load generators measured of themselves."""
    tags = ("worker",) if each else ()
    return Query(
        f'SELECT {_columns(columns)} FROM "{WORKER.name}" WHERE {_where(WORKERS)}'
        f" GROUP BY {_by('$__interval', tags)} fill(null)",
        _alias(tags),
    )


_LITTLE_RAW = (
    'SELECT "finished_per_s" AS "f", "finished_per_s" * "e2e_mean_ms" AS "w", "in_flight" AS "n"'
    f' FROM "{FLEET.name}" WHERE {_where(ALL, STAGE)}'
)
_LITTLE_SECONDS = (
    'SELECT sum("f") AS "f", sum("w") AS "w", sum("n") AS "n"'
    f" FROM ({_LITTLE_RAW}) WHERE {TIME} GROUP BY time(1s) fill(none)"
)
_LAMBDA_W = 'mean("f") * sum("w") / sum("f") / 1000'


def little() -> Query:
    """L, and λW: the rate of ends times their mean stay (each second's mean weighted by its ends)."""
    return Query(
        f'SELECT mean("n") AS "L in flight", {_LAMBDA_W} AS "λW" FROM ({_LITTLE_SECONDS})'
        f" WHERE {TIME} GROUP BY time($__interval) fill(null)"
    )


def little_range() -> Query:
    """λW ÷ L over the time range; 1 where the law holds."""
    return Query(f'SELECT {_LAMBDA_W} / mean("n") AS "λW ÷ L" FROM ({_LITTLE_SECONDS}) WHERE {TIME}')


def events_table() -> Query:
    """The newest events of the run."""
    return Query(
        f'SELECT "kind", "title", "text" FROM "{EVENT.name}" WHERE {_where()} ORDER BY time DESC LIMIT 100',
        table=True,
    )


STAGE_EVENTS = (
    f'SELECT "title", "text", "end_ms", "kind" FROM "{EVENT.name}"'
    f' WHERE {RUN} AND "kind" = \'stage\' AND "end_ms" > 0 AND {TIME}'
)
"""Stages as regions. Grafana drops an annotation row with an empty column, so regions and instants are two queries."""

OTHER_EVENTS = f'SELECT "title", "text", "kind" FROM "{EVENT.name}" WHERE {RUN} AND "kind" != \'stage\' AND {TIME}'
"""Everything else, as instants."""


def tag_values(measurement: str, tag: str, *, of_run: bool) -> str:
    """The values of a tag in the time range; InfluxDB 3 looks at the last day only unless a time is given."""
    return f'SHOW TAG VALUES FROM "{measurement}" WITH KEY = "{tag}" WHERE {f"{RUN} AND " if of_run else ""}{TIME}'
