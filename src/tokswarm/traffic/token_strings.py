"""Where the tokens of a text end, from the strings that a server's tokenizer names them by. Pure.

Three ways of writing are known: every byte a printable character of its own (as GPT-2 and most after it), blanks as
`▁` and odd bytes as `<0x0A>` (as SentencePiece), and plain text, which may leave white space out.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BLANK = "▁"


def token_ends(text: str, tokens: Sequence[str]) -> list[int] | None:
    """Where each token ends, in characters; None when the strings do not spell the text."""
    data = text.encode()
    for read in (_byte_letters, _sentence_pieces):
        pieces = [read(token) for token in tokens]
        known = [piece for piece in pieces if piece is not None]
        if len(known) == len(pieces) and b"".join(known) == data:
            return _in_characters(text, accumulate(map(len, known)))
    return _found_in(text, tokens)


def _found_in(text: str, tokens: Sequence[str]) -> list[int] | None:
    ends = []
    at = 0
    for token in tokens:
        while at < len(text) and text[at].isspace() and not text.startswith(token, at):
            at += 1
        if not text.startswith(token, at):
            return None
        at += len(token)
        ends.append(at)
    return ends if not text[at:].strip() else None


def _in_characters(text: str, byte_ends: Iterable[int]) -> list[int]:
    """A token that ends within a character ends behind it."""
    ends_of_characters = list(accumulate(len(character.encode()) for character in text))
    return [bisect_left(ends_of_characters, end) + 1 for end in byte_ends]


def _byte_letters(token: str) -> bytes | None:
    letters = _letters()
    try:
        return bytes([letters[letter] for letter in token])
    except KeyError:
        return None


def _sentence_pieces(token: str) -> bytes | None:
    odd = _BYTE.fullmatch(token)
    return bytes([int(odd[1], 16)]) if odd else token.replace(_BLANK, " ").encode()


@cache
def _letters() -> dict[str, int]:
    """The byte that each letter stands for: printable ones themselves, the others in order from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    odd = [byte for byte in range(0x100) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + place): byte for place, byte in enumerate(odd)}
