"""Writes prompts of an asked token length, fast enough for the hot path.

One pool of running text is made when the writer is; a text is then a nonce, which spells its key
in words, and a slice of the pool. A prefix cache hashes from the first token on, so the nonce
alone makes the whole text unknown to it, or known, as its key is new or not.
"""

import random
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple
from zlib import crc32

from tokswarm.traffic.mix import Target
from tokswarm.traffic.plan import TokenFit
from tokswarm.traffic.seed import mixed_seed
from tokswarm.traffic.words import WORDS

POOL_WORDS = 200_000
"""Longer texts run through the pool more than once."""

BLOCK_CACHE_TEXTS = 4096
"""Block texts kept; about 12 MB at 512 tokens each. The oldest goes first."""

_NONCE_WORDS = 7
"""Enough words to spell all 64 bits of a key."""
FIRST_TOKEN_ID, TOKEN_IDS = 256, 3840
"""Ids 256 to 4,095: in every model's vocabulary, above the bytes and special tokens at its start."""
_POOL, _PREFIX, _BLOCK, _UNIQUE, _TURN, _ANSWER = range(6)


class Vocabulary(NamedTuple):
    """What prompts are made of: words of text, or token ids."""

    words: tuple[str, ...]
    separator: bytes
    sentences: bool
    """Capitals, commas and full stops among the words."""


TEXT = Vocabulary(WORDS, b" ", sentences=True)
TOKEN_ID_LIST = Vocabulary(tuple(str(FIRST_TOKEN_ID + number) for number in range(TOKEN_IDS)), b",", sentences=False)
"""A list of token ids for the completions API; each is one token, so lengths are exact."""


def vocabulary_of(target: Target) -> Vocabulary:
    """What the prompts for a target are made of."""
    return TOKEN_ID_LIST if target.prompt_format == "token_ids" else TEXT


class PromptWriter:
    """Texts for one run and one endpoint. ASCII, nothing in them needs escaping in JSON."""

    def __init__(self, fit: TokenFit, content_seed: int, vocabulary: Vocabulary = TEXT) -> None:
        if fit.tokens_per_word <= 0:
            raise ValueError(f"tokens_per_word is {fit.tokens_per_word}, expected a number above 0")
        self._fit = fit
        rng = random.Random(mixed_seed(content_seed, _POOL))  # noqa: S311 - text to be told apart, not to be secret
        self._separator = vocabulary.separator
        self._nonce = tuple(word.encode() for word in vocabulary.words)
        self._pool, self._starts = _running_text(rng, vocabulary)
        self._prefix_seed = mixed_seed(content_seed, _PREFIX)
        self._block_seed = mixed_seed(content_seed, _BLOCK)
        self._unique_seed = mixed_seed(content_seed, _UNIQUE)
        self._turn_seed = mixed_seed(content_seed, _TURN)
        self._answer_seed = mixed_seed(content_seed, _ANSWER)
        self._trace_seeds: dict[str, int] = {}
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def unique(self, tokens: int, key: tuple[int, int]) -> bytes:
        """A whole prompt of `tokens` that shares its start with no other key's."""
        return self._text(self._content_words(tokens), mixed_seed(self._unique_seed, *key))

    def with_prefix(
        self, tokens: int, key: tuple[int, int], *, prefix_tokens: int, class_index: int, group: int
    ) -> bytes:
        """A whole prompt of `tokens` that begins with its group's text; a shorter one is only the start of that."""
        total = self._content_words(tokens)
        prefix_words = min(total, max(1, round(prefix_tokens / self._fit.tokens_per_word)))
        prefix = self._text(prefix_words, mixed_seed(self._prefix_seed, class_index, group))
        if prefix_words == total:
            return prefix
        return prefix + self._separator + self._text(total - prefix_words, mixed_seed(self._unique_seed, *key))

    def whole_blocks(self, tokens: int, block_tokens: int, known: int) -> int:
        """How many of the `known` leading blocks fit whole into a prompt of `tokens`."""
        return min(known, self._content_words(tokens) // self._block_words(block_tokens))

    def with_blocks(
        self, tokens: int, key: tuple[int, int], *, trace: str, block_tokens: int, blocks: Sequence[int]
    ) -> bytes:
        """A whole prompt of `tokens` out of the texts of its `blocks` (as many as fit whole) and a unique tail."""
        words = self._block_words(block_tokens)
        total = self._content_words(tokens)
        whole = min(len(blocks), total // words)
        seed = self._trace_seed(trace)
        pieces = [self._block(seed, block, words) for block in blocks[:whole]]
        if total > whole * words:
            pieces.append(self._text(total - whole * words, mixed_seed(self._unique_seed, *key)))
        return self._separator.join(pieces)

    def turn(self, tokens: int, key: tuple[int, int], turn: int) -> bytes:
        """What the user says in a later turn of the session with this key, `tokens` long with its template."""
        return self._text(self._content_words(tokens), mixed_seed(self._turn_seed, *key, turn))

    def stand_in(self, tokens: int, key: tuple[int, int], turn: int) -> bytes:
        """A text as long as an answer of `tokens`, in the place of the one to this turn of the session."""
        words = max(1, round(tokens / self._fit.tokens_per_word))
        return self._text(words, mixed_seed(self._answer_seed, *key, turn))

    def session_id(self, key: tuple[int, int]) -> int:
        """A number of 64 bits that the session with this key has in this run alone."""
        return mixed_seed(self._turn_seed, *key)

    def words(self, count: int, key: tuple[int, int]) -> bytes:
        """Exactly `count` words that no other key has: what a probe sends to find the fit itself."""
        return self._text(count, mixed_seed(self._unique_seed, *key))

    def _content_words(self, tokens: int) -> int:
        return max(1, round((tokens - self._fit.overhead_tokens) / self._fit.tokens_per_word))

    def _block_words(self, block_tokens: int) -> int:
        return max(1, round(block_tokens / self._fit.tokens_per_word))

    def _trace_seed(self, trace: str) -> int:
        seed = self._trace_seeds.get(trace)
        if seed is None:
            seed = self._trace_seeds[trace] = mixed_seed(self._block_seed, crc32(trace.encode()))
        return seed

    def _block(self, trace_seed: int, block: int, words: int) -> bytes:
        # hot: a prompt of 100k tokens has 200 of these
        key = mixed_seed(trace_seed, block)
        text = self._blocks.get((key, words))
        if text is None:
            text = self._blocks[key, words] = self._text(words, key)
            if len(self._blocks) > BLOCK_CACHE_TEXTS:
                self._blocks.popitem(last=False)
        return text

    def _text(self, words: int, key: int) -> bytes:
        # hot: no work per word but for the nonce's
        pieces = []
        nonce = self._nonce
        rest = key
        for _ in range(min(words, _NONCE_WORDS)):
            rest, digit = divmod(rest, len(nonce))
            pieces.append(nonce[digit])
        remaining = words - _NONCE_WORDS
        start = key % POOL_WORDS
        while remaining > 0:
            end = min(start + remaining, POOL_WORDS)
            pieces.append(self._pool[self._starts[start] : self._starts[end] - 1])
            remaining -= end - start
            start = 0
        return self._separator.join(pieces)


def _running_text(rng: random.Random, vocabulary: Vocabulary) -> tuple[bytes, "array[int]"]:
    """The pool, and where each of its words begins (and one past the end, for the last word's)."""
    words = rng.choices(vocabulary.words, k=POOL_WORDS)
    at = 0
    while vocabulary.sentences and at < POOL_WORDS:
        words[at] = words[at].capitalize()
        length = rng.randint(8, 14)
        comma, end = at + length // 2, min(at + length, POOL_WORDS) - 1
        if comma < end:
            words[comma] += ","
        words[end] += "."
        at += length
    return vocabulary.separator.join(word.encode() for word in words), array(
        "I", accumulate((len(word) + 1 for word in words), initial=0)
    )
