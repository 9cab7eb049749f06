"""The engine under more load than one process can send: it stays reachable, ends in time, counts what it left out."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gevent
import msgspec
import pytest
from virtual_fleet import plan

from tokswarm.measure.record import Outcome
from tokswarm.traffic.mix import Distribution, Prompt, PromptRows
from tokswarm.traffic.own_prompts import pack_prompts
from tokswarm.traffic.plan import ClosedLoop, OpenLoop, PlannedStage, Shard
from tokswarm.traffic.share import PART_BITS, Share, Unsent
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


# --- shares that change --------------------------------------------------------------------------------


class HoldingClient(InstantClient):
    """Requests stay open until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[Callable[[Any], None], Any]] = []
        self.tickets: list[Any] = []

    def start(self, call: object, live: object, on_done: Callable[[Any], None], tag: Any) -> Any:
        now_ns = time.monotonic_ns()
        over = SimpleNamespace(tag=tag, outcome=Outcome.OK, headers_ns=now_ns, sent_ns=now_ns, begun_ns=now_ns)
        self.tickets.append(tag.ticket)
        self.open.append((on_done, over))
        return over

    def let_go(self, count: int) -> None:
        ended, self.open = self.open[:count], self.open[count:]
        for on_done, over in ended:
            on_done(over)

    def abort_all(self, reason: str) -> int:
        self.let_go(len(self.open))
        return 0


def engine_of(
    client: HoldingClient, load: ClosedLoop | OpenLoop, *, place: int = 0, of: int = 1, duration_s: float = 1.0
) -> tuple[Engine, Counts]:
    stage = PlannedStage(name="one", load=load, duration_s=duration_s, drain_s=0.05, warmup=False)
    shard = Shard(plan=plan(stage), worker_index=place, worker_count=of)
    counts = Counts()
    writer = SimpleNamespace(write=lambda prompt, **_: None)
    return Engine(shard, [(client, writer)], counts), counts  # type: ignore[arg-type, list-item]


def begin(engine: Engine, client: HoldingClient, share: Share | None = None) -> gevent.Greenlet:
    return gevent.spawn(engine.run_stage, 0, time.monotonic_ns() + client.clock.offset_ns, share)


def test_users_come_at_once_and_go_when_they_are_free() -> None:
    client = HoldingClient()
    engine, _ = engine_of(client, ClosedLoop(concurrency=10), of=2)
    running = begin(engine, client)
    gevent.sleep(0.05)
    assert len(client.open) == 5
    engine.reshare(0, Share(worker_index=0, worker_count=1, from_ns=100_000_000, part=1))
    gevent.sleep(0.02)
    assert len(client.open) == 5  # not before its instant
    gevent.sleep(0.1)
    assert len(client.open) == 10
    engine.reshare(0, Share(worker_index=0, worker_count=5, from_ns=200_000_000, part=2))
    gevent.sleep(0.1)
    assert len(client.open) == 10  # none is cut off
    client.let_go(10)
    gevent.sleep(0.02)
    assert len(client.open) == 2
    engine.halt("the test is over", 0.0)
    running.join(2)
    parts = [ticket.index >> PART_BITS for ticket in client.tickets]
    assert parts == [0] * 5 + [1] * 5 + [2] * 2
    assert len({ticket.index for ticket in client.tickets}) == 12


def test_a_schedule_goes_over_to_the_other_worker_and_what_was_left_is_counted() -> None:
    clients = [HoldingClient(), HoldingClient()]
    load = OpenLoop(rate_per_s=400, arrivals="poisson")
    engines = [engine_of(client, load, place=place, of=2) for place, client in enumerate(clients)]
    start_unix_ns = time.monotonic_ns() + clients[0].clock.offset_ns
    running = [gevent.spawn(engine.run_stage, 0, start_unix_ns) for engine, _ in engines]
    gevent.sleep(0.3)
    engines[1][0].halt("killed", 0.0)
    gevent.sleep(0.15)
    from_ns = 600_000_000
    lost = Unsent(worker_index=1, worker_count=2, from_ns=300_000_000, to_ns=from_ns)
    share = Share(worker_index=0, worker_count=1, from_ns=from_ns, part=1)
    counted, doubled = engines[0][0].reshare(0, share, [lost])
    gevent.joinall(running, timeout=4)
    stays = [(ticket.index, ticket.due_ns) for ticket in clients[0].tickets]
    assert len(set(stays)) == len(stays)
    after = sorted(index for index, due_ns in stays if due_ns >= from_ns)
    assert after == list(range(after[0], after[0] + len(after)))  # all of them, whoever had them before
    assert all(index % 2 == 0 for index, due_ns in stays if due_ns < from_ns)
    assert doubled == 0
    assert counted == [engines[0][1].dropped_count]
    assert 30 < counted[0] < 100  # half of 400/s for 0.3 s


def test_a_late_worker_begins_with_what_is_due_from_its_instant_on() -> None:
    client = HoldingClient()
    engine, _ = engine_of(client, OpenLoop(rate_per_s=400, arrivals="constant"), place=1, of=2)
    running = begin(engine, client, Share(worker_index=1, worker_count=2, from_ns=400_000_000, part=3))
    running.join(4)
    due = [ticket.due_ns for ticket in client.tickets]
    assert min(due) >= 400_000_000
    assert len(due) == 120


def test_a_stage_that_is_ended_early_sends_nothing_that_is_due_later() -> None:
    client = HoldingClient()
    engine, _ = engine_of(client, OpenLoop(rate_per_s=400, arrivals="constant"), duration_s=30)
    begun_ns = time.monotonic_ns()
    running = begin(engine, client)
    gevent.sleep(0.1)
    engine.end_stage(0, begun_ns + client.clock.offset_ns + 200_000_000)
    running.join(4)
    assert running.dead
    assert 75 <= len(client.tickets) <= 82


def test_orders_for_a_stage_that_has_not_begun_here_wait_for_it() -> None:
    client = HoldingClient()
    engine, _ = engine_of(client, ClosedLoop(concurrency=10), of=2)
    engine.reshare(0, Share(worker_index=0, worker_count=1, from_ns=0, part=1))
    running = begin(engine, client)
    gevent.sleep(0.05)
    assert len(client.open) == 10
    engine.halt("the test is over", 0.0)
    running.join(2)


# --- prompts of users' own -----------------------------------------------------------------------------


def engine_with_rows(client: InstantClient, load: ClosedLoop | OpenLoop, rows: int) -> tuple[Engine, Counts]:
    """An engine whose only class has so many prompts of its own, each sent once."""
    stage = PlannedStage(name="one", load=load, duration_s=0.3, drain_s=0.05, warmup=False)
    made = plan(stage)
    prompt = Prompt(rows=PromptRows(file="a.jsonl", lengths=Distribution(fixed=5)))
    one = msgspec.structs.replace(made.mix.classes[0], prompt=prompt)
    packed = pack_prompts(0, [f"row {number}" for number in range(rows)], repeat=False)
    made = msgspec.structs.replace(made, mix=msgspec.structs.replace(made.mix, classes=[one]), prompts=[packed])
    counts = Counts()
    writer = SimpleNamespace(write=lambda prompt, **_: None)
    shard = Shard(plan=made, worker_index=0, worker_count=1)
    return Engine(shard, [(client, writer)], counts), counts  # type: ignore[arg-type, list-item]


def test_arrivals_that_find_no_prompt_left_are_counted_as_dropped() -> None:
    client = InstantClient()
    engine, counts = engine_with_rows(client, OpenLoop(rate_per_s=200, arrivals="constant"), rows=25)
    engine.run_stage(0, time.monotonic_ns() + client.clock.offset_ns)
    assert (len(client.sent_ns), counts.dropped_count) == (25, 35)


def test_users_that_find_no_prompt_left_stop_and_the_stage_ends_at_its_time() -> None:
    client = InstantClient()
    engine, counts = engine_with_rows(client, ClosedLoop(concurrency=4), rows=25)
    begun_ns = time.monotonic_ns()
    engine.run_stage(0, begun_ns + client.clock.offset_ns)
    assert (len(client.sent_ns), counts.dropped_count) == (25, 0)
    assert 0.29 < (time.monotonic_ns() - begun_ns) / 1e9 < 2
