"""The boards that ship with tokswarm, and what is set in them before they are published."""

import json
from pathlib import Path
from typing import Any

from tokswarm.resources import resource_dir

Board = dict[str, Any]

_VARIABLE = {"type": "influxdb", "uid": "${ds}"}


def shipped_boards() -> list[Board]:
    """The boards of this installation, by file name."""
    files = sorted(resource_dir("dashboards").glob("*.json"), key=lambda path: path.name)
    return [json.loads(Path(path).read_text(encoding="utf-8")) for path in files]


def opening_with(board: Board, *, uid: str, name: str) -> Board:
    """The board with a data source chosen; another one can still be chosen on it."""
    current = {"selected": True, "text": name, "value": uid}
    variables = [
        {**variable, "current": current} if variable["type"] == "datasource" else variable
        for variable in board["templating"]["list"]
    ]
    return {**board, "templating": {**board["templating"], "list": variables}}


def pinned_to(board: Board, uid: str) -> Board:
    """The board with this data source and no choice of another, as a board that is shared with strangers needs it."""
    pinned: Board = _pinned(board, uid)
    variables = [variable for variable in pinned["templating"]["list"] if variable["type"] != "datasource"]
    return {**pinned, "templating": {**pinned["templating"], "list": variables}}


def _pinned(value: Any, uid: str) -> Any:
    if value == _VARIABLE:
        return {**_VARIABLE, "uid": uid}
    if isinstance(value, dict):
        return {key: _pinned(each, uid) for key, each in value.items()}
    if isinstance(value, list):
        return [_pinned(each, uid) for each in value]
    return value.replace("${ds:queryparam}&", "") if isinstance(value, str) else value
