"""Prompts have exactly the words that the fit asks for, and share text only where they should."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokswarm.traffic.plan import TokenFit
from tokswarm.traffic.prompt import (
    BLOCK_CACHE_TEXTS,
    FIRST_TOKEN_ID,
    POOL_WORDS,
    TOKEN_ID_LIST,
    TOKEN_IDS,
    PromptWriter,
)
from tokswarm.traffic.words import WORDS

WRITER = PromptWriter(TokenFit(tokens_per_word=1.3, overhead_tokens=11, source="assumed"), content_seed=4)


def words_of(tokens: int) -> int:
    return max(1, round((tokens - 11) / 1.3))


def common_words(one: bytes, other: bytes) -> int:
    count = 0
    for left, right in zip(one.split(), other.split(), strict=False):
        if left != right:
            break
        count += 1
    return count


def test_the_word_list_is_long_short_worded_and_plain() -> None:
    assert len(WORDS) == len(set(WORDS)) > 1000
    assert all(word.isascii() and word.isalpha() and word.islower() and len(word) <= 8 for word in WORDS)


@given(st.integers(1, 5000), st.integers(0, 10**9))
@settings(max_examples=60)
def test_a_unique_prompt_has_exactly_its_words_and_needs_no_escaping(tokens: int, index: int) -> None:
    text = WRITER.unique(tokens, (0, index))
    assert len(text.split()) == text.count(b" ") + 1 == words_of(tokens)
    assert json.dumps(text.decode()) == f'"{text.decode()}"'


@given(st.integers(1, 3000), st.integers(1, 3000))
@settings(max_examples=60)
def test_a_prompt_with_a_prefix_has_exactly_its_words(tokens: int, prefix_tokens: int) -> None:
    text = WRITER.with_prefix(tokens, (0, 1), prefix_tokens=prefix_tokens, class_index=0, group=2)
    assert len(text.split()) == text.count(b" ") + 1 == words_of(tokens)


@given(st.integers(1, 4000), st.lists(st.integers(0, 9), max_size=9))
@settings(max_examples=60)
def test_a_prompt_of_blocks_has_exactly_its_words(tokens: int, blocks: list[int]) -> None:
    text = WRITER.with_blocks(tokens, (0, 1), trace="t", block_tokens=512, blocks=blocks)
    assert len(text.split()) == text.count(b" ") + 1 == words_of(tokens)


def test_a_prompt_longer_than_the_pool_goes_round_it() -> None:
    assert len(WRITER.words(2 * POOL_WORDS + 123, (0, 0)).split()) == 2 * POOL_WORDS + 123


def test_no_two_requests_start_alike() -> None:
    prompts = [WRITER.unique(60, (stage, index)) for stage in range(3) for index in range(3000)]
    assert len({tuple(prompt.split()[:7]) for prompt in prompts}) == 9000


def test_runs_with_other_content_seeds_differ_from_the_first_words_on() -> None:
    other = PromptWriter(TokenFit(tokens_per_word=1.3, overhead_tokens=11, source="assumed"), content_seed=5)

    def texts(writer: PromptWriter, index: int) -> list[bytes]:
        return [
            writer.unique(500, (0, index)),
            writer.with_prefix(500, (0, 0), prefix_tokens=100, class_index=0, group=index),
            writer.with_blocks(900, (0, 0), trace="t", block_tokens=512, blocks=[index]),
        ]

    for index in range(50):
        for mine, theirs in zip(texts(WRITER, index), texts(other, index), strict=True):
            assert common_words(mine, theirs) <= 2


def test_the_same_seed_writes_the_same_text() -> None:
    again = PromptWriter(TokenFit(tokens_per_word=1.3, overhead_tokens=11, source="assumed"), content_seed=4)
    assert again.unique(500, (1, 7)) == WRITER.unique(500, (1, 7))


def test_prompts_of_a_group_share_exactly_the_prefix() -> None:
    one = WRITER.with_prefix(400, (0, 1), prefix_tokens=130, class_index=0, group=3)
    other = WRITER.with_prefix(900, (2, 8), prefix_tokens=130, class_index=0, group=3)
    assert common_words(one, other) == 100
    assert common_words(one, WRITER.with_prefix(400, (0, 1), prefix_tokens=130, class_index=0, group=4)) <= 2
    assert common_words(one, WRITER.with_prefix(400, (0, 1), prefix_tokens=130, class_index=1, group=3)) <= 2


def test_a_prompt_shorter_than_its_prefix_is_the_start_of_it() -> None:
    short = WRITER.with_prefix(50, (0, 1), prefix_tokens=130, class_index=0, group=3)
    assert WRITER.with_prefix(400, (0, 2), prefix_tokens=130, class_index=0, group=3).startswith(short)


def test_rows_share_the_text_of_their_leading_blocks_and_no_more() -> None:
    block_words = round(512 / 1.3)
    one = WRITER.with_blocks(1900, (0, 1), trace="t", block_tokens=512, blocks=[0, 1, 2])
    other = WRITER.with_blocks(1700, (0, 2), trace="t", block_tokens=512, blocks=[0, 1, 7])
    assert common_words(one, other) == 2 * block_words
    assert common_words(one, WRITER.with_blocks(1900, (0, 1), trace="u", block_tokens=512, blocks=[0, 1, 2])) <= 2


def test_a_block_that_does_not_fit_whole_is_unique_text() -> None:
    one = WRITER.with_blocks(1100, (0, 1), trace="t", block_tokens=512, blocks=[0, 1, 2])
    other = WRITER.with_blocks(1100, (0, 2), trace="t", block_tokens=512, blocks=[0, 1, 2])
    assert WRITER.whole_blocks(1100, 512, 3) == 2
    assert common_words(one, other) == 2 * round(512 / 1.3)


def test_a_block_keeps_its_text_after_it_left_the_cache() -> None:
    first = WRITER.with_blocks(600, (0, 1), trace="t", block_tokens=512, blocks=[0])
    for block in range(1, BLOCK_CACHE_TEXTS + 10):
        WRITER.with_blocks(600, (0, 1), trace="t", block_tokens=512, blocks=[block])
    assert WRITER.with_blocks(600, (0, 1), trace="t", block_tokens=512, blocks=[0]) == first


def test_a_fit_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="tokens_per_word is 0"):
        PromptWriter(TokenFit(tokens_per_word=0, overhead_tokens=0, source="usage"), content_seed=1)


def test_token_ids_are_lists_of_exact_length_that_no_other_key_has() -> None:
    fit = TokenFit(tokens_per_word=1.0, overhead_tokens=0.0, source="token_ids")
    writer = PromptWriter(fit, 5, TOKEN_ID_LIST)
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
