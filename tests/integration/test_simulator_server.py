"""The simulated endpoint over real sockets: raw bytes, the official SDK, and its own account of the truth."""

import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from endpoints import simulator, stop
from prometheus_client.parser import text_string_to_metric_families

SLOW = "token_compute_us: 0\nweights_read_us: 19000\nsequence_overhead_us: 0\nkv_read_us: 0\nmax_num_seqs: 3\n"
"""A step takes 20 ms whatever is in it."""


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with simulator("fast") as url:
        yield url


@pytest.fixture(scope="module")
def slow_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("profile") / "slow.yaml"
    path.write_text(SLOW)
    with simulator(path) as url:
        yield url


def root(base_url: str) -> str:
    return base_url.removesuffix("/v1")


def connect(base_url: str) -> socket.socket:
    parts = urlsplit(base_url)
    return socket.create_connection((parts.hostname, parts.port), timeout=10)


def post(path: str, body: object, *lines: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = "\r\n".join((f"POST {path} HTTP/1.1", "Host: sim", f"Content-Length: {len(data)}", *lines, "", ""))
    return head.encode() + data


def answer(connection: socket.socket) -> tuple[int, http.client.HTTPMessage, bytes]:
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, response.headers, response.read()


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as response:
        return bytes(response.read())


def metrics(base_url: str) -> dict[str, float]:
    """Samples by name, with the label that tells equal names apart."""
    values = {}
    for family in text_string_to_metric_families(get(f"{root(base_url)}/metrics").decode()):
        for sample in family.samples:
            extra = "".join(sample.labels.get(key, "") for key in ("finished_reason", "source", "le"))
            values[sample.name + (f"/{extra}" if extra else "")] = sample.value
    return values


def truth(base_url: str, public_id: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    while lines := get(f"{root(base_url)}/sim/truth?since={rows[-1]['sequence'] + 1 if rows else 0}").splitlines():
        rows += map(json.loads, lines)
    return next(row for row in rows if row["id"] == public_id)


def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def chat(**fields: object) -> dict[str, object]:
    message = {"role": "user", "content": fields.pop("text", "tell me a story about the sea")}
    return {"model": "tiny", "messages": [message], "max_tokens": 5, "ignore_eos": True, **fields}


def chunks(body: bytes) -> list[bytes]:
    """The HTTP chunks of a body as they were framed."""
    found = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        found.append(body[:length])
        assert body[length : length + 2] == b"\r\n"
        body = body[length + 2 :]
    return found


def events(frames: list[bytes]) -> list[Any]:
    """The JSON of events that are one chunk each; the end mark as text."""
    found = []
    for frame in frames:
        assert frame.startswith(b"data: ")
        assert frame.endswith(b"\n\n")
        data = frame[6:-2].decode()
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


def raw_stream(base_url: str, path: str, body: object) -> list[bytes]:
    with connect(base_url) as connection:
        connection.sendall(post(path, body))
        data = b""
        while not data.endswith(b"\r\n0\r\n\r\n"):
            part = connection.recv(65536)
            assert part, f"closed early: {data!r}"
            data += part
    head, _, rest = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"content-type: text/event-stream" in head
    frames = chunks(rest)
    assert frames.pop() == b""
    return frames


# --- streams ------------------------------------------------------------------------------------


def test_chat_stream_is_a_role_then_a_word_an_event_then_usage_and_the_end_mark(base_url: str) -> None:
    found = events(
        raw_stream(base_url, "/v1/chat/completions", chat(stream=True, stream_options={"include_usage": True}))
    )
    role, *tokens, usage, done = found
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    texts = [event["choices"][0]["delta"]["content"] for event in tokens]
    assert len(texts) == 5
    assert len("".join(texts).split()) == 5
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 4 + ["length"]
    assert {event["object"] for event in found[:-1]} == {"chat.completion.chunk"}
    assert len({event["id"] for event in found[:-1]}) == 1
    # 7 words, 3 tokens of template around the message and 2 that open the answer
    assert usage["usage"]["prompt_tokens"] == 12
    assert (usage["usage"]["completion_tokens"], usage["usage"]["total_tokens"]) == (5, 17)
    assert usage["choices"] == []
    assert done == "[DONE]"


def test_stream_without_options_carries_no_usage(base_url: str) -> None:
    found = events(raw_stream(base_url, "/v1/chat/completions", chat(stream=True)))
    assert len(found) == 1 + 5 + 1
    assert all("usage" not in event for event in found[:-1])


def test_continuous_usage_counts_up_on_every_event(base_url: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = events(raw_stream(base_url, "/v1/chat/completions", chat(stream=True, stream_options=options)))
    assert [event["usage"]["completion_tokens"] for event in found[:-1]] == [0, 1, 2, 3, 4, 5, 5]


def test_completion_stream_has_text_and_takes_token_ids(base_url: str) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": True, "stream": True}
    *tokens, done = events(raw_stream(base_url, "/v1/completions", body))
    assert [event["object"] for event in tokens] == ["text_completion"] * 3
    assert len("".join(event["choices"][0]["text"] for event in tokens).split()) == 3
    assert done == "[DONE]"


def test_events_have_the_keys_of_a_real_server(base_url: str) -> None:
    """The keys of answers captured from vLLM 0.32; two that only it can fill are left out."""
    options = {"include_usage": True}
    role, first, *_, last, usage, _ = events(
        raw_stream(base_url, "/v1/chat/completions", chat(stream=True, stream_options=options))
    )
    common = {"id", "object", "created", "model", "choices"}
    assert role.keys() == common | {"prompt_token_ids", "prompt_text"}
    assert role["choices"][0].keys() == {"index", "delta", "logprobs", "finish_reason"}
    assert first["choices"][0].keys() == {"index", "delta", "logprobs", "finish_reason", "token_ids"}
    assert last["choices"][0].keys() == {"index", "delta", "logprobs", "finish_reason", "stop_reason", "token_ids"}
    assert usage.keys() == common | {"usage", "metrics"}
    assert usage["usage"].keys() == {"prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details"}
    assert usage["metrics"].keys() == {
        "time_to_first_token_ms",
        "generation_time_ms",
        "queue_time_ms",
        "mean_itl_ms",
        "tokens_per_second",
    }


def test_tokens_arrive_when_the_truth_says_they_were_sent_and_a_step_apart(slow_url: str) -> None:
    with connect(slow_url) as connection:
        connection.sendall(post("/v1/chat/completions", chat(stream=True, max_tokens=10)))
        data, stamps_ns = b"", []
        while not data.endswith(b"\r\n0\r\n\r\n"):
            part = connection.recv(65536)
            stamp_ns = time.monotonic_ns()
            stamps_ns += [stamp_ns] * part.count(b'"token_ids"')
            data += part
    public_id = json.loads(data.partition(b"data: ")[2].partition(b"\n\n")[0])["id"]
    told = truth(slow_url, public_id)
    assert len(told["emitted_ns"]) == len(stamps_ns) == 10
    assert all(0 <= arrived - sent < 100_000_000 for sent, arrived in zip(told["emitted_ns"], stamps_ns, strict=True))
    assert all(sent >= due for sent, due in zip(told["emitted_ns"], told["due_ns"], strict=True))
    assert [after - before for before, after in itertools.pairwise(told["due_ns"])] == [20_000_000] * 9
    assert told["outcome"] == "length"


def test_client_of_http_1_0_gets_a_stream_that_ends_with_the_connection(base_url: str) -> None:
    request = post("/v1/chat/completions", chat(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0")
    with connect(base_url) as connection:
        connection.sendall(request)
        data = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body.endswith(b"data: [DONE]\n\n")
    assert body.count(b"data: ") == 7


# --- whole answers ------------------------------------------------------------------------------


def test_whole_chat_answer_counts_its_words_and_its_times(slow_url: str) -> None:
    with connect(slow_url) as connection:
        connection.sendall(post("/v1/chat/completions", chat()))
        status, _, body = answer(connection)
    found = json.loads(body)
    assert status == 200
    assert len(found["choices"][0]["message"]["content"].split()) == found["usage"]["completion_tokens"] == 5
    assert found["choices"][0]["finish_reason"] == "length"
    times, told = found["metrics"], truth(slow_url, found["id"])
    assert times["queue_time_ms"] == pytest.approx(told["queue_ms"])
    assert times["time_to_first_token_ms"] == pytest.approx(told["prefill_ms"])
    gaps_ms = (told["emitted_ns"][-1] - told["emitted_ns"][0]) / 1e6
    assert times["generation_time_ms"] == pytest.approx(gaps_ms)
    assert times["mean_itl_ms"] == pytest.approx(gaps_ms / 4)
    assert times["tokens_per_second"] == pytest.approx(5e3 / (told["prefill_ms"] + gaps_ms))


def test_answer_may_end_by_itself_below_its_limit(base_url: str) -> None:
    reasons = set()
    with connect(base_url) as connection:
        for number in range(12):
            connection.sendall(post("/v1/completions", {"prompt": f"question {number}", "max_tokens": 200}))
            found = json.loads(answer(connection)[2])
            reason, tokens = found["choices"][0]["finish_reason"], found["usage"]["completion_tokens"]
            assert tokens == 200 if reason == "length" else tokens <= 200
            reasons.add(reason)
    assert reasons == {"stop", "length"}


def test_same_prompt_twice_is_found_in_the_cache_by_whole_blocks(base_url: str) -> None:
    text = " ".join(f"word{n}" for n in range(100))
    with connect(base_url) as connection:
        cached = []
        for _ in range(2):
            connection.sendall(post("/v1/chat/completions", chat(text=text)))
            cached.append(json.loads(answer(connection)[2])["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 96]  # of 105 tokens


def test_official_sdk_reads_streams_whole_answers_models_and_errors(base_url: str) -> None:
    client = openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0)
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hello"}],
        max_completion_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    parts = list(stream)
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert len(text.split()) == 6
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == 6
    whole = client.completions.create(model="tiny", prompt="hello there", max_tokens=4, extra_body={"ignore_eos": True})
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (2, 4)
    assert [model.id for model in client.models.list()] == ["tiny"]
    with pytest.raises(openai.NotFoundError, match="other"):
        client.completions.create(model="other", prompt="x")


def test_tokenize_counts_as_generation_does(base_url: str) -> None:
    conversation = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is this"}]
    with connect(base_url) as connection:
        connection.sendall(post("/tokenize", {"model": "tiny", "messages": conversation}))
        counted = json.loads(answer(connection)[2])
        connection.sendall(post("/v1/chat/completions", {"messages": conversation, "max_tokens": 1}))
        used = json.loads(answer(connection)[2])["usage"]["prompt_tokens"]
        connection.sendall(post("/tokenize", {"prompt": "be brief"}))
        text = json.loads(answer(connection)[2])
    assert counted["count"] == len(counted["tokens"]) == used == 5 + 2 * 3 + 2
    assert (text["count"], text["max_model_len"]) == (2, 131_072)


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "words"),
    [
        pytest.param("/v1/chat/completions", b"{", 400, None, "not JSON", id="malformed"),
        pytest.param("/v1/chat/completions", b"\xff\xfe", 400, None, "not JSON", id="not-unicode"),
        pytest.param("/v1/chat/completions", {}, 400, None, "messages", id="missing-field"),
        pytest.param("/v1/chat/completions", chat(max_tokens="9"), 400, "max_tokens", "int", id="wrong-type"),
        pytest.param("/v1/chat/completions", chat(max_tokens=0), 400, "max_tokens", ">= 1", id="out-of-range"),
        pytest.param("/v1/chat/completions", chat(n=2), 400, "n", "one answer", id="several-answers"),
        pytest.param("/v1/chat/completions", chat(model="gpt"), 404, "model", "`gpt`", id="unknown-model"),
        pytest.param(
            "/v1/chat/completions", chat(max_tokens=200_000), 400, "max_tokens", "context length", id="context"
        ),
        pytest.param("/v1/completions", {"prompt": "x " * 131_072}, 400, "prompt", "context length", id="long-prompt"),
        pytest.param("/v1/completions", {"prompt": " "}, 400, "prompt", "no tokens", id="empty-prompt"),
        pytest.param("/v1/completions", {"prompt": ["a", "b"]}, 400, "prompt[0]", "int", id="several-prompts"),
        pytest.param("/tokenize", {}, 400, "prompt", "exactly one", id="nothing-to-tokenize"),
        pytest.param("/v1/nothing", {}, 404, None, "/v1/nothing", id="unknown-path"),
        pytest.param("/v1/models", {}, 405, None, "GET", id="wrong-method"),
    ],
)
def test_bad_request_gets_an_error_clients_understand_and_keeps_the_connection(
    base_url: str, path: str, body: object, status: int, param: str | None, words: str
) -> None:
    with connect(base_url) as connection:
        connection.sendall(post(path, body))
        got, headers, data = answer(connection)
        error = json.loads(data)["error"]
        code = "context_length_exceeded" if "context length" in words else status
        assert (got, error["code"], error["param"]) == (status, code, param)
        assert words in error["message"]
        assert error["type"].endswith("Error")
        assert status != 405 or headers["allow"] == "GET"
        connection.sendall(post("/tokenize", {"prompt": "still here"}))
        assert answer(connection)[0] == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(b"NONSENSE\r\n\r\n", 400, id="not-http"),
        pytest.param(b"CONNECT other:443 HTTP/1.1\r\nHost: other\r\n\r\n", 400, id="proxy"),
        pytest.param(b"GET /health HTTP/1.1\r\nHost: sim\r\nX: " + b"y" * 70_000, 431, id="head-too-long"),
        pytest.param(post("/v1/completions", b"x" * 33 * 1024 * 1024), 413, id="body-too-long"),
    ],
)
def test_wrong_bytes_are_answered_with_the_right_status(base_url: str, data: bytes, status: int) -> None:
    with connect(base_url) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)
        assert answer(connection)[0] == status


def test_key_is_asked_for_under_v1_only_when_there_is_one() -> None:
    environment = {**os.environ, "SIM_TEST_KEY": "correct"}
    with simulator("fast", api_key="env:SIM_TEST_KEY", environment=environment) as url:
        for key in ("wrong", ""):
            with pytest.raises(openai.AuthenticationError):
                openai.OpenAI(base_url=url, api_key=key or "x", max_retries=0).models.list()
        assert openai.OpenAI(base_url=url, api_key="correct").models.list().data[0].id == "tiny"
        assert get(f"{root(url)}/health") == b""
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(f"{url}/models")


# --- the connection -----------------------------------------------------------------------------


def test_connection_is_kept_over_streams_and_whole_answers(base_url: str) -> None:
    with connect(base_url) as connection:
        for number in range(6):
            connection.sendall(post("/v1/chat/completions", chat(stream=bool(number % 2))))
            status, headers, body = answer(connection)
            assert status == 200
            assert headers["connection"] == "keep-alive"
            assert (b"[DONE]" in body) == bool(number % 2)


def test_pipelined_requests_are_answered_in_order(base_url: str) -> None:
    with connect(base_url) as connection:
        connection.sendall(
            post("/v1/chat/completions", chat(stream=True))
            + post("/tokenize", {"prompt": "a b"})
            + post("/v1/nothing", {})
        )
        found = b""
        while b"there is no /v1/nothing" not in found:
            part = connection.recv(65536)
            assert part, found
            found += part
    assert found.index(b"[DONE]") < found.index(b'"count":2') < found.index(b"there is no")


def test_body_may_come_in_chunks_and_in_pieces(base_url: str) -> None:
    body = json.dumps(chat()).encode()
    framed = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (10, body[:10], len(body) - 10, body[10:])
    data = b"POST /v1/chat/completions HTTP/1.1\r\nHost: sim\r\nTransfer-Encoding: chunked\r\n\r\n" + framed
    with connect(base_url) as connection:
        for place in range(0, len(data), 23):
            connection.sendall(data[place : place + 23])
        status, _, body = answer(connection)
    assert status == 200
    assert json.loads(body)["usage"]["completion_tokens"] == 5


def test_client_that_asks_first_is_told_to_go_on(base_url: str) -> None:
    data = post("/tokenize", {"prompt": "a b c"}, "Expect: 100-continue")
    head, _, body = data.partition(b"\r\n\r\n")
    with connect(base_url) as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(1024) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert json.loads(answer(connection)[2])["count"] == 3


def test_asking_for_another_protocol_is_answered_in_this_one(base_url: str) -> None:
    asked = ("Connection: Upgrade", "Upgrade: h2c")
    with connect(base_url) as connection:
        for count in (1, 2):
            connection.sendall(post("/tokenize", {"prompt": "a " * count}, *asked))
            status, headers, body = answer(connection)
            assert (status, headers["connection"], json.loads(body)["count"]) == (200, "keep-alive", count)


def test_head_request_gets_the_length_and_no_body(base_url: str) -> None:
    with connect(base_url) as connection:
        connection.sendall(b"HEAD /v1/models HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n\r\n")
        data = b"".join(iter(lambda: connection.recv(4096), b""))
    assert data.endswith(b"\r\n\r\n")
    assert b"content-length: 0" not in data


# --- load, disconnects, metrics -----------------------------------------------------------------


def test_server_sees_as_many_running_and_waiting_as_there_are(slow_url: str) -> None:
    body = post("/v1/chat/completions", chat(stream=True, max_tokens=2_000))
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(connect(slow_url)).sendall(body)
        assert until(lambda: metrics(slow_url)["vllm:num_requests_waiting"] == 2)
        seen = metrics(slow_url)
        assert seen["vllm:num_requests_running"] == 3
        assert seen["vllm:kv_cache_usage_perc"] > 0
    assert until(lambda: metrics(slow_url)["vllm:num_requests_running"] == 0)


def test_client_that_leaves_frees_its_blocks_and_lets_the_next_in(slow_url: str) -> None:
    before = metrics(slow_url)["vllm:request_success_total/abort"]
    body = post("/v1/chat/completions", chat(stream=True, max_tokens=2_000))
    leaving = [connect(slow_url) for _ in range(3)]
    try:
        for one in leaving:
            one.sendall(body)
        assert until(lambda: metrics(slow_url)["vllm:num_requests_running"] == 3)
        with connect(slow_url) as waiting:
            waiting.sendall(post("/v1/chat/completions", chat()))
            assert until(lambda: metrics(slow_url)["vllm:num_requests_waiting"] == 1)
            leaving.pop().close()
            status, _, data = answer(waiting)
            found = json.loads(data)
        assert status == 200
        assert found["metrics"]["queue_time_ms"] > 0
        assert metrics(slow_url)["vllm:request_success_total/abort"] == before + 1
    finally:
        for one in leaving:
            one.close()
    assert until(lambda: metrics(slow_url)["vllm:kv_cache_usage_perc"] == 0)
    assert metrics(slow_url)["vllm:request_success_total/abort"] == before + 3


def test_metrics_add_up_with_what_clients_were_told(base_url: str) -> None:
    before = metrics(base_url)
    asked = []
    with connect(base_url) as connection:
        for number in range(4):
            text = " ".join(f"metric{n}" for n in range(40 + number % 2))
            connection.sendall(post("/v1/chat/completions", chat(text=text, max_tokens=3 + number)))
            asked.append(json.loads(answer(connection)[2])["usage"])
    after = metrics(base_url)

    def gained(name: str) -> float:
        return after[name] - before[name]

    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in asked)
    assert cached > 0
    assert gained("vllm:prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in asked)
    assert gained("vllm:generation_tokens_total") == sum(usage["completion_tokens"] for usage in asked)
    assert gained("vllm:prompt_tokens_cached_total") == cached == gained("vllm:prefix_cache_hits_total")
    assert gained("vllm:prompt_tokens_by_source_total/local_cache_hit") == cached
    assert gained("vllm:prefix_cache_queries_total") == gained("vllm:prompt_tokens_total")
    assert gained("vllm:request_success_total/length") == 4
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_decode_time"):
        assert gained(f"vllm:{name}_seconds_count") == 4
    assert gained("vllm:inter_token_latency_seconds_count") == sum(usage["completion_tokens"] - 1 for usage in asked)
    assert after["vllm:cache_config_info"] == 1


def test_names_and_kinds_of_metrics_are_those_of_the_real_server(base_url: str) -> None:
    ours = {line for line in get(f"{root(base_url)}/metrics").decode().splitlines() if line.startswith("# TYPE vllm:")}
    assert ours >= {
        "# TYPE vllm:num_requests_running gauge",
        "# TYPE vllm:num_requests_waiting gauge",
        "# TYPE vllm:kv_cache_usage_perc gauge",
        "# TYPE vllm:prefix_cache_queries_total counter",
        "# TYPE vllm:prefix_cache_hits_total counter",
        "# TYPE vllm:num_preemptions_total counter",
        "# TYPE vllm:prompt_tokens_total counter",
        "# TYPE vllm:prompt_tokens_cached_total counter",
        "# TYPE vllm:generation_tokens_total counter",
        "# TYPE vllm:request_success_total counter",
        "# TYPE vllm:time_to_first_token_seconds histogram",
        "# TYPE vllm:inter_token_latency_seconds histogram",
        "# TYPE vllm:e2e_request_latency_seconds histogram",
        "# TYPE vllm:request_queue_time_seconds histogram",
        "# TYPE vllm:request_prefill_time_seconds histogram",
        "# TYPE vllm:request_decode_time_seconds histogram",
        "# TYPE vllm:cache_config_info gauge",
    }


def test_truth_takes_only_a_number(base_url: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400"):
        get(f"{root(base_url)}/sim/truth?since=x")


# --- the process --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_server_at_once_with_streams_open(number: signal.Signals, tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    process = subprocess.Popen(
        [sys.executable, "-m", "tokswarm.simulator", "--port", "0", "--port-file", str(port_file)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert until(port_file.exists, 20)
        url = f"http://127.0.0.1:{port_file.read_text().strip()}/v1"
        with connect(url) as connection:
            connection.sendall(post("/v1/chat/completions", chat(stream=True, max_tokens=4_000)))
            assert connection.recv(10)
            process.send_signal(number)
            _, stderr = process.communicate(timeout=10)
    finally:
        stop(process)
    assert process.returncode == 0
    assert f"simulated endpoint at {url} (deployment demo; model tiny: 1 replica of demo)" in stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--profile", "dmeo"], "hint: presets: demo", id="profile"),
        pytest.param(["--api-key", "env:TOKSWARM_NO_SUCH_KEY"], "TOKSWARM_NO_SUCH_KEY, which is not set", id="key"),
        pytest.param(["--api-key", "secret-itself"], "--api-key is not a reference", id="literal-key"),
    ],
)
def test_settings_that_cannot_work_end_with_a_message(arguments: list[str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tokswarm.simulator", "--port", "0", *arguments],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret-itself" not in done.stderr


def test_port_in_use_is_told(base_url: str) -> None:
    port = urlsplit(base_url).port
    done = subprocess.run(
        [sys.executable, "-m", "tokswarm.simulator", "--port", str(port)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_drafts_that_hold_come_in_one_event_and_priorities_change_who_waits(tmp_path: Path) -> None:
    path = tmp_path / "drafts.yaml"
    path.write_text(
        "token_compute_us: 0\nweights_read_us: 9000\nmax_num_seqs: 1\nscheduling: priority\n"
        "speculative_tokens: 3\nspeculative_acceptance: 1\n"
    )
    with simulator(path) as url:
        body = {"model": "tiny", "prompt": "a b c", "max_tokens": 11, "ignore_eos": True}
        stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with connect(url) as connection:
            connection.sendall(post("/v1/completions", stream))
            _, _, data = answer(connection)
        events = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]
        texts = [event["choices"][0]["text"] for event in events if event["choices"]]
        assert [len(text.split()) for text in texts] == [1, 4, 4, 2]
        assert events[-1]["usage"]["completion_tokens"] == 11
        due_ns = truth(url, events[0]["id"])["due_ns"]
        assert [due_ns.count(one) for one in sorted(set(due_ns))] == [1, 4, 4, 2]
        with contextlib.ExitStack() as stack:
            first, later, urgent = (stack.enter_context(connect(url)) for _ in range(3))
            first.sendall(post("/v1/completions", {**body, "max_tokens": 400}))
            assert until(lambda: metrics(url)["vllm:num_requests_running"] == 1)
            later.sendall(post("/v1/completions", body))
            assert until(lambda: metrics(url)["vllm:num_requests_waiting"] == 1)
            urgent.sendall(post("/v1/completions", {**body, "priority": -1}))
            admitted = [truth(url, json.loads(answer(one)[2])["id"])["admitted_ns"] for one in (later, urgent)]
        assert admitted[1] < admitted[0]
        counted = metrics(url)
        assert counted["vllm:spec_decode_num_draft_tokens_total"] > 300
        assert (
            counted["vllm:spec_decode_num_accepted_tokens_total"] == counted["vllm:spec_decode_num_draft_tokens_total"]
        )
