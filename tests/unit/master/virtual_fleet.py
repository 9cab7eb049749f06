"""A fleet and a clock in virtual time: workers as small scripts, no process, no greenlet, no sleep."""

import heapq
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from tokswarm.master.course import Course
from tokswarm.master.link import FleetWorker, Received
from tokswarm.master.run import RunInfo
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond, Window, WindowRow, WorkerSecond
from tokswarm.traffic.mix import Distribution, Mix, Output, Prompt, Slo, Stage, Target, TrafficClass
from tokswarm.traffic.plan import ClosedLoop, Plan, PlannedStage, TokenFit
from tokswarm.worker.messages import (
    Ack,
    Chunk,
    EndStage,
    Fetch,
    Final,
    Message,
    Ping,
    PlanMessage,
    Reshare,
    Reshared,
    Second,
    StageDone,
    StageGo,
    Stop,
)

EPOCH_UNIX_S = 1_800_000_000


class VirtualClock:
    """Time passes only in `wait`; what was scheduled happens on the way."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._woken = False

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_ns(self) -> int:
        return round((EPOCH_UNIX_S + self.now_s - 1000) * 1e9)

    def at(self, in_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now_s + in_s, next(self._number), do))

    def wake(self) -> None:
        self._woken = True

    def wait(self, timeout_s: float) -> None:
        end_s = self.now_s + timeout_s
        while self._due and self._due[0][0] <= end_s and not self._woken:
            due_s, _, do = heapq.heappop(self._due)
            self.now_s = max(self.now_s, due_s)
            do()
        if not self._woken:
            self.now_s = end_s
        self._woken = False


class VirtualWorker:
    """A worker that does as it should; tests change its attributes to make it misbehave."""

    def __init__(self, name: str, fleet: "VirtualFleet") -> None:
        self.name = name
        self.client = f"{name}_1"
        self.fleet = fleet
        self.log = (b"log of " + name.encode()) * 400_000
        self.ack_error: str | None = ""
        """None: no answer."""
        self.alive = True
        self.windows = True
        self.drains = True
        self.final_error = ""
        self.tokens_per_second = 10
        self.finished = {"ok": 1}
        self.open_max_tokens = 30
        self.received: list[Message] = []
        self.unsent = 7
        """What it counts for each lost worker that it is asked about."""
        self.in_run = name
        """Its name in the run."""
        self._sequence = 0
        self._stage: int | None = None
        self._over = False
        self._ticking = False

    def get(self, message: Message) -> None:
        if not self.alive:
            return
        self.received.append(message)
        if isinstance(message, PlanMessage):
            self.plan = message.shard.plan
            self.in_run = message.name or self.name
            self._over = self._ticking = False
            self._sequence = 0
            self._ping()
            if self.ack_error is not None:
                self.say(Ack(run_id=self.run_id, worker=self.name, wall_unix_ns=0, error=self.ack_error))
        elif isinstance(message, StageGo):
            self._stage = message.index
            stage = self.plan.stages[message.index]
            if not self._ticking:
                self._ticking = True
                self._tick()
            if self.drains:
                lead_s = message.start_unix_ns / 1e9 - self.fleet.clock.unix_ns() / 1e9
                lead_s = max(lead_s, -stage.duration_s)
                self.fleet.clock.at(lead_s + stage.duration_s, lambda: self._end_stage(message.index))
        elif isinstance(message, Stop) and not self._over:
            if self._stage is not None:
                self.fleet.clock.at(0.01, lambda: self._end_stage(self._stage))
            self.fleet.clock.at(0.05, self._finish)
        elif isinstance(message, EndStage):
            in_s = max(message.at_unix_ns / 1e9 - self.fleet.clock.unix_ns() / 1e9, 0)
            self.fleet.clock.at(in_s, lambda: self._end_stage(message.index))
        elif isinstance(message, Reshare):
            unsent = [self.unsent] * len(message.unsent)
            part = message.share.part
            self.say(
                Reshared(
                    run_id=self.run_id, worker=self.in_run, index=message.index, part=part, unsent=unsent, doubled=0
                )
            )
        elif isinstance(message, Fetch):
            data = self.log[message.offset : message.offset + message.limit_bytes]
            self.say(Chunk(run_id=message.run_id, worker=message.name, offset=message.offset, data=data))

    def die(self) -> None:
        self.alive = False

    def say(self, message: Message) -> None:
        """A millisecond later it is there."""
        if self.alive:
            self.fleet.clock.at(0.001, lambda: self.fleet.deliver(self, message))

    @property
    def run_id(self) -> str:
        return self.plan.run_id

    def _ping(self) -> None:
        self.say(
            Ping(run_id="", worker=self.name, host="h", protocol=1, version="", epoch="", wall_unix_ns=0),
        )
        if not self._over:
            self.fleet.clock.at(1.0, self._ping)

    def _tick(self) -> None:
        if self._over or not self.alive:
            return
        if self.windows:
            second = self.fleet.clock.unix_ns() // 1_000_000_000 - 1
            stage = "" if self._stage is None else self.plan.stages[self._stage].name
            row = WindowRow(
                class_name="chat",
                stage=stage,
                output_tokens=self.tokens_per_second,
                finished=dict(self.finished),
                in_flight=3,
                open_max_tokens=self.open_max_tokens,
            )
            window = Window(worker=self.in_run, second_unix=second, sequence=self._sequence, rows=[row])
            self._sequence += 1
            self.say(Second(run_id=self.run_id, window=window, health=health(self.in_run, second)))
        self.fleet.clock.at(1.0, self._tick)

    def _end_stage(self, index: int | None) -> None:
        if index is not None and self._stage == index:
            self._stage = None
            self.say(StageDone(run_id=self.run_id, worker=self.name, index=index, finished=1, aborted=0))

    def _finish(self) -> None:
        if self._over:
            return
        self._over = True
        self.say(
            Final(
                run_id=self.run_id,
                worker=self.name,
                records=1,
                output_tokens=100,
                log_bytes=len(self.log),
                log_lost=0,
                sink_written=0,
                sink_backlog_bytes=0,
                error=self.final_error,
            )
        )


class VirtualFleet:
    """Satisfies FleetLink."""

    def __init__(self, *names: str) -> None:
        self.clock = VirtualClock()
        self.members = {name: VirtualWorker(name, self) for name in names}
        self.loads = 0
        self.dropped: list[str] = []
        self.receive: Callable[[Received], None] = lambda received: None

    def workers(self) -> list[FleetWorker]:
        return [
            FleetWorker(
                worker=w.name,
                client=w.client,
                host="h",
                state="ready" if w.alive else "silent",
                clock_ahead_s=0.0,
                pings=9,
            )
            for w in self.members.values()
        ]

    def send(self, worker: str, message: Message) -> None:
        if worker in self.members:
            self.members[worker].get(message)

    def begin_load(self) -> None:
        self.loads += 1

    def end_load(self) -> None:
        self.loads -= 1

    def drop(self, client: str) -> None:
        self.dropped.append(client)

    def deliver(self, worker: VirtualWorker, message: Message) -> None:
        self.receive(
            Received(worker=worker.name, client=worker.client, received_s=self.clock.now_s, message=message),
        )


class MemoryJournal:
    """Satisfies RunJournal."""

    def __init__(self) -> None:
        self.rows: list[FleetSecond] = []
        self.events: list[Event] = []
        self.server_rows: list[ServerSecond] = []
        self.database_error = ""
        self.closed = 0

    def seconds(self, rows: list[FleetSecond]) -> None:
        self.rows += rows

    def server(self, rows: list[ServerSecond]) -> None:
        self.server_rows += rows

    def event(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> list[str]:
        self.closed += 1
        return []

    def titles(self, kind: str) -> list[str]:
        return [event.title for event in self.events if event.kind == kind]


class NoServers:
    """Satisfies ServerLook: there is nothing to look at, unless the test tells what was read."""

    def __init__(self) -> None:
        self.tell: Callable[[list[ServerSecond]], None] | None = None
        self.trouble: Callable[[str, str], None] | None = None
        self.stopped = 0

    def find(self) -> list[str]:
        return []

    def start(self, on_seconds: Callable[[list[ServerSecond]], None], on_trouble: Callable[[str, str], None]) -> None:
        self.tell, self.trouble = on_seconds, on_trouble

    def stop(self) -> None:
        self.stopped += 1


def health(worker: str, second_unix: int) -> WorkerSecond:
    return WorkerSecond(
        worker=worker,
        second_unix=second_unix,
        loop_lag_p99_ms=0.1,
        loop_lag_max_ms=0.2,
        cpu_ratio=0.1,
        schedule_lag_p99_ms=None,
        in_flight=3,
        sockets=3,
        rss_bytes=1,
        log_bytes=1,
        log_lost=0,
        sink_backlog_bytes=0,
        sink_error="",
        reads=1,
        merged_arrivals=0,
        unstamped_arrivals=0,
    )


def mix() -> Mix:
    return Mix(
        name="Chat-Demo",
        target=Target(base_url="http://127.0.0.1:1/v1"),
        classes=[
            TrafficClass(
                name="chat",
                prompt=Prompt(tokens=Distribution(fixed=10)),
                output=Output(max_tokens=Distribution(fixed=10)),
                slo=Slo(),
            )
        ],
        load=[Stage(concurrency=4)],
    )


def plan(*stages: PlannedStage, run_id: str = "20261202-104233-chat-3f2a", made_of: Mix | None = None) -> Plan:
    return Plan(
        run_id=run_id,
        mix=made_of or mix(),
        model="tiny",
        stages=list(stages),
        fit=TokenFit(tokens_per_word=1.0, overhead_tokens=0.0, source="assumed"),
        content_seed=1,
    )


def stage(name: str, duration_s: float = 5.0, drain_s: float = 3.0, *, warmup: bool = False) -> PlannedStage:
    return PlannedStage(
        name=name, load=ClosedLoop(concurrency=4), duration_s=duration_s, drain_s=drain_s, warmup=warmup
    )


class Stand:
    """A course on a virtual fleet, and what it said."""

    def __init__(
        self,
        tmp_path: Path,
        fleet: VirtualFleet,
        *stages: PlannedStage,
        report: Any = None,
        made_of: Mix | None = None,
    ) -> None:
        self.fleet = fleet
        self.journal = MemoryJournal()
        self.servers = NoServers()
        self.states: list[str] = []
        self.run_dir = tmp_path / "run"
        self.course = Course(
            plan=plan(*stages, made_of=made_of),
            mix_yaml="name: chat\n",
            run_dir=self.run_dir,
            workers=fleet.workers(),
            notes=["found by the preflight"],
            fleet=fleet,
            journal=self.journal,
            servers=self.servers,
            clock=fleet.clock,
            report=report or (lambda run_dir: {"verdict": {"state": "valid", "reasons": []}, "bend": None}),
            on_change=self._heard,
        )
        fleet.receive = self.course.receive

    def _heard(self, info: RunInfo) -> None:
        if not self.states or self.states[-1] != info.state:
            self.states.append(info.state)

    def run(self) -> RunInfo:
        self.course.gather()
        self.course.drive()
        self.course.wind_down()
        return self.course.info
