"""A run's pool of text of one kind: paragraphs in an order of the run's own, and the tokens up to each place."""

import random
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from tokswarm.traffic.json_text import json_text

POOL_FINE = 64_000_000
"""About 250,000 tokens, in the parts of `token_counts`. Longer texts run through the pool more than once."""

FILLERS = 256


class Counted(NamedTuple):
    """Units, and the tokens of each in parts."""

    units: Sequence[str]
    fine: Sequence[int]


class Pool:
    """Text to cut pieces out of. Bytes are those between the quotes of JSON."""

    def __init__(self, paragraphs: Sequence[Counted], fillers: Counted, rng: random.Random) -> None:
        """`fillers` stand after any other unit; those with the fewest tokens fill pieces up."""
        cut = [_Cut(paragraph) for paragraph in paragraphs]
        order: list[_Cut] = []
        fine, fine_of_all = 0, max(1, sum(one.fine_of_all for one in cut))
        while fine < POOL_FINE:
            rng.shuffle(cut)
            order += cut
            fine += fine_of_all
        self._text = b"".join([one.text for one in order])
        self._starts = array("I", accumulate(chain.from_iterable(one.sizes for one in order), initial=0))
        self._fine = array("I", accumulate(chain.from_iterable(one.fine for one in order), initial=0))
        self._paragraphs = array("I", accumulate((len(one.sizes) for one in order[:-1]), initial=0))
        self._filler_fine = max(1, min(fillers.fine))
        least = [unit for unit, fine in zip(*fillers, strict=True) if fine <= self._filler_fine]
        self._fillers = [json_text(unit) for unit in rng.choices(least, k=FILLERS)]

    def begins(self, fine: int, key: int) -> bool:
        """Whether a piece of that size has more than words that fill it up."""
        start = self._paragraphs[key % len(self._paragraphs)]
        return self._fine[start + 1] - self._fine[start] <= fine

    def piece(self, fine: int, key: int) -> bytes:
        """Text of so many parts of tokens, from the start of a paragraph that the key chooses."""
        # hot: no work per unit but for the few that fill up
        pieces = []
        start = self._paragraphs[key % len(self._paragraphs)]
        while True:
            target = self._fine[start] + fine
            end = bisect_right(self._fine, target) - 1
            pieces.append(self._text[self._starts[start] : self._starts[end]])
            fine = target - self._fine[end]
            if end < len(self._fine) - 1:
                break
            start = 0
        missing = (fine + self._filler_fine // 2) // self._filler_fine
        pieces += [self._fillers[(key + number) % FILLERS] for number in range(missing)]
        return b"".join(pieces)


class _Cut:
    """A paragraph, ready to be put into a pool."""

    __slots__ = ("fine", "fine_of_all", "sizes", "text")

    def __init__(self, paragraph: Counted) -> None:
        pieces = [json_text(unit) for unit in paragraph.units]
        self.text = b"".join(pieces)
        self.sizes = [len(piece) for piece in pieces]
        self.fine = paragraph.fine
        self.fine_of_all = sum(paragraph.fine)
