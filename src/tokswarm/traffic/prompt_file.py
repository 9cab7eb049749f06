"""Reads users' own prompts: JSON lines, a CSV with a header or a Parquet file, through a template.

Messages name file and line (of Parquet: the row) and never quote what is in a row.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from tokswarm.errors import ConfigError
from tokswarm.traffic.mix import Mix, PromptRows
from tokswarm.traffic.own_prompts import pack_prompts
from tokswarm.traffic.plan import PromptSet
from tokswarm.traffic.prompt_template import SUFFIXES, template_of
from tokswarm.traffic.strict_yaml import suggestion

MOST_TEXT_BYTES = 48 << 20
"""Of the prompts of one file: they travel to every worker within its plan, and are kept in its memory."""
LARGEST_FILE_BYTES = 512 << 20
"""It is read whole; other columns than those of the prompts may be in it."""


def read_prompts(rows: PromptRows, mix_dir: Path | None) -> list[str]:
    """The prompts in the order of the file, which lies in the mix's folder or below. ConfigError with file and line."""
    path = _path(rows.file, mix_dir)
    template = template_of(rows)
    prompts = []
    size = 0
    for place, row in _rows(path, template.columns):
        prompt = template.filled({name: _text(row, name, place) for name in template.columns})
        if not prompt.strip():
            raise ConfigError(f"{place}: the prompt is empty")
        try:
            size += len(prompt.encode())
        except UnicodeEncodeError as error:
            raise ConfigError(f"{place}: the prompt has half of a surrogate pair, which is no text") from error
        if size > MOST_TEXT_BYTES:
            raise ConfigError(
                f"{place}: the prompts of this file are more than {MOST_TEXT_BYTES >> 20} MiB, "
                "which is the most that travels to workers",
                hint="give fewer rows; with repeat: true they are sent over again",
            )
        prompts.append(prompt)
    if not prompts:
        raise ConfigError(f"{path}: there are no prompts in it")
    return prompts


def plan_prompts(mix: Mix, mix_dir: Path) -> list[PromptSet]:
    """The prompts of each class that has its own. ConfigError for a file that makes no sense."""
    packed = [
        pack_prompts(index, read_prompts(one.prompt.rows, mix_dir), repeat=one.prompt.rows.repeat)
        for index, one in enumerate(mix.classes)
        if one.prompt.rows is not None
    ]
    if (size := sum(len(one.texts) for one in packed)) > MOST_TEXT_BYTES:
        raise ConfigError(
            f"the prompts of the classes are {size >> 20} MiB, compressed; a plan has at most {MOST_TEXT_BYTES >> 20}",
            hint="give fewer rows; with repeat: true they are sent over again",
        )
    return packed


def _path(file: str, mix_dir: Path | None) -> Path:
    if mix_dir is None:
        raise ConfigError("a mix without a folder cannot name files", hint="run the mix from a file")
    path = mix_dir / file
    if not path.resolve().is_relative_to(mix_dir.resolve()):
        # What is in it is sent to the endpoint: a mix that somebody submits must not look around.
        raise ConfigError(f"{file!r} is not in the mix's folder", hint="a file of prompts lies beside the mix or below")
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    if path.stat().st_size > LARGEST_FILE_BYTES:
        raise ConfigError(f"{path} is larger than {LARGEST_FILE_BYTES >> 20} MiB", hint="give fewer rows or columns")
    return path


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    match path.suffix.lower():
        case ".jsonl":
            return _json_lines(path)
        case ".csv":
            return _csv(path, columns)
        case ".parquet":
            return _parquet(path, columns)
    raise ConfigError(f"{path}: expected a file ending in {', '.join(SUFFIXES)}")


def _json_lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(_text_of(path).split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            row = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{place}: this is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise ConfigError(f'{place}: expected an object such as {{"prompt": "…"}}, came {_kind(row)}')
        yield place, row


def _csv(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    lines = csv.reader(io.StringIO(_text_of(path), newline=""), strict=True)
    try:
        names = next(lines, [])
        _check_columns(f"{path}:1", names, columns)
        begins = lines.line_num + 1
        for cells in lines:
            place, begins = f"{path}:{begins}", lines.line_num + 1
            if not cells:
                continue
            if len(cells) != len(names):
                raise ConfigError(f"{place}: expected {len(names)} cells as in the header, came {len(cells)}")
            yield place, dict(zip(names, cells, strict=True))
    except csv.Error as error:
        raise ConfigError(f"{path}:{lines.line_num}: this is no CSV: {error}") from error


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        names = list(pl.read_parquet_schema(path))
        _check_columns(str(path), names, columns)
        table = pl.read_parquet(path, columns=list(columns))
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ConfigError(f"{path}: cannot be read as Parquet") from error
    for number, row in enumerate(table.iter_rows(named=True), start=1):
        yield f"{path}: row {number}", row


def _check_columns(place: str, names: Sequence[str], columns: Sequence[str]) -> None:
    for column in columns:
        if column not in names:
            raise ConfigError(
                f"{place}: there is no column {column!r}{suggestion(column, names)}",
                hint="name it as field or in the template",
            )
        if names.count(column) > 1:
            raise ConfigError(f"{place}: there are several columns {column!r}")


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot read the prompts: {reason}") from error


def _text(row: Mapping[str, Any], name: str, place: str) -> str:
    if name not in row:
        raise ConfigError(
            f"{place}: there is no {name!r}{suggestion(name, list(row))}", hint="name it as field or in the template"
        )
    value = row[name]
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ConfigError(f"{place}: {name!r} is {_kind(value)}, expected text")


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else "no text")
