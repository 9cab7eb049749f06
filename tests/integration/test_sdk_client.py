"""The same requests through the official SDK give the same outcomes and the same kind of record."""

from collections.abc import Sequence

import gevent
import msgspec
import pytest
from scripted_server import Close, Part, Pause, scripted_server
from test_wire import DONE, END, GOOD, ROLE, STREAM_HEAD, body_answer, chunk, stream, token

from tokswarm.measure.record import Outcome
from tokswarm.traffic.mix import Target
from tokswarm.wire.answer import LiveRow
from tokswarm.wire.api import RequestWriter
from tokswarm.wire.sdk_client import SdkClient, SdkExchange
from tokswarm.wire.target import ResolvedTarget


def ask(client: SdkClient, count: int = 1) -> list[SdkExchange]:
    call = RequestWriter(client.target, "m").write(b"hello", max_tokens=3, ignore_eos=True)
    got: list[SdkExchange] = []
    for number in range(count):
        client.start(call, LiveRow(), got.append, None)
        with gevent.Timeout(10):
            while len(got) <= number:
                gevent.sleep(0.001)
    return got


def one(script: Sequence[Part], **options: object) -> SdkExchange:
    with scripted_server(script) as server:
        spec = Target(base_url=f"http://127.0.0.1:{server.port}/v1", model="m", **options)
        client = SdkClient(ResolvedTarget(spec, {"KEY": "sk-a-secret-key-1234"}))
        try:
            return ask(client)[0]
        finally:
            client.close()


def test_a_good_stream_is_ok_its_request_is_ours_and_its_connection_is_kept() -> None:
    with scripted_server(GOOD) as server:
        spec = Target(
            base_url=f"http://127.0.0.1:{server.port}/v1",
            model="m",
            headers={"x-region": "eu"},
            query={"api-version": "7"},
            extra_body={"temperature": 0},
        )
        client = SdkClient(ResolvedTarget(spec, {}))
        exchanges = ask(client, 3)
        client.close()
        assert [each.outcome for each in exchanges] == [Outcome.OK] * 3
        assert server.connections == 1
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions?api-version=7 HTTP/1.1")
    assert b"x-region: eu" in head.lower()
    assert b"authorization" not in head.lower()
    assert msgspec.json.decode(body) == {
        "model": "m",
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "max_tokens": 3,
        "messages": [{"role": "user", "content": "hello"}],
    }
    answer = exchanges[0].answer
    assert len(answer.stamps_ns) == 3
    assert answer.unstamped_arrivals == 3
    assert answer.usage is not None
    assert answer.usage.output == 3


def test_token_times_are_the_servers() -> None:
    parts: list[Part] = [STREAM_HEAD, chunk(ROLE), Pause(0.1), chunk(token())]
    parts += [Pause(0.05), chunk(token(finish="stop")), chunk(DONE), END]
    exchange = one(parts)
    assert exchange.answer.first_token_ns is not None
    assert 0.09 < (exchange.answer.first_token_ns - exchange.sent_ns) / 1e9 < 0.5
    first, second = exchange.answer.stamps_ns
    assert 0.04 < (second - first) / 1e9 < 0.3


@pytest.mark.parametrize(
    ("script", "outcome", "words"),
    [
        pytest.param(
            body_answer("429 Too Many Requests", b'{"error":{"message":"slow down"}}'),
            Outcome.RATE_LIMITED,
            "slow down",
            id="rate-limited",
        ),
        pytest.param(
            body_answer("400 Bad Request", b'{"error":{"message":"maximum context length is 9"}}'),
            Outcome.CONTEXT_LENGTH,
            "context length",
            id="context-length",
        ),
        pytest.param(body_answer("500 Oops", b"boom"), Outcome.HTTP_ERROR, "HTTP 500: boom", id="server-error"),
        pytest.param(stream(token()), Outcome.TRUNCATED, "without finish_reason", id="truncated"),
        pytest.param(stream(DONE), Outcome.EMPTY, "no token", id="empty"),
        pytest.param([Close], Outcome.RESET, "disconnected", id="closed-at-once"),
        pytest.param([STREAM_HEAD, chunk(token()), Close], Outcome.RESET, "incomplete", id="closed-in-the-middle"),
    ],
)
def test_each_fault_has_its_outcome(script: list[Part], outcome: Outcome, words: str) -> None:
    exchange = one(script)
    assert exchange.outcome is outcome
    assert words in (exchange.error or "")


def test_the_key_goes_to_the_server_and_not_into_errors() -> None:
    body = b'{"error":{"message":"Incorrect API key provided: sk-a-secret-key-1234"}}'
    exchange = one(body_answer("401 Unauthorized", body), key="env:KEY")
    assert exchange.outcome is Outcome.HTTP_ERROR
    assert "sk-a-secret" not in (exchange.error or "")


def test_there_are_no_hidden_retries() -> None:
    with scripted_server(body_answer("500 Oops", b"boom")) as server:
        client = SdkClient(ResolvedTarget(Target(base_url=f"http://127.0.0.1:{server.port}/v1", model="m"), {}))
        ask(client)
        client.close()
        assert len(server.requests) == 1


def test_a_request_that_is_given_up_before_it_has_begun_is_over_all_the_same() -> None:
    with scripted_server(GOOD) as server:
        client = SdkClient(ResolvedTarget(Target(base_url=f"http://127.0.0.1:{server.port}/v1", model="m"), {}))
        call = RequestWriter(client.target, "m").write(b"hello", max_tokens=3, ignore_eos=True)
        got: list[SdkExchange] = []
        client.start(call, LiveRow(), got.append, None)
        assert client.abort_all("the run was stopped") == 1
        with gevent.Timeout(5, False):
            while not got:
                gevent.sleep(0.001)
        assert [(each.outcome, each.error) for each in got] == [(Outcome.ABORTED, "the run was stopped")]
        assert client.in_flight == 0
        client.close()
