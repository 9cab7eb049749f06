"""Events become tokens, usage, errors; a token is an event with text of any kind."""

import pathlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokswarm.measure.histogram import BUCKET_COUNT, bucket_of
from tokswarm.measure.record import Outcome
from tokswarm.wire.answer import Answer, LiveRow
from tokswarm.wire.chat_answer import ChatAnswer
from tokswarm.wire.responses_answer import ResponsesAnswer

CASES = pathlib.Path(__file__).parent / "answers"


def event(**parts: object) -> bytes:
    return b"data: " + msgspec.json.encode(parts) + b"\n\n"


def delta(finish: str | None = None, **parts: object) -> bytes:
    return event(choices=[{"index": 0, "delta": parts, "finish_reason": finish}])


def read(*timed: tuple[int, bytes]) -> Answer:
    answer = ChatAnswer(LiveRow())
    for at_ns, body in timed:
        answer.feed(body, at_ns, True)
    return answer


def test_a_role_chunk_is_no_token() -> None:
    answer = read((900, delta(role="assistant", content="")), (2200, delta(content="a")), (2220, delta(content="b")))
    assert answer.first_token_ns == 2200
    assert list(answer.stamps_ns) == [2200, 2220]


def test_reasoning_is_a_token_but_no_output() -> None:
    answer = read((1, delta(reasoning_content="hm")), (2, delta(reasoning="hm")), (3, delta(content="a")))
    assert (answer.first_token_ns, answer.first_output_ns, len(answer.stamps_ns)) == (1, 3, 3)


def test_a_cap_inside_reasoning_leaves_no_first_output() -> None:
    answer = read((1, delta(reasoning_content="hm")), (2, delta("length", reasoning_content="so")))
    assert (answer.first_token_ns, answer.first_output_ns, answer.finish_reason) == (1, None, "length")


def test_tool_calls_are_tokens() -> None:
    call = [{"index": 0, "function": {"arguments": "{"}}]
    answer = read((1, delta(content=None, tool_calls=call)), (2, delta(content=None, tool_calls=[])))
    assert (list(answer.stamps_ns), answer.first_output_ns) == ([1], 1)


def test_completions_text_is_a_token() -> None:
    answer = read((5, event(choices=[{"text": " tok", "finish_reason": None}])))
    assert list(answer.stamps_ns) == [5]


def test_usage_counts_once_wherever_it_stands() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    for body in (
        event(choices=[], usage=usage),
        event(choices=[{"delta": {"content": "c"}, "finish_reason": "stop"}], usage=usage),
    ):
        answer = read((1, delta(content="a")), (2, event(choices=[{"delta": {}}], usage=None)), (3, body))
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3
        assert answer.usage.cached == 4


def test_arrivals_of_one_read_are_merged_and_their_gaps_zero() -> None:
    answer = ChatAnswer(live := LiveRow())
    answer.feed(delta(content="a"), 1_000_000, True)
    answer.feed(delta(content="b") + delta(content="c") + delta(content="d"), 5_000_000, True)
    assert answer.merged_arrivals == 2
    assert live.itl_counts[0] == 2
    assert live.itl_counts[bucket_of(4_000_000)] == 1
    assert live.output_tokens == 4


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=20))
def test_gaps_fall_where_the_histogram_says(gaps: list[int]) -> None:
    answer = ChatAnswer(live := LiveRow())
    at_ns = 0
    answer.feed(delta(content="a"), at_ns, True)
    want = [0] * BUCKET_COUNT
    for gap in gaps:
        at_ns += gap
        answer.feed(delta(content="a"), at_ns, True)
        want[bucket_of(gap)] += 1
    assert live.itl_counts == want


def test_stamps_of_the_user_clock_are_counted() -> None:
    answer = ChatAnswer(LiveRow())
    answer.feed(delta(content="a"), 1, False)
    answer.feed(delta(content="b"), 2, True)
    assert answer.unstamped_arrivals == 1


def test_the_servers_queue_wait_comes_with_usage() -> None:
    answer = read((1, event(choices=[], usage={"completion_tokens": 1}, metrics={"queue_time_ms": 12.5})))
    assert answer.queue_wait_ms == 12.5


@pytest.mark.parametrize(
    ("body", "outcome", "text"),
    [
        pytest.param(event(error={"message": "boom", "code": 500}), Outcome.IN_BAND_ERROR, "boom", id="error-value"),
        pytest.param(event(error="boom"), Outcome.IN_BAND_ERROR, "boom", id="error-text"),
        pytest.param(
            event(error={"message": "This model's maximum context length is 2048 tokens"}),
            Outcome.CONTEXT_LENGTH,
            "maximum context length",
            id="context",
        ),
        pytest.param(b"event: error\ndata: {}\n\n", Outcome.IN_BAND_ERROR, "error event", id="error-event"),
        pytest.param(b"data: <html>\n\n", Outcome.PROTOCOL, "not JSON", id="no-json"),
        pytest.param(b"data: {broken\n\n", Outcome.PROTOCOL, "not JSON", id="broken-json"),
    ],
)
def test_errors_in_a_stream_are_failures_with_the_servers_words(body: bytes, outcome: Outcome, text: str) -> None:
    answer = read((1, body))
    assert answer.error_outcome is outcome
    assert text in (answer.error or "")
    assert not answer.stamps_ns


def test_a_null_error_is_none() -> None:
    assert read((1, event(choices=[{"delta": {"content": "a"}}], error=None))).error_outcome is None


def test_parts_of_odd_types_are_read_as_far_as_they_go() -> None:
    body = event(
        choices=[{"delta": {"content": [{"type": "text", "text": "a"}]}, "finish_reason": "stop"}],
        usage={"prompt_tokens": 3.0, "completion_tokens": "2"},
    )
    answer = read((4, body))
    assert list(answer.stamps_ns) == [4]
    assert answer.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2


def test_done_counts_without_its_blank_line_at_the_end() -> None:
    answer = read((1, delta("stop", content="a")), (2, b"data: [DONE]"))
    assert not answer.done
    answer.end()
    assert answer.done


@pytest.mark.parametrize("name", ["vllm-0.32.0-chat", "vllm-0.32.0-completions-token-ids"])
def test_real_streams_of_vllm_are_read_whole_at_any_read_size(name: str) -> None:
    stream = (CASES / f"{name}.sse.txt").read_bytes()
    for size in (1, 7, 64, len(stream)):
        answer = ChatAnswer(LiveRow())
        for at in range(0, len(stream), size):
            answer.feed(stream[at : at + size], at + 1, True)
        assert answer.done
        assert answer.error_outcome is None
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len(answer.stamps_ns)


@pytest.mark.parametrize("size", [1, 50, 10_000])
def test_a_real_responses_stream_of_vllm_is_read_whole(size: int) -> None:
    stream = (CASES / "vllm-0.32.0-responses.sse.txt").read_bytes()
    answer = ResponsesAnswer(LiveRow())
    for at in range(0, len(stream), size):
        answer.feed(stream[at : at + size], at + 1, True)
    assert answer.done
    assert len(answer.stamps_ns) == 2
    assert answer.finish_reason == "max_output_tokens"
    assert answer.usage is not None
    assert (answer.usage.prompt, answer.usage.output, answer.usage.cached) == (9, 4, 0)
    assert answer.queue_wait_ms == pytest.approx(0.0151, abs=0.0001)


def test_continuous_usage_of_vllm_gives_the_tokens_of_each_arrival() -> None:
    stream = (CASES / "vllm-0.32.0-chat-continuous-usage.sse.txt").read_bytes()
    answer = ChatAnswer(LiveRow())
    answer.feed(stream, 1, True)
    counts = answer.counts()
    assert counts is not None
    assert answer.usage is not None
    assert sum(counts) == answer.usage.output


@pytest.mark.parametrize(
    ("usage", "want"),
    [
        pytest.param({"prompt_tokens": 5, "prompt_cache_hit_tokens": 3}, (5, None, 3, None), id="deepseek"),
        pytest.param({"input_tokens": 5, "cache_read_input_tokens": 2}, (5, None, 2, None), id="anthropic"),
        pytest.param(
            {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}},
            (None, 9, None, 4),
            id="reasoning",
        ),
        pytest.param({"prompt_tokens": 5, "prompt_tokens_details": None}, (5, None, None, None), id="no-details"),
    ],
)
def test_usage_is_read_in_every_dialect(usage: dict[str, object], want: tuple[int | None, ...]) -> None:
    answer = read((1, event(choices=[], usage=usage)))
    got = answer.usage
    assert got is not None
    assert (got.prompt, got.output, got.cached, got.reasoning) == want


def test_llama_cpp_timings_stand_in_for_usage() -> None:
    answer = read((1, event(choices=[], timings={"cache_n": 10, "prompt_n": 5, "predicted_n": 7})))
    assert answer.usage is not None
    assert (answer.usage.prompt, answer.usage.cached, answer.usage.output) == (15, 10, 7)


def test_groq_keeps_usage_elsewhere() -> None:
    answer = read((1, event(choices=[], x_groq={"usage": {"prompt_tokens": 3, "completion_tokens": 2}})))
    assert answer.usage is not None
    assert answer.usage.output == 2


def test_several_choices_are_arrivals_each() -> None:
    both = [{"index": index, "delta": {"content": "a"}} for index in (0, 1)]
    answer = read((5, event(choices=both)), (9, event(choices=both[1:])))
    assert list(answer.stamps_ns) == [5, 5, 9]


def test_responses_reasoning_is_a_token_but_no_output() -> None:
    answer = ResponsesAnswer(LiveRow())
    answer.feed(event(type="response.reasoning_text.delta", delta="hm"), 1, True)
    answer.feed(event(type="response.output_text.delta", delta="a"), 2, True)
    assert (answer.first_token_ns, answer.first_output_ns) == (1, 2)


def test_a_failed_response_is_an_error_in_band() -> None:
    answer = ResponsesAnswer(LiveRow())
    body = event(type="response.failed", response={"status": "failed", "error": {"message": "boom"}})
    answer.feed(body, 1, True)
    assert (answer.error_outcome, answer.error) == (Outcome.IN_BAND_ERROR, "boom")


def test_an_answer_in_one_piece_has_text_and_usage_but_no_arrivals() -> None:
    answer = ChatAnswer(LiveRow())
    answer.read_body(
        msgspec.json.encode(
            {
                "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 1},
                "metrics": {"queue_time_ms": 2.5},
            }
        )
    )
    assert (answer.has_text, answer.done, answer.finish_reason, answer.queue_wait_ms) == (True, True, "stop", 2.5)
    assert not answer.stamps_ns


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"x": "\xff", "choices": 1, "status": 1}', id="no-utf8"),
        pytest.param(b'{"choices": ' + b"[" * 5000 + b"]" * 5000 + b"}", id="nested-too-deep"),
        pytest.param(b'{"choices": 1, "error": "\\ud800"}', id="lone-surrogate"),
        pytest.param(b'{"usage": {"completion_tokens": ' + b"9" * 5000 + b"}}", id="number-of-5000-digits"),
    ],
)
def test_what_cannot_be_decoded_fails_the_request_and_raises_nothing(body: bytes) -> None:
    streamed, whole = ChatAnswer(LiveRow()), ChatAnswer(LiveRow())
    streamed.feed(b"data: " + body + b"\n\n", 1, True)
    whole.read_body(body)
    assert (streamed.error_outcome, whole.error_outcome) == (Outcome.PROTOCOL, Outcome.PROTOCOL)


@pytest.mark.parametrize("count", [-1, 1 << 32, 1 << 70, 1e308])
def test_an_impossible_count_was_not_said(count: float) -> None:
    answer = read((1, event(choices=[{"delta": {"content": "a"}}], usage={"completion_tokens": count})))
    assert answer.usage is not None
    assert answer.usage.output is None
    assert (len(answer.stamps_ns), answer.counts()) == (1, None)


@pytest.mark.parametrize("wait_ms", [-1, 1e308, "inf", "nan"])
def test_an_impossible_queue_wait_was_not_said(wait_ms: object) -> None:
    answer = read((1, event(usage={"completion_tokens": 1}, metrics={"queue_time_ms": wait_ms})))
    assert answer.queue_wait_ms is None


def test_the_first_of_two_errors_names_the_outcome_whether_they_share_a_read_or_not() -> None:
    error, no_json = b"event: error\ndata: {}\n\n", b"data: <html>\n\n"
    assert read((1, error + no_json)).error_outcome is Outcome.IN_BAND_ERROR
    assert read((1, error), (2, no_json)).error_outcome is Outcome.IN_BAND_ERROR
    assert read((1, no_json + error)).error_outcome is Outcome.PROTOCOL


def test_the_model_is_read_where_the_first_token_is() -> None:
    first, second = (
        b'data: {"model":"%s","choices":[{"delta":{"content":"a"}}]}\n\n' % name for name in (b"m-1", b"m-2")
    )
    assert read((1, delta(role="assistant")), (2, first), (3, second)).model == "m-1"
    assert read((1, delta(content="a"))).model is None
    assert read((1, first.replace(b'"m-1"', b"7"))).model is None


def test_the_model_of_an_answer_in_one_piece_or_of_typed_events_is_read() -> None:
    whole = ChatAnswer(LiveRow())
    whole.read_body(b'{"model":"m","choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}')
    assert whole.model == "m"
    events = ResponsesAnswer(LiveRow())
    events.feed(b'data: {"type":"response.completed","response":{"status":"completed","model":"m"}}\n\n', 1, True)
    assert events.model == "m"
