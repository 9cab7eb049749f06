"""The strings that servers name tokens by are laid against the text, whatever way they are written in."""

import pytest

from tokswarm.traffic.token_strings import token_ends


@pytest.mark.parametrize(
    ("text", "tokens", "ends"),
    [
        pytest.param(
            "a big café\n", ["a", "Ġbig", "Ġc", "af", "Ã©", "Ċ"], [1, 5, 7, 9, 10, 11], id="letters-for-bytes"
        ),
        pytest.param("雨", ["éĽ", "¨"], [1, 1], id="a-character-in-two-tokens"),
        pytest.param(" a b\n雨", ["▁a", "▁b", "<0x0A>", "雨"], [2, 4, 5, 6], id="sentence-pieces"),
        pytest.param("a b\n\nc", ["a", "b", "c"], [1, 3, 6], id="words-without-white-space"),
        pytest.param("a b\n\nc", ["a", " b", "\n\nc"], [1, 3, 6], id="plain-text"),
    ],
)
def test_tokens_end_where_they_end(text: str, tokens: list[str], ends: list[int]) -> None:
    assert token_ends(text, tokens) == ends


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param(["a", "c"], id="other-text"),
        pytest.param(["a"], id="less"),
        pytest.param(["a", "b", "b"], id="more"),
    ],
)
def test_strings_that_do_not_spell_the_text_say_nothing(tokens: list[str]) -> None:
    assert token_ends("a b", tokens) is None
