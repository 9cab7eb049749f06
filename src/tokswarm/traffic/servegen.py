"""Reads ServeGen's clients and draws the requests they would send.

A client is two files: `NAME-trace.csv`, without a header, a window a row (start in s, rate in requests/s,
cv of the gaps, `Gamma` or `Weibull`, two parameters that rate and cv already say; idle windows have rate 0),
and `NAME-dataset.json`, which from each of some times on gives the lengths as a text holding
{tokens: probability}. A folder is all clients in it. What is drawn depends on the seed and the client's name
alone. Of clients that send images and the like only the text is drawn.
"""

import ast
import csv
import math
import random
from bisect import bisect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from tokswarm.errors import ConfigError
from tokswarm.traffic.arrivals import LARGEST_CV, SMALLEST_CV, offsets_ns
from tokswarm.traffic.distribution import LARGEST_DRAW, Weighted
from tokswarm.traffic.plan import OpenLoop
from tokswarm.traffic.seed import mixed_seed
from tokswarm.traffic.trace import TraceRow

TRACE_SUFFIX, DATASET_SUFFIX = "-trace.csv", "-dataset.json"
MOST_ROWS = 1_000_000
_KINDS = {"Gamma": "gamma", "Weibull": "weibull"}
_COLUMNS = 6
_S_NS = 1_000_000_000


class _Window(NamedTuple):
    start_s: float
    rate_per_s: float
    cv: float
    kind: str


class _Lengths(NamedTuple):
    tokens: list[int]
    weighted: Weighted

    def draw(self, rng: random.Random) -> int:
        return self.tokens[self.weighted.draw(rng)]


def is_servegen(path: Path) -> bool:
    """Whether this is a client's trace, or a folder of clients."""
    return path.name.endswith(TRACE_SUFFIX) or (path.is_dir() and any(path.glob(f"*{TRACE_SUFFIX}")))


def read_servegen(path: Path, *, from_ns: int, until_ns: int | None, seed: int) -> list[TraceRow]:
    """What the clients send in a part of their time, whose start becomes 0. ConfigError names file and line."""
    files = sorted(path.glob(f"*{TRACE_SUFFIX}")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"{path}: there are no clients in it, files named …{TRACE_SUFFIX}")
    rows: list[TraceRow] = []
    for file in files:
        for row in _client(file, from_ns, until_ns, seed):
            rows.append(row)
            if len(rows) > MOST_ROWS:
                raise ConfigError(
                    f"{path}: more than {MOST_ROWS:,} requests come in that time",
                    hint="take a part of the trace's time with from and until",
                )
    if not rows:
        raise ConfigError(f"{path}: no requests come in that time", hint="take another part with from and until")
    return sorted(rows, key=lambda row: row.offset_ns)


def _client(file: Path, from_ns: int, until_ns: int | None, seed: int) -> Iterator[TraceRow]:
    windows = list(_windows(file))
    dataset = file.with_name(file.name.removesuffix(TRACE_SUFFIX) + DATASET_SUFFIX)
    lengths = _Dataset(dataset)
    client_seed = mixed_seed(seed, crc32(file.name.encode()))
    for index, window in enumerate(windows):
        start_ns = round(window.start_s * _S_NS)
        end_ns = round(windows[index + 1].start_s * _S_NS) if index + 1 < len(windows) else start_ns + 600 * _S_NS
        if window.rate_per_s == 0 or end_ns <= from_ns or (until_ns is not None and start_ns >= until_ns):
            continue
        rng = random.Random(mixed_seed(client_seed, index))  # noqa: S311 - reproducible
        prompts, outputs = lengths.at(window.start_s)
        cv = min(max(window.cv, SMALLEST_CV), LARGEST_CV)
        for offset_ns in offsets_ns(OpenLoop(rate_per_s=window.rate_per_s, arrivals=window.kind, cv=cv), rng):
            at_ns = start_ns + offset_ns
            if at_ns >= end_ns or (until_ns is not None and at_ns >= until_ns):
                break
            prompt_tokens, output_tokens = prompts.draw(rng), outputs.draw(rng)
            if at_ns >= from_ns:
                yield TraceRow(offset_ns=at_ns - from_ns, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def _windows(file: Path) -> Iterator[_Window]:
    last_s = -math.inf
    for number, cells in enumerate(csv.reader(_text(file).splitlines()), start=1):
        if len(cells) != _COLUMNS:
            raise ConfigError(f"{file}:{number}: not a window of a ServeGen client, expected {_COLUMNS} cells")
        try:
            start_s, rate, cv = (float(cell) for cell in cells[:3])
        except ValueError as error:
            raise ConfigError(f"{file}:{number}: start, rate and cv of a window must be numbers") from error
        if not (0 <= start_s < math.inf and 0 <= rate < math.inf and 0 <= cv < math.inf) or start_s <= last_s:
            raise ConfigError(f"{file}:{number}: start, rate or cv of the window makes no sense, or it is out of order")
        if rate > 0 and cells[3] not in _KINDS:
            raise ConfigError(f"{file}:{number}: the gaps of a window are Gamma or Weibull")
        last_s = start_s
        yield _Window(start_s, rate, cv, _KINDS.get(cells[3], ""))


class _Dataset:
    """Lengths from each of some times on; read when they are needed: those of idle times hold nothing."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            raw = msgspec.json.decode(_text(file), type=dict[str, dict[str, str]])
            self._columns = sorted(((float(start), columns) for start, columns in raw.items()), key=lambda one: one[0])
        except (msgspec.MsgspecError, ValueError) as error:
            raise ConfigError(f"{file}: not the lengths of a ServeGen client") from error
        if not self._columns:
            raise ConfigError(f"{file}: there are no lengths in it")
        self._starts = [start for start, _ in self._columns]
        self._read: dict[int, tuple[_Lengths, _Lengths]] = {}

    def at(self, time_s: float) -> tuple[_Lengths, _Lengths]:
        """Of prompts and of answers, at a time."""
        place = max(0, bisect(self._starts, time_s) - 1)
        if place not in self._read:
            start, columns = self._columns[place]
            prompts = columns.get("input_tokens", columns.get("text_tokens"))
            self._read[place] = (
                _lengths(self._file, start, prompts),
                _lengths(self._file, start, columns.get("output_tokens")),
            )
        return self._read[place]


def _lengths(file: Path, start: float, text: str | None) -> _Lengths:
    """Lengths out of a text such as {18: 0.25, 19: 0.75}; a length of 0 counts as 1, the shortest that can be sent."""
    try:
        value: Any = ast.literal_eval(text or "")
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise ConfigError(f"{file}: the lengths from {start:g} on cannot be read") from error
    try:
        weights = msgspec.convert(value, dict[int, float])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file}: the lengths from {start:g} on are no numbers with probabilities") from error
    if not any(weight > 0 for weight in weights.values()) or not all(
        0 <= tokens <= LARGEST_DRAW and 0 <= weight < math.inf for tokens, weight in weights.items()
    ):
        raise ConfigError(f"{file}: the lengths from {start:g} on make no sense")
    return _Lengths([max(1, tokens) for tokens in weights], Weighted(list(weights.values())))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{file}: cannot read the trace: {reason}") from error
