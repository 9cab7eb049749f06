"""A reverse proxy that counts what passes: the reading of a second pair of eyes, in plain Python.

It stands between tokswarm and an endpoint that counts nothing itself, shares no code with the wire
package, and changes nothing but connection headers.
"""

import http.client
import http.server
import json
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

_NOT_FORWARDED = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


@dataclass
class Passed:
    """One generation request and its answer, as they passed."""

    arrived_unix_ns: int
    body: dict[str, Any]
    status: int = 0
    usage: dict[str, Any] = field(default_factory=dict)
    token_unix_ns: list[int] = field(default_factory=list)
    """When each event with text came."""
    answered: bool = False
    """The answer passed whole."""

    @property
    def prompt_tokens(self) -> int:
        return int(self.usage.get("prompt_tokens", 0))

    @property
    def output_tokens(self) -> int:
        return int(self.usage.get("completion_tokens", 0))

    def read(self, line: bytes) -> None:
        """Take one line of an event stream."""
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            return
        event = json.loads(line[5:])
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or []:
            if choice.get("text") or (choice.get("delta") or {}).get("content"):
                self.token_unix_ns.append(time.time_ns())


class CountingProxy:
    """Listens on a free port of 127.0.0.1 while open; `passed` lists generation requests in order of arrival."""

    def __init__(self, upstream: str) -> None:
        url = urllib.parse.urlsplit(upstream)
        self.passed: list[Passed] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.upstream = (url.hostname or "", url.port or 80)
        self._server.passed = self.passed
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}{url.path}"

    def __enter__(self) -> "CountingProxy":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    upstream: tuple[str, int]
    passed: list[Passed]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._forward()

    def do_POST(self) -> None:
        self._forward()

    def log_message(self, *_: Any) -> None:
        pass

    def _forward(self) -> None:
        passed = Passed(arrived_unix_ns=time.time_ns(), body={})
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.endswith("/completions"):
            passed.body = json.loads(body)
            self.server.passed.append(passed)
        upstream = http.client.HTTPConnection(*self.server.upstream, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _NOT_FORWARDED}
            upstream.request(self.command, self.path, body, headers)
            answer = upstream.getresponse()
            passed.status = answer.status
            self._answer(answer, passed)
        finally:
            upstream.close()

    def _answer(self, answer: http.client.HTTPResponse, passed: Passed) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _NOT_FORWARDED:
                self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        streamed = "event-stream" in (answer.getheader("Content-Type") or "")
        rest = b""
        while data := answer.read1(65536):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            if streamed:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    passed.read(line.strip())
        self.wfile.write(b"0\r\n\r\n")
        passed.answered = True
