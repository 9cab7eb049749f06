"""A search within a run, on a virtual fleet: what it finds is held to queueing theory."""

import math
import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from virtual_fleet import Stand, VirtualFleet, VirtualWorker, health, stage

from tokswarm.insight.run_file import RunFile
from tokswarm.measure.window import Window, WindowRow
from tokswarm.traffic.plan import ClosedLoop, OpenLoop, PlannedStage, SearchPlan
from tokswarm.traffic.units import dec_hook
from tokswarm.worker.messages import Message, Second, StageGo

SERVED_PER_S = 50.0
LIMIT_S = 0.5
SHARE = 0.99
THEORY_PER_S = SERVED_PER_S - math.log(1 / (1 - SHARE)) / LIMIT_S
"""M/M/1: a request is in the system for more than t with probability e^-((served - arriving) t)."""


class QueueWorker(VirtualWorker):
    """A worker in front of one server with exponential service times: an M/M/1 queue."""

    def __init__(self, name: str, fleet: VirtualFleet, seed: int = 0) -> None:
        super().__init__(name, fleet)
        self.seed = seed
        self.told: list[PlannedStage | None] = []
        self._named = ""
        self._met: Counter[int] = Counter()
        self._known: Counter[int] = Counter()

    def get(self, message: Message) -> None:
        if isinstance(message, StageGo):
            self.told.append(message.stage)
            self._stage = message.index
            of = self.plan.stages[message.index]
            start_s = message.start_unix_ns / 1e9
            lead_s = start_s - self.fleet.clock.unix_ns() / 1e9
            done_s = self._queue(of, message.index, start_s) if isinstance(of.load, OpenLoop) else 0.0
            in_s = lead_s + min(max(of.duration_s, done_s), of.duration_s + of.drain_s)
            self.fleet.clock.at(in_s, lambda: self._end_stage(message.index))
            if not self._ticking:
                self._ticking = True
                self._tick()
            return
        super().get(message)

    def _queue(self, of: PlannedStage, index: int, start_s: float) -> float:
        """All requests of the stage; when the last is done."""
        assert isinstance(of.load, OpenLoop)
        rng = random.Random(f"{self.seed} {index}")
        arrived = free = 0.0
        while (arrived := arrived + rng.expovariate(of.load.rate_per_s)) < of.duration_s:
            free = max(free, arrived) + rng.expovariate(SERVED_PER_S)
            given_up = free > of.duration_s + of.drain_s
            second = int(start_s + min(free, of.duration_s + of.drain_s))
            self._known[second] += 1
            self._met[second] += not given_up and free - arrived <= LIMIT_S
        return free

    def _tick(self) -> None:
        if self._over:
            return
        second = self.fleet.clock.unix_ns() // 1_000_000_000 - 1
        name = self.plan.stages[self._stage].name if self._stage is not None else self._named
        self._named = name
        known = self._known.pop(second, 0)
        row = WindowRow(
            class_name="chat",
            stage=name,
            slo_met=self._met.pop(second, 0),
            slo_known=known,
            finished={"ok": known},
            in_flight=1,
        )
        window = Window(worker=self.name, second_unix=second, sequence=self._sequence, rows=[row])
        self._sequence += 1
        self.say(Second(run_id=self.run_id, window=window, health=health(self.name, second)))
        self.fleet.clock.at(1.0, self._tick)


def find(*, from_: float = 2.0, to: float = 80.0, step_s: float = 300.0, share: float = SHARE) -> PlannedStage:
    search = SearchPlan(goal="slo", from_=from_, to=to, is_whole=False, precision=0.03, share=share)
    load = OpenLoop(rate_per_s=from_, arrivals="poisson")
    return PlannedStage(name="find", load=load, duration_s=step_s, drain_s=30, warmup=False, search=search)


def stand_of(tmp_path: Path, *stages: PlannedStage, seed: int = 0) -> Stand:
    fleet = VirtualFleet("a")
    fleet.members["a"] = QueueWorker("a", fleet, seed)
    return Stand(tmp_path, fleet, *stages)


def run_file(stand: Stand) -> RunFile:
    return msgspec.json.decode((stand.run_dir / "run.json").read_bytes(), type=RunFile, dec_hook=dec_hook)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_search_lands_within_5_percent_of_the_load_that_theory_gives(tmp_path: Path, seed: int) -> None:
    assert pytest.approx(40.79, abs=0.01) == THEORY_PER_S
    stand = stand_of(tmp_path, find(), seed=seed)
    stand.run()
    (result,) = run_file(stand).searches
    assert result.is_complete
    assert result.highest_met == pytest.approx(THEORY_PER_S, rel=0.05)


def test_every_try_is_a_recorded_stage_between_those_of_the_plan(tmp_path: Path) -> None:
    stand = stand_of(tmp_path, stage("before"), find(step_s=60.0), stage("after"))
    info = stand.run()
    kept = run_file(stand)
    names = [one.name for one in kept.stages]
    assert (names[0], names[-1]) == ("before", "after")
    assert names[1:3] == ["find-1-at-2", "find-2-at-2"] or names[1:3] == ["find-1-at-2", "find-2-at-4"]
    assert [times.name for times in kept.stage_times] == names
    assert isinstance(kept.stages[1].load, OpenLoop)
    assert kept.stages[1].load.rate_per_s == 2.0
    assert all(one.search is None for one in kept.stages)
    assert (info.state, info.stages_done, info.stages_total) == ("finished", 3, 3)
    worker = stand.fleet.members["a"]
    assert isinstance(worker, QueueWorker)
    assert [told.name for told in worker.told if told is not None] == names[1:-1]
    (result,) = kept.searches
    assert result.line in info.notes
    assert [event.text for event in stand.journal.events if event.kind == "find" and event.title == "find"] == [
        result.line
    ]


def test_the_same_seed_tries_the_same_loads(tmp_path: Path) -> None:
    first, second = stand_of(tmp_path / "1", find(step_s=60.0)), stand_of(tmp_path / "2", find(step_s=60.0))
    first.run()
    second.run()
    assert run_file(first).searches == run_file(second).searches


def test_a_search_that_is_stopped_keeps_what_it_found_so_far(tmp_path: Path) -> None:
    stand = stand_of(tmp_path, find(share=0.5))
    stand.fleet.clock.at(700.0, lambda: stand.course.ask_stop("user"))
    assert stand.run().state == "finished"
    (result,) = run_file(stand).searches
    assert (result.highest_met, result.is_complete) == (4.0, False)
    assert "the run ended before the search did" in result.line


class SlotsWorker(QueueWorker):
    """A worker in front of a server that gives twelve streams 50 tok/s each, and no more to others."""

    def _tick(self) -> None:
        if self._over:
            return
        second = self.fleet.clock.unix_ns() // 1_000_000_000 - 1
        rows = []
        if self._stage is not None:
            of = self.plan.stages[self._stage]
            assert isinstance(of.load, ClosedLoop)
            users = of.load.concurrency
            tokens = round(50 * min(users, 12) * random.Random(f"{self.seed} {second}").gauss(1, 0.05))
            rows = [
                WindowRow(
                    class_name="chat", stage=of.name, output_tokens=tokens, in_flight=users, finished={"ok": users}
                )
            ]
        window = Window(worker=self.name, second_unix=second, sequence=self._sequence, rows=rows)
        self._sequence += 1
        self.say(Second(run_id=self.run_id, window=window, health=health(self.name, second)))
        self.fleet.clock.at(1.0, self._tick)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_run_finds_the_knee(tmp_path: Path, seed: int) -> None:
    search = SearchPlan(goal="knee", from_=1, to=64, is_whole=True, precision=0.05, share=None)
    load = ClosedLoop(concurrency=1)
    knee = PlannedStage(name="find", load=load, duration_s=60, drain_s=10, warmup=False, search=search)
    fleet = VirtualFleet("a")
    fleet.members["a"] = SlotsWorker("a", fleet, seed)
    stand = Stand(tmp_path, fleet, knee)
    info = stand.run()
    (result,) = run_file(stand).searches
    assert (result.highest_met, result.highest_below, result.lowest_missed) == (12, 11, 13)
    assert result.line in info.notes
    assert "the knee, where tok/s times the tok/s of each request is highest, is concurrency 12: " in result.line
    assert "find-1-at-1: more power" in stand.journal.titles("find")
