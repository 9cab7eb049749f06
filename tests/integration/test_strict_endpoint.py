"""An endpoint that knows nothing but its API under its own path, key and headers, and refuses every other call."""

from collections.abc import Sequence

import pytest
from product import RunFolder, ended, only_run, started
from scripted_server import Part, ScriptedServer, scripted_server

from tokswarm.measure.record import Outcome

BODY = (
    b'data: {"model":"m","choices":[{"delta":{"content":"a"}}]}\n\n'
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":1}}\n\n'
    b"data: [DONE]\n\n"
)
OF_THE_LOAD = '"max_tokens":77,'
"""Probes ask for fewer."""

MIX = """\
name: strict
target:
  base_url: http://127.0.0.1:{port}/gate/v1
  key: env:STRICT_KEY
  headers: {{x-team: blue}}
  metrics: "off"
classes:
  - name: chat
    prompt: {{tokens: {{fixed: 30}}}}
    output: {{max_tokens: {{fixed: 77}}}}
load:
  - {{name: load, concurrency: 1, for: 2s}}
"""


def answer(head: str, body: bytes, content_type: str = "application/json") -> bytes:
    return f"HTTP/1.1 {head}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


class Visited:
    """A run, and what the server was asked."""

    def __init__(self, run: RunFolder, requests: Sequence[bytes]) -> None:
        self.run = run
        self.requests = [request.decode() for request in requests]


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Visited:
    """Every second call of the load is refused with `Retry-After: 2`."""
    folder = tmp_path_factory.mktemp("strict")
    server: ScriptedServer
    loads = 0

    def script(number: int) -> list[Part]:
        nonlocal loads
        request = server.requests[number]
        if b"Bearer hunter3" not in request or b"x-team: blue" not in request:
            return [answer("401 Unauthorized", b'{"error":{"message":"who are you"}}')]
        if request.startswith(b"GET /gate/v1/models "):
            return [answer("200 OK", b'{"data":[{"id":"m"}]}')]
        if not request.startswith(b"POST /gate/v1/chat/completions "):
            return [answer("404 Not Found", b"{}")]
        if OF_THE_LOAD.encode() in request:
            loads += 1
            if loads % 2:
                return [answer("429 Too Many Requests\r\nretry-after: 2", b'{"error":{"message":"slow down"}}')]
        return [answer("200 OK", BODY, "text/event-stream")]

    with scripted_server(script) as server:
        (folder / "strict.yaml").write_text(MIX.format(port=server.port), encoding="utf-8")
        command = ("run", folder / "strict.yaml", "--workers", 1, "--data-dir", folder / "data")
        with started(*command, settings={"STRICT_KEY": "hunter3"}) as process:
            end = ended(process)
        assert (folder / "data" / "runs").is_dir(), end
        return Visited(only_run(folder / "data"), list(server.requests))


def test_readiness_is_asked_the_way_the_load_goes(visited: Visited) -> None:
    """No /health: the list of models and small generations, with the load's own path, key and headers."""
    paths = {request.split(" ", 2)[1] for request in visited.requests}
    assert paths <= {"/gate/v1/models", "/gate/v1/chat/completions", "/gate/tokenize"}
    assert visited.requests[0].startswith("GET /gate/v1/models ")
    assert all("Authorization: Bearer hunter3\r\n" in request for request in visited.requests)
    assert all("x-team: blue\r\n" in request for request in visited.requests)


def test_every_429_is_a_result_and_none_is_asked_again(visited: Visited) -> None:
    records = visited.run.records()
    refused = [record for record in records if record.outcome is Outcome.RATE_LIMITED]
    assert len(records) > 20
    assert abs(len(refused) - len(records) / 2) <= 2
    assert {record.status for record in refused} == {429}
    assert {record.retry_after_ms for record in refused} == {2000.0}
    assert sum(OF_THE_LOAD in request for request in visited.requests) == len(records)


def test_the_wait_that_a_429_asks_for_is_in_no_latency(visited: Visited) -> None:
    stage = visited.run.stage("load")
    assert stage["requests"]["rate_limited"] == sum(r.outcome is Outcome.RATE_LIMITED for r in visited.run.records())
    assert stage["e2e_ms"]["p99"] < 1000
    assert max(record.e2e_ms for record in visited.run.records()) < 1000
