"""Writes prompts of an asked token length, fast enough for the hot path.

A text is a title, which spells its key in words, and a piece of the run's pool, filled up with single
words to the very token. A prefix cache hashes from the first token on, so the title alone makes the
whole text unknown to it, or known, as its key is new or not. Texts are bytes as they stand between the
quotes of JSON.
"""

import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from zlib import crc32

from tokswarm.traffic.corpus import TITLE_ENDS, TITLE_WORDS, Paragraph, parts
from tokswarm.traffic.json_text import json_text
from tokswarm.traffic.mix import Mix, Target
from tokswarm.traffic.plan import TokenFit
from tokswarm.traffic.pool import Counted, Pool
from tokswarm.traffic.seed import mixed_seed
from tokswarm.traffic.token_counts import ENDS_TABLE, FINE, WORDS_TABLE, UnitCounts

BLOCK_CACHE_TEXTS = 4096
"""Block texts kept; about 12 MB at 512 tokens each. The oldest goes first."""

TITLE_UNITS = 7
"""Enough to spell all 64 bits of a key."""
FIRST_TOKEN_ID, TOKEN_IDS = 256, 3840
"""Ids 256 to 4,095: in every model's vocabulary, above the bytes and special tokens at its start."""
ID_PARAGRAPH, ID_PARAGRAPHS = 200, 1000
_POOL, _PREFIX, _BLOCK, _UNIQUE, _TURN, _ANSWER = range(6)


TOKEN_ID_UNITS = tuple(f",{FIRST_TOKEN_ID + number}" for number in range(TOKEN_IDS))
"""A list of token ids for the completions API; each is one token, so lengths are exact."""


class PromptWriter:
    """Texts of one kind for one run and one endpoint."""

    def __init__(self, fit: TokenFit, content_seed: int, kind: str = "mixed") -> None:
        """`kind` is one of the corpus's, or `token_ids`. ValueError for a fit that cannot be."""
        rng = random.Random(mixed_seed(content_seed, _POOL, crc32(kind.encode())))  # noqa: S311 - text, not a secret
        counts = UnitCounts(fit)
        self._overhead_fine = round(fit.overhead_tokens * FINE)
        if kind == "token_ids":
            words = ends = Counted(TOKEN_ID_UNITS, counts.fine(kind, TOKEN_ID_UNITS))
            of_pool = [_token_ids(rng) for _ in range(ID_PARAGRAPHS)]
        else:
            words = Counted(TITLE_WORDS, counts.fine(WORDS_TABLE, TITLE_WORDS))
            ends = Counted(TITLE_ENDS, counts.fine(ENDS_TABLE, TITLE_ENDS))
            of_pool = [each for part, paragraphs in parts(kind).items() for each in _counted(counts, part, paragraphs)]
        self._words, self._ends = _spelt(words), _spelt(ends)
        self._surely_fine = TITLE_UNITS * max(*words.fine, *ends.fine) + max(one.fine[0] for one in of_pool)
        self._pool = Pool(of_pool, words, rng)
        self._prefix_seed = mixed_seed(content_seed, _PREFIX)
        self._block_seed = mixed_seed(content_seed, _BLOCK)
        self._unique_seed = mixed_seed(content_seed, _UNIQUE)
        self._turn_seed = mixed_seed(content_seed, _TURN)
        self._answer_seed = mixed_seed(content_seed, _ANSWER)
        self._trace_seeds: dict[str, int] = {}
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def unique(self, tokens: int, key: tuple[int, int]) -> bytes:
        """A whole prompt of `tokens` that shares its start with no other key's."""
        return self._text(self._content_fine(tokens), mixed_seed(self._unique_seed, *key))[1:]

    def with_prefix(
        self, tokens: int, key: tuple[int, int], *, prefix_tokens: int, class_index: int, group: int
    ) -> bytes:
        """A whole prompt of `tokens` that begins with its group's text; a shorter one is only the start of that."""
        total = self._content_fine(tokens)
        prefix_fine = prefix_tokens * FINE
        prefix = self._text(prefix_fine, mixed_seed(self._prefix_seed, class_index, group))
        if total <= prefix_fine:
            return self._text(total, mixed_seed(self._prefix_seed, class_index, group))[1:]
        return (prefix + self._text(total - prefix_fine, mixed_seed(self._unique_seed, *key)))[1:]

    def whole_blocks(self, tokens: int, block_tokens: int, known: int) -> int:
        """How many of the `known` leading blocks fit whole into a prompt of `tokens`."""
        return min(known, self._content_fine(tokens) // (block_tokens * FINE))

    def with_blocks(
        self, tokens: int, key: tuple[int, int], *, trace: str, block_tokens: int, blocks: Sequence[int]
    ) -> bytes:
        """A whole prompt of `tokens` out of the texts of its `blocks` (as many as fit whole) and a unique tail."""
        total = self._content_fine(tokens)
        whole = self.whole_blocks(tokens, block_tokens, len(blocks))
        seed = self._trace_seed(trace)
        pieces = [self._block(seed, block, block_tokens) for block in blocks[:whole]]
        tail = total - whole * block_tokens * FINE
        if tail >= FINE // 2 or not whole:
            pieces.append(self._text(tail, mixed_seed(self._unique_seed, *key)))
        return b"".join(pieces)[1:]

    def turn(self, tokens: int, key: tuple[int, int], turn: int) -> bytes:
        """What the user says in a later turn of the session with this key, `tokens` long with its template."""
        return self._text(self._content_fine(tokens), mixed_seed(self._turn_seed, *key, turn))[1:]

    def stand_in(self, tokens: int, key: tuple[int, int], turn: int) -> bytes:
        """A text as long as an answer of `tokens`, in the place of the one to this turn of the session."""
        return self._text(max(tokens, 1) * FINE, mixed_seed(self._answer_seed, *key, turn))[1:]

    def session_id(self, key: tuple[int, int]) -> int:
        """A number of 64 bits that the session with this key has in this run alone."""
        return mixed_seed(self._turn_seed, *key)

    def _content_fine(self, tokens: int) -> int:
        return max(FINE, tokens * FINE - self._overhead_fine)

    def _trace_seed(self, trace: str) -> int:
        seed = self._trace_seeds.get(trace)
        if seed is None:
            seed = self._trace_seeds[trace] = mixed_seed(self._block_seed, crc32(trace.encode()))
        return seed

    def _block(self, trace_seed: int, block: int, tokens: int) -> bytes:
        # hot: a prompt of 100k tokens has 200 of these
        key = mixed_seed(trace_seed, block)
        text = self._blocks.get((key, tokens))
        if text is None:
            text = self._blocks[key, tokens] = self._text(tokens * FINE, key)
            if len(self._blocks) > BLOCK_CACHE_TEXTS:
                self._blocks.popitem(last=False)
        return text

    def _text(self, fine: int, key: int) -> bytes:
        """The separator first, so that texts can follow each other."""
        # hot: a title, then one piece
        if fine > self._surely_fine:
            title, title_fine = self._title(key)
            return title + self._pool.piece(fine - title_fine, key)
        pieces: list[bytes] = []
        rest = key
        for place in range(TITLE_UNITS):
            rest, digit = divmod(rest, len(self._words))
            text, cost = self._words[digit]
            if place == TITLE_UNITS - 1 and self._pool.begins(fine - self._ends[digit][1], key):
                text, cost = self._ends[digit]
            if pieces and cost > fine + FINE // 2:
                break
            pieces.append(text)
            fine -= cost
        if fine > 0:
            pieces.append(self._pool.piece(fine, key))
        return b"".join(pieces)

    def _title(self, key: int) -> tuple[bytes, int]:
        """The whole title of a text that is long enough to follow it, and its tokens in parts."""
        words, base = self._words, len(self._words)
        rest, digit = divmod(key, base)
        one, fine = words[digit]
        pieces = [one]
        for _ in range(TITLE_UNITS - 2):
            rest, digit = divmod(rest, base)
            one, each = words[digit]
            fine += each
            pieces.append(one)
        one, each = self._ends[rest % base]
        pieces.append(one)
        return b"".join(pieces), fine + each


def prompt_writers(mix: Mix, target: Target, fit: TokenFit, content_seed: int) -> list[PromptWriter]:
    """Who writes the prompts of each class of a mix for one of its targets."""
    kinds = [text_kind(target, one.prompt.text) for one in mix.classes]
    writers = {kind: PromptWriter(fit, content_seed, kind) for kind in dict.fromkeys(kinds)}
    return [writers[kind] for kind in kinds]


def text_kind(target: Target, text: str) -> str:
    """What prompts for a target are made of where the mix asks for this kind of text."""
    return "token_ids" if target.prompt_format == "token_ids" else text


def _counted(counts: UnitCounts, part: str, paragraphs: Sequence[Paragraph]) -> Iterator[Counted]:
    fine = counts.fine(part, [unit for paragraph in paragraphs for unit in paragraph])
    at = 0
    for paragraph in paragraphs:
        yield Counted(paragraph, fine[at : at + len(paragraph)])
        at += len(paragraph)


def _spelt(counted: Counted) -> list[tuple[bytes, int]]:
    return [(json_text(unit), fine) for unit, fine in zip(*counted, strict=True)]


def _token_ids(rng: random.Random) -> Counted:
    return Counted(rng.choices(TOKEN_ID_UNITS, k=ID_PARAGRAPH), [FINE] * ID_PARAGRAPH)
