"""A run as the master, its store, the web page and the command line speak of it."""

import enum
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond, WorkerSecond

MASTER_ENDED = "the master ended during the run"
"""The error of a run whose master could not say what became of it."""


class RunState(enum.StrEnum):
    """preparing → running → stopping → reporting → finished; any of the first four → failed."""

    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    REPORTING = "reporting"
    FINISHED = "finished"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether the run is over and another may start."""
        return self in (RunState.FINISHED, RunState.FAILED)


NEXT_STATES: dict[RunState, tuple[RunState, ...]] = {
    RunState.PREPARING: (RunState.RUNNING, RunState.STOPPING, RunState.FAILED),
    RunState.RUNNING: (RunState.STOPPING, RunState.REPORTING, RunState.FAILED),
    RunState.STOPPING: (RunState.REPORTING, RunState.FAILED),
    RunState.REPORTING: (RunState.FINISHED, RunState.FAILED),
    RunState.FINISHED: (),
    RunState.FAILED: (),
}


class StartRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user asks for: a mix by name (of `RunControl.mixes`) or as YAML text, and changes to its target."""

    mix: str | None = None
    mix_yaml: str | None = None
    base_url: str | None = None
    model: str | None = None


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another load for the rest of the stage under way: exactly one of the two."""

    concurrency: int | None = None
    rate: str | None = None
    """As in a mix: `12/s`, `600/m`."""


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a list. Times None: not yet."""

    run_id: str
    state: RunState
    mix_name: str
    base_url: str
    model: str
    started_unix_ns: int
    ended_unix_ns: int | None = None
    workers: int = 0
    stage: str = ""
    """The stage under way."""
    stages_total: int = 0
    stages_done: int = 0
    planned_s: float = 0.0
    """Planned length of all stages, without drains."""
    error: str = ""
    notes: tuple[str, ...] = ()
    verdict: str | None = None
    """valid, suspect or invalid; None before the report."""
    output_tokens: int = 0
    requests: dict[str, int] = {}
    """Outcome to count, so far."""
    peak_tok_per_s: float | None = None
    bend: str | None = None
    """The line that says where the curve bends; None before the report."""
    run_dir: str = ""


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One run whole."""

    info: RunInfo
    mix_yaml: str
    summary: dict[str, Any] | None
    """`summary.json`; None before the report."""
    events: list[Event]


class MixFile(msgspec.Struct, frozen=True, kw_only=True):
    """A mix that can be started by name."""

    name: str
    description: str
    base_url: str
    text: str


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker of the fleet; `health` None: it has not run anything yet."""

    worker: str
    state: str
    """ready, running, silent."""
    host: str
    health: WorkerSecond | None = None


class LiveTick(msgspec.Struct, frozen=True, kw_only=True):
    """What changed in one second: the fleet's newest seconds (all classes and `_all`), and the run's state."""

    run: RunInfo | None
    """The run under way or last ended; None: there was none yet."""
    seconds: list[FleetSecond]
    workers: list[WorkerInfo]
    events: list[Event]
    server: list[ServerSecond] = []
    """What the servers behind the targets said of themselves."""


class RunControl(Protocol):
    """Start, stop and look at runs: the one way in for web page, API, Locust's own UI and command line."""

    def start(self, request: StartRequest) -> RunInfo:
        """Start a run; returns once every worker has its shard.

        ConfigError for a bad mix, PreflightError for an endpoint that does not do, BusyError while a
        run is going on, FleetError without workers or when one does not answer.
        """
        ...

    def stop(self, run_id: str) -> RunInfo:
        """End a run early, draining; asking twice is fine. UnknownRunError."""
        ...

    def change_load(self, run_id: str, request: LoadRequest) -> RunInfo:
        """Go on with another load for the rest of the stage under way, as a stage of its own.

        ConfigError for a request that makes no sense, BusyError when nothing can be changed now, UnknownRunError.
        """
        ...

    def runs(self) -> list[RunInfo]:
        """All runs, newest first."""
        ...

    def run(self, run_id: str) -> RunDetail:
        """One run. UnknownRunError."""
        ...

    def seconds(self, run_id: str) -> list[FleetSecond]:
        """All seconds of a run, for the charts of past runs. UnknownRunError."""
        ...

    def server_seconds(self, run_id: str) -> list[ServerSecond]:
        """What the servers of a run said of themselves, all of it. UnknownRunError."""
        ...

    def mixes(self) -> list[MixFile]:
        """The mixes that can be started by name."""
        ...

    def workers(self) -> list[WorkerInfo]:
        """The fleet now."""
        ...

    def ticks(self) -> Iterator[LiveTick]:
        """Blocks and yields once a second for as long as the reader goes on; a slow reader skips seconds."""
        ...
