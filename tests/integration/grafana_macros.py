"""Fill a query in as Grafana 11 and later do: variables in the browser, then macros in its server.

Only what raw InfluxQL queries meet: a single value goes in as it is when it begins with a digit and escaped
otherwise, several values as an alternation in brackets, "All" as the variable's own `allValue`, untouched.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_STEPS_S = (
    (1.5, 1),
    (3.5, 2),
    (7.5, 5),
    (12.5, 10),
    (17.5, 15),
    (25, 20),
    (45, 30),
    (90, 60),
    (210, 120),
    (450, 300),
    (750, 600),
    (1050, 900),
    (1500, 1200),
    (2700, 1800),
    (5400, 3600),
)
_SPECIAL = re.compile(r"[\\^$*+?.()|\[\]{}/]")


class TimeRange(NamedTuple):
    """What the picker shows, ms since 1970."""

    from_ms: int
    to_ms: int


class AllValues(NamedTuple):
    """ "All" of a variable with an `allValue`."""

    text: str


Choice = str | Sequence[str] | AllValues


def interval_s(span: TimeRange, *, max_data_points: int, minimum_s: int) -> int:
    """`$__interval`: the range over the panel's width, rounded to a step people know, not below the minimum."""
    exact = max((span.to_ms - span.from_ms) / max_data_points / 1000, minimum_s)
    return next((step for bound, step in _STEPS_S if exact < bound), 7200)


def _escape(value: str) -> str:
    return _SPECIAL.sub(lambda found: "\\" + found.group(), value)


def _interpolated(choice: Choice) -> str:
    if isinstance(choice, AllValues):
        return choice.text
    if isinstance(choice, str):
        return choice if re.match(r"\s*[-+]?\.?\d", choice) else _escape(choice)
    return f"({'|'.join(_escape(value) for value in choice)})"


def fill_in(query: str, choices: Mapping[str, Choice], span: TimeRange, interval: int = 1) -> str:
    """The query as InfluxDB receives it. ValueError when something of Grafana is left in it."""
    for name, choice in choices.items():
        value = _interpolated(choice)
        query = re.sub(rf"\$\{{{name}\}}|\${name}\b", lambda _, value=value: value, query)
    text = f"{interval // 60}m" if interval >= 60 and interval % 60 == 0 else f"{interval}s"
    query = query.replace("$timeFilter", f"time >= {span.from_ms}ms and time <= {span.to_ms}ms")
    query = query.replace("$__interval_ms", str(interval * 1000)).replace("$__interval", text)
    if re.search(r"\$\w", query):
        raise ValueError(f"a variable or macro is left in {query!r}")
    return query


def parse_interval_s(text: str) -> int:
    """A panel's shortest step, such as `10s`."""
    return int(text.removesuffix("s"))


def sorted_as_grafana(values: Sequence[str], sort: int) -> list[str]:
    """The options of a variable in its order: 1 is alphabetical, 2 the same, last first; 7 is natural."""
    if sort in (1, 2):
        return sorted(values, key=str.lower, reverse=sort == 2)
    if sort == 7:
        return sorted(
            values, key=lambda value: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", value)]
        )
    raise ValueError(f"sort {sort} is not one the boards use")


def targets(panel: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A panel's queries; rows have none."""
    return list(panel.get("targets", []))
