"""Reads recorded traces: when each request came, how long its prompt and answer were, which blocks it began with.

Formats: Mooncake JSONL (`timestamp` in ms, `input_length`, `output_length`, `hash_ids` of 512-token
prefix blocks), Qwen-Bailian JSONL (the same with `chat_id`, seconds and 16-token blocks), our own JSONL
(`at_s`, `prompt_tokens`, `output_tokens`, `blocks`), the Azure LLM inference CSV (`TIMESTAMP`,
`ContextTokens`, `GeneratedTokens`) and the BurstGPT CSV. ServeGen, which has clients and no rows, is in `servegen`.
Messages about a bad row name file and line and never quote the file, which may not be a trace at all.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta

from tokswarm.errors import ConfigError

BLOCK_TOKENS = 512
"""Length of the block behind one id of `hash_ids`, but for Bailian's."""
BAILIAN_BLOCK_TOKENS = 16

TraceFormat = Literal["mooncake", "bailian", "tokswarm", "azure", "burstgpt"]
Tokens = Annotated[int, Meta(ge=1, le=10_000_000)]
Seconds = Annotated[float, Meta(ge=0, le=366 * 24 * 3600)]

_AZURE_HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
_AZURE_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:\+00:00|Z)?")
_MOST_MS = 366 * 24 * 3_600_000


class TraceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded request."""

    offset_ns: int
    """From the first row, which is at 0."""
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Ids of the leading blocks, numbered by first appearance in the file; an equal run is an equal text."""


class Trace(NamedTuple):
    """A trace that was read."""

    rows: list[TraceRow]
    block_tokens: int


class _MooncakeRow(msgspec.Struct):
    timestamp: Annotated[float, Meta(ge=0, le=_MOST_MS)]
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[int] = []

    block_tokens: ClassVar[int] = BLOCK_TOKENS

    def offset_ms(self) -> float:
        return self.timestamp


class _BailianRow(_MooncakeRow):
    block_tokens: ClassVar[int] = BAILIAN_BLOCK_TOKENS

    def offset_ms(self) -> float:
        return self.timestamp * 1e3


class _OwnRow(msgspec.Struct, forbid_unknown_fields=True):
    at_s: Annotated[float, Meta(ge=0, le=_MOST_MS / 1e3)]
    prompt_tokens: Tokens
    output_tokens: Tokens
    blocks: list[int] = []


def read_trace(path: Path, form: Literal["auto"] | TraceFormat) -> list[TraceRow]:
    """All rows of a trace, in its own order. ConfigError names file and line of a row that makes no sense."""
    return read_whole_trace(path, form).rows


def read_whole_trace(path: Path, form: Literal["auto"] | TraceFormat) -> Trace:
    """All rows of a trace and the length of its blocks. ConfigError as for `read_trace`."""
    lines = list(_lines(path))
    if not lines:
        raise ConfigError(f"{path}: the trace is empty")
    if form == "auto":
        form = _detect(path, lines[0][1])
    match form:
        case "mooncake":
            rows = _hashed(path, lines, _MooncakeRow, "a Mooncake trace")
        case "bailian":
            rows = _hashed(path, lines, _BailianRow, "a Qwen-Bailian trace")
        case "tokswarm":
            rows = _own(path, lines)
        case "azure":
            rows = _azure(path, lines)
        case "burstgpt":
            rows = _burstgpt(path, lines)
    if not rows:
        raise ConfigError(f"{path}: the trace has no rows")
    return Trace(rows, BAILIAN_BLOCK_TOKENS if form == "bailian" else BLOCK_TOKENS)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is not blank."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if text := line.strip():
                    yield number, text
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot read the trace: {reason}") from error


def _detect(path: Path, first: str) -> TraceFormat:
    if first.startswith("{"):
        if '"at_s"' in first:
            return "tokswarm"
        return "bailian" if '"chat_id"' in first else "mooncake"
    header = first.split(",")
    if header == _AZURE_HEADER:
        return "azure"
    if set(_BURSTGPT_COLUMNS) <= set(header):
        return "burstgpt"
    raise ConfigError(
        f"{path}:1: neither a Mooncake trace or another one of JSON objects, nor an Azure trace (header "
        f"{','.join(_AZURE_HEADER)}), nor a BurstGPT trace (columns {', '.join(_BURSTGPT_COLUMNS)})",
        hint="set trace.format if the file is one of these all the same",
    )


# --- JSON lines ---------------------------------------------------------------------------------


def _hashed(path: Path, lines: list[tuple[int, str]], row_type: type[_MooncakeRow], what: str) -> list[TraceRow]:
    decoder = msgspec.json.Decoder(row_type)
    read: list[_MooncakeRow] = []
    for number, text in lines:
        try:
            row = decoder.decode(text)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}:{number}: not a row of {what}: {error}") from error
        if read and row.timestamp < read[-1].timestamp:
            raise ConfigError(f"{path}:{number}: timestamp goes back from {read[-1].timestamp:g} to {row.timestamp:g}")
        _check_blocks(path, number, len(row.hash_ids), row.input_length, row.block_tokens)
        read.append(row)
    offsets_ms = _spread([row.offset_ms() for row in read])
    numbers: dict[int, int] = {}
    return [
        TraceRow(
            offset_ns=round((offset_ms - offsets_ms[0]) * 1e6),
            prompt_tokens=row.input_length,
            output_tokens=row.output_length,
            blocks=tuple(numbers.setdefault(block, len(numbers)) for block in row.hash_ids),
        )
        for row, offset_ms in zip(read, offsets_ms, strict=True)
    ]


def _check_blocks(path: Path, number: int, blocks: int, prompt_tokens: int, block_tokens: int) -> None:
    most = -(-prompt_tokens // block_tokens)
    if blocks > most:
        raise ConfigError(
            f"{path}:{number}: {blocks} hash_ids for input_length {prompt_tokens},"
            f" expected at most {most} (one per {block_tokens} tokens)"
        )


def _own(path: Path, lines: list[tuple[int, str]]) -> list[TraceRow]:
    decoder = msgspec.json.Decoder(_OwnRow)
    rows: list[TraceRow] = []
    numbers: dict[int, int] = {}
    first_s = 0.0
    for number, text in lines:
        try:
            row = decoder.decode(text)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}:{number}: not a row of a tokswarm trace: {error}") from error
        if not rows:
            first_s = row.at_s
        offset_ns = round((row.at_s - first_s) * 1e9)
        if rows and offset_ns < rows[-1].offset_ns:
            raise ConfigError(f"{path}:{number}: at_s is before the row above")
        _check_blocks(path, number, len(row.blocks), row.prompt_tokens, BLOCK_TOKENS)
        rows.append(
            TraceRow(
                offset_ns=offset_ns,
                prompt_tokens=row.prompt_tokens,
                output_tokens=row.output_tokens,
                blocks=tuple(numbers.setdefault(block, len(numbers)) for block in row.blocks),
            )
        )
    return rows


def _spread(stamps_ms: list[float]) -> list[float]:
    """Spread the requests of one stamp evenly up to the next, in a file whose stamps are coarse steps.

    The conversation trace is stamped every 3 s or so; replayed as written, its requests would come
    in bursts the service never saw. A file with mostly different stamps is left as it is. A step is
    never longer than the usual one, so that a pause stays a pause.
    """
    gaps = [later - sooner for sooner, later in pairwise(stamps_ms)]
    steps = [gap for gap in gaps if gap > 0]
    if not steps or 2 * len(steps) > len(gaps):
        return stamps_ms
    usual_ms = median(steps)
    spread: list[float] = []
    first = 0
    while first < len(stamps_ms):
        end = first
        while end < len(stamps_ms) and stamps_ms[end] == stamps_ms[first]:
            end += 1
        width_ms = usual_ms if end == len(stamps_ms) else min(usual_ms, stamps_ms[end] - stamps_ms[first])
        spread.extend(stamps_ms[first] + width_ms * k / (end - first) for k in range(end - first))
        first = end
    return spread


# --- CSV ------------------------------------------------------------------------------------------


def _burstgpt(path: Path, lines: list[tuple[int, str]]) -> list[TraceRow]:
    """Seconds, and two of the token columns. A failed request has no response tokens and is no row to replay."""
    number, header = lines[0]
    names = header.split(",")
    missing = [name for name in _BURSTGPT_COLUMNS if name not in names]
    if missing:
        raise ConfigError(f"{path}:{number}: not the header of a BurstGPT trace, it lacks {', '.join(missing)}")
    time_at, prompt_at, output_at = (names.index(name) for name in _BURSTGPT_COLUMNS)
    stamps_ms: list[float] = []
    lengths: list[tuple[int, int]] = []
    for number, text in lines[1:]:
        cells = text.split(",")
        if len(cells) != len(names):
            raise ConfigError(f"{path}:{number}: not a row of a BurstGPT trace, expected {len(names)} cells")
        if cells[output_at] in {"0", "0.0"}:
            raise ConfigError(
                f"{path}:{number}: a failed request, without response tokens",
                hint="use the file without failures (BurstGPT_without_fails_…)",
            )
        try:
            stamp_ms = msgspec.convert(cells[time_at], Seconds, strict=False) * 1e3
        except msgspec.ValidationError as error:
            raise ConfigError(f"{path}:{number}: Timestamp is no number of seconds ≥ 0") from error
        if stamps_ms and stamp_ms < stamps_ms[-1]:
            raise ConfigError(f"{path}:{number}: Timestamp is before the row above")
        stamps_ms.append(stamp_ms)
        lengths.append(
            (
                _count(path, number, _BURSTGPT_COLUMNS[1], cells[prompt_at]),
                _count(path, number, _BURSTGPT_COLUMNS[2], cells[output_at]),
            )
        )
    return [
        TraceRow(offset_ns=round((stamp_ms - stamps_ms[0]) * 1e6), prompt_tokens=prompt, output_tokens=output)
        for stamp_ms, (prompt, output) in zip(_spread(stamps_ms), lengths, strict=True)
    ]


def _azure(path: Path, lines: list[tuple[int, str]]) -> list[TraceRow]:
    number, header = lines[0]
    if header.split(",") != _AZURE_HEADER:
        raise ConfigError(f"{path}:{number}: not the header of an Azure trace, expected {','.join(_AZURE_HEADER)}")
    rows: list[TraceRow] = []
    first_ns: int | None = None
    for number, text in lines[1:]:
        cells = text.split(",")
        stamp = _AZURE_TIME.fullmatch(cells[0])
        if len(cells) != len(_AZURE_HEADER) or stamp is None:
            raise ConfigError(
                f"{path}:{number}: not a row of an Azure trace, expected a UTC time and two token counts",
            )
        unix_ns = _azure_unix_ns(path, number, stamp)
        first_ns = unix_ns if first_ns is None else first_ns
        if rows and unix_ns - first_ns < rows[-1].offset_ns:
            raise ConfigError(f"{path}:{number}: TIMESTAMP is before the row above")
        rows.append(
            TraceRow(
                offset_ns=unix_ns - first_ns,
                prompt_tokens=_count(path, number, _AZURE_HEADER[1], cells[1]),
                output_tokens=_count(path, number, _AZURE_HEADER[2], cells[2]),
            )
        )
    return rows


def _azure_unix_ns(path: Path, number: int, stamp: re.Match[str]) -> int:
    try:
        moment = datetime.fromisoformat(stamp[1]).replace(tzinfo=UTC)
    except ValueError as error:
        raise ConfigError(f"{path}:{number}: TIMESTAMP is no date and time") from error
    return int(moment.timestamp()) * 1_000_000_000 + int((stamp[2] or "0").ljust(9, "0"))


def _count(path: Path, number: int, column: str, cell: str) -> int:
    try:
        return msgspec.convert(cell, Tokens, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}:{number}: {column} is not a whole number of tokens from 1 to 10000000") from error
