"""How many tokens the units of our texts are for one endpoint: counted by a tokenizer, or estimated. Pure.

Counts are in parts of a token, `FINE` to one, so that estimates add up as well.
"""

import re
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from tokswarm.traffic.corpus import TITLE_ENDS, TITLE_WORDS, Paragraph, parts
from tokswarm.traffic.plan import TokenFit

FINE = 256
"""Parts of a token."""

MOST_FINE = (1 << 16) - 1

PASSAGE_CHARACTERS = 6000
"""Counted at once."""

WORDS_TABLE, ENDS_TABLE = "title-words", "title-ends"

_AFTER_TITLE = "The"
"""A title's end is counted as it stands: before a line."""

_PIECE = re.compile(r"[A-Za-z]+|[^\W\d_]+|\d+|[^\S\n]+|\n+|_|[^\w\s]+")
_LETTERS_PER_TOKEN = 5.0


class Passage(NamedTuple):
    """Text that is counted as one, cut into units; those that are only there for the others are not kept."""

    table: str
    units: Sequence[str]
    kept: slice = slice(None)

    @property
    def text(self) -> str:
        """The whole."""
        return "".join(self.units)


def passages(kinds: Iterable[str]) -> list[Passage]:
    """All that must be counted to write texts of these kinds, in the order of the tables."""
    ends = tuple(chain.from_iterable((end, _AFTER_TITLE) for end in TITLE_ENDS))
    found = [
        *(Passage(WORDS_TABLE, TITLE_WORDS[at : at + 200]) for at in range(0, len(TITLE_WORDS), 200)),
        *(Passage(ENDS_TABLE, ends[at : at + 200], slice(None, None, 2)) for at in range(0, len(ends), 200)),
    ]
    longest: dict[str, tuple[Paragraph, ...]] = {}
    for kind in kinds:
        for part, paragraphs in parts(kind).items():
            longest[part] = max(longest.get(part, ()), paragraphs, key=len)
    return found + [Passage(part, units) for part, paragraphs in longest.items() for units in _batches(paragraphs)]


def _batches(paragraphs: Iterable[Paragraph]) -> Iterator[list[str]]:
    """Paragraphs that follow each other, as the units of one text."""
    units: list[str] = []
    for paragraph in paragraphs:
        units += paragraph
        if sum(map(len, units)) >= PASSAGE_CHARACTERS:
            yield units
            units = []
    if units:
        yield units


def charge(units: Sequence[str], token_ends: Iterable[int]) -> list[int]:
    """Tokens of each unit, from where, in characters, each token of the whole text ends."""
    counts = [0] * len(units)
    place, border = 0, len(units[0])
    for end in token_ends:
        while end > border and place < len(units) - 1:
            place += 1
            border += len(units[place])
        counts[place] += 1
    return counts


def estimate(unit: str) -> float:
    """Tokens of a unit as the usual vocabularies of 100,000 and more would have it, without one at hand."""
    tokens = 0.0
    for piece in _PIECE.findall(unit.strip(" ")):
        if piece.isascii() and piece.isalpha():
            tokens += max(1.0, 1 + (len(piece) - 6) / _LETTERS_PER_TOKEN)
        elif piece.isdecimal():
            tokens += -(-len(piece) // 3)
        elif piece.isalpha():
            tokens += max(1.0, len(piece) / 3) if piece[0] < "\u2e80" else 0.75 * len(piece)
        else:
            tokens += 1
    return tokens + 0.5 * unit.startswith("  ")


def scaled(units: Iterable[str], ratio: float) -> list[float]:
    """The estimates of units, times what they were found to be off by."""
    return [estimate(unit) * ratio for unit in units]


def tables_of(counted: Iterable[tuple[Passage, Sequence[float]]]) -> dict[str, bytes]:
    """The tables of a fit, from the tokens of each unit of each passage."""
    fine: dict[str, array[int]] = {}
    for passage, tokens in counted:
        table = fine.setdefault(passage.table, array("H"))
        table.extend(min(round(each * FINE), MOST_FINE) for each in tokens[passage.kept])
    return {name: zlib.compress(table.tobytes()) for name, table in fine.items()}


class UnitCounts:
    """The counts of a fit, unpacked."""

    def __init__(self, fit: TokenFit) -> None:
        if fit.tokens_per_word <= 0:
            raise ValueError(f"tokens_per_word is {fit.tokens_per_word}, expected a number above 0")
        self._per_word = fit.tokens_per_word
        self._tables = _unpacked(fit.tables)

    def fine(self, table: str, units: Sequence[str]) -> Sequence[int]:
        """Of the first units of a table's; without the table each word counts as the fit says."""
        counts = self._tables.get(table)
        if counts is None or len(counts) < len(units):
            return [round(self._per_word * FINE * len(unit.split())) for unit in units]
        return counts[: len(units)]


def _unpacked(tables: Mapping[str, bytes]) -> dict[str, "array[int]"]:
    unpacked = {}
    for name, packed in tables.items():
        unpacked[name] = array("H")
        unpacked[name].frombytes(zlib.decompress(packed))
    return unpacked
