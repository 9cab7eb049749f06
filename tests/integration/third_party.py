"""Endpoints that others wrote: how they start, what they count, and a run of tokswarm against them."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from endpoints import stop
from prometheus_client.parser import text_string_to_metric_families

CHECKOUT = Path(__file__).parents[2]
START_TIMEOUT_S = 120.0
SAMPLE_S = 0.1


def venv_of(name: str) -> Path | None:
    """The environment of a server: `TOKSWARM_NAME_VENV`, or `.venv-name` in the checkout; None: neither is there."""
    folder = Path(os.environ.get(f"TOKSWARM_{name.upper()}_VENV") or CHECKOUT / f".venv-{name}")
    return folder if (folder / "bin" / name).exists() else None


@contextlib.contextmanager
def served(command: list[str | Path], *, port: int, ready: str, log: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """A server as a process of its own, once `ready` answers; its base URL."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environ},
        )
        try:
            deadline_s = time.monotonic() + START_TIMEOUT_S
            while not _answers(f"http://127.0.0.1:{port}{ready}"):
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise RuntimeError(f"{command[0]} did not start: {log.read_text(errors='replace')[-3000:]}")
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            stop(process)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(mix: str | Path, base_url: str, data_dir: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    """`tokswarm run MIX --workers 2 --json` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tokswarm", "run", mix, "--workers", "2", "--json", "--out", data_dir],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "OPENAI_BASE_URL": base_url, **environ},
    )


def run_mix(mix: str | Path, base_url: str, data_dir: Path, **environ: str) -> dict[str, Any]:
    """The same to its end; its summary."""
    done = run(mix, base_url, data_dir, **environ)
    # 4: the machine was too busy for the timings to be trusted; counts hold all the same
    assert done.returncode in (0, 4), done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def counted_by_tokswarm(summary: dict[str, Any]) -> dict[str, Any]:
    """Requests by outcome and tokens of the whole run, warm-up included: what the server saw of it."""
    parts = (summary["warmup_totals"], summary["totals"])
    requests: dict[str, int] = {}
    for part in parts:
        for outcome, count in part["requests"].items():
            requests[outcome] = requests.get(outcome, 0) + count
    sums = {name: sum(part[name] or 0 for part in parts) for name in ("output_tokens", "prompt_tokens")}
    return {"requests": requests, **sums}


def measured_window_ns(stage: dict[str, Any]) -> tuple[int, int]:
    """Begin and end of a stage's measured window, Unix ns."""
    begin_unix_ns = stage["started_unix_ns"] + round(stage["settle_s"] * 1e9)
    return begin_unix_ns, begin_unix_ns + round(stage["duration_s"] * 1e9)


class Counters:
    """Samples a server's Prometheus counters ten times a second while open."""

    def __init__(self, base_url: str) -> None:
        self._url = base_url.removesuffix("/v1") + "/metrics"
        self._samples: list[tuple[int, dict[str, float]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "Counters":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def first(self) -> dict[str, float]:
        return self._samples[0][1]

    @property
    def last(self) -> dict[str, float]:
        return self._samples[-1][1]

    def before(self, unix_ns: int) -> dict[str, float]:
        """The last sample before an instant."""
        return next(values for stamp_ns, values in reversed(self._samples) if stamp_ns < unix_ns)

    def grown(self, name: str, begin_unix_ns: int, end_unix_ns: int) -> float:
        """How much a counter grew between two instants, a straight line drawn between samples."""
        return self._value(name, end_unix_ns) - self._value(name, begin_unix_ns)

    def _value(self, name: str, unix_ns: int) -> float:
        after = next(i for i, (stamp_ns, _) in enumerate(self._samples) if stamp_ns >= unix_ns)
        (low_ns, low), (high_ns, high) = self._samples[after - 1], self._samples[after]
        return low[name] + (high[name] - low[name]) * (unix_ns - low_ns) / (high_ns - low_ns)

    def _sample(self) -> None:
        while not self._over.is_set():
            sums = read_counters(self._url)
            self._samples.append((time.time_ns(), sums))
            self._over.wait(SAMPLE_S)


def read_counters(url: str) -> dict[str, float]:
    """Every sample of a Prometheus page by name, added up over its labels."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
