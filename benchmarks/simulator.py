"""How fast the simulated endpoint emits tokens through HTTP, at what CPU, how true to its model, in how much memory.

    python benchmarks/simulator.py [--only flat-out|true|soak] [--soak-s 120] [--json]

The server runs pinned to one core, a reader that parses nothing (epoll, count, ask again) on another. Three loads:
*flat-out* asks for more than the server can do, *true* for 20,000 tokens/s of 100 streams, *soak* for 50,000 of 2,000.
*Emission error* is the time a token was written to its socket less the time the model wanted it out, both
from the server's own account (`/sim/truth`), which on flat-out means nothing. The exit code is 1 when a load that
should be held was not.
"""

import argparse
import contextlib
import json
import os
import resource
import select
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

READER_CORE, SERVER_CORE = 0, 1
HELD_RATIO = 0.99
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
TOKEN_MARK = b'"token_ids":null'
ANSWER_END = b"0\r\n\r\n"
GATHER_S = 0.0005
"""Between two looks at the sockets, as the product's worker lets tokens gather: no send has to wake a sleeper."""


class Load(NamedTuple):
    """What is asked of the server: so many streams, each with a token every so many milliseconds."""

    streams: int
    step_ms: float
    warm_s: float
    measure_s: float
    max_tokens: int

    @property
    def offered_per_s(self) -> float:
        """Tokens a second of all streams; each waits a step between two answers, for its request to join one."""
        return self.streams / self.step_ms * 1e3 * self.max_tokens / (self.max_tokens + 1)


def loads(soak_s: float) -> dict[str, Load]:
    """The three loads by name."""
    return {
        "flat-out": Load(streams=200, step_ms=1.0, warm_s=3, measure_s=10, max_tokens=200),
        "true": Load(streams=100, step_ms=5.0, warm_s=3, measure_s=20, max_tokens=200),
        "soak": Load(streams=2_000, step_ms=40.0, warm_s=45, measure_s=soak_s, max_tokens=400),
    }


@contextlib.contextmanager
def server(load: Load, folder: Path) -> Iterator[tuple[int, int]]:
    """The endpoint whose every step takes as long as said; its port and process id."""
    profile = folder / "constant-step.yaml"
    profile.write_text(
        f"step_overhead_us: {load.step_ms * 1e3:g}\nsequence_overhead_us: 0\ntoken_compute_us: 0\n"
        "weights_read_us: 0\nkv_read_us: 0\n"
        f"max_num_seqs: {load.streams}\nmax_step_tokens: 65536\nnum_blocks: 131072\nmax_model_len: 8192\n"
    )
    port_file = folder / "port"
    port_file.unlink(missing_ok=True)
    options = ["--port", "0", "--port-file", str(port_file), "--profile", str(profile)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tokswarm.simulator", *options],
        preexec_fn=lambda: os.sched_setaffinity(0, {SERVER_CORE % (os.cpu_count() or 1)}),
    )
    try:
        while not port_file.exists():
            if process.poll() is not None:
                raise SystemExit(f"the simulated endpoint ended with {process.returncode}")
            time.sleep(0.05)
        yield int(port_file.read_text()), process.pid
    finally:
        process.terminate()
        process.wait()


def get(port: int, path: str) -> bytes:
    """One answer of the server's own pages."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as response:
        return bytes(response.read())


def slipped_s(port: int) -> float:
    """How far the model's clock was moved because the server was late."""
    for line in get(port, "/metrics").decode().splitlines():
        if line.startswith("sim:slipped_seconds_total"):
            return float(line.split()[-1])
    raise SystemExit("the server says nothing of slipping")


def cpu_s(pid: int) -> float:
    """CPU the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def rss_mib(pid: int) -> float:
    """What it holds in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


class Reader:
    """Keeps so many streams open and counts what comes."""

    def __init__(self, port: int, load: Load) -> None:
        self.tokens = 0
        self.answers = 0
        self._load = load
        self._asked = 0
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        for _ in range(load.streams):
            one = socket.create_connection(("127.0.0.1", port), timeout=30)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setblocking(False)
            self._sockets[one.fileno()] = one
            self._poll.register(one, select.EPOLLIN)
            self._ask(one)
            self.read_until(time.monotonic() + 0.0005)  # streams that begin together would also end together

    def read_until(self, end_s: float) -> None:
        """Read what comes until then."""
        while time.monotonic() < end_s:
            time.sleep(GATHER_S)
            for descriptor, _ in self._poll.poll(0):
                data = os.read(descriptor, 65_536)
                if not data:
                    raise SystemExit("the server closed a stream")
                self.tokens += data.count(TOKEN_MARK)
                if data.endswith(ANSWER_END):
                    self.answers += 1
                    self._ask(self._sockets[descriptor])

    def close(self) -> None:
        """Leave."""
        for one in self._sockets.values():
            one.close()

    def _ask(self, one: socket.socket) -> None:
        self._asked += 1
        # The first answer of each stream is shorter, by its place: so ends are spread from the beginning.
        tokens = self._load.max_tokens
        if self._asked <= self._load.streams:
            tokens = max(2, tokens * self._asked // self._load.streams)
        body = json.dumps(
            {
                "messages": [{"role": "user", "content": f"question {self._asked} of a simulator's speed"}],
                "max_tokens": tokens,
                "ignore_eos": True,
                "stream": True,
            }
        ).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: sim\r\nContent-Length: {len(body)}\r\n\r\n"
        one.sendall(head.encode() + body)


def emission_errors_ns(port: int, begin_ns: int) -> list[int]:
    """Of every token written since then that the server still remembers, sorted."""
    errors: list[int] = []
    since = 0
    while lines := get(port, f"/sim/truth?since={since}").splitlines():
        for line in lines:
            told = json.loads(line)
            pairs = zip(told["emitted_ns"], told["due_ns"], strict=True)
            errors += [emitted - due for emitted, due in pairs if emitted >= begin_ns]
        since = told["sequence"] + 1
    return sorted(errors)


def run(name: str, load: Load) -> dict[str, Any]:
    """One load."""
    with tempfile.TemporaryDirectory() as folder, server(load, Path(folder)) as (port, pid):
        reader = Reader(port, load)
        reader.read_until(time.monotonic() + load.warm_s)
        slipped_before_s = slipped_s(port)
        begin_ns, cpu_before_s, tokens_before = time.monotonic_ns(), cpu_s(pid), reader.tokens
        memory = [rss_mib(pid)]
        for quarter in range(1, 5):
            reader.read_until(begin_ns / 1e9 + load.measure_s * quarter / 4)
            memory.append(rss_mib(pid))
        passed_s = (time.monotonic_ns() - begin_ns) / 1e9
        tokens, used_s = reader.tokens - tokens_before, cpu_s(pid) - cpu_before_s
        slipped = slipped_s(port) - slipped_before_s
        reader.close()
        errors_ns = emission_errors_ns(port, begin_ns)
    result = {
        "load": name,
        "streams": load.streams,
        "offered_tok_per_s": load.offered_per_s,
        "tok_per_s": tokens / passed_s,
        "cpu_ratio": used_s / passed_s,
        "cpu_us_per_token": used_s * 1e6 / tokens,
        "emission_error_p50_ms": errors_ns[len(errors_ns) // 2] / 1e6,
        "emission_error_p99_ms": errors_ns[int(len(errors_ns) * 0.99)] / 1e6,
        "emission_error_max_ms": errors_ns[-1] / 1e6,
        "emission_errors": len(errors_ns),
        "slipped_s": slipped,
        "rss_mib": [round(one, 1) for one in memory],
    }
    print(f"{name}: {json.dumps(result)}", file=sys.stderr, flush=True)
    return result


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["flat-out", "true", "soak"], help="one of the loads")
    parser.add_argument("--soak-s", type=float, default=120.0, help="how long the soak is measured")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.sched_setaffinity(0, {READER_CORE})
    results = [run(name, load) for name, load in loads(arguments.soak_s).items() if arguments.only in (None, name)]
    if arguments.json:
        print(json.dumps({result["load"]: result for result in results}))
    else:
        for result in results:
            errors = (result[f"emission_error_{part}_ms"] for part in ("p50", "p99", "max"))
            print(
                f"{result['load']:<10} {result['streams']:>6,} streams {result['tok_per_s']:>9,.0f} tokens/s"
                f" {result['cpu_us_per_token']:>6.1f} µs CPU each; emission error p50, p99, max, ms:"
                f" {' '.join(f'{error:.2f}' for error in errors)};"
                f" resident {' '.join(map(str, result['rss_mib']))} MiB; slipped {result['slipped_s']:.2f} s"
            )
    held = all(
        result["tok_per_s"] >= HELD_RATIO * result["offered_tok_per_s"]
        for result in results
        if result["load"] != "flat-out"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
