"""Prompts have exactly the tokens that were asked for, as a tokenizer counts, and share text only where they should."""

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokswarm.traffic.corpus import KINDS
from tokswarm.traffic.plan import TokenFit
from tokswarm.traffic.prompt import BLOCK_CACHE_TEXTS, FIRST_TOKEN_ID, TOKEN_IDS, PromptWriter
from tokswarm.traffic.token_counts import charge, passages, tables_of

OVERHEAD = 11
_TOKEN = re.compile(r"\s*\n|[ \t]*[A-Za-z]{1,4}|[a-z]{1,4}|[ \t]*\d{1,2}| ?[^\w\s]+|[ \t]*\w|[ \t]+")
"""A tokenizer as unlike the estimates as can be: words in pieces of four letters, other scripts letter by letter."""


def token_ends(text: str) -> list[int]:
    ends = [found.end() for found in _TOKEN.finditer(text)]
    assert ends[-1] == len(text)
    return ends


def tokens_of(text: bytes) -> int:
    return len(token_ends(json.loads(b'"%s"' % text)))


@pytest.fixture(scope="module")
def writer_of() -> Callable[..., PromptWriter]:
    counted = [(passage, charge(passage.units, token_ends(passage.text))) for passage in passages(KINDS)]
    fit = TokenFit(tokens_per_word=1.5, overhead_tokens=OVERHEAD, source="tokenizer", tables=tables_of(counted))
    made: dict[tuple[str, int], PromptWriter] = {}

    def writer(kind: str = "mixed", seed: int = 4) -> PromptWriter:
        if (kind, seed) not in made:
            made[kind, seed] = PromptWriter(fit, seed, kind)
        return made[kind, seed]

    return writer


def common(one: bytes, other: bytes) -> bytes:
    length = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [60, 500, 4000, 100_000])
def test_a_prompt_of_any_kind_has_its_tokens(writer_of: Callable[..., PromptWriter], kind: str, tokens: int) -> None:
    writer = writer_of(kind)
    errors = [tokens_of(writer.unique(tokens, (0, key))) + OVERHEAD - tokens for key in range(8)]
    assert max(map(abs, errors)) <= max(2, tokens * 0.002)


@given(st.integers(OVERHEAD + 20, 3000), st.integers(1, 3000), st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_a_prompt_with_a_prefix_has_its_tokens(
    writer_of: Callable[..., PromptWriter], tokens: int, prefix_tokens: int, key: int
) -> None:
    text = writer_of().with_prefix(tokens, (0, key), prefix_tokens=prefix_tokens, class_index=0, group=2)
    assert abs(tokens_of(text) + OVERHEAD - tokens) <= 4


@given(st.integers(OVERHEAD + 20, 4000), st.lists(st.integers(0, 9), max_size=9))
@settings(max_examples=60, deadline=None)
def test_a_prompt_of_blocks_has_its_tokens(
    writer_of: Callable[..., PromptWriter], tokens: int, blocks: list[int]
) -> None:
    text = writer_of().with_blocks(tokens, (0, 1), trace="t", block_tokens=512, blocks=blocks)
    assert abs(tokens_of(text) + OVERHEAD - tokens) <= 2 + len(blocks)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_whole_strings_of_json(writer_of: Callable[..., PromptWriter], kind: str) -> None:
    for tokens in range(1, 400, 3):
        text = writer_of(kind).unique(tokens, (0, tokens))
        assert json.loads(b'"%s"' % text).strip()


def test_mixed_text_has_several_languages_and_code(writer_of: Callable[..., PromptWriter]) -> None:
    text = json.loads(b'"%s"' % writer_of().unique(20_000, (0, 0)))
    for word in (" the ", " der ", " la facture ", " el ", "季度", "def ", "SELECT ", '": '):
        assert word in text


def test_no_two_requests_start_alike(writer_of: Callable[..., PromptWriter]) -> None:
    prompts = [writer_of().unique(60, (stage, index)) for stage in range(3) for index in range(3000)]
    assert len({tuple(prompt.split()[:7]) for prompt in prompts}) == 9000


def test_runs_with_other_content_seeds_differ_from_the_first_words_on(writer_of: Callable[..., PromptWriter]) -> None:
    def texts(writer: PromptWriter, index: int) -> list[bytes]:
        return [
            writer.unique(500, (0, index)),
            writer.with_prefix(500, (0, 0), prefix_tokens=100, class_index=0, group=index),
            writer.with_blocks(900, (0, 0), trace="t", block_tokens=512, blocks=[index]),
        ]

    for index in range(50):
        for mine, theirs in zip(texts(writer_of(), index), texts(writer_of(seed=5), index), strict=True):
            assert common(mine, theirs).count(b" ") <= 2


def test_the_same_seed_writes_the_same_text(writer_of: Callable[..., PromptWriter]) -> None:
    fit = TokenFit(tokens_per_word=1.3, overhead_tokens=11, source="assumed")
    assert PromptWriter(fit, 4).unique(500, (1, 7)) == PromptWriter(fit, 4).unique(500, (1, 7))


def test_prompts_of_a_group_share_exactly_the_prefix(writer_of: Callable[..., PromptWriter]) -> None:
    def of_group(tokens: int, key: int, *, group: int = 3, class_index: int = 0) -> bytes:
        return writer_of().with_prefix(tokens, (0, key), prefix_tokens=130, class_index=class_index, group=group)

    shared = common(of_group(400, 1), of_group(900, 8))
    assert abs(tokens_of(shared) - 130) <= 2
    assert common(of_group(400, 1), of_group(400, 1, group=4)).count(b" ") <= 2
    assert common(of_group(400, 1), of_group(400, 1, class_index=1)).count(b" ") <= 2


def test_a_prompt_shorter_than_its_prefix_begins_as_that_does(writer_of: Callable[..., PromptWriter]) -> None:
    short = writer_of().with_prefix(90, (0, 1), prefix_tokens=130, class_index=0, group=3)
    whole = writer_of().with_prefix(400, (0, 2), prefix_tokens=130, class_index=0, group=3)
    assert len(common(short, whole)) > len(short) / 3


def test_rows_share_the_text_of_their_leading_blocks_and_no_more(writer_of: Callable[..., PromptWriter]) -> None:
    def row(tokens: int, key: int, blocks: list[int], trace: str = "t") -> bytes:
        return writer_of().with_blocks(tokens, (0, key), trace=trace, block_tokens=512, blocks=blocks)

    shared = common(row(1900, 1, [0, 1, 2]), row(1700, 2, [0, 1, 7]))
    assert abs(tokens_of(shared) - 1024) <= 3
    assert common(row(1900, 1, [0, 1, 2]), row(1900, 1, [0, 1, 2], "u")).count(b" ") <= 2


def test_a_block_that_does_not_fit_whole_is_unique_text(writer_of: Callable[..., PromptWriter]) -> None:
    one, other = (
        writer_of().with_blocks(1100, (0, key), trace="t", block_tokens=512, blocks=[0, 1, 2]) for key in (1, 2)
    )
    assert writer_of().whole_blocks(1100, 512, 3) == 2
    assert abs(tokens_of(common(one, other)) - 1024) <= 3


def test_a_block_keeps_its_text_after_it_left_the_cache(writer_of: Callable[..., PromptWriter]) -> None:
    def row(block: int) -> bytes:
        return writer_of().with_blocks(600, (0, 1), trace="t", block_tokens=512, blocks=[block])

    first = row(0)
    for block in range(1, BLOCK_CACHE_TEXTS + 10):
        row(block)
    assert row(0) == first


def test_a_fit_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="tokens_per_word is 0"):
        PromptWriter(TokenFit(tokens_per_word=0, overhead_tokens=0, source="usage"), content_seed=1)


def test_without_tables_each_word_counts_as_the_fit_says() -> None:
    writer = PromptWriter(TokenFit(tokens_per_word=1.3, overhead_tokens=11, source="assumed"), 4, "english")
    for tokens in (50, 200, 3000):
        text = json.loads(b'"%s"' % writer.unique(tokens, (0, tokens)))
        assert abs(len(text.split()) - (tokens - 11) / 1.3) <= 1 + tokens / 1500


def test_token_ids_are_lists_of_exact_length_that_no_other_key_has() -> None:
    writer = PromptWriter(TokenFit(tokens_per_word=1.0, overhead_tokens=0.0, source="token_ids"), 5, "token_ids")
    one, other = (json.loads(b"[%s]" % writer.unique(300, (0, key))) for key in (1, 2))
    assert (len(one), len(other)) == (300, 300)
    assert one[:7] != other[:7]
    assert all(FIRST_TOKEN_ID <= each < FIRST_TOKEN_ID + TOKEN_IDS for each in one)
    shared = [
        json.loads(b"[%s]" % writer.with_prefix(50, (0, key), prefix_tokens=20, class_index=0, group=3))
        for key in (1, 2)
    ]
    assert shared[0][:20] == shared[1][:20]
    assert shared[0][20:] != shared[1][20:]
