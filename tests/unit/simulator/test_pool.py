"""The replicas of one provider over time, with a clockwork made of numbers."""

import heapq
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from virtual_engine import profile, request

from tokswarm.simulator.answers import Accepted, Api, OpenAnswer
from tokswarm.simulator.deployment import Autoscale, ColdStart, ProviderPlan, ReplicaGroup
from tokswarm.simulator.http1 import Exchange
from tokswarm.simulator.lifecycle import EventLog, ReplicaState
from tokswarm.simulator.limits import Limits
from tokswarm.simulator.pool import Pool
from tokswarm.simulator.replica import Replica
from tokswarm.simulator.truth import Passage, TruthLog
from tokswarm.simulator.words import Answer


class Due:
    """A call that is due later."""

    def __init__(self, at_s: float, callback: Callable[[], None]) -> None:
        self.at_s = at_s
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Due]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Due:
        due = Due(self.now_s + delay, callback)
        heapq.heappush(self._due, (due.at_s, len(self._due) + id(due), due))
        return due

    def turn_to(self, at_s: float) -> None:
        while self._due and self._due[0][0] <= at_s:
            self.now_s, _, due = heapq.heappop(self._due)
            if due.callback is not None:
                due.callback()
        self.now_s = at_s


class Bench:
    """A pool on a bench."""

    def __init__(self, **parts: object) -> None:
        self.hands = Hands()
        self.events = EventLog()
        plan = ProviderPlan(profile=profile(), **parts)  # type: ignore[arg-type]
        self.pool = Pool(
            plan,
            model="tiny",
            prefix="replica",
            seed=1,
            truth=TruthLog(),
            events=self.events,
            open_alarm=lambda ring: SimpleNamespace(set=lambda at_ns: None, close=lambda: None, ring=ring),
            clockwork=self.hands,
        )

    @property
    def states(self) -> list[str]:
        return [replica.state.value for replica in self.pool.replicas]

    def told(self) -> list[tuple[str, str, str]]:
        rows = [json.loads(line) for line in self.events.lines(0).splitlines()]
        return [(row["replica"], row["state"], row["reason"]) for row in rows]

    def load(self, replica: Replica, number: int) -> None:
        accepted = Accepted(
            request_id=number,
            api=Api.CHAT,
            public_id=f"chatcmpl-{number}",
            model="tiny",
            created_unix=0,
            prompt_tokens=20,
            answer=Answer((0,) * 5, stopped=False),
            max_tokens=5,
            include_usage=False,
            continuous_usage=False,
        )
        passage = Passage(model="tiny", provider="main", replica=replica.name, arrival_ns=0)
        exchange = cast(Exchange, SimpleNamespace(streaming=False))
        replica.submit(request(number, prompt=20, output=5), OpenAnswer(accepted, exchange), passage)


def test_replica_joins_boots_warms_up_and_serves_at_its_seconds() -> None:
    bench = Bench(
        replicas=(ReplicaGroup(), ReplicaGroup(joins_after_s=40)),
        cold_start=ColdStart(boot_s=10, warmup_s=5, warmup_factor=3),
    )
    bench.hands.turn_to(100)
    assert bench.states == ["serving", "stopped"]  # nothing counts before the first request
    bench.pool.begin()
    seen = []
    for after_s in (39, 41, 51, 56):
        bench.hands.turn_to(100 + after_s)
        seen.append((bench.states[1], bench.pool.replicas[1].driver.engine.slowness))
    assert seen == [("stopped", 1.0), ("booting", 1.0), ("warming", 3.0), ("serving", 1.0)]
    assert bench.told() == [
        ("replica-1", "booting", "joins"),
        ("replica-1", "warming", "booted"),
        ("replica-1", "serving", "warm"),
    ]


def test_only_those_that_are_up_are_chosen_and_warming_ones_are_up() -> None:
    bench = Bench(replicas=(ReplicaGroup(), ReplicaGroup(joins_after_s=0)), cold_start=ColdStart(boot_s=10, warmup_s=5))
    bench.pool.begin()
    bench.hands.turn_to(5)
    assert {bench.pool.choose((), None).name for _ in range(4)} == {"replica-0"}
    bench.hands.turn_to(11)
    assert {bench.pool.choose((), None).name for _ in range(4)} == {"replica-0", "replica-1"}


def test_pool_without_anybody_up_refuses() -> None:
    bench = Bench(replicas=(ReplicaGroup(joins_after_s=1),))
    refusal = bench.pool.refusal(25)
    assert refusal is not None
    assert (refusal.status, refusal.headers) == (503, ("retry-after: 1",))
    bench.pool.begin()
    bench.hands.turn_to(2)
    assert bench.pool.refusal(25) is None


def test_pool_grows_by_its_queue_and_drains_before_it_shrinks() -> None:
    bench = Bench(
        cold_start=ColdStart(boot_s=2),
        autoscale=Autoscale(max_replicas=2, up_waiting=1, up_after_s=1, down_in_flight=1, down_after_s=3),
    )
    pool = bench.pool
    first, second = pool.replicas
    for number in range(40):
        bench.load(first, number)
    waiting = first.waiting
    assert waiting > 2
    bench.hands.turn_to(1.2)
    assert bench.states == ["serving", "booting"]
    bench.hands.turn_to(3.5)
    assert bench.states == ["serving", "serving"]
    for number in range(1, 40):
        first.abort(number)
    bench.load(second, 100)
    bench.hands.turn_to(7)
    assert bench.states == ["serving", "draining"]
    assert pool.choose((), None) is first
    bench.hands.turn_to(20)
    assert bench.states == ["serving", "draining"]
    second.abort(100)
    bench.hands.turn_to(21)
    assert bench.states == ["serving", "stopped"]
    assert [reason for _, _, reason in bench.told()] == ["load", "booted", "idle", "drained"]


def test_one_that_drains_is_kept_when_load_comes_back() -> None:
    bench = Bench(
        replicas=2, autoscale=Autoscale(max_replicas=2, up_waiting=1, up_after_s=1, down_in_flight=1, down_after_s=3)
    )
    first, second = bench.pool.replicas
    bench.load(first, 1)
    bench.load(second, 2)
    bench.hands.turn_to(4)
    assert bench.states == ["serving", "draining"]
    for number in range(10, 50):
        bench.load(first, number)
    bench.hands.turn_to(6)
    assert bench.states == ["serving", "serving"]


def test_replica_that_starts_again_has_an_empty_cache() -> None:
    bench = Bench(replicas=(ReplicaGroup(joins_after_s=5),))
    replica = bench.pool.replicas[0]
    memory = replica.driver.engine.pool
    [block] = memory.allocate(1)
    memory.label(block, "prefix")
    memory.release([block])
    assert replica.cached_blocks(("prefix",)) == 1
    bench.pool.begin()
    bench.hands.turn_to(6)
    assert replica.cached_blocks(("prefix",)) == 0


def test_failures_have_their_share_and_their_seed() -> None:
    def failed() -> list[bool]:
        pool = Bench(error_share=0.2, error_status=500).pool
        answers = [pool.refusal(25) for _ in range(2_000)]
        assert {one.status for one in answers if one is not None} == {500}
        return [one is not None for one in answers]

    assert 340 <= sum(failed()) <= 460  # three standard deviations and more
    assert failed() == failed()


def test_limits_count_what_is_in_flight_over_all_replicas() -> None:
    bench = Bench(replicas=2, limits=Limits(max_concurrent=2))
    bench.load(bench.pool.replicas[0], 1)
    assert bench.pool.refusal(25) is None
    bench.load(bench.pool.replicas[1], 2)
    refusal = bench.pool.refusal(25)
    assert refusal is not None
    assert refusal.status == 429


def test_state_changes_only_along_its_transitions() -> None:
    replica = Bench().pool.replicas[0]
    with pytest.raises(ValueError, match="replica-0 is serving and cannot become booting"):
        replica.move(ReplicaState.BOOTING, "load")
