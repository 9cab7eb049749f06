"""Puts a mix together from its own text and the files of shared classes it includes; keeps whence each class came.

Included files lie in the mix's folder or below: a mix that somebody submits as text must not look around.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tokswarm.errors import ConfigError
from tokswarm.traffic.mix import MixDocument, SharedClasses
from tokswarm.traffic.strict_yaml import Document, Problem, read_document


class _Origin(NamedTuple):
    source: str
    lines: Mapping[str, int]
    place: int
    """Of the class in that file."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the parts of an assembled mix are written."""

    source: str
    lines: Mapping[str, int]
    classes: dict[int, _Origin] = field(default_factory=dict)
    """Whence the included classes came, by their index in the whole mix."""

    def of(self, path: str) -> tuple[str, int | None, str]:
        """File, line and path there of a path of the whole mix; the line of what it is in where it has none."""
        for index, origin in self.classes.items():
            head = f"classes[{index}]"
            if path == head or path.startswith((f"{head}.", f"{head}[")):
                inside = f"classes[{origin.place}]{path.removeprefix(head)}"
                return origin.source, _line(inside, origin.lines), inside
        return self.source, _line(path, self.lines), path


@dataclass(frozen=True, slots=True)
class Assembled:
    """A mix as plain values, what is wrong with it so far, and where everything is written."""

    value: Any
    problems: list[Problem]
    places: Places


def assembled(
    text: str, *, source: str, environ: Mapping[str, str], mix_dir: Path | None, unquoted: tuple[str, ...]
) -> Assembled:
    """Read a mix's text and what it includes. ConfigError when one of them is not YAML, or is wrong in itself."""
    document = read_document(text, MixDocument, source=source, environ=environ, unquoted=unquoted)
    places = Places(source, document.lines)
    problems = list(document.problems)
    if problems or not isinstance(document.value, dict):
        return Assembled(document.value, problems, places)
    value = dict(document.value)
    include = value.pop("include", [])
    own = {one["name"] for one in value.get("classes", [])}
    value["classes"] = classes = list(value.get("classes", []))
    first_in: dict[str, str] = {}
    for index, file in enumerate([include] if isinstance(include, str) else include):
        path = "include" if isinstance(include, str) else f"include[{index}]"
        try:
            shared = _read(file, mix_dir, environ)
        except _NotThereError as error:
            problems.append(Problem(path, str(error), error.hint))
            continue
        for place, one in enumerate(shared.document.value["classes"]):
            name = one["name"]
            if name in own:
                continue
            if name in first_in:
                text = f"{file} has a class {name!r}, and {first_in[name]} has one too"
                problems.append(Problem(path, text, "write that class into the mix itself"))
                continue
            first_in[name] = file
            places.classes[len(classes)] = _Origin(shared.source, shared.document.lines, place)
            classes.append(one)
    if not classes and not problems:
        problems.append(Problem("", "the key 'classes' is missing"))
    return Assembled(value, problems, places)


class _NotThereError(ConfigError):
    """A file that cannot be included."""


class _Shared(NamedTuple):
    source: str
    document: Document


def _read(file: str, mix_dir: Path | None, environ: Mapping[str, str]) -> _Shared:
    if mix_dir is None:
        raise _NotThereError("a mix without a folder cannot include files", hint="write the classes into the mix")
    path = mix_dir / file
    if not path.resolve().is_relative_to(mix_dir.resolve()):
        raise _NotThereError(
            f"{file!r} is not in the mix's folder", hint="an included file lies beside the mix or below"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise _NotThereError(f"cannot read {path}: {reason}") from error
    source = str(path)
    document = read_document(text, SharedClasses, source=source, environ=environ, unquoted=())
    if document.problems:
        raise located(document.problems, Places(source, document.lines))
    return _Shared(source, document)


def located(problems: Iterable[Problem], places: Places) -> ConfigError:
    """One error for all problems, in the order of the files, a line each."""
    placed = [(*places.of(problem.path), problem) for problem in problems]
    files = list(dict.fromkeys([places.source, *(one[0] for one in placed)]))
    placed.sort(key=lambda one: (files.index(one[0]), one[1] or 0))
    messages = [
        ": ".join(part for part in (source if line is None else f"{source}:{line}", path, problem.text) if part)
        for source, line, path, problem in placed
    ]
    hints = dict.fromkeys(problem.hint for *_, problem in placed if problem.hint)
    return ConfigError("\n".join(messages), hint="; ".join(hints))


def _line(path: str, lines: Mapping[str, int]) -> int | None:
    """The line of a path, or of what it is in."""
    while path:
        if path in lines:
            return lines[path]
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get("")
