"""tokswarm beside other load generators on one core: how far each one's report is from the server's truth.

Every tool, ours included, drives a truth server with the same closed loop: the same streams, answers,
gaps and number of requests. All of a tool's processes run on core 0, the server on core 1. The server keeps the true
times from the request's arrival to its first token, and between tokens; each tool's error is what its
own output files report minus that truth.

    python benchmarks/peers.py --server mocksse.c [--venvs .venv-peers] [--only aiperf …] [--json]

The peers are installed on demand, each into a venv of its own below --venvs. One that cannot be installed or
run is listed with the reason.

Columns: *TTFT error* and *ITL error* are reported minus true, of the mean and of the p99; an ITL is a
request's mean gap between tokens. *Gap error* is that of the p99 of single gaps, for tools that report
it. *Held* is the token rate the server saw, as a share of what the streams would give if none of them
ever paused. *CPU* is per token while the load runs, and over the tool's whole life, start and report
included. *Memory* is the highest sum of PSS over its processes. *Server late* is the mean time by which
the server's tokens left after they were due, because of the machine or of what the tool did to it.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer_tools import TOOLS, Job, Tool, UnavailableError, install, train_tokenizer
from receive_path import build, truth_server

STREAMS = 50
TOKENS = 200
TTFT_US = 100_000
CORE, SERVER_CORE = 0, 1
HIGHEST_NICE = -20
SAMPLE_S = 1.0
LOADED = (0.1, 0.9)
"""CPU under load is taken between these shares of all tokens: without start, ramp and report."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One offered load."""

    gap_us: int
    requests: int

    @property
    def offered_per_s(self) -> float:
        """Tokens per second when no stream ever pauses."""
        return STREAMS * TOKENS / ((TTFT_US + self.gap_us * (TOKENS - 0.5)) / 1e6)


# Whole waves of the streams; about 25 s each at full speed.
POINTS = (Point(gap_us=20_000, requests=300), Point(gap_us=5_000, requests=1_000), Point(gap_us=2_000, requests=2_500))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One tool at one load; times in ms, None: the tool did not get that far."""

    tool: str
    version: str
    offered_per_s: int
    requests_asked: int
    failure: str | None = None
    requests_reported: int | None = None
    requests_seen: int | None = None
    ttft_true_ms: float | None = None
    ttft_reported_ms: float | None = None
    ttft_error_ms: float | None = None
    ttft_p99_error_ms: float | None = None
    itl_true_ms: float | None = None
    itl_reported_ms: float | None = None
    itl_error_pct: float | None = None
    itl_p99_error_ms: float | None = None
    gap_p99_error_ms: float | None = None
    server_late_us: float | None = None
    """Mean lateness of the server's tokens: its own, or because the tool did not read."""
    server_blocked: int | None = None
    """Tokens the server could not send at once because the tool did not read."""
    held_pct: float | None = None
    cpu_us_per_token: float | None = None
    cpu_us_per_token_whole: float | None = None
    peak_pss_mb: int | None = None
    processes: int | None = None
    wall_s: float | None = None


# --- the truth ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """The truth server's own books."""

    port: int

    @property
    def base_url(self) -> str:
        """Without the /v1."""
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str) -> dict[str, Any]:
        """GET a page of it."""
        with urllib.request.urlopen(self.base_url + path, timeout=10) as answer:
            books: dict[str, Any] = json.load(answer)
            return books

    def tokens(self) -> int:
        """Tokens sent so far, from its shared counters: asking does not disturb it."""
        [count] = struct.unpack("Q", Path(f"/dev/shm/mocksse-{self.port}").read_bytes()[:8])
        return int(count)


# --- a process tree, watched -------------------------------------------------------------------------


def tree(root: int) -> list[int]:
    """A process and everything it started, parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_s(pids: list[int]) -> float:
    """CPU of processes so far, with that of children they have waited for."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def pss_bytes(pids: list[int]) -> int:
    """Memory of processes, shared pages divided among those who share them."""
    total_kb = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total_kb += int(line.split()[1])
                    break
    return total_kb * 1024


class Watch:
    """Samples a process tree until it is told to end."""

    def __init__(self, pid: int, truth: Truth) -> None:
        self.peak_pss_bytes = 0
        self.processes = 0
        self.samples: list[tuple[int, float]] = []
        self._pid = pid
        self._truth = truth
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """No more samples."""
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._end.wait(SAMPLE_S):
            pids = tree(self._pid)
            self.samples.append((self._truth.tokens(), cpu_s(pids)))
            self.processes = max(self.processes, len(pids))
            self.peak_pss_bytes = max(self.peak_pss_bytes, pss_bytes(pids))

    def cpu_us_per_token(self, tokens: int) -> float | None:
        """While the load ran; None when it was too short for two samples."""
        low, high = (share * tokens for share in LOADED)
        loaded = [sample for sample in self.samples if low <= sample[0] <= high]
        if len(loaded) < 2:
            return None
        (first_tokens, first_s), (last_tokens, last_s) = loaded[0], loaded[-1]
        passed = last_tokens - first_tokens
        return (last_s - first_s) * 1e6 / passed if passed else None


def kill_tree(pid: int) -> None:
    """End a process and all it started."""
    for each in reversed(tree(pid)):
        with contextlib.suppress(OSError):
            os.kill(each, signal.SIGKILL)


# --- one run --------------------------------------------------------------------------------------


def run(tool: Tool, programs: Path, job: Job, truth: Truth, timeout_s: float) -> Row:
    """One tool at one load. UnavailableError when it did not come to a report."""
    offered_per_s = STREAMS * TOKENS / job.request_s
    truth.ask(f"/ctl?interval_us={job.gap_us}&ttft_us={job.ttft_us}&tokens={job.tokens}")
    command = tool.command(programs, job)
    environ = {**os.environ, **tool.environ, "OPENAI_API_KEY": "none", "NO_COLOR": "1"}
    log = job.folder / "output.txt"
    truth.ask("/stats?reset=1")
    began_s = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environ, cwd=job.folder, stdout=output, stderr=subprocess.STDOUT, preexec_fn=_own_core
        )
    watch = Watch(process.pid, truth)
    timer = threading.Timer(timeout_s, kill_tree, [process.pid])
    timer.start()
    if not tool.version:
        _forget_preflight(log, process, truth)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    late = not timer.is_alive()
    timer.cancel()
    watch.end()
    wall_s = time.monotonic() - began_s
    if late:
        raise UnavailableError(f"not finished within {timeout_s:g} s")
    try:
        report = tool.report(job)
    except (OSError, LookupError, ValueError, TypeError) as error:
        lines = log.read_text(errors="replace").strip().splitlines() or ["nothing"]
        raise UnavailableError(
            f"exit code {process.returncode}, no report ({error!r}); it said: {lines[-1]}"
        ) from error
    books = truth.ask("/stats")
    tokens = books["tokens"]
    true_ttft, true_itl = books["ttft_ms"], books["itl_ms"]
    return Row(
        tool=tool.name,
        version=tool.version,
        offered_per_s=round(offered_per_s),
        requests_asked=job.requests,
        requests_reported=report.requests,
        requests_seen=books["streams"],
        ttft_true_ms=true_ttft["mean"],
        ttft_reported_ms=report.ttft_mean_ms,
        ttft_error_ms=report.ttft_mean_ms - true_ttft["mean"],
        ttft_p99_error_ms=report.ttft_p99_ms - true_ttft["p99"],
        itl_true_ms=true_itl["mean"],
        itl_reported_ms=report.itl_mean_ms,
        itl_error_pct=(report.itl_mean_ms / true_itl["mean"] - 1) * 100,
        itl_p99_error_ms=report.itl_p99_ms - true_itl["p99"],
        gap_p99_error_ms=None if report.gap_p99_ms is None else report.gap_p99_ms - books["gap_ms"]["p99"],
        server_late_us=books["lag_mean_us"],
        server_blocked=books["blocked"],
        held_pct=tokens / books["span_s"] / offered_per_s * 100,
        cpu_us_per_token=watch.cpu_us_per_token(tokens),
        cpu_us_per_token_whole=(usage.ru_utime + usage.ru_stime) * 1e6 / tokens,
        peak_pss_mb=round(watch.peak_pss_bytes / 1e6),
        processes=watch.processes,
        wall_s=wall_s,
    )


def _own_core() -> None:
    os.sched_setaffinity(0, {CORE})
    with contextlib.suppress(OSError):
        os.nice(HIGHEST_NICE)


def _forget_preflight(log: Path, process: "subprocess.Popen[bytes]", truth: Truth) -> None:
    """Our probes come before the load and are in no report of ours: the truth starts anew when the run is announced."""
    while not any(line.startswith("run 2") for line in log.read_text(errors="replace").splitlines()):
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.02)
    truth.ask("/stats?reset=1")


# --- all runs -------------------------------------------------------------------------------------


def measure(arguments: argparse.Namespace) -> list[Row]:
    """Every tool at every load, `rounds` times over."""
    tools = [tool for tool in TOOLS if not arguments.only or tool.name in arguments.only]
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kept = arguments.keep.absolute() if arguments.keep else scratch
        installed, missing = _install_all(tools, arguments.venvs)
        rows += [_failed(tool, point, missing[tool.name]) for tool in tools for point in POINTS if tool.name in missing]
        tokenizer = scratch / "tokenizer"
        if peers := [programs for tool, programs in installed if tool.version]:
            train_tokenizer(peers[0], tokenizer)
        truth = Truth(_free_port())
        stack.enter_context(truth_server(build(arguments.server, scratch), truth.port, SERVER_CORE))
        for number in range(arguments.rounds):
            for point in POINTS:
                for tool, programs in installed:
                    folder = kept / f"{tool.name}-{round(point.offered_per_s)}-{number + 1}"
                    shutil.rmtree(folder, ignore_errors=True)
                    folder.mkdir(parents=True)
                    job = Job(
                        base_url=truth.base_url,
                        streams=STREAMS,
                        requests=max(STREAMS, round(point.requests * arguments.share / STREAMS) * STREAMS),
                        tokens=TOKENS,
                        gap_us=point.gap_us,
                        ttft_us=TTFT_US,
                        folder=folder,
                        tokenizer=tokenizer,
                    )
                    try:
                        row = run(tool, programs, job, truth, arguments.timeout)
                    except UnavailableError as error:
                        row = _failed(tool, point, str(error))
                    rows.append(row)
                    _say(json.dumps(dataclasses.asdict(row)))
    return _medians(rows)


def _install_all(tools: list[Tool], venvs: Path) -> tuple[list[tuple[Tool, Path]], dict[str, str]]:
    installed: list[tuple[Tool, Path]] = []
    missing: dict[str, str] = {}
    for tool in tools:
        try:
            installed.append((tool, install(tool, venvs)))
        except UnavailableError as error:
            missing[tool.name] = str(error)
            _say(f"{tool.name}: {error}")
    return installed, missing


def _failed(tool: Tool, point: Point, why: str) -> Row:
    return Row(
        tool=tool.name,
        version=tool.version,
        offered_per_s=round(point.offered_per_s),
        requests_asked=point.requests,
        failure=why,
    )


def _medians(rows: list[Row]) -> list[Row]:
    """One row per tool and load: the median of each figure over the rounds that gave a report."""
    groups: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.offered_per_s, _rank(row.tool)), []).append(row)
    return [_median(group) for _, group in sorted(groups.items())]


def _median(group: list[Row]) -> Row:
    whole = [row for row in group if row.failure is None]
    if not whole:
        return group[0]
    middle: dict[str, Any] = {}
    for field in dataclasses.fields(Row):
        values = [value for row in whole if isinstance(value := getattr(row, field.name), int | float)]
        if values:  # median_low: a value that occurred, and counts stay whole
            middle[field.name] = statistics.median_low(values)
    return dataclasses.replace(whole[0], **middle)


def _rank(name: str) -> int:
    return [tool.name for tool in TOOLS].index(name)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- the table ------------------------------------------------------------------------------------

HEAD = (
    "offered tok/s",
    "tool",
    "TTFT error, ms: mean / p99",
    "ITL error: mean / p99, ms",
    "gap error, ms: p99",
    "held",
    "CPU µs per token: load / whole",
    "memory, MB (processes)",
    "server late, µs",
)


def table(rows: list[Row]) -> str:
    """Markdown: one row per tool and load, and below it what failed and why."""
    lines = [HEAD, tuple("---" for _ in HEAD)]
    for row in rows:
        name = f"{row.tool} {row.version}".strip()
        if row.failure is not None:
            lines.append((f"{row.offered_per_s:,}", name, "not measured, see below", *[""] * (len(HEAD) - 3)))
            continue
        gap = "–" if row.gap_p99_error_ms is None else f"{row.gap_p99_error_ms:+.2f}"
        loaded = "–" if row.cpu_us_per_token is None else f"{row.cpu_us_per_token:.1f}"
        lines.append(
            (
                f"{row.offered_per_s:,}",
                name,
                f"{row.ttft_error_ms:+.2f} / {row.ttft_p99_error_ms:+.2f}",
                f"{row.itl_error_pct:+.2f} % / {row.itl_p99_error_ms:+.2f}",
                gap,
                f"{row.held_pct:.1f} %",
                f"{loaded} / {row.cpu_us_per_token_whole:.1f}",
                f"{row.peak_pss_mb} ({row.processes})",
                f"{row.server_late_us:,.0f}",
            )
        )
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = [f"- {row.tool} at {row.offered_per_s:,} tok/s: {row.failure}" for row in rows if row.failure]
    notes += [
        f"- {row.tool} at {row.offered_per_s:,} tok/s: asked for {row.requests_asked} requests, "
        f"reports {row.requests_reported}, the server finished {row.requests_seen}"
        for row in rows
        if row.failure is None and not row.requests_asked == row.requests_reported == row.requests_seen
    ]
    return "\n".join([text, *([""] if notes else []), *notes])


def main() -> None:
    """Parse, run, print."""
    shared = Path(__file__).resolve().parents[2] / "shared" / "bench"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, default=shared / "mocksse.c", help="C source of the truth server")
    parser.add_argument("--venvs", type=Path, default=Path(".venv-peers"), help="folder of the peers' venvs")
    parser.add_argument("--only", nargs="+", choices=[tool.name for tool in TOOLS], help="these tools alone")
    parser.add_argument("--rounds", type=int, default=1, help="interleaved; the median of each figure counts")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of requests, for a quick look")
    parser.add_argument("--timeout", type=float, default=90.0, help="seconds for one tool at one load")
    parser.add_argument("--keep", type=Path, help="folder to keep the tools' own output in")
    parser.add_argument("--json", action="store_true", help="print a JSON array instead of the table")
    arguments = parser.parse_args()
    if not arguments.server.is_file():
        raise SystemExit(f"{arguments.server} is not there; name the C source with --server")
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("two cores are needed: one for the tools, one for the server")
    rows = measure(arguments)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
