"""Reads the files behind `empirical: {file: …}` and puts what they hold into the mix, so that workers need no file;
and the lengths of the prompts behind `rows: {file: …}`, as far as they can be told before the endpoint is known.

A file holds numbers, one a line; a CSV with a header, of which one column is named; or JSON: a list of
numbers, a mapping of value to weight, or a histogram with `edges` and `weights`. Messages name file and
line and never quote the file, which may be anything.
"""

import csv
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tokswarm.errors import ConfigError
from tokswarm.traffic.beside import find_beside
from tokswarm.traffic.distribution import LARGEST_DRAW
from tokswarm.traffic.mix import Distribution, Empirical, Mix, PromptRows
from tokswarm.traffic.own_prompts import words_of
from tokswarm.traffic.prompt_file import read_prompts
from tokswarm.traffic.strict_yaml import Problem

ASSUMED_TOKENS_PER_WORD = 1.3
"""Before the endpoint is asked."""
MOST_VALUES = 2000
"""Different values kept one by one; more become as many bins of about equal weight, which travel with every plan."""


def with_files_read(mix: Mix, mix_dir: Path | None) -> tuple[Mix, list[Problem]]:
    """The mix with every length file read into it, and what was wrong with any. `mix_dir` None: no file may be read."""
    problems: list[Problem] = []
    classes = [
        _resolved(one, f"classes[{index}]", mix_dir=mix_dir, problems=problems) for index, one in enumerate(mix.classes)
    ]
    return msgspec.structs.replace(mix, classes=classes), problems


def _resolved(value: Any, path: str, *, mix_dir: Path | None, problems: list[Problem]) -> Any:
    """A part of the mix with the files of the distributions in it read."""
    try:
        if isinstance(value, Distribution):
            path = f"{path}.empirical"
            return _with_lengths(value, mix_dir)
        if isinstance(value, PromptRows) and value.lengths is None:
            return msgspec.structs.replace(value, lengths=_prompt_lengths(value, mix_dir))
    except ConfigError as error:
        problems.append(Problem(f"{path}.file", str(error), error.hint))
        return value
    if not isinstance(value, msgspec.Struct):
        return value
    changes = {
        field.name: _resolved(
            getattr(value, field.name), f"{path}.{field.encode_name}", mix_dir=mix_dir, problems=problems
        )
        for field in msgspec.structs.fields(value)
    }
    return msgspec.structs.replace(value, **changes)


def _with_lengths(distribution: Distribution, mix_dir: Path | None) -> Distribution:
    empirical = distribution.empirical
    if empirical is None or empirical.file is None:
        return distribution
    if mix_dir is None:
        raise ConfigError("a mix without a folder cannot name files", hint="write edges and weights into the mix")
    read = read_lengths(find_beside(empirical.file, mix_dir, what="file"), empirical.column)
    return msgspec.structs.replace(distribution, empirical=read.empirical, choice=read.choice)


def _prompt_lengths(rows: PromptRows, mix_dir: Path | None) -> Distribution:
    """About how long the prompts are, in tokens."""
    prompts = read_prompts(rows, mix_dir)
    return _of_weights(
        Counter(min(round(words_of(prompt.encode()) * ASSUMED_TOKENS_PER_WORD) + 1, LARGEST_DRAW) for prompt in prompts)
    )


def read_lengths(path: Path, column: str | None) -> Distribution:
    """The lengths in a file, as a choice or as a histogram. ConfigError when it holds none, or anything else."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot read the lengths: {reason}") from error
    if path.suffix == ".json":
        if column is not None:
            raise ConfigError(f"{path}: a JSON file has no column {column!r}", hint="leave column out")
        return _from_json(path, text)
    cells = _column(path, text, column) if column is not None else _lines(text)
    weights = Counter(_length(path, number, cell) for number, cell in cells)
    if not weights:
        raise ConfigError(f"{path}: there are no lengths in it")
    return _of_weights(weights)


def _of_weights(weights: Mapping[int, float]) -> Distribution:
    """Exact up to MOST_VALUES different lengths."""
    if len(weights) <= MOST_VALUES:
        return Distribution(choice={value: float(weights[value]) for value in sorted(weights)})
    return Distribution(empirical=binned(weights, MOST_VALUES))


def binned(weights: Mapping[int, float], most: int) -> Empirical:
    """A histogram of about `most` bins: of about the same weight each, or of a single value that has more.

    A gap after a bin that is wider than the bin is a bin of its own, without weight.
    """
    each = sum(weights.values()) / most
    edges: list[int] = []
    sums: list[float] = []
    last = 0
    for value in sorted(weights):
        if not sums or sums[-1] + weights[value] > each:
            if sums and value - last - 1 > last + 1 - edges[-1]:
                edges.append(last + 1)
                sums.append(0.0)
            edges.append(value)
            sums.append(0.0)
        sums[-1] += weights[value]
        last = value
    return Empirical(edges=[*edges, last + 1], weights=sums)


# --- cells ----------------------------------------------------------------------------------------


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if cell := line.strip():
            yield number, cell


def _column(path: Path, text: str, column: str) -> Iterator[tuple[int, str]]:
    reader = csv.reader(text.splitlines())
    header = next(reader, [])
    if column not in header:
        known = f"its header has {len(header)} columns" if header else "it is empty"
        raise ConfigError(f"{path}:1: there is no column {column!r}; {known}")
    place = header.index(column)
    for cells in reader:
        if cells:
            if len(cells) <= place:
                raise ConfigError(f"{path}:{reader.line_num}: the row ends before the column {column!r}")
            yield reader.line_num, cells[place].strip()


def _length(path: Path, number: int, cell: str) -> int:
    try:
        value = float(cell)
    except ValueError:
        value = 0.0
    if not (1 <= value <= LARGEST_DRAW and value == int(value)):
        raise ConfigError(
            f"{path}:{number}: not a whole number from 1 to {LARGEST_DRAW}",
            hint="a CSV with a header needs `column`" if number == 1 else "",
        )
    return int(value)


# --- JSON -----------------------------------------------------------------------------------------


class _Histogram(msgspec.Struct, forbid_unknown_fields=True):
    edges: list[int]
    weights: list[float]


def _from_json(path: Path, text: str) -> Distribution:
    for type_ in (list[int], _Histogram, dict[int, float]):
        try:
            value: Any = msgspec.json.decode(text, type=type_, strict=False)
        except (msgspec.MsgspecError, RecursionError):
            continue
        if isinstance(value, _Histogram):
            return Distribution(empirical=Empirical(edges=value.edges, weights=value.weights))
        weights = dict(Counter(value)) if isinstance(value, list) else value
        if weights and all(1 <= one <= LARGEST_DRAW and weight >= 0 for one, weight in weights.items()):
            return _of_weights(weights)
    raise ConfigError(
        f"{path}: neither a list of whole numbers, nor a mapping of value to weight, nor edges and weights",
        hint=f"lengths are from 1 to {LARGEST_DRAW}",
    )
