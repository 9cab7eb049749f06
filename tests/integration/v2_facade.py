"""A small door in front of Debian's influxd 1.6, which knows `/write` but not yet `/api/v2/write`.

It does what InfluxDB 1.8's compatibility API does (facts of its documentation): the bucket is the
database, `org` is ignored, `Authorization: Token …` is checked, precision and gzip are passed on, errors
are `{"error": …}`. Beyond that it answers as tests ask it to: see `Rules`. It runs as a process of its
own, so that tests may freeze, patch or block theirs.

    python v2_facade.py PORT INFLUXD_URL TOKEN
"""

import gzip
import http.client
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

PRECISIONS = {"ns": "n", "us": "u", "ms": "ms", "s": "s"}
HEALTH = {"name": "influxdb", "message": "ready for queries and writes", "status": "pass", "version": "1.6.7"}


class Rules:
    """What writes are answered with; set by `PUT /_facade` with a JSON object of these names."""

    answers: list[dict[str, Any]]
    """For the next writes, one each: status, headers, body, delay_s, and forward (written all the same)."""
    max_body_bytes: int | None
    """Larger bodies are refused with 413."""
    poison: str | None
    """A block with a line that holds this text is refused whole with 400, as InfluxDB 2 does."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seen: list[dict[str, Any]] = []
        self.set({})

    def set(self, rules: dict[str, Any]) -> None:
        self.answers = list(rules.get("answers", []))
        self.max_body_bytes = rules.get("max_body_bytes")
        self.poison = rules.get("poison")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rules: Rules
    upstream: str
    token: str

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/_facade":
            with self.rules.lock:
                self.answer(200, json.dumps(self.rules.seen).encode())
        elif path == "/ping":
            self.answer(204, b"", {"X-Influxdb-Version": HEALTH["version"], "X-Influxdb-Build": "OSS"})
        elif path == "/health":
            self.answer(200, json.dumps(HEALTH).encode())
        else:
            self.answer(404, b'{"error":"not found"}')

    def do_PUT(self) -> None:
        rules = json.loads(self.body())
        with self.rules.lock:
            self.rules.set(rules)
        self.answer(204, b"")

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        body = self.body()
        if url.path != "/api/v2/write":
            self.answer(404, b'{"error":"not found"}')
            return
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        text = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        with self.rules.lock:
            status, answer, headers, delay_s, forward = self.decide(text, len(body))
        time.sleep(delay_s)
        if forward:
            forwarded = self.forward(query, body)
            if status is None:
                status, answer = forwarded
        assert status is not None
        with self.rules.lock:
            self.rules.seen.append(
                {
                    "status": status,
                    "lines": text.count(b"\n") + 1,
                    "bytes": len(body),
                    "gzip": self.headers.get("Content-Encoding") == "gzip",
                    "precision": query.get("precision"),
                    "org": query.get("org"),
                    "at": time.time(),
                }
            )
        self.answer(status, answer, headers)

    def decide(self, text: bytes, size: int) -> tuple[int | None, bytes, dict[str, str], float, bool]:
        """Status (None: what influxd says), body, headers, delay, and whether influxd gets the block."""
        if self.headers.get("Authorization") != f"Token {self.token}":
            return 401, b'{"error":"authorization failed"}', {}, 0, False
        if self.rules.answers:
            rule = self.rules.answers.pop(0)
            body = rule.get("body", "").encode()
            forward = rule.get("forward", "status" not in rule)
            return rule.get("status"), body, rule.get("headers", {}), rule.get("delay_s", 0), forward
        if self.rules.max_body_bytes is not None and size > self.rules.max_body_bytes:
            return 413, b'{"error":"Request Entity Too Large"}', {}, 0, False
        if self.rules.poison is not None and self.rules.poison.encode() in text:
            message = {"code": "invalid", "message": f"unable to parse: {self.rules.poison} is not taken here"}
            return 400, json.dumps(message).encode(), {}, 0, False
        return None, b"", {}, 0, True

    def forward(self, query: dict[str, str], body: bytes) -> tuple[int, bytes]:
        target = urlencode({"db": query["bucket"], "precision": PRECISIONS[query.get("precision", "ns")]})
        headers = {name: self.headers[name] for name in ("Content-Encoding",) if name in self.headers}
        connection = http.client.HTTPConnection(urlsplit(self.upstream).netloc, timeout=30)
        try:
            connection.request("POST", f"/write?{target}", body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except OSError as error:
            return 503, f"influxd is away: {error}".encode()
        finally:
            connection.close()

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status != 204:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


def main() -> None:
    port, Handler.upstream, Handler.token = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    Handler.rules = Rules()
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
