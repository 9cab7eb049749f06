"""Words are tokens: the tokenizer, the chat template and the text the simulated model writes.

A token is a run of characters without white space and its id is the CRC-32 of its bytes, so that any
text has ids without a vocabulary, and an answer sent back in the next turn has the ids it had when it
was generated.
"""

import math
import random
import re
from array import array
from collections.abc import Iterable
from itertools import product
from zlib import crc32

import msgspec

Tokens = array
"""`array('I')` of token ids."""

_START, _END = 0, 1
"""Ids of the template's marks."""
_ASSISTANT = crc32(b"assistant")
_TOKEN = re.compile(r"[ \t\n\r\x0b\f]*[^ \t\n\r\x0b\f]+")

MESSAGE_OVERHEAD_TOKENS = 3
"""What the template adds to each message: start, role, end."""
ANSWER_OVERHEAD_TOKENS = 2
"""What the template adds once, to open the answer: start, role."""


def encode(text: str) -> "array[int]":
    """The token ids of a text."""
    return array("I", map(crc32, text.encode("utf-8", "surrogatepass").split()))


def names(text: str) -> list[str]:
    """The tokens of a text as they are named: each with the white space before it, the last with what follows."""
    found = _TOKEN.findall(text)
    if found:
        found[-1] += text[sum(map(len, found)) :]
    return found


def encode_chat(messages: Iterable[tuple[str, str]]) -> "array[int]":
    """The token ids of a conversation of (role, text), template included, up to where the answer begins."""
    tokens = array("I")
    for role, text in messages:
        tokens.append(_START)
        tokens.append(crc32(role.encode()))
        tokens.extend(encode(text))
        tokens.append(_END)
    tokens.append(_START)
    tokens.append(_ASSISTANT)
    return tokens


_SYLLABLES = [head + vowel for head, vowel in product(("b", "d", "f", "k", "l", "m", "n", "r", "s", "t"), "aeiou")]

WORDS: list[bytes] = [
    word.encode()
    for word in sorted(
        {
            *("".join(pair) for pair in product(_SYLLABLES[:25], _SYLLABLES[25:])),
            *("".join(three) for three in product(_SYLLABLES[:7], _SYLLABLES[20:27], _SYLLABLES[33:40])),
        }
    )
]
"""What the model can say: words of four and six letters, nothing that JSON would escape."""

WORD_LENGTHS = sorted({len(word) for word in WORDS})

_WORD_IDS = [crc32(word) for word in WORDS]


class Answer(msgspec.Struct, frozen=True):
    """What the model will say to one prompt: drawn when the request comes in, the same for the same seed."""

    words: tuple[int, ...]
    """Indices into WORDS, one a token."""
    stopped: bool
    """It ends by itself; False: it reaches its limit."""

    def token_ids(self) -> "array[int]":
        """Ids of its tokens, as `encode` would give them."""
        return array("I", [_WORD_IDS[word] for word in self.words])

    def text(self) -> str:
        """The whole text."""
        return b" ".join([WORDS[word] for word in self.words]).decode()


def draw_answer(prompt: "array[int]", *, limit_tokens: int, mean_tokens: float, ignore_eos: bool, seed: int) -> Answer:
    """The answer to a prompt: geometric in length with this mean unless `ignore_eos`, and at most the limit."""
    source = random.Random(crc32(prompt.tobytes()) ^ (seed << 32))  # noqa: S311 - a simulation, not a secret
    length = limit_tokens if ignore_eos else _geometric(source.random(), mean_tokens)
    stopped = not ignore_eos and length <= limit_tokens
    length = min(length, limit_tokens)
    place, stride = source.randrange(len(WORDS)), source.randrange(1, len(WORDS))
    return Answer(tuple((place + stride * step) % len(WORDS) for step in range(length)), stopped)


def _geometric(uniform: float, mean: float) -> int:
    """The geometric number ≥ 1 of this mean that belongs to a uniform number in [0, 1)."""
    if mean <= 1:
        return 1
    return 1 + math.floor(math.log1p(-uniform) / math.log1p(-1 / mean))
