"""The boards that ship with tokswarm, and what is set in them before they are published."""

import hashlib
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tokswarm.resources import resource_dir

Board = dict[str, Any]

_VARIABLE = {"type": "influxdb", "uid": "${ds}"}
_CHOICES = ("class", "stage", "target", "worker")
_SPECIAL = re.compile(r"[\\^$*+?.()|\[\]{}/]")


class Span(NamedTuple):
    """When a run was, ms since 1970; without an end it still goes on."""

    from_ms: int
    to_ms: int | None


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

    def pin(value: Any) -> Any:
        if value == _VARIABLE:
            return {**_VARIABLE, "uid": uid}
        return value.replace("${ds:queryparam}&", "") if isinstance(value, str) else value

    pinned: Board = _everywhere(board, pin)
    return _without_variables(pinned, lambda variable: variable["type"] == "datasource")


def of_one_run(board: Board, run_id: str, span: Span) -> Board | None:
    """A board of its own that shows this run and its time, with nothing to choose; None when it needs a choice.

    Grafana offers no variables to people who look at a board that is shared externally.
    """
    names = [variable["name"] for variable in board["templating"]["list"] if variable["type"] != "datasource"]
    if set(names) != {"run", *_CHOICES}:
        return None
    texts = {"run": _SPECIAL.sub(r"\\\g<0>", run_id), **dict.fromkeys(_CHOICES, ".*")}

    def fill_in(value: Any) -> Any:
        if isinstance(value, str):
            for name, text in texts.items():
                value = value.replace(f"/^${name}$/", f"/^{text}$/")
        return value

    filled: Board = _everywhere(board, fill_in)
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:8]
    return {
        **_without_variables(filled, lambda variable: variable["type"] != "datasource"),
        "uid": f"{board['uid']}-{digest}",
        "title": f"{board['title']}, {run_id}",
        "tags": ["tokswarm-run"],
        "links": [],
        "time": {"from": _moment(span.from_ms), "to": "now" if span.to_ms is None else _moment(span.to_ms)},
        **({} if span.to_ms is None else {"refresh": ""}),
    }


def _moment(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _without_variables(board: Board, is_out: Callable[[Board], bool]) -> Board:
    variables = [variable for variable in board["templating"]["list"] if not is_out(variable)]
    return {**board, "templating": {**board["templating"], "list": variables}}


def _everywhere(value: Any, change: Callable[[Any], Any]) -> Any:
    changed = change(value)
    if isinstance(changed, dict):
        return {key: _everywhere(each, change) for key, each in changed.items()}
    return [_everywhere(each, change) for each in changed] if isinstance(changed, list) else changed
