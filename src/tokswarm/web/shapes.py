"""The JSON shapes of the API's answers.

What travels between processes as arrays goes to people as objects; the shapes are made from the same
structs, so a field added there appears here and in the OpenAPI document.
"""

from typing import Any

import msgspec
from msgspec.structs import asdict, fields

from tokswarm.master.run import LiveTick, RunDetail, RunInfo, WorkerInfo
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond, WorkerSecond

Plain = dict[str, Any]


def _as_object(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """A struct with the same fields that is written as a JSON object."""
    return msgspec.defstruct(kind.__name__, [(f.name, f.type) for f in fields(kind)], kw_only=True, frozen=True)


FLEET_SECOND = _as_object(FleetSecond)
WORKER_SECOND = _as_object(WorkerSecond)
SERVER_SECOND = _as_object(ServerSecond)
EVENT = _as_object(Event)
WORKER = msgspec.defstruct(
    "Worker",
    [("worker", str), ("state", str), ("host", str), ("health", WORKER_SECOND | None)],
    kw_only=True,
)
RUN_DETAIL = msgspec.defstruct(
    "RunDetail",
    [("info", RunInfo), ("mix_yaml", str), ("summary", dict[str, Any] | None), ("events", list[EVENT])],  # type: ignore[valid-type]
    kw_only=True,
)
LIVE_TICK = msgspec.defstruct(
    "LiveTick",
    [
        ("run", RunInfo | None),
        ("seconds", list[FLEET_SECOND]),  # type: ignore[valid-type]
        ("workers", list[WORKER]),  # type: ignore[valid-type]
        ("events", list[EVENT]),  # type: ignore[valid-type]
        ("server", list[SERVER_SECOND]),  # type: ignore[valid-type]
    ],
    kw_only=True,
)


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """That the master answers, and which it is."""

    status: str
    version: str
    workers: int


def second(value: FleetSecond) -> Plain:
    """One second of the fleet."""
    return asdict(value)


def server_second(value: ServerSecond) -> Plain:
    """One reading of a server's own metrics."""
    return asdict(value)


def event(value: Event) -> Plain:
    """One event of a run."""
    return asdict(value)


def worker(value: WorkerInfo) -> Plain:
    """One worker with its health."""
    return {**asdict(value), "health": None if value.health is None else asdict(value.health)}


def run_detail(value: RunDetail) -> Plain:
    """One run whole."""
    return {**asdict(value), "events": [event(each) for each in value.events]}


def live_tick(value: LiveTick) -> Plain:
    """What changed in one second."""
    return {
        "run": value.run,
        "seconds": [second(each) for each in value.seconds],
        "workers": [worker(each) for each in value.workers],
        "events": [event(each) for each in value.events],
        "server": [server_second(each) for each in value.server],
    }
