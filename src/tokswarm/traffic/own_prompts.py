"""Users' own prompts on their way: packed into the plan, and dealt out so that each is sent once. Pure.

The rows of a file stand in one seeded order, and after it, where the mix repeats them, in another one, and so
on. Worker k of n takes the places k, k + n, k + 2n, … of that sequence one after the other over all stages.
"""

import zlib
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from tokswarm.traffic.json_text import json_text
from tokswarm.traffic.mix import Mix
from tokswarm.traffic.permutation import Permutation
from tokswarm.traffic.plan import PromptSet, TokenFit
from tokswarm.traffic.seed import mixed_seed

BYTES_PER_WORD = 6
"""Of running text in English, with its blank. Scripts without blanks are counted by this too."""


class OwnPrompt(NamedTuple):
    """One prompt to be sent."""

    text: bytes
    """As it stands in JSON."""
    words: int
    is_again: bool
    """Whether it was sent before, by some worker."""

    def tokens(self, fit: TokenFit) -> int:
        """About how long it is: the endpoint's own count is in the record of the request."""
        return max(1, round(self.words * fit.tokens_per_word + fit.overhead_tokens))


class OwnPrompts:
    """The prompts of one class, dealt out to one worker; each taker is dealt the same ones."""

    def __init__(self, packed: PromptSet, seed: int, *, worker_index: int, worker_count: int, joins_late: bool) -> None:
        """`joins_late`: the others have all prompts already; only repeated ones are left for it."""
        self._texts = zlib.decompress(packed.texts)
        ends = [*_places(self._texts, b"\n"), len(self._texts)]
        self._starts = array("I", (0, *(end + 1 for end in ends)))
        self._count = packed.rows
        self._seed = seed
        self._repeat = packed.repeat
        self._step = worker_count
        self._first = worker_index + (packed.rows if joins_late else 0)
        self._at: dict[int, int] = {}
        self._orders: dict[int, Permutation] = {}

    def take(self, taker: int) -> OwnPrompt | None:
        """The next one; None: all were sent, and are not repeated."""
        place = self._at.get(taker, self._first)
        times, place_in_order = divmod(place, self._count)
        if times and not self._repeat:
            return None
        self._at[taker] = place + self._step
        row = self._order(times).at(place_in_order)
        text = self._texts[self._starts[row] : self._starts[row + 1] - 1]
        return OwnPrompt(text, words_of(text), times > 0)

    def _order(self, times: int) -> Permutation:
        if times not in self._orders:
            if len(self._orders) > 2:  # takers are rarely further apart, and an order is made again at no cost
                self._orders.clear()
            self._orders[times] = Permutation(self._count, mixed_seed(self._seed, times))
        return self._orders[times]


def pack_prompts(class_index: int, prompts: Sequence[str], *, repeat: bool) -> PromptSet:
    """Each as it stands in JSON, where a line break is written as \\n."""
    texts = b"\n".join(json_text(prompt) for prompt in prompts)
    return PromptSet(class_index=class_index, rows=len(prompts), texts=zlib.compress(texts), repeat=repeat)


def once_notes(mix: Mix, prompts: Sequence[PromptSet]) -> list[str]:
    """What the run is told of prompts that are not repeated."""
    return [
        f"class {mix.classes[packed.class_index].name}: {packed.rows:,} prompts of its own, each sent once; a worker "
        "that has sent its share of them sends nothing more of stages with this class"
        for packed in prompts
        if not packed.repeat
    ]


def words_of(text: bytes) -> int:
    """How many words a text counts for."""
    return max(1, len(text.split()), round(len(text) / BYTES_PER_WORD))


def _places(text: bytes, what: bytes) -> list[int]:
    places = []
    at = text.find(what)
    while at >= 0:
        places.append(at)
        at = text.find(what, at + 1)
    return places
