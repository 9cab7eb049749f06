"""What is no proper request gets an error that OpenAI clients understand, whatever is wrong with it."""

import http.client
import json
import os
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from endpoints import simulator

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
USER = [{"role": "user", "content": "hello"}]
KEY_NAME = "SIM_TEST_KEY"


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with simulator("fast", api_key=f"env:{KEY_NAME}", environment={**os.environ, KEY_NAME: "right"}) as url:
        yield url


def connect(base_url: str) -> socket.socket:
    parts = urlsplit(base_url)
    return socket.create_connection((parts.hostname, parts.port), timeout=10)


def answer(connection: socket.socket) -> tuple[int, http.client.HTTPMessage, bytes]:
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, response.headers, response.read()


def request(method: str, path: str, body: object, *lines: str, key: str | None = "right") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    allowed = () if key is None else (f"Authorization: Bearer {key}",)
    head = (f"{method} {path} HTTP/1.1", "Host: sim", f"Content-Length: {len(data)}", *allowed, *lines, "", "")
    return "\r\n".join(head).encode() + data


def problem(body: bytes) -> dict[str, object]:
    """The error, which has the four fields every client reads."""
    error: dict[str, object] = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert isinstance(error["type"], str)
    return error


def chat(**fields: object) -> dict[str, object]:
    return {"model": "tiny", "messages": USER, "max_tokens": 4, **fields}


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "words"),
    [
        pytest.param(CHAT, b"", 400, None, "not JSON", id="empty-body"),
        pytest.param(CHAT, b'{"messages":', 400, None, "not JSON", id="broken-json"),
        pytest.param(CHAT, b"\xff\xfe\x00", 400, None, "not JSON", id="not-unicode"),
        pytest.param(CHAT, b'{"other":' + b"[" * 100_000, 400, None, "not JSON", id="nested-too-deep"),
        pytest.param(CHAT, [], 400, None, "object", id="list-instead-of-object"),
        pytest.param(CHAT, {"model": "tiny"}, 400, None, "messages", id="no-messages-field"),
        pytest.param(CHAT, chat(messages=[]), 400, "messages", "length >= 1", id="no-messages"),
        pytest.param(CHAT, chat(messages="hello"), 400, "messages", "array", id="messages-as-text"),
        pytest.param(CHAT, chat(messages=[{"content": "x"}]), 400, "messages[0]", "role", id="message-without-role"),
        pytest.param(
            CHAT, chat(messages=[{"role": "user", "content": 5}]), 400, "messages[0].content", "", id="number"
        ),
        pytest.param(CHAT, chat(max_tokens=-1), 400, "max_tokens", ">= 1", id="negative-limit"),
        pytest.param(CHAT, chat(max_tokens=0), 400, "max_tokens", ">= 1", id="limit-of-zero"),
        pytest.param(CHAT, chat(max_tokens=1.5), 400, "max_tokens", "int", id="broken-limit"),
        pytest.param(CHAT, chat(max_tokens="9"), 400, "max_tokens", "int", id="limit-as-text"),
        pytest.param(CHAT, chat(max_tokens=10**30), 400, "max_tokens", "context length", id="limit-beyond-64-bits"),
        pytest.param(CHAT, chat(max_completion_tokens=-3), 400, "max_completion_tokens", ">= 1", id="newer-name"),
        pytest.param(CHAT, chat(stream="yes"), 400, "stream", "bool", id="stream-as-text"),
        pytest.param(CHAT, chat(stream_options=[]), 400, "stream_options", "object", id="options-as-list"),
        pytest.param(CHAT, chat(priority="high"), 400, "priority", "int", id="priority-as-text"),
        pytest.param(CHAT, chat(n=3), 400, "n", "one answer", id="several-answers"),
        pytest.param(CHAT, chat(model="gpt"), 404, "model", "`gpt`", id="unknown-model"),
        pytest.param(CHAT, chat(model=7), 400, "model", "str", id="model-as-number"),
        pytest.param(CHAT, chat(max_tokens=200_000), 400, "max_tokens", "context length", id="limit-over-context"),
        pytest.param(COMPLETIONS, {"prompt": ""}, 400, "prompt", "no tokens", id="empty-prompt"),
        pytest.param(COMPLETIONS, {"prompt": []}, 400, "prompt", "no tokens", id="empty-token-ids"),
        pytest.param(COMPLETIONS, {"prompt": [1, -2]}, 400, "prompt[1]", ">= 0", id="negative-token-id"),
        pytest.param(
            COMPLETIONS, {"prompt": "x " * 131_072}, 400, "prompt", "context length", id="prompt-over-context"
        ),
        pytest.param(RESPONSES, {"input": ""}, 400, "input", "no tokens", id="empty-input"),
        pytest.param(RESPONSES, {"input": []}, 400, "input", "length >= 1", id="no-input-messages"),
        pytest.param(
            RESPONSES, {"input": [{"type": "image"}]}, 400, "input[0].type", "image", id="input-of-another-kind"
        ),
        pytest.param(
            RESPONSES, {"input": "x", "max_output_tokens": 0}, 400, "max_output_tokens", ">= 1", id="no-output"
        ),
        pytest.param(
            RESPONSES,
            {"input": "x", "max_output_tokens": 10**6},
            400,
            "max_output_tokens",
            "context length",
            id="context",
        ),
        pytest.param("/tokenize", {}, 400, "prompt", "exactly one", id="nothing-to-tokenize"),
        pytest.param("/v1/chat", {}, 404, None, "/v1/chat", id="unknown-path"),
        pytest.param("/v1/models", {}, 405, None, "GET", id="wrong-method"),
    ],
)
def test_a_request_that_says_something_wrong_is_told_where_and_may_try_again(
    base_url: str, path: str, body: object, status: int, param: str | None, words: str
) -> None:
    with connect(base_url) as connection:
        connection.sendall(request("POST", path, body))
        got, headers, data = answer(connection)
        error = problem(data)
        assert (got, error["param"]) == (status, param)
        assert error["code"] == ("context_length_exceeded" if "context length" in words else status)
        assert words in str(error["message"])
        assert status != 405 or headers["allow"] == "GET"
        connection.sendall(request("POST", CHAT, chat(ignore_eos=True)))
        assert json.loads(answer(connection)[2])["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_of_generation_are_refused_with_the_right_one(base_url: str, method: str) -> None:
    with connect(base_url) as connection:
        connection.sendall(request(method, CHAT, b""))
        status, headers, body = answer(connection)
    assert (status, headers["allow"]) == (405, "POST")
    assert method in str(problem(body)["message"])


@pytest.mark.parametrize("key", [None, "", "wrong", "right and more", "\xff"])
def test_a_missing_or_wrong_key_is_refused(base_url: str, key: str | None) -> None:
    with connect(base_url) as connection:
        connection.sendall(request("POST", CHAT, chat(), key=key))
        status, _, body = answer(connection)
    assert (status, problem(body)["type"]) == (401, "AuthenticationError")
    assert "wrong" not in body.decode()


BODY = json.dumps(chat()).encode()
OPENING = b"POST /v1/chat/completions HTTP/1.1\r\nHost: sim\r\nAuthorization: Bearer right\r\n"


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        pytest.param(b"GET\r\n\r\n", 400, "not an HTTP/1.1 request", id="no-target"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "not an HTTP/1.1 request", id="tls"),
        pytest.param(b"GET /health HTTP/9.9\r\n\r\n", 400, "not an HTTP/1.1 request", id="unknown-version"),
        pytest.param(OPENING + b"no colon here\r\n\r\n", 400, "not an HTTP/1.1 request", id="header-without-colon"),
        pytest.param(OPENING + b"bad name: x\r\n\r\n", 400, "not an HTTP/1.1 request", id="blank-in-header-name"),
        pytest.param(OPENING + b"x: a\x00b\r\n\r\n", 400, "not an HTTP/1.1 request", id="nul-in-header"),
        pytest.param(OPENING + b"Content-Length: ten\r\n\r\n", 400, "not an HTTP/1.1 request", id="length-in-words"),
        pytest.param(OPENING + b"Content-Length: -5\r\n\r\n", 400, "not an HTTP/1.1 request", id="negative-length"),
        pytest.param(
            OPENING + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            400,
            "not an HTTP/1.1 request",
            id="two-lengths",
        ),
        pytest.param(
            OPENING + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
            400,
            "not an HTTP/1.1 request",
            id="size-no-number",
        ),
        pytest.param(
            OPENING + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}{}{}{}\r\n0\r\n\r\n",
            400,
            "",
            id="chunk-longer-than-said",
        ),
        pytest.param(
            OPENING + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", 400, "", id="both-framings"
        ),
        pytest.param(OPENING + b"x-long: " + b"y" * 70_000, 431, "longer than 65536 bytes", id="endless-header"),
        pytest.param(b"GET /" + b"a" * 70_000, 431, "longer than 65536 bytes", id="endless-target"),
        pytest.param(b"CONNECT sim:443 HTTP/1.1\r\nHost: sim\r\n\r\n", 400, "no proxy", id="tunnel"),
    ],
)
def test_bytes_that_are_no_request_get_an_answer_and_the_connection_ends(
    base_url: str, data: bytes, status: int, words: str
) -> None:
    with connect(base_url) as connection:
        connection.sendall(data)
        got, headers, body = answer(connection)
        assert got == status
        assert words in str(problem(body)["message"])
        assert headers["connection"] == "close"
        assert connection.recv(100) == b""


def test_a_body_that_is_too_large_is_refused_before_it_has_all_come(base_url: str) -> None:
    size = 40 * 1024 * 1024
    with connect(base_url) as connection:
        connection.sendall(OPENING + b"Content-Length: %d\r\n\r\n" % size)
        sent = 0
        try:
            while sent < size - 1_000_000:  # never whole: the answer comes all the same
                sent += connection.send(b" " * 65_536)
        except OSError:  # it may close while we still send
            pass
        status, _, body = answer(connection)
    assert status == 413
    assert "longer than 33554432 bytes" in str(problem(body)["message"])


def test_the_server_goes_on_after_all_of_this(base_url: str) -> None:
    for junk in (b"\x00" * 100, b"POST ", OPENING, b"\r\n\r\n\r\n"):
        with connect(base_url) as connection:
            connection.sendall(junk)
    with connect(base_url) as connection:
        connection.sendall(request("POST", CHAT, chat(ignore_eos=True)))
        assert json.loads(answer(connection)[2])["usage"]["completion_tokens"] == 4
