"""Reads YAML strictly into plain values that fit a struct type, and finds every mistake at once, each with its line.

Scalars may hold `${NAME}` and `${NAME:-default}` (`$${` is a literal `${`). What came out of the
environment is never quoted in a message, and neither is a value on a path that may hold a key.
"""

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml
from msgspec import inspect

from tokswarm.errors import ConfigError
from tokswarm.traffic.rates import RateCourse, Rates
from tokswarm.traffic.units import Duration, Rate, ShareRate, TokenPrice, parse_count, parse_percent

LARGEST_TEXT = 256 * 1024
"""In characters; a mix is a page or two."""

_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"
_PLACE = re.compile(r"\[\d+\]")
_REFERENCE = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?")
_LARGEST_INT = 2**53
_SHOWN = 60
_MISTAKE = object()
"""Stands for a value that could not be read; its problem is noted."""
_NO_FIT = object()
"""Says that a scalar is not of a type."""
_NUMBER_KINDS: dict[type, tuple[str, ...]] = {inspect.IntType: ("int",), inspect.FloatType: ("int", "float")}
_EXPECTED_CUSTOM: dict[type, str] = {
    Duration: "a duration such as 800ms or 5s",
    Rate: "a rate such as 12/s",
    ShareRate: "a share in a time such as 10%/m",
    TokenPrice: "a price such as 0.15/M",
    Rates: "a rate such as 12/s, a list of rates, or a course such as {from: 2/s, to: 40/s}",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where, what and, if known, what to do."""

    path: str
    """Such as classes[0].prompt.tokens; empty for the document."""
    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """What was read: plain values, the line of each path, and the mistakes found."""

    value: Any
    lines: Mapping[str, int]
    problems: list[Problem]


def read_document(
    text: str, root: type[msgspec.Struct], *, source: str, environ: Mapping[str, str], unquoted: tuple[str, ...]
) -> Document:
    """Read `text` as a `root`. ConfigError when it is not YAML at all.

    `unquoted` are the paths, without places in lists, whose values and whatever is below them must not appear in
    a message.
    """
    reader = _Reader(environ, unquoted)
    value = reader.read(_compose(text, source), inspect.type_info(root), "")
    return Document(value, reader.lines, reader.problems)


def _compose(text: str, source: str) -> yaml.Node:
    if len(text) > LARGEST_TEXT:
        raise ConfigError(f"{source}: {len(text)} characters are too many, expected at most {LARGEST_TEXT}")
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark is not None else source
        said = " ".join(part for part in (error.context, error.problem) if part)
        around = "\n".join(text.splitlines()[max(0, mark.line - 1) : mark.line + 1]) if mark is not None else ""
        hint = 'inside { } and [ ] a reference must be in quotes: "${NAME}"' if "${" in around else ""
        raise ConfigError(f"{where}: not YAML: {said}", hint=hint) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: it holds a character that YAML does not allow") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: not a mix: nested too deeply") from error
    if node is None:
        raise ConfigError(f"{source}: the file is empty")
    return node


@dataclass(frozen=True, slots=True)
class _Scalar:
    text: str
    """With its references replaced."""
    kind: str
    """As YAML's core schema resolves it: str, int, float, bool, null, …"""
    substituted: bool
    came: str
    """How a message may speak of it."""


class _Reader:
    """Walks the nodes of a document and the types they should have, side by side."""

    def __init__(self, environ: Mapping[str, str], unquoted: tuple[str, ...]) -> None:
        self.problems: list[Problem] = []
        self.lines: dict[str, int] = {}
        self._environ = environ
        self._unquoted = unquoted
        self._resolver = yaml.SafeLoader("")

    def read(self, node: yaml.Node, type_: inspect.Type, path: str) -> Any:
        """The plain value of a node, or the mark of a mistake that is noted."""
        self.lines.setdefault(path, node.start_mark.line + 1)
        alternatives = type_.types if isinstance(type_, inspect.UnionType) else (type_,)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, alternatives, path)
        for one in alternatives:
            value = self._collection(node, one, path)
            if value is not _NO_FIT:
                return value
        return self._wrong(path, alternatives, "a mapping" if isinstance(node, yaml.MappingNode) else "a list")

    # --- collections --------------------------------------------------------------------------

    def _collection(self, node: yaml.Node, type_: inspect.Type, path: str) -> Any:
        """The value of a mapping or list as one type, or the mark that it is not of this type."""
        if isinstance(type_, inspect.CustomType) and type_.cls is Rates and isinstance(node, yaml.MappingNode):
            type_ = inspect.type_info(RateCourse)
        match type_, node:
            case inspect.StructType(), yaml.MappingNode():
                return self._struct(node, type_, path)
            case inspect.DictType(), yaml.MappingNode():
                return self._dict(node, type_, path)
            case inspect.ListType(), yaml.SequenceNode():
                return self._list(node, type_, path)
            case inspect.CustomType(cls=cls), yaml.SequenceNode() if cls is Rates:
                return self._rates(node, path)
        return _NO_FIT

    def _struct(self, node: yaml.MappingNode, type_: inspect.StructType, path: str) -> Any:
        fields = {field.encode_name: field for field in type_.fields}
        values: dict[str, Any] = {}
        for key, value in self._entries(node, path):
            if key not in fields:
                self._unknown(key, sorted(fields), path)
            else:
                values[key] = self.read(value, fields[key].type, _join(path, key))
        for name, field in fields.items():
            if field.required and name not in values:
                self._note(path, f"the key {name!r} is missing")
        return values

    def _dict(self, node: yaml.MappingNode, type_: inspect.DictType, path: str) -> Any:
        values: dict[Any, Any] = {}
        for key, value in self._entries(node, path):
            at = _join(path, key)
            name: str | int = key
            if isinstance(type_.key_type, inspect.IntType):
                if not re.fullmatch(r"-?\d{1,15}", key):
                    self._note(at, f"the key {key[:_SHOWN]!r} is not a whole number")
                    continue
                name = int(key)
            values[name] = self.read(value, type_.value_type, at)
        return values

    def _entries(self, node: yaml.MappingNode, path: str) -> Iterator[tuple[str, yaml.Node]]:
        """Key and value of a mapping; notes keys that come twice or are not scalars."""
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.lines[_join(path, "?")] = line
                self._note(_join(path, "?"), "a key must be a word, came a list or a mapping")
            elif key.value in first:
                at = _join(path, key.value)
                self.lines[at] = line
                self._note(at, f"the key is given twice, first on line {first[key.value]}")
            else:
                first[key.value] = self.lines[_join(path, key.value)] = line
                yield key.value, value

    def _list(self, node: yaml.SequenceNode, type_: inspect.ListType, path: str) -> Any:
        if len(node.value) < (type_.min_length or 0):
            return self._note(path, "expected at least one entry, came an empty list")
        return [self.read(item, type_.item_type, f"{path}[{index}]") for index, item in enumerate(node.value)]

    def _rates(self, node: yaml.SequenceNode, path: str) -> Any:
        if not node.value:
            return self._note(path, "expected at least one rate, came an empty list")
        return [self.read(item, inspect.CustomType(Rate), f"{path}[{index}]") for index, item in enumerate(node.value)]

    # --- scalars ------------------------------------------------------------------------------

    def _scalar(self, node: yaml.ScalarNode, alternatives: tuple[inspect.Type, ...], path: str) -> Any:
        scalar = self._resolved(node, path)
        if scalar is None:
            return _MISTAKE
        if scalar.kind == "null":
            if any(isinstance(one, inspect.NoneType) for one in alternatives):
                return None
            return self._wrong(path, alternatives, "nothing")
        for one in alternatives:
            value = self._fitted(scalar, one, path)
            if value is not _NO_FIT:
                return value
        return self._wrong(path, alternatives, scalar.came)

    def _resolved(self, node: yaml.ScalarNode, path: str) -> _Scalar | None:
        """The scalar with its references replaced; None when that fails, which is noted."""
        text = self._substituted(node.value, path)
        if text is None:
            return None
        substituted = text != node.value
        tag: str = self._resolver.resolve(yaml.ScalarNode, text, (True, False)) if substituted else node.tag  # type: ignore[no-untyped-call]
        if not tag.startswith(_CORE) or tag.startswith(f"{_CORE}python"):
            self._note(path, f"the tag {tag[:_SHOWN]!r} is not allowed here")
            return None
        return _Scalar(
            text, tag.removeprefix(_CORE), substituted, self._came(node.value, path, substituted=substituted)
        )

    def _fitted(self, scalar: _Scalar, type_: inspect.Type, path: str) -> Any:
        """The value of a scalar as one type, or the mark that it is not of this type."""
        match type_:
            case inspect.StrType() if scalar.substituted or scalar.kind not in {"int", "float", "bool"}:
                return self._text(scalar, type_, path)
            case inspect.LiteralType() if scalar.text in type_.values:
                return scalar.text
            case inspect.CustomType():
                return self._custom(scalar, type_, path)
            case inspect.BoolType() if scalar.kind == "bool":
                return self._constructed(scalar)
            case inspect.IntType() | inspect.FloatType():
                return self._number(scalar, type_, path)
        return _NO_FIT

    def _substituted(self, text: str, path: str) -> str | None:
        """The text with its references replaced; None when one cannot be, which is noted."""
        missing: list[str] = []

        def value(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            if match[1] is None:
                missing.append("'${' without a name and a closing '}'; write '$${' for a literal '${'")
                return ""
            found = self._environ.get(match[1], "")
            if not found and match[2] is None and match[1] not in self._environ:
                missing.append(f"the environment variable {match[1]} is not set")
            return found or match[2] or ""

        result = _REFERENCE.sub(value, text)
        for what in missing:
            self._note(path, what, hint="set it, or give a default: ${NAME:-default}" if "not set" in what else "")
        return None if missing else result

    def _text(self, scalar: _Scalar, type_: inspect.StrType, path: str) -> Any:
        if type_.pattern is not None and re.search(type_.pattern, scalar.text) is None:
            return self._note(path, f"expected letters, digits, '.', '_' and '-', came {scalar.came}")
        return scalar.text

    def _custom(self, scalar: _Scalar, type_: inspect.CustomType, path: str) -> Any:
        kind: Any = Rate if type_.cls is Rates else type_.cls
        try:
            kind.parse(scalar.text)
        except ValueError as error:
            return self._wrong(path, (type_,), scalar.came) if scalar.substituted else self._note(path, str(error))
        return scalar.text

    def _number(self, scalar: _Scalar, type_: inspect.IntType | inspect.FloatType, path: str) -> Any:
        if scalar.kind in _NUMBER_KINDS[type(type_)]:
            value = self._constructed(scalar)
        else:
            value = parse_count(scalar.text)
            if value is None and isinstance(type_, inspect.FloatType):
                value = parse_percent(scalar.text)
            if value is None:
                return _NO_FIT
        if value is None or not math.isfinite(value) or abs(value) > _LARGEST_INT:
            return self._note(path, f"expected {_expected(type_)}, came a number that is too large")
        if (
            (type_.ge is not None and value < type_.ge)
            or (type_.gt is not None and value <= type_.gt)
            or (type_.le is not None and value > type_.le)
        ):
            return self._wrong(path, (type_,), scalar.came)
        return float(value) if isinstance(type_, inspect.FloatType) else value

    def _constructed(self, scalar: _Scalar) -> Any:
        """The value YAML gives a scalar; None when Python cannot hold it."""
        try:
            return self._resolver.construct_object(yaml.ScalarNode(_CORE + scalar.kind, scalar.text))
        except (ValueError, OverflowError):
            return None

    # --- mistakes -----------------------------------------------------------------------------

    def _came(self, text: str, path: str, *, substituted: bool) -> str:
        """How a message speaks of a scalar."""
        plain = _PLACE.sub("", path)
        if any(plain == secret or plain.startswith(f"{secret}.") for secret in self._unquoted):
            return "a value that is not shown here"
        short = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        return f"{short!r}, whose value is not shown here" if substituted else repr(short)

    def _wrong(self, path: str, alternatives: tuple[inspect.Type, ...], came: str) -> Any:
        wanted = [_expected(one) for one in alternatives if not isinstance(one, inspect.NoneType)]
        return self._note(path, f"expected {' or '.join(wanted)}, came {came}")

    def _unknown(self, key: str, known: list[str], path: str) -> None:
        self._note(_join(path, key[:_SHOWN]), f"unknown key{suggestion(key, known)}")

    def _note(self, path: str, text: str, *, hint: str = "") -> Any:
        self.problems.append(Problem(path, text, hint))
        return _MISTAKE


def suggestion(word: str, known: Sequence[str]) -> str:
    """What to say after "unknown …": the known word that is close, and all there are."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    guess = f"; did you mean {close[0]!r}?" if close else ""
    return f"{guess} (expected one of {', '.join(known)})" if known else f"{guess} (expected no keys)"


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _expected(type_: inspect.Type) -> str:
    """How a message speaks of a type."""
    match type_:
        case inspect.IntType() | inspect.FloatType():
            words = "a whole number" if isinstance(type_, inspect.IntType) else "a number"
            if type_.ge is not None:
                words = f"{words} ≥ {type_.ge:g}"
            elif type_.gt is not None:
                words = f"{words} > {type_.gt:g}"
            if type_.le is not None:
                words = f"{words} and ≤ {type_.le:g}"
        case inspect.LiteralType():
            words = f"one of {', '.join(str(value) for value in type_.values)}"
        case inspect.CustomType(cls=cls):
            words = _EXPECTED_CUSTOM[cls]
        case inspect.StructType():
            words = f"a mapping with the keys {', '.join(field.encode_name for field in type_.fields)}"
        case inspect.ListType(item_type=inspect.StructType()):
            words = "a list of mappings"
        case inspect.ListType(item_type=item):
            words = f"a list, each entry {_expected(item)}"
        case inspect.DictType():
            words = "a mapping"
        case inspect.BoolType():
            words = "true or false"
        case _:
            words = "text (in quotes if it looks like a number)"
    return words
