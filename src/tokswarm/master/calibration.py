"""Finds how our texts become tokens of an endpoint: counted by a tokenizer where there is one, else by probes.

In this order: the tokenizer that the target names, the endpoint's own `/tokenize`, and what a few probes report as
their usage. What the chat template adds is always what the probes report.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import PurePosixPath
from typing import NamedTuple

import msgspec

from tokswarm.master.local_tokenizer import local_token_ends
from tokswarm.traffic.corpus import TITLE_WORDS
from tokswarm.traffic.plan import TokenFit
from tokswarm.traffic.token_counts import (
    ENDS_TABLE,
    WORDS_TABLE,
    Passage,
    charge,
    estimate,
    passages,
    scaled,
    tables_of,
)
from tokswarm.traffic.token_strings import token_ends
from tokswarm.wire.api import plain_call
from tokswarm.wire.client import LoadClient

SHORT_WORDS, LONG_WORDS = 8, 200
TOKEN_ID_FIT = TokenFit(tokens_per_word=1.0, overhead_tokens=0.0, source="token_ids")
ASSUMED_OVERHEAD_TOKENS = 8.0
PROBE_TOKENS = 600
"""Of each probe that the estimates are held against, as estimated; it may be four times that."""
PROBE_STRETCHES = 20
"""Of the text, that a probe has the beginnings of."""
MOST_APART = 0.02
"""By which a tokenizer and the usage of the same text may differ before the usage is believed."""
TOKENIZE_TIMEOUT_S = 30.0

TokenEnds = Callable[[str], list[int] | None]
"""Where each token of a text ends, in characters; None when that is not to be had."""
Usage = Callable[[str], int | None]
"""The prompt tokens that the endpoint reports for a text; None: it reports none."""


class Probed(NamedTuple):
    """Two texts of words, and the prompt tokens that the endpoint reports for them."""

    short: str
    long: str
    short_tokens: int | None
    long_tokens: int | None


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """How texts become tokens, and what the run should say about it."""

    fit: TokenFit
    notes: list[str]


def probe_words(count: int) -> str:
    """A text of so many words."""
    return "".join(TITLE_WORDS[place * 37 % len(TITLE_WORDS)] for place in range(count)).lstrip()


def calibrate(
    kinds: Iterable[str], probed: Probed, *, usage: Usage, server: TokenEnds | None, tokenizer: str | None
) -> Calibration:
    """The fit for texts of these kinds; `tokenizer` is the one that the target names. ConfigError when that is none."""
    needed = passages(kinds)
    notes: list[str] = []
    ways: list[tuple[str, str, TokenEnds]] = []
    if tokenizer is not None:
        ways.append(("tokenizer", f"the tokenizer {PurePosixPath(tokenizer).name}", local_token_ends(tokenizer)))
    if server is not None:
        ways.append(("tokenize", "its own /tokenize", server))
    for source, name, ends_of in ways:
        if (apart := _apart(probed, ends_of)) is not None and apart > MOST_APART:
            notes.append(f"{name} and the usage of the endpoint count {apart:.0%} apart: it is not used")
            continue
        fit = _counted(needed, probed, ends_of, source)
        if fit is not None:
            return Calibration(fit=fit, notes=[*notes, f"prompt lengths are counted by {name}"])
    fit = _probed(needed, probed, usage)
    if fit is not None:
        notes.append(
            "prompt lengths are estimated from the usage of a few probes: a prompt of 50 tokens may be a fifth off, "
            "of 500 tokens a tenth; a target.tokenizer makes them exact"
        )
        return Calibration(fit=fit, notes=notes)
    notes.append("the endpoint reports no prompt tokens and has no /tokenize: prompt lengths are estimates")
    return Calibration(fit=_estimated(needed, {}, ASSUMED_OVERHEAD_TOKENS, "assumed"), notes=notes)


# --- counted by a tokenizer -----------------------------------------------------------------------


def _apart(probed: Probed, ends_of: TokenEnds) -> float | None:
    """How far a tokenizer and the usage differ over the words that the long text has more than the short one."""
    short, long = ends_of(probed.short), ends_of(probed.long)
    if short is None or long is None or probed.short_tokens is None or probed.long_tokens is None:
        return None
    said = probed.long_tokens - probed.short_tokens
    return abs(len(long) - len(short) - said) / max(said, 1)


def _counted(needed: Sequence[Passage], probed: Probed, ends_of: TokenEnds, source: str) -> TokenFit | None:
    counted: list[tuple[Passage, Sequence[float]]] = []
    for passage in needed:
        ends = ends_of(passage.text)
        if ends is None:
            return None
        counted.append((passage, charge(passage.units, ends)))
    overhead = ASSUMED_OVERHEAD_TOKENS
    if probed.long_tokens is not None:
        overhead = max(0.0, float(probed.long_tokens - len(ends_of(probed.long) or ())))
    return _fit(counted, overhead, source)


def server_token_ends(client: LoadClient, model: str) -> TokenEnds | None:
    """The endpoint's `/tokenize` (as vLLM's, with the strings of tokens); None where there is none."""
    path = client.target.path
    root = str(PurePosixPath(path or "/").parent) if path.endswith("/v1") else "/"

    def ends_of(text: str) -> list[int] | None:
        body = {"model": model, "prompt": text, "add_special_tokens": False, "return_token_strs": True}
        request = plain_call(client.target, "POST", f"{root.rstrip('/')}/tokenize", msgspec.json.encode(body))
        answer = client.ask(request, timeout_s=TOKENIZE_TIMEOUT_S)
        if answer.status != 200:
            return None
        try:
            strings = msgspec.json.decode(answer.raw_body, type=_Tokenized).token_strs
        except (msgspec.DecodeError, msgspec.ValidationError):
            return None
        return None if strings is None else token_ends(text, strings)

    return None if ends_of(probe_words(SHORT_WORDS)) is None else ends_of


class _Tokenized(msgspec.Struct):
    token_strs: list[str] | None = None


# --- estimated, and held against probes -----------------------------------------------------------


def _probed(needed: Sequence[Passage], probed: Probed, usage: Usage) -> TokenFit | None:
    """The estimates, those of each part times what a probe of it says."""
    short, long = probed.short_tokens, probed.long_tokens
    if short is None or long is None or long <= short:
        return None
    per_word = (long - short) / (LONG_WORDS - SHORT_WORDS)
    overhead = max(0.0, short - per_word * SHORT_WORDS)
    words_ratio = (long - overhead) / sum(map(estimate, probed.long.split()))
    ratios = {WORDS_TABLE: words_ratio, ENDS_TABLE: words_ratio}
    for part in dict.fromkeys(passage.table for passage in needed):
        if part not in ratios:
            ratios[part] = _ratio(part, needed, usage, overhead) or words_ratio
    return _estimated(needed, ratios, overhead, "usage")


def _ratio(part: str, needed: Sequence[Passage], usage: Usage, overhead: float) -> float | None:
    """Tokens for each that was estimated, over units from all through the part; None when the probes fail."""
    units = list(chain.from_iterable(passage.units for passage in needed if passage.table == part))
    tokens = PROBE_TOKENS
    while tokens >= PROBE_TOKENS // 8:
        stretches = min(PROBE_STRETCHES, tokens // 30)
        stretch = max(1, len(units) // stretches)
        sample: list[str] = []
        for start in range(0, len(units), stretch):
            sample += _beginning(units[start : start + stretch], tokens / stretches)
        said = usage("".join(sample).lstrip())
        if said is not None and said > overhead:
            return (said - overhead) / sum(map(estimate, sample))
        tokens //= 2
    return None


def _beginning(units: Sequence[str], tokens: float) -> list[str]:
    taken: list[str] = []
    for unit in units:
        if tokens <= 0:
            break
        taken.append(unit)
        tokens -= estimate(unit)
    return taken


def _estimated(needed: Sequence[Passage], ratios: dict[str, float], overhead: float, source: str) -> TokenFit:
    counted = [(passage, scaled(passage.units, ratios.get(passage.table, 1.0))) for passage in needed]
    return _fit(counted, overhead, source)


def _fit(counted: Sequence[tuple[Passage, Sequence[float]]], overhead: float, source: str) -> TokenFit:
    tables = {passage.table for passage, _ in counted}
    typical = "english" if "english" in tables else WORDS_TABLE
    words = sum(len(unit.split()) for passage, _ in counted for unit in passage.units if passage.table == typical)
    tokens = sum(sum(counts) for passage, counts in counted if passage.table == typical)
    return TokenFit(
        tokens_per_word=tokens / words,
        overhead_tokens=overhead,
        source=source,
        tables=tables_of(counted),
    )
