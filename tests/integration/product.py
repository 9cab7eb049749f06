"""The product as its users start it: the `tokswarm` command in processes of its own, each ended by its process id.

And what it leaves behind, read back: the folder of a run, with its summary, records and events.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import yaml
from databases import call

from tokswarm.measure.record import RequestRecord
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond, Window, WorkerSecond
from tokswarm.sink.record_log import Entry, read_log

COMMAND = [sys.executable, "-m", "tokswarm"]
RUN_TIMEOUT_S = 150
"""Far above what any run here takes, so that only a hang meets it."""

BUSY_MACHINE = {"loop_lag", "loop_stall", "cpu", "schedule_lag"}
"""Causes of a bad verdict that lie in the machine the tests run on."""

E = TypeVar("E", bound=Entry)


class Ended(NamedTuple):
    """A command that came to its end."""

    code: int
    out: str
    err: str


def environment(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a command: ours without what would change a run, and these settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("INFLUXDB", "OPENAI"))}
    return {**inherited, **(settings or {})}


def tokswarm(*arguments: object, settings: Mapping[str, str] | None = None) -> Ended:
    """Run a command to its end."""
    with started(*arguments, settings=settings) as process:
        return ended(process)


@contextlib.contextmanager
def started(*arguments: object, settings: Mapping[str, str] | None = None) -> Iterator["subprocess.Popen[str]"]:
    """A command under way; told to end, and then made to, if it still is when the block is left."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(settings),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def ended(process: "subprocess.Popen[str]", timeout_s: float = RUN_TIMEOUT_S) -> Ended:
    """Wait for a command; its exit code and what it said."""
    out, err = process.communicate(timeout=timeout_s)
    return Ended(process.returncode, out, err)


def write_mix(path: Path, base_url: str, **parts: Any) -> Path:
    """A mix file with this target and these parts."""
    document = {"name": path.stem, "seed": 11, "target": {"base_url": base_url}, **parts}
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


class RunFolder:
    """What a run has left behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def run_id(self) -> str:
        return self.path.name

    @cached_property
    def summary(self) -> dict[str, Any]:
        return self._json("summary.json")

    @cached_property
    def run_file(self) -> dict[str, Any]:
        return self._json("run.json")

    @cached_property
    def entries(self) -> dict[str, list[Entry]]:
        """Everything in the record logs by who wrote it; a log that is damaged or torn fails the test."""
        found: dict[str, list[Entry]] = {}
        for path in sorted((self.path / "logs").glob("*.log")):
            with read_log(path) as reader:
                found[path.stem] = [entry for entry, _ in reader]
                assert (reader.torn_bytes, reader.damaged_bytes) == (0, 0), path
        return found

    def all_of(self, kind: type[E]) -> list[E]:
        """Every entry of a kind, whoever wrote it."""
        return [entry for entries in self.entries.values() for entry in entries if isinstance(entry, kind)]

    def records(self, stage: str | None = None) -> list[RequestRecord]:
        """Finished requests in the order in which they were due."""
        chosen = [record for record in self.all_of(RequestRecord) if stage in (None, record.stage)]
        return sorted(chosen, key=lambda record: record.planned_ns)

    def stage(self, name: str) -> dict[str, Any]:
        """A stage of the summary."""
        [found] = [stage for stage in self.summary["stages"] if stage["name"] == name]
        return dict(found)

    def stage_times(self, name: str) -> dict[str, Any]:
        """When a stage began and stopped."""
        [found] = [times for times in self.run_file["stage_times"] if times["name"] == name]
        return dict(found)

    @property
    def finished_requests(self) -> int:
        """Finished requests as the summary counts them, warm-ups included."""
        return sum(sum(self.summary[part]["requests"].values()) for part in ("totals", "warmup_totals"))

    @property
    def output_tokens(self) -> int:
        """Output tokens as the summary counts them, warm-ups included."""
        return sum(self.summary[part]["output_tokens"] for part in ("totals", "warmup_totals"))

    @property
    def window_rows(self) -> int:
        """Class × stage × worker × second in the workers' logs."""
        return sum(len(window.rows) for window in self.all_of(Window))

    @property
    def points(self) -> dict[str, int]:
        """How many points of each measurement a database must hold, by the logs; tokens come from the summary."""
        return {
            "llm_request": len(self.all_of(RequestRecord)),
            "llm_window": self.window_rows,
            "llm_worker": len(self.all_of(WorkerSecond)),
            "llm_fleet": len(self.all_of(FleetSecond)),
            "llm_server": len(self.all_of(ServerSecond)),
            "llm_event": len({(event.kind, event.unix_ns, event.title) for event in self.all_of(Event)}),
        }

    def _json(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.path / name).read_bytes())
        return content


def only_run(data_dir: Path) -> RunFolder:
    """The one run of a data directory."""
    [path] = (data_dir / "runs").iterdir()
    return RunFolder(path)


def run_mix(mix: Path, data_dir: Path, *, workers: int, settings: Mapping[str, str] | None = None) -> RunFolder:
    """`tokswarm run` to its end, which must be a good one; the run's folder."""
    end = tokswarm("run", mix, "--workers", workers, "--data-dir", data_dir, settings=settings)
    assert_good(end, only_run(data_dir))
    return only_run(data_dir)


def assert_good(end: Ended, run: RunFolder) -> None:
    """The command ended well; a run may say that this machine was too busy to be believed, and nothing else."""
    reasons = run.summary["verdict"]["reasons"]
    invalid = {reason["cause"] for reason in reasons if reason["state"] == "invalid"}
    assert invalid <= BUSY_MACHINE, end
    assert end.code == (4 if invalid else 0), end


def server_root(base_url: str) -> str:
    """Where a server's own pages are: its base URL without the path."""
    url = urlsplit(base_url)
    return f"{url.scheme}://{url.netloc}"


def in_server(base_url: str) -> int:
    """Requests the simulated endpoint has now: running and waiting, by its /metrics."""
    status, body = call(server_root(base_url), "GET", "/metrics")
    assert status == 200
    gauges = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    found = [line.rsplit(" ", 1)[1] for line in body.decode().splitlines() if line.startswith(gauges)]
    assert len(found) == len(gauges)
    return int(sum(map(float, found)))


def truth(base_url: str, since_ns: int) -> list[dict[str, Any]]:
    """What the simulated endpoint knows of each request that came after an instant, in the order of arrival.

    The instant is of the monotonic clock, which all processes of one machine share.
    """
    found = [each for each in truth_since(base_url, 0) if each["arrival_ns"] >= since_ns]
    return sorted(found, key=lambda each: each["arrival_ns"])


def truth_since(base_url: str, sequence: int) -> list[dict[str, Any]]:
    """The simulated endpoint's account of requests from this number on, in the order in which they ended."""
    found: list[dict[str, Any]] = []
    while True:
        status, body = call(server_root(base_url), "GET", f"/sim/truth?since={sequence}")
        assert status == 200
        page = [json.loads(line) for line in body.splitlines()]
        if not page:
            return found
        found += page
        sequence = page[-1]["sequence"] + 1
