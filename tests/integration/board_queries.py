"""The boards as they ship, and what a browser that opens one would ask for."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from grafana_macros import AllValues, Choice, TimeRange, fill_in, sorted_as_grafana, targets

from tokswarm.resources import resource_dir

BOARDS = {
    path.name: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(resource_dir("dashboards").glob("*.json"))
}
PANELS = [
    pytest.param(panel, target, id=f"{name}: {panel['title']} {target['refId']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for target in targets(panel)
]
"""Every query of every panel of every board."""

Ask = Callable[[str], list[dict[str, Any]]]
"""From InfluxQL to series."""


def choices_of(board: dict[str, Any], ask: Ask, span: TimeRange) -> dict[str, Choice]:
    """What stands in the board's variables when it is opened and nothing is clicked."""
    chosen: dict[str, Choice] = {}
    for variable in board["templating"]["list"]:
        if variable["type"] == "textbox":
            chosen[variable["name"]] = variable["query"]
        if variable["type"] == "custom":
            chosen[variable["name"]] = variable["current"]["value"]
        if variable["type"] != "query":
            continue
        rows = [value for series in ask(fill_in(variable["query"], chosen, span)) for value in series["values"]]
        options = sorted_as_grafana([value for _, value in rows], variable["sort"])
        assert options, f"{variable['name']} offers nothing"
        chosen[variable["name"]] = AllValues(variable["allValue"]) if variable["includeAll"] else options[0]
    return chosen


def values_of(series: list[dict[str, Any]], column: str) -> list[Any]:
    """All values of a column, series after series."""
    return [row[one["columns"].index(column)] for one in series for row in one["values"] if column in one["columns"]]
