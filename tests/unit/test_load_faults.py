"""Faults of load and time that users of load generators have reported, each with what is right.

The numbers are those of the table in docs/verification.md, which also names the tests of the others.
"""

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from types import SimpleNamespace
from typing import Any

import gevent
import msgspec
import pytest
from virtual_fleet import Stand, VirtualFleet, VirtualWorker, health, mix, plan, stage

from tokswarm.measure.record import Outcome
from tokswarm.measure.window import Window, WindowRow
from tokswarm.traffic.mix import Stage
from tokswarm.traffic.plan import ClosedLoop, OpenLoop, PlannedStage, Shard
from tokswarm.traffic.planning import plan_stages
from tokswarm.traffic.rates import Rates
from tokswarm.traffic.schedule import TicketSource
from tokswarm.traffic.ticket import Ticket
from tokswarm.traffic.units import Duration
from tokswarm.wire.answer import LiveRow
from tokswarm.wire.chat_answer import ChatAnswer
from tokswarm.worker.engine import Engine
from tokswarm.worker.messages import Second, encode
from tokswarm.worker.recorder import Recorder, Sending

MS = 1_000_000

# --- 27: the rate of a fleet ---------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize(("arrivals", "least_cv", "most_cv"), [("constant", 0.0, 0.05), ("poisson", 0.95, 1.05)])
def test_ten_requests_a_second_are_ten_over_any_number_of_workers(
    workers: int, arrivals: str, least_cv: float, most_cv: float
) -> None:
    """Fault 27: a rate kept per process becomes n times the rate, and constant gaps become random ones."""
    load = PlannedStage(
        name="open",
        load=OpenLoop(rate_per_s=10, arrivals=arrivals),
        duration_s=400,
        drain_s=1,
        warmup=False,
    )
    due_ns: list[int] = []
    for worker in range(workers):
        due_ns += [ticket.due_ns or 0 for ticket in TicketSource(plan(load), worker, workers).tickets(0)]
    due_ns.sort()
    gaps = [after - before for before, after in pairwise(due_ns)]
    assert len(due_ns) / 400 == pytest.approx(10, rel=0.0 if arrivals == "constant" else 0.05)
    assert least_cv <= pstdev(gaps) / fmean(gaps) <= most_cv


# --- 28, 29, 33: how many are open, and when it ends ------------------------------------------------


class SlowClient:
    """Answers after some milliseconds, but for the requests that are never answered."""

    def __init__(self, *, silent: Callable[[int], bool] = lambda number: False) -> None:
        self.clock = SimpleNamespace(offset_ns=time.time_ns() - time.monotonic_ns())
        self.sent = self.open = self.most_open = 0
        self._silent = silent
        self._unanswered: list[Callable[[Outcome], None]] = []

    def start(self, call: object, live: object, on_done: Callable[[Any], None], tag: object) -> Any:
        now_ns = time.monotonic_ns()
        self.sent += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        exchange = SimpleNamespace(tag=tag, outcome=None, headers_ns=now_ns, sent_ns=now_ns, begun_ns=now_ns)

        def over(outcome: Outcome) -> None:
            self.open -= 1
            exchange.outcome = outcome
            on_done(exchange)

        if self._silent(self.sent):
            self._unanswered.append(over)
        else:
            gevent.spawn_later(0.003, over, Outcome.OK)
        return exchange

    def defer(self, action: Callable[[], None]) -> None:
        gevent.get_hub().loop.run_callback(action)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        gevent.spawn_later(delay_s, action)

    def abort_all(self, reason: str) -> int:
        given_up, self._unanswered = self._unanswered, []
        for over in given_up:
            over(Outcome.ABORTED)
        return len(given_up)


class NoRecorder:
    """Stands for the recorder."""

    def row(self, class_index: int, stage: str) -> Any:
        return SimpleNamespace(live=LiveRow(), stage=stage)

    def begun(self, sending: object, sent_ns: int) -> None:
        pass

    def finished(self, exchange: object, sending: object) -> None:
        pass


def engine(client: SlowClient, one: PlannedStage, *, worker: int = 0, workers: int = 1) -> Engine:
    shard = Shard(plan=plan(one), worker_index=worker, worker_count=workers)
    writer = SimpleNamespace(write=lambda prompt, **_: None)
    return Engine(shard, [(client, writer)], NoRecorder())  # type: ignore[list-item, arg-type]


def test_warm_up_requests_never_exceed_their_concurrency() -> None:
    """Fault 28: 100 warm-ups over a cap of 32 are never more than 32. That they are no results: test_summary.py."""
    warm_up = PlannedStage(name="warm-up", load=ClosedLoop(concurrency=32), duration_s=0.1, drain_s=1.0, warmup=True)
    client = SlowClient()
    engine(client, warm_up).run_stage(0, time.monotonic_ns() + client.clock.offset_ns)
    assert client.sent >= 100
    assert client.most_open == 32
    assert client.open == 0


def test_one_request_that_is_never_answered_is_given_up_after_the_drain() -> None:
    """Fault 29: one of 300 requests hangs; the stage ends at its length and drain, with one aborted request."""
    open_loop = PlannedStage(
        name="open", load=OpenLoop(rate_per_s=1000, arrivals="constant"), duration_s=0.3, drain_s=0.2, warmup=False
    )
    client = SlowClient(silent=lambda number: number == 150)
    begun_s = time.monotonic()
    count = engine(client, open_loop).run_stage(0, time.monotonic_ns() + client.clock.offset_ns)
    assert 0.5 <= time.monotonic() - begun_s < 2.0
    assert (client.sent, count.finished, count.aborted) == (300, 300, 1)


def test_a_stop_ends_three_workers_in_long_streams_within_its_grace() -> None:
    """Fault 33: stop while every stream would last minutes. The run's side of it: test_course.py, "a stop ends"."""
    closed = PlannedStage(name="long", load=ClosedLoop(concurrency=12), duration_s=300, drain_s=300, warmup=False)
    client = [SlowClient(silent=lambda number: True) for _ in range(3)]
    engines = [engine(each, closed, worker=index, workers=3) for index, each in enumerate(client)]
    now_ns = time.monotonic_ns() + client[0].clock.offset_ns
    running = [gevent.spawn(each.run_stage, 0, now_ns) for each in engines]
    gevent.sleep(0.1)
    assert [each.open for each in client] == [4, 4, 4]
    begun_s = time.monotonic()
    for each in engines:
        each.halt("stopped by the user", 0.2)
    assert len(gevent.joinall(running, timeout=10)) == 3
    assert 0.1 <= time.monotonic() - begun_s < 2.0
    assert [(each.value.finished, each.value.aborted) for each in running] == [(4, 4)] * 3


# --- 31: what reaches the master -------------------------------------------------------------------


class NoLog:
    """A record log that keeps nothing."""

    def append(self, entry: object) -> bool:
        return True


class Answered:
    """An exchange that is over, after so many tokens at distances of a millisecond or so."""

    def __init__(self, live: LiveRow, tokens: int) -> None:
        self.answer = ChatAnswer(live)
        self.outcome = Outcome.OK
        self.sent_ns = self.headers_ns = 100 * MS
        self.connect_ns = self.error = None
        self.status = 200
        self.headers: dict[str, str] = {}
        for number in range(tokens):
            self.answer.feed(
                b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
                self.sent_ns + number * MS + number % 7 * MS // 10,
                True,
            )
        self.done_ns = self.sent_ns + tokens * MS


def recorder(class_names: list[str]) -> Recorder:
    [one] = mix().classes
    classes = [msgspec.structs.replace(one, name=name) for name in class_names]
    return Recorder(
        worker="w",
        worker_index=0,
        classes=classes,
        target_names=["t"],
        log=NoLog(),  # type: ignore[arg-type]
        wall_offset_ns=lambda: 0,
    )


def finish(made: Recorder, class_index: int, tokens: int) -> None:
    ticket = Ticket(
        index=0, class_index=class_index, due_ns=None, prompt=b"", prompt_tokens=9, max_tokens=4, ideal_cached_tokens=0
    )
    sending = Sending(ticket, made.row(class_index, "s"), 0, 100 * MS)
    made.begun(sending, 100 * MS)
    made.finished(Answered(sending.row.live, tokens), sending)


def test_what_a_worker_says_each_second_does_not_grow_with_its_tokens() -> None:
    """Fault 31: a message to the master for each token. Here: one a second, as long for 20,000 tokens as for 200."""
    sizes = []
    for tokens in (10, 1000):
        made = recorder(["chat"])
        for _ in range(20):
            finish(made, 0, tokens)
        window = made.take(7)
        assert [row.output_tokens for row in window.rows] == [20 * tokens]
        sizes.append(len(encode(Second(run_id="r", window=window, health=health("w", 7)))))
    assert max(sizes) <= min(sizes) + 100
    assert max(sizes) < 2000


# --- 32: a long run with many names ------------------------------------------------------------------


def objects_held() -> int:
    """Blocks of memory that Python objects hold now: exact, where resident memory is not."""
    gc.collect()
    return sys.getallocatedblocks()


NAMES = [f"class-{number}" for number in range(2_000)]


class ManyNames(VirtualWorker):
    """A worker that reports twenty of two thousand classes each second, in turn."""

    def _tick(self) -> None:
        if self._over or not self.alive:
            return
        second = self.fleet.clock.unix_ns() // 1_000_000_000 - 1
        names = NAMES[second * 20 % 2_000 :][:20]
        rows = [WindowRow(class_name=name, stage="soak", output_tokens=9, finished={"ok": 2}) for name in names]
        window = Window(worker=self.name, second_unix=second, sequence=self._sequence, rows=rows)
        self._sequence += 1
        self.say(Second(run_id=self.run_id, window=window, health=health(self.name, second)))
        self.fleet.clock.at(1.0, self._tick)


def test_hours_of_two_thousand_names_take_no_more_memory_of_the_master(tmp_path: Path) -> None:
    """Fault 32, the master: memory once every name was seen ten times, and two thirds of the run later."""
    fleet = VirtualFleet("a")
    fleet.members["a"] = ManyNames("a", fleet)
    stand = Stand(tmp_path, fleet, stage("soak", 3_300.0))
    kept: Counter[str] = Counter()
    # The journal of the other tests keeps everything: that would be what grows.
    stand.journal.seconds = lambda rows: kept.update(row.class_name for row in rows)  # type: ignore[method-assign]
    held: list[int] = []
    for at_s in (1_100.0, 3_200.0):
        fleet.clock.at(at_s, lambda: held.append(objects_held()))
    assert stand.run().state == "finished"
    assert set(NAMES) <= set(kept)
    assert min(kept[name] for name in NAMES) >= 30
    assert held[1] - held[0] < 500


def test_many_requests_of_two_thousand_names_take_no_more_memory_of_a_worker() -> None:
    """Fault 32, the worker: a million requests of a real one are benchmarks/soak.py."""
    made = recorder(NAMES)
    held: list[int] = []
    for number in range(9_000):
        finish(made, number % len(NAMES), 3)
        if number % 100 == 99:
            made.take(number // 100)
        if number in (4_099, 8_099):
            held.append(objects_held())
    assert held[1] - held[0] < 500


# --- 37: a sweep has the loads it names --------------------------------------------------------------


def test_a_sweep_of_ten_rates_is_ten_different_rates() -> None:
    """Fault 37: rates that were rounded to whole numbers, so that a sweep from 0.5 to 4 had four of them."""
    rates = [0.5 + 3.5 * number / 9 for number in range(10)]
    sweep = Stage(rate=Rates.parse([f"{rate}/s" for rate in rates]), for_=Duration.parse("5s"))
    stages = plan_stages(msgspec.structs.replace(mix(), load=[sweep]), Path())
    loads = [one.load for one in stages]
    assert [load.rate_per_s for load in loads if isinstance(load, OpenLoop)] == pytest.approx(rates)
    assert len({one.name for one in stages}) == 10
