"""Each query of each board with what it must answer, and the comparison of the two."""

from collections.abc import Mapping
from typing import Any

import pytest
from board_expectations import EXPECTED, VIRTUAL_ONLY, Expectation
from board_queries import BOARDS, Ask
from board_tables import Chosen, Rows, Seen, cells_of_frame, cells_of_series, differences, equal, rows_of_series
from grafana_macros import AllValues, Choice, TimeRange, fill_in, targets

VARIABLES = ("class", "stage", "worker", "target")

GOLDENS = [
    pytest.param(
        target,
        EXPECTED[name][panel["title"]][place],
        id=f"{name}: {panel['title']} {target['refId']}",
    )
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for place, target in enumerate(targets(panel))
    if place < len(EXPECTED.get(name, {}).get(panel["title"], []))
]
"""Every query that has an expectation."""

GOLDENS_OF_ONE_RUN = [
    golden for golden in GOLDENS if golden.values[1] not in VIRTUAL_ONLY and not str(golden.id).startswith("compare")
]
"""Those that hold to the last digit whatever the clock was, and need no second run."""

EXPECTED_QUERIES = {name: {title: len(each) for title, each in panels.items()} for name, panels in EXPECTED.items()}
SHIPPED_QUERIES = {
    name: {panel["title"]: len(targets(panel)) for panel in board["panels"] if targets(panel)}
    for name, board in BOARDS.items()
}


def choices(chosen: Chosen, more: Mapping[str, Choice]) -> dict[str, Choice]:
    """The variables as Grafana has them."""
    picked = {tag: chosen.of(tag) for tag in VARIABLES}
    return {**more, **{tag: AllValues(".*") if values is None else values for tag, values in picked.items()}}


def disagreements(
    ask: Ask, target: dict[str, Any], expectation: Expectation, seen: Seen, span: TimeRange, more: Mapping[str, Choice]
) -> list[str]:
    """Where the database's answer is not what the tables hold, in words."""
    series = ask(fill_in(target["query"], choices(seen.chosen, more), span, seen.chosen.step_s))
    want = expectation(seen)
    if isinstance(want, Rows):
        return _other_rows(rows_of_series(series), want)
    got, expected = cells_of_series(series, by_time="step" in want.columns), cells_of_frame(want)
    if "fill(0)" in target["query"]:
        got = {key: value for key, value in got.items() if value != 0}
    return differences(got, expected)


def _other_rows(got: list[dict[str, Any]], want: Rows) -> list[str]:
    if len(got) != len(want.rows):
        return [f"the database has {len(got)} rows, the tables have {len(want.rows)}"]
    pairs = zip(got, want.rows, strict=True)
    if not want.in_order:
        pairs = zip(sorted(got, key=_in_order), sorted(want.rows, key=_in_order), strict=True)
    return [
        f"the database has {one}, the tables have {other}"
        for one, other in pairs
        if one.keys() != other.keys() or not all(equal(one[key], other[key]) for key in one)
    ]


def _in_order(row: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((key, repr(value)) for key, value in row.items())
