"""Words are tokens."""

import json
from array import array
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokswarm.simulator.words import (
    ANSWER_OVERHEAD_TOKENS,
    MESSAGE_OVERHEAD_TOKENS,
    WORDS,
    draw_answer,
    encode,
    encode_chat,
    names,
)


def test_each_word_is_a_token_whatever_is_between_them() -> None:
    assert encode("one  two\n\tthree ").tolist() == [crc32(b"one"), crc32(b"two"), crc32(b"three")]
    assert len(encode(" ")) == 0


def test_template_adds_a_fixed_number_of_tokens() -> None:
    one = encode_chat([("user", "a b c")])
    two = encode_chat([("system", "x"), ("user", "a b c")])
    assert len(one) == 3 + MESSAGE_OVERHEAD_TOKENS + ANSWER_OVERHEAD_TOKENS
    assert len(two) == 4 + 2 * MESSAGE_OVERHEAD_TOKENS + ANSWER_OVERHEAD_TOKENS


def test_next_turn_begins_with_all_tokens_of_the_turn_before() -> None:
    first = encode_chat([("user", "how are you")])
    answer = draw_answer(first, limit_tokens=12, mean_tokens=100, ignore_eos=True, seed=1)
    second = encode_chat([("user", "how are you"), ("assistant", answer.text()), ("user", "and now")])
    before = first.tolist() + answer.token_ids().tolist()
    assert second.tolist()[: len(before)] == before


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50), st.integers(1, 300), st.booleans())
def test_text_of_an_answer_has_exactly_its_tokens(prompt: list[int], limit: int, ignore_eos: bool) -> None:
    answer = draw_answer(array("I", prompt), limit_tokens=limit, mean_tokens=64, ignore_eos=ignore_eos, seed=3)
    assert encode(answer.text()) == answer.token_ids()
    assert 1 <= len(answer.words) <= limit
    if ignore_eos:
        assert (len(answer.words), answer.stopped) == (limit, False)
    elif len(answer.words) < limit:
        assert answer.stopped


def test_same_prompt_and_seed_give_the_same_answer_and_another_seed_another() -> None:
    def answer(seed: int) -> str:
        return draw_answer(encode("a b"), limit_tokens=50, mean_tokens=1e9, ignore_eos=False, seed=seed).text()

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)


@pytest.mark.parametrize("mean", [1.0, 4.0, 200.0])
def test_lengths_of_answers_that_end_by_themselves_have_the_asked_mean(mean: float) -> None:
    lengths = [
        len(draw_answer(array("I", [n]), limit_tokens=10**6, mean_tokens=mean, ignore_eos=False, seed=5).words)
        for n in range(2_000)
    ]
    # the standard error of a geometric mean is about mean / √2000 = 2.2 %; four of them
    assert sum(lengths) / len(lengths) == pytest.approx(mean, rel=0.09)


def test_no_word_needs_escaping_or_holds_a_blank() -> None:
    assert len(set(WORDS)) == len(WORDS) > 500
    for word in WORDS:
        assert json.dumps(word.decode()) == f'"{word.decode()}"'
        assert len(word.split()) == 1


@pytest.mark.parametrize("text", ["be brief", "  two\n\nlines, \u00e9\n", "one", "", "a\u00a0b \u96e8\u5929"])
def test_the_names_of_tokens_spell_the_text_one_for_each_token(text: str) -> None:
    assert "".join(names(text)) == text
    assert len(names(text)) == len(encode(text))
