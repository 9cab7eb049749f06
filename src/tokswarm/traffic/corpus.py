"""Running text of each kind that prompts can be written in, cut into units at which tokenizers cut as well. Pure.

A unit is a word with the blank before it and the punctuation after it, or a line of code. The corpus of a kind is
always the same, so that the tokens of each unit can be counted once for an endpoint; a run shuffles its paragraphs.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from tokswarm.traffic.phrases import CHINESE, CODE, ENGLISH, FRENCH, GERMAN, SPANISH, Grammar
from tokswarm.traffic.words import WORDS

Paragraph = tuple[str, ...]
"""Units; the first begins a line, the last ends one."""

PARAGRAPHS = 240
"""Of each kind; some 13,000 words of a language."""

PARTS_OF_MIXED = {"english": 100, "german": 25, "spanish": 25, "french": 25, "chinese": 25, "code": 50}
"""Percent of each kind's paragraphs that `mixed` has."""

TITLE_WORDS = tuple(f" {word}" for word in WORDS)
"""Units that spell the start of a text, and fill it up to its length."""

TITLE_ENDS = tuple(f" {word}.\n\n" for word in WORDS)
"""The last unit of such a start, where text follows."""

_SLOT = re.compile(r"\{(\w+)\}|\{\{|\}\}")
_LINE = re.compile(r"[^\n]*\n+")
_QUESTIONS = ("Could you", "Könnten Sie", "Pourriez-vous", "¿")


@cache
def paragraphs(kind: str) -> tuple[Paragraph, ...]:
    """The corpus of a kind, one of `KINDS` but `mixed`."""
    return tuple(_MAKERS[kind]())


def parts(kind: str) -> dict[str, tuple[Paragraph, ...]]:
    """The paragraphs of a kind by the kind whose corpus they are the first of: its own, but for `mixed`."""
    if kind != "mixed":
        return {kind: paragraphs(kind)}
    return {part: paragraphs(part)[: PARAGRAPHS * percent // 100] for part, percent in PARTS_OF_MIXED.items()}


def _prose(grammar: Grammar, seed: str) -> Iterator[Paragraph]:
    rng = random.Random(seed)  # noqa: S311 - text, not a secret
    for _ in range(PARAGRAPHS):
        yield _paragraph(" ".join(_sentence(grammar, rng) for _ in range(rng.randint(3, 6))).split(" "))


def _paragraph(words: list[str]) -> Paragraph:
    return (words[0], *(f" {word}" for word in words[1:-1]), f" {words[-1]}\n\n")


def _sentence(grammar: Grammar, rng: random.Random) -> str:
    text = _filled(grammar, rng)
    start = text.startswith("¿")
    return text[: start + 1].upper() + text[start + 1 :] + ("?" if text.startswith(_QUESTIONS) else ".")


def _lines(grammar: Grammar, seed: str) -> Iterator[Paragraph]:
    rng = random.Random(seed)  # noqa: S311 - text, not a secret
    for _ in range(PARAGRAPHS):
        text = "".join(_filled(grammar, rng) + "\n" for _ in range(rng.randint(3, 6)))
        yield tuple(_LINE.findall(text))


def _filled(grammar: Grammar, rng: random.Random) -> str:
    """A pattern with its slots filled. In code a name that comes twice stays the same."""
    chosen: dict[str, str] = {}

    def fill(slot: "re.Match[str]") -> str:
        name = slot[1]
        if name is None:
            return slot[0][0]
        if not grammar.keeps_names:
            return rng.choice(grammar.slots[name])
        if name not in chosen:
            chosen[name] = rng.choice(grammar.slots[name])
        return chosen[name]

    return _SLOT.sub(fill, rng.choice(grammar.patterns))


def _word_salad() -> Iterator[Paragraph]:
    rng = random.Random("words")  # noqa: S311 - text, not a secret
    for _ in range(PARAGRAPHS):
        yield _paragraph([word for _ in range(rng.randint(3, 6)) for word in _salad_sentence(rng)])


def _salad_sentence(rng: random.Random) -> list[str]:
    words = rng.choices(WORDS, k=rng.randint(8, 14))
    words[0] = words[0].capitalize()
    words[len(words) // 2] += ","
    words[-1] += "."
    return words


_MAKERS: dict[str, Callable[[], Iterable[Paragraph]]] = {
    "english": lambda: _prose(ENGLISH, "english"),
    "german": lambda: _prose(GERMAN, "german"),
    "spanish": lambda: _prose(SPANISH, "spanish"),
    "french": lambda: _prose(FRENCH, "french"),
    "chinese": lambda: _lines(CHINESE, "chinese"),
    "code": lambda: _lines(CODE, "code"),
    "words": _word_salad,
}

KINDS = ("mixed", *_MAKERS)
"""What the text of a prompt can be."""
