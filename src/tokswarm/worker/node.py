"""A worker node: Locust's worker side around the runs that the master orders.

The node answers to one master. It pings each second, joins a restarted master by itself, halts its
load when the master is silent for `SILENCE_S`, and ends when it stays silent, for its supervisor to
start it again.
"""

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
import msgspec
from gevent.event import AsyncResult
from gevent.queue import Full, Queue

from tokswarm.errors import FleetError
from tokswarm.measure.record import Outcome, RequestRecord
from tokswarm.sink.leftover import Leftovers, keep_days
from tokswarm.sink.segments import read_stored
from tokswarm.sink.settings import InfluxSettings
from tokswarm.version import VERSION
from tokswarm.worker.descriptors import raise_descriptor_limit
from tokswarm.worker.duty import Duty, MakeRun
from tokswarm.worker.join import Join
from tokswarm.worker.messages import (
    PROTOCOL,
    Chunk,
    EndStage,
    Fetch,
    Message,
    Ping,
    PlanMessage,
    Refused,
    Reshare,
    StageGo,
    Stop,
    Welcome,
    decode,
    encode,
)
from tokswarm.worker.name import check_name, default_name, is_file_name
from tokswarm.worker.session import WorkerRun

if TYPE_CHECKING:
    from locust.runners import WorkerRunner

_log = logging.getLogger(__name__)

PING_S = 1.0
SILENCE_S = 12.0
"""The load ends when the master was silent this long: nobody would see or stop it."""
LONELY_S = 60.0
"""The process ends when the master was silent this long: its supervisor starts it afresh."""
STOP_DRAIN_S = 5.0
OUTBOX_MESSAGES = 10_000
MAX_CHUNK_BYTES = 8 << 20

EXIT_OK = 0
EXIT_LOST_MASTER = 1
EXIT_REFUSED = 2


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker node is told."""

    data_dir: Path
    """Record logs are kept in `records/RUN/NAME.log` below it."""
    master_host: str = "127.0.0.1"
    master_port: int = 5557
    join: Join | None = None
    """None: the channel is neither encrypted nor authenticated."""
    name: str | None = None
    """Unique in the fleet, a tag in the database; None: host and process id."""


class RequestFailedError(Exception):
    """What Locust's own statistics show for a request that did not end ok."""


def run_node(settings: NodeSettings, *, make_run: MakeRun = WorkerRun) -> int:
    """Serve one master until told to end; the exit code: 0 told to, 1 master lost, 2 refused (do not restart).

    The process must be patched by gevent. ConfigError for a name that cannot be used.
    """
    raise_descriptor_limit()
    return Node(settings, make_run=make_run).serve()


class Node:
    """One worker process."""

    def __init__(self, settings: NodeSettings, *, make_run: MakeRun) -> None:
        self.name = settings.name or default_name()
        check_name(self.name)
        self._settings = settings
        self._make_run = make_run
        self._records_dir = settings.data_dir / "records"
        self._epoch = ""
        self._heard_s = time.monotonic()
        self._duty: Duty | None = None
        self._outbox: Queue[Message] = Queue(OUTBOX_MESSAGES)
        self._unsent = 0
        self._exit: AsyncResult[int] = AsyncResult()
        self._signals = 0
        self._runner: WorkerRunner | None = None
        self._handlers: dict[str, tuple[type[Message], Callable[[Any], None]]] = {
            Welcome.TYPE: (Welcome, self._on_welcome),
            Refused.TYPE: (Refused, self._on_refused),
            PlanMessage.TYPE: (PlanMessage, self._on_plan),
            StageGo.TYPE: (StageGo, self._on_go),
            Reshare.TYPE: (Reshare, self._on_reshare),
            EndStage.TYPE: (EndStage, self._on_end_stage),
            Stop.TYPE: (Stop, self._on_stop),
            Fetch.TYPE: (Fetch, self._on_fetch),
        }

    def serve(self) -> int:
        """Connect and serve; the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM):
            gevent.signal_handler(number, self._on_signal)
        leftovers = Leftovers(
            self._records_dir, InfluxSettings.from_environ(os.environ), keep_days=keep_days(os.environ)
        )
        greenlets = [gevent.spawn(self._connect_and_serve)]
        leftovers.start()
        try:
            code: int = self._exit.get()
        finally:
            leftovers.stop()
            gevent.killall(greenlets)
            if self._runner is not None:
                self._runner.greenlet.kill(block=True, timeout=5)
                self._runner.client.close()
        return code

    # --- connection ---------------------------------------------------------------------------------

    def _connect_and_serve(self) -> None:
        # Locust is imported here, and not above: importing it patches the process.
        from locust.env import Environment  # noqa: PLC0415

        from tokswarm.worker.channel import Placeholder, connect_with, prepare_locust  # noqa: PLC0415

        prepare_locust()
        connect_with(self._settings.join, on_refused=self._on_no_entry)
        self._environment = Environment(user_classes=[Placeholder])
        host, port = self._settings.master_host, self._settings.master_port
        _log.info("worker %s: looking for the master at %s:%d", self.name, host, port)
        try:
            runner = self._environment.create_worker_runner(host, port)
        except ConnectionError:
            _log.error("worker %s: no master answers at %s:%d", self.name, host, port)
            self._exit.set(EXIT_LOST_MASTER)
            return
        self._runner = runner
        self._inner = runner.handle_message
        runner.handle_message = self._handle  # type: ignore[method-assign, assignment]
        _log.info("worker %s: connected to the master at %s:%d", self.name, host, port)
        self._heard_s = time.monotonic()
        runner.greenlet.spawn(self._send_outbox).link_exception(self._on_greenlet_death)
        runner.greenlet.spawn(self._ping_and_watch).link_exception(self._on_greenlet_death)
        runner.greenlet.join()
        if not self._exit.ready():
            _log.warning("worker %s: the channel to the master has ended", self.name)
            self._exit.set(EXIT_LOST_MASTER)

    def _handle(self, message: Any) -> None:
        """In place of Locust's own handler, which still gets its own messages."""
        self._heard_s = time.monotonic()
        known = self._handlers.get(message.type)
        try:
            if known is None:
                self._inner(message)
            else:
                type_, handler = known
                handler(decode(type_, message.data))
        except Exception:  # noqa: BLE001 -- root of a message: a bad one must not end the loop
            _log.exception("worker %s: a message %s could not be handled", self.name, message.type)

    def _send(self, message: Message) -> None:
        """Never blocks: the engine and the windows' ticker call it."""
        try:
            self._outbox.put_nowait(message)
        except Full:
            self._unsent += 1
            if self._unsent == 1:
                _log.warning("worker %s: the master takes no messages; what follows is only in the log", self.name)

    def _send_outbox(self) -> None:
        from locust.exception import RPCError, RPCSendError  # noqa: PLC0415 -- see _connect_and_serve

        assert self._runner is not None  # spawned once it is there
        while True:
            message = self._outbox.get()
            try:
                self._runner.send_message(message.TYPE, encode(message))  # type: ignore[arg-type]
            except (RPCError, RPCSendError) as error:
                _log.warning("worker %s: a message %s could not be sent: %s", self.name, message.TYPE, error)

    def _ping_and_watch(self) -> None:
        host = socket.gethostname()
        while True:
            duty = self._duty
            self._send(
                Ping(
                    run_id=duty.run_id if duty is not None and not duty.over else "",
                    worker=self.name,
                    host=host,
                    protocol=PROTOCOL,
                    version=VERSION,
                    epoch=self._epoch,
                    wall_unix_ns=time.time_ns(),
                )
            )
            silent_s = time.monotonic() - self._heard_s
            if silent_s > SILENCE_S and duty is not None and not duty.over:
                duty.abandon(f"the master was silent for {silent_s:.0f} s")
            if silent_s > LONELY_S:
                _log.error("worker %s: the master was silent for %.0f s", self.name, silent_s)
                self._exit.set(EXIT_LOST_MASTER)
                return
            gevent.sleep(PING_S)

    def _on_greenlet_death(self, greenlet: gevent.Greenlet) -> None:
        _log.error("worker %s: %r has died", self.name, greenlet)
        self._exit.set(EXIT_LOST_MASTER)

    # --- orders -------------------------------------------------------------------------------------

    def _on_welcome(self, welcome: Welcome) -> None:
        restarted = bool(self._epoch) and welcome.epoch != self._epoch
        self._epoch = welcome.epoch
        if restarted and self._duty is not None and not self._duty.over:
            self._duty.abandon("the master was restarted")
        if welcome.register:
            gevent.spawn(self._register)

    def _register(self) -> None:
        """Tell Locust's side of the master, which does not know us, that we are ready."""
        from locust import __version__  # noqa: PLC0415 -- see _connect_and_serve
        from locust.rpc import Message as LocustMessage  # noqa: PLC0415

        runner = self._runner
        if runner is None:
            return
        runner.stop()
        runner.client.send(LocustMessage("client_ready", __version__, runner.client_id))
        runner.worker_state = "ready"
        _log.info("worker %s: joined the master again", self.name)

    def _on_no_entry(self, reason: str) -> None:
        if self._runner is not None and self._duty is not None and not self._duty.over:
            self._duty.abandon(reason)
        _log.error("worker %s: %s", self.name, reason)
        self._exit.set(EXIT_REFUSED)

    def _on_refused(self, refused: Refused) -> None:
        _log.error("worker %s: the master refuses this worker: %s", self.name, refused.reason)
        self._exit.set(EXIT_REFUSED)

    def _on_plan(self, plan: PlanMessage) -> None:
        if not is_file_name(plan.run_id):
            raise FleetError(f"a run id {plan.run_id!r} is no name for a directory")
        if plan.name:
            check_name(plan.name)
        before = self._duty if self._duty is not None and not self._duty.over else None
        _log.info("worker %s: run %s, shard %d", self.name, plan.run_id, plan.shard.worker_index)
        self._duty = Duty(
            plan,
            make_run=self._make_run,
            worker=self.name,
            log_dir=self._records_dir / plan.run_id,
            send=self._send,
            on_record=self._fire,
            before=before,
        )

    def _on_go(self, go: StageGo) -> None:
        if self._duty is not None and self._duty.run_id == go.run_id:
            self._duty.go(go)

    def _on_reshare(self, reshare: Reshare) -> None:
        if self._duty is not None and self._duty.run_id == reshare.run_id:
            self._duty.reshare(reshare)

    def _on_end_stage(self, end: EndStage) -> None:
        if self._duty is not None and self._duty.run_id == end.run_id:
            self._duty.end_stage(end)

    def _on_stop(self, stop: Stop) -> None:
        if self._duty is not None and self._duty.run_id == stop.run_id:
            self._duty.stop(stop)

    def _on_fetch(self, fetch: Fetch) -> None:
        name = fetch.name or self.name
        data = read_log_chunk(self._records_dir, fetch, worker=name)
        self._send(Chunk(run_id=fetch.run_id, worker=name, offset=fetch.offset, data=data))

    def _fire(self, record: RequestRecord) -> None:
        """Locust's own page and statistics show each request, and its time to first token beside it."""
        error = None
        if record.outcome is not Outcome.OK:
            error = RequestFailedError(f"{record.outcome} {record.status or ''}".rstrip())
        self._fire_one("LLM", record.class_name, record.e2e_ms, error)
        if record.ttft_ms is not None:
            self._fire_one("TTFT", record.class_name, record.ttft_ms, None)

    def _fire_one(self, request_type: str, name: str, response_time_ms: float, error: Exception | None) -> None:
        self._environment.events.request.fire(
            request_type=request_type,
            name=name,
            response_time=response_time_ms,
            response_length=0,
            exception=error,
            context={},
        )

    # --- the end --------------------------------------------------------------------------------------

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals > 1:
            self._exit.set(EXIT_OK)
            return
        _log.info("worker %s: told to end", self.name)
        self._end()

    def _end(self) -> None:
        duty = self._duty
        if duty is not None and not duty.over:
            duty.abandon("the worker was told to end", drain_s=STOP_DRAIN_S)
            duty.join()
        if self._runner is not None:
            self._say_goodbye(self._runner)
        self._exit.set(EXIT_OK)

    def _say_goodbye(self, runner: "WorkerRunner") -> None:
        from locust.exception import RPCError, RPCSendError  # noqa: PLC0415 -- see _connect_and_serve
        from locust.rpc import Message as LocustMessage  # noqa: PLC0415

        with gevent.Timeout(2.0, exception=False):
            while not self._outbox.empty():
                gevent.sleep(0.01)
        try:
            runner.client.send(LocustMessage("quit", None, runner.client_id))
        except (RPCError, RPCSendError) as error:
            _log.info("worker %s: the master could not be told: %s", self.name, error)


def read_log_chunk(records_dir: Path, fetch: Fetch, *, worker: str) -> bytes:
    """The asked piece of this worker's log of a run; empty beyond its end, and when there is none."""
    if not is_file_name(fetch.run_id):
        raise FleetError(f"a run id {fetch.run_id!r} is no name for a directory")
    check_name(worker)
    path = records_dir / fetch.run_id / f"{worker}.log"
    return read_stored(path, max(fetch.offset, 0), min(max(fetch.limit_bytes, 0), MAX_CHUNK_BYTES))
