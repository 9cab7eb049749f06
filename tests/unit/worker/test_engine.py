"""The engine under more load than one process can send: it stays reachable, ends in time, counts what it left out."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from virtual_fleet import plan

from tokswarm.measure.record import Outcome
from tokswarm.traffic.plan import ClosedLoop, OpenLoop, PlannedStage, Shard
from tokswarm.wire.answer import LiveRow
from tokswarm.worker import engine as module
from tokswarm.worker.engine import Engine

FLOOD = OpenLoop(rate_per_s=1e6, arrivals="constant")
"""A hundred times what the quickest machine draws."""


class InstantClient:
    """Every request is over as soon as the loop gets its turn."""

    def __init__(self) -> None:
        self.clock = SimpleNamespace(offset_ns=time.time_ns() - time.monotonic_ns())
        self.sent_ns: list[int] = []
        self.aborts = 0

    def start(self, call: object, live: object, on_done: Callable[[Any], None], tag: object) -> Any:
        now_ns = time.monotonic_ns()
        self.sent_ns.append(now_ns)
        over = SimpleNamespace(tag=tag, outcome=Outcome.OK, headers_ns=now_ns, sent_ns=now_ns, begun_ns=now_ns)
        gevent.get_hub().loop.run_callback(on_done, over)
        return over

    def defer(self, action: Callable[[], None]) -> None:
        gevent.get_hub().loop.run_callback(action)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        gevent.spawn_later(delay_s, action)

    def abort_all(self, reason: str) -> int:
        self.aborts += 1
        return 0


class Counts:
    """Stands for the recorder."""

    def __init__(self) -> None:
        self.finished_count = self.dropped_count = 0

    def row(self, class_index: int, stage: str) -> Any:
        return SimpleNamespace(live=LiveRow(), stage=stage)

    def begun(self, sending: object, sent_ns: int) -> None:
        pass

    def finished(self, exchange: object, sending: object) -> None:
        self.finished_count += 1

    def dropped(self, row: object) -> None:
        self.dropped_count += 1


class Bench:
    """An engine with one flooded stage."""

    def __init__(self, duration_s: float) -> None:
        flooded = PlannedStage(name="flood", load=FLOOD, duration_s=duration_s, drain_s=1.0, warmup=False)
        self.client = InstantClient()
        self.counts = Counts()
        writer = SimpleNamespace(write=lambda prompt, **_: None)
        shard = Shard(plan=plan(flooded), worker_index=0, worker_count=1)
        self.engine = Engine(shard, [(self.client, writer)], self.counts)  # type: ignore[arg-type]

    def run(self) -> float:
        """Run the stage from now on; how long it took, s."""
        begun_ns = time.monotonic_ns()
        self.engine.run_stage(0, begun_ns + self.client.clock.offset_ns)
        return (time.monotonic_ns() - begun_ns) / 1e9


@pytest.fixture
def overtime_ns(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "OVERTIME_NS", 50_000_000)
    return 50_000_000


def test_a_schedule_that_is_behind_lets_others_run(overtime_ns: int) -> None:
    bench = Bench(duration_s=0.1)
    ticks_ns: list[int] = []

    def tick() -> None:
        while True:
            ticks_ns.append(time.monotonic_ns())
            gevent.sleep(0.001)

    ticker = gevent.spawn(tick)
    bench.run()
    ticker.kill()
    last_sent_ns = bench.client.sent_ns[-1]
    assert sum(at_ns < last_sent_ns for at_ns in ticks_ns) > 2


def test_a_stage_ends_in_time_however_much_is_due_and_counts_what_it_left_out(overtime_ns: int) -> None:
    bench = Bench(duration_s=0.1)
    took_s = bench.run()
    assert took_s < 0.1 + 2 * overtime_ns / 1e9 + 1
    assert bench.counts.dropped_count > 0
    assert len(bench.client.sent_ns) == bench.counts.finished_count > 0


def test_a_halt_ends_a_schedule_that_is_behind() -> None:
    bench = Bench(duration_s=30)
    gevent.spawn_later(0.05, bench.engine.halt, "the user", 0.0)
    assert bench.run() < 10
    assert bench.client.aborts > 0


class RefusingClient(InstantClient):
    """Every connection is refused."""

    def start(self, call: object, live: object, on_done: Callable[[Any], None], tag: object) -> Any:
        now_ns = time.monotonic_ns()
        self.sent_ns.append(now_ns)
        over = SimpleNamespace(tag=tag, outcome=Outcome.RESET, headers_ns=None, sent_ns=now_ns, begun_ns=now_ns)
        gevent.get_hub().loop.run_callback(on_done, over)
        return over


def test_a_user_that_waits_after_a_failure_does_not_join_the_next_stage() -> None:
    stages = [
        PlannedStage(name=name, load=ClosedLoop(concurrency=2), duration_s=0.15, drain_s=1.0, warmup=False)
        for name in ("first", "second")
    ]
    client, writer = RefusingClient(), SimpleNamespace(write=lambda prompt, **_: None)
    shard = Shard(plan=plan(*stages), worker_index=0, worker_count=1)
    engine = Engine(shard, [(client, writer)], Counts())  # type: ignore[arg-type]
    sent = []
    for index in range(2):
        before = len(client.sent_ns)
        engine.run_stage(index, time.monotonic_ns() + client.clock.offset_ns)
        sent.append(len(client.sent_ns) - before)
    assert 0 < sent[1] <= 4  # two users, at 0 and at 0.1 s
