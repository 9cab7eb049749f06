"""The load client over real sockets: every way a server can answer, break off or say nothing."""

import contextlib
import pathlib
import socket
import time
import zlib
from collections.abc import Iterator, Sequence

import gevent
import msgspec
import pytest
from scripted_server import Close, Hold, Part, Pause, Reset, ScriptedServer, scripted_server

from tokswarm.measure.record import Outcome
from tokswarm.traffic.mix import Target
from tokswarm.traffic.units import Duration
from tokswarm.wire.answer import LiveRow
from tokswarm.wire.api import RequestWriter
from tokswarm.wire.chat_answer import ChatAnswer
from tokswarm.wire.client import LoadClient
from tokswarm.wire.exchange import Exchange
from tokswarm.wire.target import ResolvedTarget

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def token(text: str = "tok", finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
DONE = b"data: [DONE]\n\n"


def usage(prompt: int = 7, completion: int = 3) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


def stream(*events: bytes) -> list[Part]:
    return [STREAM_HEAD, *(chunk(each) for each in events), END]


GOOD = stream(ROLE, token(), token(), token(finish="length"), usage(), DONE)


def body_answer(status: str, body: bytes, content_type: str = "application/json") -> list[Part]:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return [head.encode() + body]


@contextlib.contextmanager
def client_of(server: ScriptedServer, **options: object) -> Iterator[LoadClient]:
    spec = Target(base_url=f"http://127.0.0.1:{server.port}/v1", model="m", **options)
    client = LoadClient(ResolvedTarget(spec, {}))
    try:
        yield client
    finally:
        client.close()


def ask(client: LoadClient) -> Exchange:
    request = RequestWriter(client.target, "m").write(b"hello", max_tokens=3, ignore_eos=False)
    return client.ask(request, timeout_s=10)


def ask_in_turn(client: LoadClient, count: int) -> list[Exchange]:
    """As the engine does: on kept connections."""
    request = RequestWriter(client.target, "m").write(b"hello", max_tokens=3, ignore_eos=False)
    got: list[Exchange] = []
    for number in range(count):
        client.start(request, LiveRow(), got.append, None)
        with gevent.Timeout(10):
            while len(got) <= number:
                gevent.sleep(0.001)
    return got


def one(script: Sequence[Part], **options: object) -> Exchange:
    with scripted_server(script) as server, client_of(server, **options) as client:
        return ask(client)


def test_a_good_stream_is_ok_and_its_connection_is_kept() -> None:
    with scripted_server(GOOD) as server, client_of(server) as client:
        exchanges = ask_in_turn(client, 5)
        assert [each.outcome for each in exchanges] == [Outcome.OK] * 5
        assert [each.reused for each in exchanges] == [False, True, True, True, True]
        assert server.connections == 1
        assert client.sockets == 1


def test_the_request_is_what_an_openai_client_sends() -> None:
    with scripted_server(GOOD) as server, client_of(server, headers={"x-region": "eu"}) as client:
        ask(client)
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"x-region: eu" in head
    assert msgspec.json.decode(body) == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 3,
        "messages": [{"role": "user", "content": "hello"}],
    }


WHOLE = b"".join(part for part in GOOD if isinstance(part, bytes))


@pytest.mark.parametrize("size", [1, 2, 3, 17, 64, len(WHOLE)])
def test_reads_of_any_size_give_the_same_answer(size: int) -> None:
    parts: list[Part] = []
    for at in range(0, len(WHOLE), size):
        parts += [WHOLE[at : at + size], Pause(0.0002)]
    exchange = one(parts)
    assert exchange.outcome is Outcome.OK
    assert len(exchange.answer.stamps_ns) == 3
    assert exchange.answer.usage is not None
    assert exchange.answer.usage.completion_tokens == 3


def test_every_single_split_of_an_answer_gives_the_same_answer() -> None:
    cuts = range(1, len(WHOLE), 5)

    def script(number: int) -> list[Part]:
        return [WHOLE[: cuts[number]], Pause(0.0005), WHOLE[cuts[number] :]]

    with scripted_server(script) as server, client_of(server) as client:
        for exchange in ask_in_turn(client, len(cuts)):
            assert exchange.outcome is Outcome.OK
            assert len(exchange.answer.stamps_ns) == 3


def test_time_to_first_token_is_that_of_the_first_text_and_gaps_are_the_servers() -> None:
    steps: list[Part] = [STREAM_HEAD, chunk(ROLE), Pause(0.15)]
    for _ in range(5):
        steps += [chunk(token()), Pause(0.02)]
    exchange = one([*steps, chunk(usage(completion=5)), chunk(DONE), END])
    answer = exchange.answer
    assert answer.first_token_ns is not None
    assert 0.14 < (answer.first_token_ns - exchange.sent_ns) / 1e9 < 0.3
    gaps = [(after - before) / 1e9 for before, after in zip(answer.stamps_ns, answer.stamps_ns[1:], strict=False)]
    assert all(0.015 < gap < 0.06 for gap in gaps)
    assert answer.unstamped_arrivals == 0


def test_coalesced_events_share_a_stamp_and_are_counted_as_merged() -> None:
    exchange = one([STREAM_HEAD, Pause(0.01), chunk(token() + token() + token("c", "stop") + DONE), END])
    assert exchange.outcome is Outcome.OK
    assert len(set(exchange.answer.stamps_ns)) == 1
    assert exchange.answer.merged_arrivals == 2


def test_a_stream_held_open_after_done_ends_at_done() -> None:
    begun = time.monotonic()
    exchange = one([STREAM_HEAD, chunk(token(finish="stop")), chunk(DONE), Hold])
    assert exchange.outcome is Outcome.OK
    assert time.monotonic() - begun < 2
    assert (exchange.done_ns - exchange.sent_ns) / 1e9 < 0.5


def test_finish_reason_without_done_is_ok() -> None:
    assert one(stream(token(finish="stop"))).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("script", "outcome", "words", "tokens"),
    [
        pytest.param(stream(token(), token()), Outcome.TRUNCATED, "without finish_reason", 2, id="no-end-mark"),
        pytest.param([STREAM_HEAD, chunk(token()), Close], Outcome.TRUNCATED, "middle", 1, id="closed-in-the-middle"),
        pytest.param(
            [STREAM_HEAD, chunk(token()), Pause(0.05), Reset], Outcome.RESET, "reset", 1, id="reset-in-the-middle"
        ),
        pytest.param([Close], Outcome.RESET, "before it answered", 0, id="closed-at-once"),
        pytest.param(stream(DONE), Outcome.EMPTY, "no token", 0, id="only-done"),
        pytest.param(stream(ROLE, DONE), Outcome.EMPTY, "no token", 0, id="only-role"),
        pytest.param(
            stream(event({"error": {"message": "engine died", "code": 500}}), DONE),
            Outcome.IN_BAND_ERROR,
            "engine died",
            0,
            id="error-in-a-200",
        ),
        pytest.param(
            stream(token(), b'event: error\ndata: {"error":{"message":"maximum context length exceeded"}}\n\n'),
            Outcome.CONTEXT_LENGTH,
            "context length",
            1,
            id="context-in-a-200",
        ),
        pytest.param(
            body_answer("200 OK", b'{"error":{"message":"no such adapter"}}'),
            Outcome.IN_BAND_ERROR,
            "no such adapter",
            0,
            id="json-error-in-a-200",
        ),
        pytest.param(
            body_answer("200 OK", b"<html>login</html>", "text/html"), Outcome.PROTOCOL, "<html>", 0, id="page-in-a-200"
        ),
        pytest.param(body_answer("200 OK", b""), Outcome.EMPTY, "empty", 0, id="empty-200"),
        pytest.param(
            body_answer("429 Too Many Requests", b'{"error":{"message":"slow down"}}'),
            Outcome.RATE_LIMITED,
            "slow down",
            0,
            id="rate-limited",
        ),
        pytest.param(
            body_answer("400 Bad Request", b'{"error":{"message":"This model\'s maximum context length is 2048"}}'),
            Outcome.CONTEXT_LENGTH,
            "2048",
            0,
            id="context-length",
        ),
        pytest.param(
            body_answer("503 Service Unavailable", b"overloaded", "text/plain"),
            Outcome.HTTP_ERROR,
            "HTTP 503: overloaded",
            0,
            id="unavailable",
        ),
        pytest.param([b"SSH-2.0-OpenSSH_9.2\r\n", Hold], Outcome.PROTOCOL, "not an HTTP/1.1", 0, id="another-protocol"),
        pytest.param([STREAM_HEAD + b"zz\r\n", Hold], Outcome.PROTOCOL, "not a chunk size", 0, id="broken-chunk-size"),
        pytest.param(stream(b"data: <broken>\n\n"), Outcome.PROTOCOL, "not JSON", 0, id="event-that-is-no-json"),
    ],
)
def test_each_fault_has_its_outcome_and_keeps_what_came(
    script: list[Part], outcome: Outcome, words: str, tokens: int
) -> None:
    exchange = one(script)
    assert exchange.outcome is outcome
    assert words in (exchange.error or "")
    assert len(exchange.answer.stamps_ns) == tokens


@pytest.mark.parametrize(
    ("script", "words"),
    [
        pytest.param([Hold], "no first byte within 0.3 s", id="first-byte"),
        pytest.param([STREAM_HEAD, chunk(token()), Hold], "nothing came for 0.3 s", id="gap"),
    ],
)
def test_silence_ends_in_a_timeout(script: list[Part], words: str) -> None:
    limit = Duration.parse("300ms")
    exchange = one(script, first_byte_timeout=limit, gap_timeout=limit)
    assert exchange.outcome is Outcome.TIMEOUT
    assert words in (exchange.error or "")


def test_comments_keep_a_slow_answer_alive() -> None:
    steps: list[Part] = [STREAM_HEAD]
    for _ in range(6):
        steps += [chunk(b": keep-alive\n\n"), Pause(0.15)]
    exchange = one([*steps, chunk(token(finish="stop")), chunk(DONE), END], gap_timeout=Duration.parse("400ms"))
    assert exchange.outcome is Outcome.OK
    assert exchange.answer.first_token_ns is not None
    assert (exchange.answer.first_token_ns - exchange.sent_ns) / 1e9 > 0.85


def test_the_whole_request_has_a_limit_too() -> None:
    steps: list[Part] = [STREAM_HEAD]
    for _ in range(40):
        steps += [chunk(token()), Pause(0.05)]
    exchange = one(steps, timeout=Duration.parse("500ms"))
    assert exchange.outcome is Outcome.TIMEOUT
    assert "whole request" in (exchange.error or "")
    assert len(exchange.answer.stamps_ns) > 3


def test_a_refused_connection_is_told_as_such() -> None:
    with scripted_server(GOOD) as server:
        port = server.port
    client = LoadClient(ResolvedTarget(Target(base_url=f"http://127.0.0.1:{port}/v1", model="m"), {}))
    try:
        exchange = ask(client)
        assert exchange.outcome is Outcome.RESET
        assert f"the connection was refused while connecting (127.0.0.1:{port})" in (exchange.error or "")
    finally:
        client.close()


def test_a_kept_connection_that_died_meanwhile_costs_one_retry_and_no_failure() -> None:
    def script(number: int) -> list[Part]:
        return GOOD if number != 1 else [Close]

    with scripted_server(script) as server, client_of(server) as client:
        exchanges = ask_in_turn(client, 3)
        assert [each.outcome for each in exchanges] == [Outcome.OK] * 3
        assert client.stale_retries == 1
        assert server.connections == 2


def test_a_fresh_connection_that_dies_is_a_failure() -> None:
    with scripted_server([Close]) as server, client_of(server) as client:
        assert ask_in_turn(client, 1)[0].outcome is Outcome.RESET
        assert client.stale_retries == 0


def test_a_connection_closed_while_idle_is_not_used_again() -> None:
    with scripted_server([*GOOD, Close]) as server, client_of(server) as client:
        ask_in_turn(client, 1)
        gevent.sleep(0.05)
        assert client.sockets == 0
        assert ask_in_turn(client, 1)[0].outcome is Outcome.OK
        assert client.stale_retries == 0


def test_an_aborted_request_keeps_its_partial_tokens() -> None:
    with scripted_server([STREAM_HEAD, chunk(token()), Hold]) as server, client_of(server) as client:
        got: list[Exchange] = []
        request = RequestWriter(client.target, "m").write(b"x", max_tokens=3, ignore_eos=False)
        client.start(request, LiveRow(), got.append, None)
        gevent.sleep(0.1)
        assert client.abort_all("the run was stopped") == 1
        gevent.sleep(0.05)
        assert (got[0].outcome, got[0].error) == (Outcome.ABORTED, "the run was stopped")
        assert len(got[0].answer.stamps_ns) == 1
        assert (client.in_flight, client.sockets) == (0, 0)


def test_an_error_in_one_stream_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(number: int) -> list[Part]:
        return [STREAM_HEAD, Pause(0.05), chunk(token("bad" if number == 0 else "tok", "stop")), chunk(DONE), END]

    feed = ChatAnswer.feed

    def breaking(self: ChatAnswer, body: bytes, at_ns: int, stamped: bool) -> None:
        if b'"bad"' in body:
            raise ZeroDivisionError("a bug of ours")
        feed(self, body, at_ns, stamped)

    monkeypatch.setattr(ChatAnswer, "feed", breaking)
    with scripted_server(script) as server, client_of(server) as client:
        got: list[Exchange] = []
        request = RequestWriter(client.target, "m").write(b"x", max_tokens=3, ignore_eos=False)
        for _ in range(3):
            client.start(request, LiveRow(), got.append, None)
        with gevent.Timeout(5):
            while len(got) < 3:
                gevent.sleep(0.01)
        assert sorted(str(each.outcome) for each in got) == ["ok", "ok", "protocol"]
        assert any("a bug of ours" in (each.error or "") for each in got)
        assert client.receiver.faults == 1


def test_a_large_event_arrives_whole() -> None:
    big = event({"choices": [{"delta": {"content": "x" * 1_000_000}, "finish_reason": "stop"}]})
    assert one(stream(big, DONE)).outcome is Outcome.OK


def test_a_large_prompt_is_sent_whole() -> None:
    with scripted_server(GOOD) as server, client_of(server) as client:
        text = b"word " * 600_000
        request = RequestWriter(client.target, "m").write(text, max_tokens=3, ignore_eos=False)
        assert client.ask(request, timeout_s=20).outcome is Outcome.OK
        assert text in server.requests[0]


def test_the_servers_words_are_kept_without_the_key() -> None:
    key = "sk-very-secret-key-123456"
    body = msgspec.json.encode({"error": {"message": f"Incorrect API key provided: {key}"}})
    with scripted_server(body_answer("401 Unauthorized", body)) as server:
        spec = Target(base_url=f"http://127.0.0.1:{server.port}/v1", model="m", key="env:THE_KEY")
        client = LoadClient(ResolvedTarget(spec, {"THE_KEY": key}))
        try:
            exchange = ask(client)
        finally:
            client.close()
        assert f"Authorization: Bearer {key}".encode() in server.requests[0]
    assert exchange.outcome is Outcome.HTTP_ERROR
    assert "Incorrect API key" in (exchange.error or "")
    assert key not in (exchange.error or "")


def test_an_address_that_refuses_is_passed_over_while_another_answers() -> None:
    with scripted_server(GOOD) as server, client_of(server) as client:
        target = client.target
        target.addresses = [(socket.AF_INET, ("127.0.0.2", server.port)), *target.addresses]
        second = LoadClient(target)
        try:
            assert [each.outcome for each in ask_in_turn(second, 3)] == [Outcome.OK] * 3
        finally:
            second.close()
        assert server.connections == 1


def test_a_unix_socket_is_a_target(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "endpoint.sock"
    with scripted_server(GOOD, unix_path=path) as server:
        spec = Target(base_url=f"http+unix://{str(path).replace('/', '%2F')}/v1", model="m")
        client = LoadClient(ResolvedTarget(spec, {}))
        try:
            assert [each.outcome for each in ask_in_turn(client, 2)] == [Outcome.OK] * 2
        finally:
            client.close()
        assert server.connections == 1
        assert b"POST /v1/chat/completions" in server.requests[0]


def test_a_query_goes_with_every_request() -> None:
    with scripted_server(GOOD) as server, client_of(server, query={"api-version": "2024-10-21"}) as client:
        ask(client)
        assert server.requests[0].startswith(b"POST /v1/chat/completions?api-version=2024-10-21 HTTP/1.1\r\n")


def test_connections_can_be_new_for_each_request() -> None:
    with scripted_server(GOOD) as server, client_of(server, connections="new") as client:
        assert [each.reused for each in ask_in_turn(client, 3)] == [False] * 3
        assert server.connections == 3
        gevent.sleep(0.05)
        assert client.sockets == 0


def test_an_answer_in_one_piece_is_ok_without_token_times() -> None:
    body = msgspec.json.encode(
        {
            "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 5},
        }
    )
    exchange = one(body_answer("200 OK", body), stream=False)
    assert exchange.outcome is Outcome.OK
    assert not exchange.answer.stamps_ns
    assert exchange.answer.usage is not None
    assert exchange.answer.usage.output == 5


def test_a_gzipped_stream_is_read_all_the_same() -> None:
    packer = zlib.compressobj(wbits=31)
    pieces = [packer.compress(each) + packer.flush(zlib.Z_SYNC_FLUSH) for each in (token(), token(finish="stop"), DONE)]
    head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    parts: list[Part] = [head]
    for piece in [*pieces, packer.flush()]:
        parts += [chunk(piece), Pause(0.005)]
    exchange = one([*parts, END])
    assert exchange.outcome is Outcome.OK
    assert len(exchange.answer.stamps_ns) == 2


def test_an_unknown_encoding_is_a_protocol_failure() -> None:
    head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: br\r\n\r\n")
    exchange = one([head, chunk(b"xx"), END])
    assert exchange.outcome is Outcome.PROTOCOL
    assert "'br'" in (exchange.error or "")


@pytest.mark.parametrize("step_ns", [5_000_000_000, -5_000_000_000], ids=["forward", "back"])
def test_a_step_of_the_wall_clock_makes_no_latency_wrong(step_ns: int) -> None:
    parts: list[Part] = [STREAM_HEAD]
    for _ in range(4):
        parts += [chunk(token()), Pause(0.02)]
    with (
        scripted_server([*parts, chunk(token(finish="stop")), chunk(DONE), END]) as server,
        client_of(server) as client,
    ):
        client.clock.offset_ns -= step_ns  # as if the clock had been stepped since it was last looked at
        exchange = ask(client)
        assert client.clock.steps == 1
    answer = exchange.answer
    assert answer.first_token_ns is not None
    assert 0 <= answer.first_token_ns - exchange.sent_ns < 1_000_000_000
    assert 0 < exchange.done_ns - exchange.sent_ns < 2_000_000_000
    assert sorted(answer.stamps_ns) == list(answer.stamps_ns)
