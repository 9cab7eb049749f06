"""The simulated endpoint's responses API over real sockets: its own events, the SDK, and the product's client."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from endpoints import simulator

from tokswarm.measure.record import Outcome
from tokswarm.traffic.mix import Target
from tokswarm.wire.api import RequestWriter
from tokswarm.wire.client import LoadClient
from tokswarm.wire.target import ResolvedTarget

SAMPLE = Path(__file__).parents[1] / "unit" / "wire" / "answers" / "vllm-0.32.0-responses.sse.txt"


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with simulator("fast") as url:
        yield url


def ask(base_url: str, **fields: object) -> bytes:
    body = json.dumps({"model": "tiny", "input": "tell me a story", "ignore_eos": True, **fields}).encode()
    request = urllib.request.Request(f"{base_url}/responses", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return bytes(response.read())


def events(text: bytes) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for block in text.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_a_stream_has_the_named_events_in_order_with_a_running_number(base_url: str) -> None:
    found = events(ask(base_url, stream=True, max_output_tokens=5))
    assert [name for name, _ in found] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 5,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert all(data["type"] == name for name, data in found)
    assert [data["sequence_number"] for _, data in found] == list(range(13))
    text = "".join(data["delta"] for _, data in found if "delta" in data)
    last = found[-1][1]["response"]
    assert len(text.split()) == 5
    assert found[9][1]["text"] == last["output"][0]["content"][0]["text"] == text
    # 4 words, 3 tokens of template around the message and 2 that open the answer
    assert last["usage"]["input_tokens"] == 9
    assert (last["usage"]["output_tokens"], last["usage"]["total_tokens"]) == (5, 14)
    assert (last["status"], last["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_keys_of_each_kind_of_event_are_among_those_of_a_real_server(base_url: str) -> None:
    """Events captured from vLLM 0.32; some keys only it can fill are left out of the response object."""
    real = dict(events(SAMPLE.read_bytes()))
    for name, data in events(ask(base_url, stream=True, max_output_tokens=3)):
        if "response" in data:
            assert data["response"].keys() <= real[name]["response"].keys()
            assert {"id", "output", "status", "usage", "model"} <= data["response"].keys()
        assert data.keys() == real[name].keys()


def test_a_whole_answer_is_the_same_response_object_and_finds_its_prompt_cached(base_url: str) -> None:
    prompt = " ".join(f"cached{number}" for number in range(100))
    first, second = (json.loads(ask(base_url, input=prompt, max_output_tokens=4)) for _ in range(2))
    assert (first["object"], first["status"]) == ("response", "incomplete")
    assert first["output"][0]["content"][0]["text"] == second["output"][0]["content"][0]["text"]
    assert first["usage"]["input_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["input_tokens_details"]["cached_tokens"] == 96  # of 105
    assert second["metrics"]["queue_time_ms"] >= 0


def test_messages_and_instructions_count_with_their_template(base_url: str) -> None:
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "what is this"}]}]
    found = json.loads(ask(base_url, input=parts, instructions="be brief", max_output_tokens=1))
    assert found["usage"]["input_tokens"] == 5 + 2 * 3 + 2


def test_the_official_sdk_reads_streams_and_whole_answers(base_url: str) -> None:
    client = openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0)
    extra = {"ignore_eos": True}
    whole = client.responses.create(model="tiny", input="hello there", max_output_tokens=6, extra_body=extra)
    assert len(whole.output_text.split()) == 6
    text = ""
    body = {**extra, "max_output_tokens": 6}
    with client.responses.stream(model="tiny", input="hello there", extra_body=body) as got:
        for event in got:
            text += event.delta if event.type == "response.output_text.delta" else ""
        final = got.get_final_response()
    assert text == whole.output_text == final.output_text
    assert final.usage is not None
    assert (final.usage.input_tokens, final.usage.output_tokens) == (7, 6)


@pytest.mark.parametrize("stream", [True, False])
def test_the_load_client_measures_it(base_url: str, *, stream: bool) -> None:
    client = LoadClient(ResolvedTarget(Target(base_url=base_url, model="tiny", api="responses", stream=stream), {}))
    try:
        exchange = client.ask(
            RequestWriter(client.target, "tiny").write(b"hello", max_tokens=7, ignore_eos=True), timeout_s=10
        )
    finally:
        client.close()
    assert (exchange.outcome, exchange.error) == (Outcome.OK, None)
    usage = exchange.answer.usage
    assert usage is not None
    assert (usage.prompt, usage.output, usage.cached) == (6, 7, 0)
    assert exchange.answer.finish_reason == "max_output_tokens"
    assert len(exchange.answer.stamps_ns) == (7 if stream else 0)
    assert exchange.answer.queue_wait_ms is not None
