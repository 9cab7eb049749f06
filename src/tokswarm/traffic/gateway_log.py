"""Reads a CSV of a gateway's log, whose columns are named: when each request came, how long it was, what it was.

Rows may be in any order. Messages name file and line and never quote the file.
"""

import csv
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tokswarm.errors import ConfigError
from tokswarm.traffic.distribution import LARGEST_DRAW
from tokswarm.traffic.trace import TraceRow

MOST_CLASSES = 50
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class GatewayColumns(NamedTuple):
    """Which column holds what."""

    time: str
    prompt_tokens: str
    output_tokens: str
    class_name: str | None


class GatewayLog(NamedTuple):
    """The requests in the order they came, the first at 0."""

    rows: list[TraceRow]
    class_names: list[str] | None
    """Of each row; None: no column was named."""


def read_gateway_log(path: Path, columns: GatewayColumns) -> GatewayLog:
    """Read a log. ConfigError names file and line of a row that makes no sense."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot read the log: {reason}") from error
    reader = csv.DictReader(text.splitlines())
    for column in columns:
        if column is not None and column not in (reader.fieldnames or ()):
            raise ConfigError(f"{path}:1: there is no column {column!r}")
    read: list[tuple[int, int, int, str]] = []
    for cells in reader:
        number = reader.line_num
        read.append(
            (
                _time_ns(path, number, cells[columns.time]),
                _tokens(path, number, columns.prompt_tokens, cells[columns.prompt_tokens]),
                _tokens(path, number, columns.output_tokens, cells[columns.output_tokens]),
                "" if columns.class_name is None else _name(cells[columns.class_name]),
            )
        )
    if not read:
        raise ConfigError(f"{path}: the log has no rows")
    read.sort(key=lambda row: row[0])
    rows = [
        TraceRow(offset_ns=at_ns - read[0][0], prompt_tokens=prompt, output_tokens=output)
        for at_ns, prompt, output, _ in read
    ]
    if columns.class_name is None:
        return GatewayLog(rows, None)
    names = [name for *_, name in read]
    if len(set(names)) > MOST_CLASSES:
        raise ConfigError(f"{path}: {len(set(names))} classes are too many, expected at most {MOST_CLASSES}")
    return GatewayLog(rows, names)


def _time_ns(path: Path, number: int, cell: str | None) -> int:
    """Seconds as a number, or a date and time (UTC unless it says otherwise)."""
    text = (cell or "").strip()
    try:
        if re.fullmatch(r"\d+(\.\d+)?", text):
            whole, _, fraction = text.partition(".")
            return int(whole) * 1_000_000_000 + int(fraction[:9].ljust(9, "0"))
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        whole_s = int(moment.replace(microsecond=0).timestamp())
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{path}:{number}: the time is neither seconds nor a date and time") from error
    return whole_s * 1_000_000_000 + moment.microsecond * 1000


def _tokens(path: Path, number: int, column: str, cell: str | None) -> int:
    try:
        tokens = int(cell or "")
    except ValueError:
        tokens = 0
    if not 1 <= tokens <= LARGEST_DRAW:
        raise ConfigError(f"{path}:{number}: {column} is not a whole number of tokens from 1 to {LARGEST_DRAW}")
    return tokens


def _name(cell: str | None) -> str:
    """A name a class may have."""
    name = _NOT_IN_A_NAME.sub("-", (cell or "").strip()).strip("-._")
    return name or "none"
