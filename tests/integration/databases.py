"""Real databases for tests: started on free loopback ports with data of their own, ended by process id.

    with influxd() as database:            # Debian's influxd 1.6 behind `v2_facade.py`
        ...write to database.url (or take database.environ() for INFLUXDB_V2_*)...
        database.rows("SELECT count(ttft_ms) FROM llm_request GROUP BY class")

    with victoria_metrics() as database:
        database.samples("llm_token_n")

Both skip the test, with the reason, on a machine that has not got them.
"""

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

TOKEN = "test-token-of-nobody"
BUCKET = "tokswarm"
START_DEADLINE_S = 20

INFLUXD_CONFIG = """\
reporting-disabled = true
bind-address = "127.0.0.1:{rpc_port}"
[meta]
  dir = "{data}/meta"
[data]
  dir = "{data}/data"
  wal-dir = "{data}/wal"
  query-log-enabled = false
[monitor]
  store-enabled = false
[subscriber]
  enabled = false
[continuous_queries]
  enabled = false
[http]
  bind-address = "127.0.0.1:{port}"
  log-enabled = false
[ifql]
  enabled = false
[logging]
  level = "error"
"""


def free_port() -> int:
    """A loopback port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def program(name: str, package: str) -> str:
    """Path of a program; skips the test when it is not installed."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (on Debian: apt-get install {package})")
    return path


def call(base: str, method: str, target: str, body: bytes = b"", *, timeout_s: float = 10) -> tuple[int, bytes]:
    """One HTTP request of its own connection: status and body."""
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=timeout_s)
    try:
        headers = {"Content-Type": "application/x-www-form-urlencoded"} if body else {}
        connection.request(method, target, body or None, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class Process:
    """One server process; `url` answers `path` with `status` once it is up."""

    def __init__(self, command: list[str], url: str, path: str, status: int, log: Path) -> None:
        self.command = command
        self.url = url
        self._path = path
        self._status = status
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if call(self.url, "GET", self._path, timeout_s=2)[0] == self._status:
                    return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"{self.command[0]} did not come up: {self._log.read_text(errors='replace')[-2000:]}")

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def stop(self) -> None:
        """End it politely, and by force when it takes long; may be called again."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
            self._process = None


class Influxd:
    """A running influxd 1.6.7 and its v2 facade."""

    def __init__(self, data: Path) -> None:
        path = program("influxd", "influxdb")
        self.data = data
        """The folder it keeps its data in."""
        port, rpc_port, facade_port = free_port(), free_port(), free_port()
        config = data / "influxdb.conf"
        config.write_text(INFLUXD_CONFIG.format(port=port, rpc_port=rpc_port, data=data))
        self.direct_url = f"http://127.0.0.1:{port}"
        """The server's own address: `/query` and `/write`."""
        self.url = f"http://127.0.0.1:{facade_port}"
        """Where `/api/v2/write` is."""
        self.server = Process([path, "-config", str(config)], self.direct_url, "/ping", 204, data / "influxd.log")
        facade = Path(__file__).with_name("v2_facade.py")
        self._facade = Process(
            [sys.executable, str(facade), str(facade_port), self.direct_url, TOKEN],
            self.url,
            "/ping",
            204,
            data / "facade.log",
        )

    def start(self) -> None:
        """Start both, with an empty database."""
        self.server.start()
        self.query(f'CREATE DATABASE "{BUCKET}"')
        self._facade.start()

    def stop(self) -> None:
        """Stop both."""
        self._facade.stop()
        self.server.stop()

    def kill(self) -> None:
        """Take the database away; the facade then answers 503 in plain text."""
        self.server.kill()

    def restart(self) -> None:
        """Bring a killed database back with the data it had."""
        self.server.start()

    def environ(self) -> dict[str, str]:
        """The client's settings as environment variables."""
        return {
            "INFLUXDB_V2_URL": self.url,
            "INFLUXDB_V2_TOKEN": TOKEN,
            "INFLUXDB_V2_ORG": "-",
            "INFLUXDB_V2_BUCKET": BUCKET,
        }

    def query(self, influxql: str) -> list[dict[str, Any]]:
        """The series of all statements as influxd gives them: name, tags, columns, values."""
        body = urlencode({"q": influxql, "db": BUCKET, "epoch": "ns"}).encode()
        status, answer = call(self.direct_url, "POST", "/query", body, timeout_s=60)
        document = json.loads(answer)
        errors = [document.get("error"), *(result.get("error") for result in document.get("results", []))]
        if status != 200 or any(errors):
            raise AssertionError(f"{influxql}: {status} {[error for error in errors if error]}")
        return [series for result in document["results"] for series in result.get("series", [])]

    def rows(self, influxql: str) -> list[dict[str, Any]]:
        """All rows, each with its tags and columns."""
        return [
            {**series.get("tags", {}), **dict(zip(series["columns"], values, strict=True))}
            for series in self.query(influxql)
            for values in series.get("values", [])
        ]

    def value(self, influxql: str) -> Any:
        """The one value of a query for one aggregate; None when there is no row."""
        rows = self.rows(influxql)
        if not rows:
            return None
        [row] = rows
        [value] = [value for name, value in row.items() if name != "time"]
        return value

    def write(self, lines: list[bytes]) -> None:
        """Write lines past the facade, in blocks."""
        for start in range(0, len(lines), 5000):
            block = b"\n".join(lines[start : start + 5000])
            status, answer = call(self.direct_url, "POST", f"/write?db={BUCKET}&precision=n", block, timeout_s=60)
            if status != 204:
                raise AssertionError(f"influxd refused lines: {status} {answer[-500:]!r}")

    def rule(self, **rules: Any) -> None:
        """Have the facade answer writes as `v2_facade.Rules` says; without arguments normally again."""
        assert call(self.url, "PUT", "/_facade", json.dumps(rules).encode())[0] == 204

    def seen(self) -> list[dict[str, Any]]:
        """The writes the facade got: status, lines, bytes, gzip, precision, org, at (time)."""
        writes: list[dict[str, Any]] = json.loads(call(self.url, "GET", "/_facade")[1])
        return writes


class VictoriaMetrics:
    """A running VictoriaMetrics, which takes InfluxDB v2 writes itself."""

    def __init__(self, data: Path) -> None:
        path = program("victoria-metrics", "victoria-metrics")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        options = {
            "storageDataPath": str(data / "data"),
            "httpListenAddr": f"127.0.0.1:{port}",
            "retentionPeriod": "100y",
            "loggerLevel": "ERROR",
            "memory.allowedBytes": "128MB",
        }
        command = [path, *(f"-{name}={value}" for name, value in options.items())]
        self.server = Process(command, self.url, "/health", 200, data / "victoria-metrics.log")

    def environ(self) -> dict[str, str]:
        """The client's settings as environment variables."""
        return {
            "INFLUXDB_V2_URL": self.url,
            "INFLUXDB_V2_TOKEN": TOKEN,
            "INFLUXDB_V2_ORG": "-",
            "INFLUXDB_V2_BUCKET": BUCKET,
        }

    def samples(self, selector: str) -> list[dict[str, Any]]:
        """Every raw sample of a selector by series: metric, values, timestamps (ms)."""
        assert call(self.url, "GET", "/internal/force_flush")[0] == 200
        target = f"/api/v1/export?{urlencode({'match[]': selector, 'start': '0', 'end': str(time.time() + 3600)})}"
        status, answer = call(self.url, "GET", target, timeout_s=60)
        assert status == 200, answer
        return [json.loads(line) for line in answer.splitlines()]

    def query(self, promql: str, time_unix_s: float) -> list[dict[str, Any]]:
        """Result of an instant PromQL query: metric and value of each series."""
        assert call(self.url, "GET", "/internal/force_flush")[0] == 200
        target = f"/api/v1/query?{urlencode({'query': promql, 'time': f'{time_unix_s:.3f}', 'nocache': '1'})}"
        status, answer = call(self.url, "GET", target, timeout_s=60)
        assert status == 200, answer
        result: list[dict[str, Any]] = json.loads(answer)["data"]["result"]
        return result


@contextlib.contextmanager
def influxd() -> Iterator[Influxd]:
    """An empty influxd behind its facade, with the database `tokswarm`."""
    with tempfile.TemporaryDirectory(prefix="tokswarm-influxd-") as data:
        database = Influxd(Path(data))
        try:
            database.start()
            yield database
        finally:
            database.stop()


@contextlib.contextmanager
def victoria_metrics() -> Iterator[VictoriaMetrics]:
    """An empty VictoriaMetrics."""
    with tempfile.TemporaryDirectory(prefix="tokswarm-victoria-metrics-") as data:
        database = VictoriaMetrics(Path(data))
        try:
            database.server.start()
            yield database
        finally:
            database.server.stop()
