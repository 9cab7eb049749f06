"""The messages between master and workers, each one msgpack in one Locust message of its `TYPE`.

Every message carries the run's id; what belongs to another run is dropped. `PROTOCOL` goes up when
a change would make an older side misread a message.
"""

from functools import cache
from typing import Any, ClassVar, TypeVar

import msgspec

from tokswarm.errors import FleetError
from tokswarm.measure.window import Window, WorkerSecond
from tokswarm.traffic.plan import PlannedStage, Shard
from tokswarm.traffic.share import Share, Unsent
from tokswarm.traffic.units import dec_hook, enc_hook

PROTOCOL = 3


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base: a run id and whatever the message says."""

    TYPE: ClassVar[str]
    run_id: str


class Ping(Message, frozen=True, kw_only=True):
    """Worker to master, each second, run or not: I am here. `run_id` is the run under way, or empty."""

    TYPE: ClassVar[str] = "tok.ping"
    worker: str
    host: str
    protocol: int
    version: str
    epoch: str
    """The master's epoch as the worker knows it; empty: it knows none."""
    wall_unix_ns: int
    """The worker's clock; the least difference seen shows how far the clocks are apart."""


class Welcome(Message, frozen=True, kw_only=True):
    """Master to worker: I am the master of this epoch (drawn at its start); `run_id` is empty."""

    TYPE: ClassVar[str] = "tok.welcome"
    epoch: str
    register: bool
    """Locust's side of the master does not know the worker: send `client_ready` again."""


class Refused(Message, frozen=True, kw_only=True):
    """Master to worker: this fleet cannot use you; end, and do not come back unchanged. `run_id` is empty."""

    TYPE: ClassVar[str] = "tok.refused"
    reason: str


class PlanMessage(Message, frozen=True, kw_only=True):
    """Master to worker: here is your shard; answer with an Ack, send nothing yet."""

    TYPE: ClassVar[str] = "tok.plan"
    shard: Shard
    name: str = ""
    """The worker's name in this run, where it is not its own: a process before it had that one."""
    deadline_s: float
    """The worker halts by itself this long after its first stage began."""


class Ack(Message, frozen=True, kw_only=True):
    """Worker to master: the shard is ready to run, or why it is not."""

    TYPE: ClassVar[str] = "tok.ack"
    worker: str
    wall_unix_ns: int
    """The worker's clock when it answered; shows a skew beyond the round trip."""
    error: str = ""


class StageGo(Message, frozen=True, kw_only=True):
    """Master to worker: run this stage from this instant of your wall clock."""

    TYPE: ClassVar[str] = "tok.stage"
    index: int
    start_unix_ns: int
    stage: PlannedStage | None = None
    """The stage itself, when it was decided after the plan; `index` is then the next beyond it."""
    share: Share | None = None
    """What is yours of it, when the crew is not that of the plan; it may begin after the stage."""
    extends_s: float = 0.0
    """The plan's deadline moves by so much, for a stage it did not foresee."""


class EndStage(Message, frozen=True, kw_only=True):
    """Master to worker: send nothing of this stage that is due from this instant on; drain it as ever."""

    TYPE: ClassVar[str] = "tok.end_stage"
    index: int
    at_unix_ns: int


class Reshare(Message, frozen=True, kw_only=True):
    """Master to worker: the crew has changed; this is your share of the stage from now on. Answer with Reshared."""

    TYPE: ClassVar[str] = "tok.reshare"
    index: int
    share: Share
    unsent: list[Unsent] = []
    """Of workers that were lost: for you to count, as arrivals that were dropped."""


class Reshared(Message, frozen=True, kw_only=True):
    """Worker to master: I go by this share."""

    TYPE: ClassVar[str] = "tok.reshared"
    worker: str
    index: int
    part: int
    unsent: list[int]
    """As asked for, how many arrivals there were."""
    doubled: int
    """Requests that I had sent by then and that are another's now, so that both send them: the order came late."""


class StageDone(Message, frozen=True, kw_only=True):
    """Worker to master: this stage is drained."""

    TYPE: ClassVar[str] = "tok.stage_done"
    worker: str
    index: int
    finished: int
    aborted: int
    """Requests given up at the end of the drain."""


class Stop(Message, frozen=True, kw_only=True):
    """Master to worker: end the run now (`drain_s` for what is open) and send a Final."""

    TYPE: ClassVar[str] = "tok.stop"
    drain_s: float
    reason: str


class Second(Message, frozen=True, kw_only=True):
    """Worker to master, each second."""

    TYPE: ClassVar[str] = "tok.second"
    window: Window
    health: WorkerSecond


class Final(Message, frozen=True, kw_only=True):
    """Worker to master: all requests are recorded and the log is closed."""

    TYPE: ClassVar[str] = "tok.final"
    worker: str
    records: int
    output_tokens: int
    log_bytes: int
    log_lost: int
    log_removed: int = 0
    """Requests that are in the database and no longer in the log."""
    sink_written: int
    """Points delivered to the database."""
    sink_backlog_bytes: int
    """Still in the log, undelivered."""
    sink_error: str = ""
    error: str = ""


class Fetch(Message, frozen=True, kw_only=True):
    """Master to worker: send this piece of your record log."""

    TYPE: ClassVar[str] = "tok.fetch"
    name: str = ""
    """Whose log, where the name in the run was not your own."""
    offset: int
    limit_bytes: int


class Chunk(Message, frozen=True, kw_only=True):
    """Worker to master: a piece of the record log; empty at its end."""

    TYPE: ClassVar[str] = "tok.chunk"
    worker: str
    offset: int
    data: bytes


M = TypeVar("M", bound=msgspec.Struct)


def encode(message: msgspec.Struct) -> bytes:
    """A message as msgpack."""
    return _ENCODER.encode(message)


def decode(type_: type[M], data: bytes) -> M:
    """Read a message back. FleetError for bytes that are not one, as from a worker of another version."""
    try:
        message: M = _decoder(type_).decode(data)
    except msgspec.MsgspecError as error:
        raise FleetError(
            f"a {type_.__name__} message of {len(data)} bytes cannot be read: {error}",
            hint="run the same version of tokswarm on the master and on every worker",
        ) from error
    return message


_ENCODER = msgspec.msgpack.Encoder(enc_hook=enc_hook)


@cache
def _decoder(type_: type[msgspec.Struct]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(type_, dec_hook=dec_hook)
