"""The JSON Schema of a mix, for editors: keys, types and what each means, units and `${NAME}` included.

It says less than the checks of `tokswarm mix check`: rules between keys are not in it.
"""

import ast
from inspect import getsource
from typing import Any

import msgspec
from msgspec import inspect

from tokswarm.traffic import mix as mix_module
from tokswarm.traffic import rates as rates_module
from tokswarm.traffic.mix import MixDocument
from tokswarm.traffic.rates import RateCourse, Rates
from tokswarm.traffic.units import Duration, Rate, ShareRate, TokenPrice

_REFERENCE = {"type": "string", "pattern": r"\$\{"}
_DURATION = {
    "type": "string",
    "pattern": r"^\s*(\d+(\.\d+)?(us|ms|s|m|h))+\s*$|\$\{",
    "description": "A duration such as 800ms, 5s or 1h30m.",
}
_RATE = {
    "type": "string",
    "pattern": r"^\s*\d+(\.\d+)?([eE][+-]?\d+)?\s*/\s*(s|m|h)\s*$|\$\{",
    "description": "A rate such as 12/s, 600/m or 30/h.",
}
_PRICE = {
    "type": "string",
    "pattern": r"^\s*\d+(\.\d+)?\s*/\s*[kM]\s*$|\$\{",
    "description": "US dollars for tokens, such as 0.15/M for a million.",
}
_SHARE_RATE = {
    "type": "string",
    "pattern": r"^\s*\d+(\.\d+)?\s*%\s*/\s*(s|m|h)\s*$|\$\{",
    "description": "A share in a time, such as 10%/m for a tenth of the whole each minute.",
}
_COUNT = {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*[kMG]\s*$|\$\{"}
_NUMBER = {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*[kMG%]\s*$|\$\{"}


def mix_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) of a mix's YAML file."""
    writer = _Writer(_descriptions())
    root = writer.struct(inspect.type_info(MixDocument))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A traffic mix of tokswarm",
        **root,
        "$defs": dict(sorted(writer.definitions.items())),
    }


class _Writer:
    """Turns msgspec's view of the types into a schema, each struct once."""

    def __init__(self, descriptions: dict[str, dict[str, str]]) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}
        self._descriptions = descriptions

    def struct(self, type_: inspect.Type) -> dict[str, Any]:
        """An object with its keys; a missing required key and an unknown key are errors."""
        assert isinstance(type_, inspect.StructType)
        texts = self._descriptions.get(type_.cls.__name__, {})
        properties = {}
        for field in type_.fields:
            described = {"description": texts[field.encode_name]} if field.encode_name in texts else {}
            default = _default(field.default)
            properties[field.encode_name] = {
                **self.of(field.type),
                **described,
                **({} if default is None else {"default": default}),
            }
        return {
            "description": first_paragraph(type_.cls.__doc__ or ""),
            "type": "object",
            "properties": properties,
            "required": [field.encode_name for field in type_.fields if field.required],
            "additionalProperties": False,
        }

    def of(self, type_: inspect.Type) -> dict[str, Any]:
        """What may stand where a value of this type is read."""
        match type_:
            case inspect.UnionType():
                written = [self.of(one) for one in type_.types]
                return {"anyOf": [one for each in written for one in each.get("anyOf", [each])]}
            case inspect.StructType():
                return self._reference(type_)
            case inspect.ListType():
                return {"type": "array", "items": self.of(type_.item_type), "minItems": type_.min_length or 0}
            case inspect.DictType():
                numbers = isinstance(type_.key_type, inspect.IntType)
                names = {"propertyNames": {"pattern": r"^-?\d{1,15}$"}} if numbers else {}
                return {"type": "object", "additionalProperties": self.of(type_.value_type), **names}
            case inspect.CustomType():
                return self._custom(type_.cls)
        return _scalar(type_)

    def _reference(self, type_: inspect.StructType) -> dict[str, Any]:
        name = type_.cls.__name__
        if name not in self.definitions:
            self.definitions[name] = {}  # a struct may hold itself
            self.definitions[name] = self.struct(type_)
        return {"$ref": f"#/$defs/{name}"}

    def _custom(self, type_: type) -> dict[str, Any]:
        if type_ is Duration:
            return dict(_DURATION)
        if type_ is TokenPrice:
            return dict(_PRICE)
        if type_ is ShareRate:
            return dict(_SHARE_RATE)
        if type_ is Rates:
            sweep = {"type": "array", "items": _RATE, "minItems": 1}
            return {"anyOf": [_RATE, sweep, self.of(inspect.type_info(RateCourse))]}
        return dict(_RATE)


def _scalar(type_: inspect.Type) -> dict[str, Any]:
    """A value without parts; most may also be a reference, and numbers have units."""
    match type_:
        case inspect.IntType() | inspect.FloatType():
            whole = isinstance(type_, inspect.IntType)
            bounds = {
                word: bound
                for word, bound in (
                    ("minimum", type_.ge),
                    ("exclusiveMinimum", type_.gt),
                    ("maximum", type_.le),
                )
                if bound is not None
            }
            written: list[dict[str, Any]] = [{"type": "integer" if whole else "number", **bounds}]
            written.append(_COUNT if whole else _NUMBER)
        case inspect.BoolType():
            written = [{"type": "boolean"}, _REFERENCE]
        case inspect.LiteralType():
            written = [{"enum": list(type_.values)}, _REFERENCE]
        case inspect.StrType():
            pattern = {} if type_.pattern is None else {"pattern": rf"{type_.pattern}|\$\{{"}
            written = [{"type": "string", **pattern}]
        case inspect.NoneType():
            written = [{"type": "null"}]
        case _:
            written = [{}]
    return written[0] if len(written) == 1 else {"anyOf": written}


def _default(default: Any) -> Any:
    """What an editor may show; None: nothing."""
    if isinstance(default, Duration | Rate):
        return str(default)
    return default if isinstance(default, str | int | float | bool) and default != "" else None


def first_paragraph(text: str) -> str:
    """In one line."""
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())


def _descriptions() -> dict[str, dict[str, str]]:
    """Struct and key to the text below the field in the source, bases included."""
    own: dict[str, dict[str, str]] = {}
    for module in (mix_module, rates_module):
        for node in ast.parse(getsource(module)).body:
            if isinstance(node, ast.ClassDef):
                own[node.name] = dict(_field_texts(node))
    return {
        struct.__name__: _texts_of(struct, own)
        for module in (mix_module, rates_module)
        for struct in vars(module).values()
        if isinstance(struct, type) and issubclass(struct, msgspec.Struct)
    }


def _texts_of(struct: type[msgspec.Struct], own: dict[str, dict[str, str]]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        texts.update(own.get(base.__name__, {}))
    return {one.encode_name: texts[one.name] for one in msgspec.structs.fields(struct) if one.name in texts}


def _field_texts(node: ast.ClassDef) -> list[tuple[str, str]]:
    texts = []
    for field, after in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            texts.append((field.target.id, " ".join(after.value.value.split())))
    return texts
