"""The text of an answer that was kept is what the server said, however it came."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokswarm.traffic.json_text import json_text
from tokswarm.wire.answer import LiveRow
from tokswarm.wire.kept_answer import EVENTS_PER_PIECE, KeptChatAnswer, KeptResponsesAnswer

WORDS = ["Ein", ' "Satz"', " mit", "\n", "Ümläuten \\ 🙂", "."]


def chat_stream(words: list[str]) -> bytes:
    events = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
    events.append({"choices": [{"delta": {"reasoning_content": "not this"}}]})  # type: ignore[dict-item]
    events += [{"choices": [{"delta": {"content": word}}]} for word in words]  # type: ignore[misc]
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in events) + b"data: [DONE]\n\n"


@given(st.lists(st.integers(1, 400), max_size=30))
def test_any_split_of_a_stream_gives_the_same_text(cuts: list[int]) -> None:
    data = chat_stream(WORDS)
    answer = KeptChatAnswer(LiveRow())
    at = 0
    for cut in [*cuts, len(data)]:
        if piece := data[at : at + cut]:
            answer.feed(piece, 1, True)
        at += cut
    assert answer.text() == "".join(WORDS)


def test_completions_and_whole_answers_have_their_text() -> None:
    completion = KeptChatAnswer(LiveRow())
    completion.feed(b'data: {"choices":[{"text":"a b"}]}\n\ndata: {"choices":[{"text":" c"}]}\n\n', 1, True)
    assert completion.text() == "a b c"
    whole = KeptChatAnswer(LiveRow())
    whole.read_body(b'{"choices":[{"message":{"content":"all of it"},"finish_reason":"stop"}]}')
    assert whole.text() == "all of it"


def test_a_long_answer_is_read_in_bounded_steps() -> None:
    answer = KeptChatAnswer(LiveRow())
    words = [f" w{number}" for number in range(5 * EVENTS_PER_PIECE)]
    for line in chat_stream(words).splitlines(keepends=True):
        answer.feed(line, 1, True)
    texts = list(answer.texts())
    assert "".join(texts) == "".join(words)
    assert max(text.count(" ") for text in texts) <= EVENTS_PER_PIECE


def test_the_text_of_a_response_is_its_output_alone() -> None:
    answer = KeptResponsesAnswer(LiveRow())
    for event in (
        {"type": "response.created", "response": {"status": "in_progress"}},
        {"type": "response.reasoning_text.delta", "delta": "not this"},
        {"type": "response.output_text.delta", "delta": "one"},
        {"type": "response.output_text.delta", "delta": " two"},
        {"type": "response.output_text.done", "text": "one two"},
    ):
        answer.feed(b"data: %b\n\n" % msgspec.json.encode(event), 1, True)
    assert "".join(answer.texts()) == "one two"
    whole = KeptResponsesAnswer(LiveRow())
    whole.read_body(
        msgspec.json.encode(
            {
                "status": "completed",
                "output": [
                    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "not this"}]},
                    {"type": "message", "content": [{"type": "output_text", "text": "this"}]},
                ],
            }
        )
    )
    assert "".join(whole.texts()) == "this"


@pytest.mark.parametrize("text", ['"quoted"', "line\nline", "back\\slash", "🙂ü", "\x01"])
def test_a_text_goes_into_json_and_comes_out_again(text: str) -> None:
    assert msgspec.json.decode(b'"%b"' % json_text(text)) == text
