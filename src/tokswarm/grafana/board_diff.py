"""What a publish would change, in lines that people read: where it stands, what is there, what will be."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

OWN_KEYS = ("id", "version")
"""Grafana's own: it gives a board its number and counts its versions."""

SHOWN_CHARACTERS = 60
_NAMES = ("title", "name", "refId", "uid")
_ABSENT = object()


def board_changes(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Every difference between a board as Grafana has it and as it should be; empty when there is none."""
    return list(_changes("", _without_own(stored), _without_own(wanted), only_wanted=False))


def rule_changes(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """The same for a rule group. Grafana adds keys of its own to rules, which are not looked at."""
    return list(_changes("", stored, wanted, only_wanted=True))


def _without_own(board: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in board.items() if key not in OWN_KEYS}


def _changes(where: str, stored: Any, wanted: Any, *, only_wanted: bool) -> Iterator[str]:
    if isinstance(stored, Mapping) and isinstance(wanted, Mapping):
        keys = wanted if only_wanted else {**stored, **wanted}
        for key in keys:
            yield from _changes(
                f"{where}/{key}" if where else str(key),
                stored.get(key, _ABSENT),
                wanted.get(key, _ABSENT),
                only_wanted=only_wanted,
            )
    elif isinstance(stored, list) and isinstance(wanted, list):
        ours, theirs = _by_name(wanted), _by_name(stored)
        for name in {**theirs, **ours}:
            yield from _changes(
                f"{where}/{name}", theirs.get(name, _ABSENT), ours.get(name, _ABSENT), only_wanted=only_wanted
            )
        if list(ours) != list(theirs) and set(ours) == set(theirs):
            yield f"~ {where}: in another order"
    elif stored is _ABSENT:
        yield f"+ {where}: {_short(wanted)}"
    elif wanted is _ABSENT:
        yield f"- {where}: {_short(stored)}"
    elif stored != wanted:
        yield f"~ {where}: {_short(stored)} becomes {_short(wanted)}"


def _by_name(items: list[Any]) -> dict[str, Any]:
    """The items by what people call them, or by their place; a name that comes again gets its number."""
    named: dict[str, Any] = {}
    for place, item in enumerate(items):
        name = str(place)
        if isinstance(item, Mapping):
            name = next((str(item[key]) for key in _NAMES if item.get(key)), name)
        while name in named:
            name += "'"
        named[name] = item
    return named


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and value.get("title"):
        return repr(value["title"])
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"
