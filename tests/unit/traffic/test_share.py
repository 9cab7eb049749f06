"""Whoever comes and goes: each arrival is sent at most once, and exactly once where somebody had its share."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokswarm.traffic.share import Arrival, Share, SharedArrivals, Unsent, concurrency_share

MS = 1_000_000
LEAD_NS = 250 * MS


def schedule(seed: int, count: int = 3000, gap_ns: int = 5 * MS) -> list[Arrival]:
    rng = random.Random(seed)
    due_ns, arrivals = 0, []
    for number in range(count):
        due_ns += round(rng.expovariate(1 / gap_ns))
        arrivals.append(Arrival(number, due_ns))
    return arrivals


class Worker:
    """Sends what is due in virtual time, as the engine does: it holds the next one until then."""

    def __init__(self, arrivals: list[Arrival], share: Share) -> None:
        self.mine = SharedArrivals(iter(arrivals), share)
        self.sent: list[int] = []
        self.late: list[int] = []
        self.doubled = 0
        while not self.mine.skip(most=7):
            pass

    def run_to(self, now_ns: int) -> None:
        while (arrival := self.mine.next(now_ns=now_ns)) is not None:
            if arrival.due_ns >= now_ns:
                self.mine.put_back(arrival)
                return
            self.sent.append(arrival.number)

    def reshare(self, share: Share) -> None:
        self.doubled += self.mine.reshare(share)


class Fleet:
    """Workers that come and go, and who has what by the book."""

    def __init__(self, arrivals: list[Arrival], workers: int) -> None:
        self.arrivals = arrivals
        self.there = [Worker(arrivals, Share(worker_index=k, worker_count=workers)) for k in range(workers)]
        self.lost_ns: dict[Worker, int] = {}
        self.deals = [(0, list(self.there))]

    def run_to(self, now_ns: int) -> None:
        for worker in self.there:
            worker.run_to(now_ns)

    def lose(self, place: int, now_ns: int) -> Worker:
        worker = self.there.pop(place)
        self.lost_ns[worker] = now_ns
        return worker

    def share_out(self, now_ns: int, *, join: bool = False) -> None:
        from_ns, part = now_ns + LEAD_NS, len(self.deals)
        count = len(self.there) + join
        for place, worker in enumerate(self.there):
            worker.reshare(Share(worker_index=place, worker_count=count, from_ns=from_ns, part=part))
        if join:
            late = Share(worker_index=count - 1, worker_count=count, from_ns=from_ns, part=part)
            self.there.append(Worker(self.arrivals, late))
        self.deals.append((from_ns, list(self.there)))

    def owner(self, arrival: Arrival) -> Worker:
        crew = next(crew for from_ns, crew in reversed(self.deals) if from_ns <= arrival.due_ns)
        return crew[arrival.number % len(crew)]


@given(st.sampled_from([1, 2, 3, 7]), st.integers(0, 2**32), st.integers(0, 6))
@settings(max_examples=60, deadline=None)
def test_each_arrival_is_sent_once_by_whoever_has_it_when_it_is_due(workers: int, seed: int, changes: int) -> None:
    rng = random.Random(seed)
    arrivals = schedule(seed, count=2000)
    fleet = Fleet(arrivals, workers)
    now_ns = 0
    for _ in range(changes):
        now_ns += rng.randrange(100 * MS, 2000 * MS)
        fleet.run_to(now_ns)
        is_loss = rng.random() < 0.5 and len(fleet.there) > 1
        if is_loss:
            fleet.lose(rng.randrange(len(fleet.there)), now_ns)
            now_ns += rng.randrange(2500 * MS)  # until it is noticed
            fleet.run_to(now_ns)
        fleet.share_out(now_ns, join=not is_loss)
    fleet.run_to(arrivals[-1].due_ns + 1)
    expected: dict[Worker, list[int]] = {worker: [] for worker in (*fleet.there, *fleet.lost_ns)}
    for arrival in arrivals:
        owner = fleet.owner(arrival)
        if arrival.due_ns < fleet.lost_ns.get(owner, arrival.due_ns + 1):
            expected[owner].append(arrival.number)
    assert {worker: worker.sent for worker in expected} == expected
    assert not any(worker.doubled for worker in expected)


def test_a_survivor_counts_exactly_what_the_lost_one_left() -> None:
    arrivals = schedule(5)
    fleet = Fleet(arrivals, 3)
    fleet.run_to(2000 * MS)
    lost = fleet.lose(1, 2000 * MS)
    fleet.run_to(4600 * MS)
    fleet.share_out(4600 * MS)
    left = fleet.there[0].mine.unsent(Unsent(worker_index=1, worker_count=3, from_ns=2000 * MS, to_ns=4850 * MS))
    fleet.run_to(arrivals[-1].due_ns + 1)
    sent = {number for worker in fleet.there for number in worker.sent} | set(lost.sent)
    assert {arrival.number for arrival in left} == {arrival.number for arrival in arrivals} - sent
    assert len(left) > 100


def test_an_order_that_comes_late_is_obeyed_and_what_was_doubled_is_counted() -> None:
    arrivals = schedule(9)
    worker = Worker(arrivals, Share(worker_index=0, worker_count=2))
    worker.run_to(3000 * MS)
    worker.reshare(Share(worker_index=0, worker_count=3, from_ns=2000 * MS, part=1))
    early = [a for a in arrivals if 2000 * MS <= a.due_ns < 3000 * MS]
    assert worker.doubled == sum(a.number % 2 == 0 and a.number % 3 != 0 for a in early) > 0
    before = set(worker.sent)
    worker.run_to(3001 * MS)
    assert {a.number for a in early if a.number % 3 == 0} <= set(worker.sent)
    assert not before & set(worker.sent[len(before) :])


def test_memory_of_a_long_schedule_is_bounded() -> None:
    arrivals = (Arrival(number, number * MS) for number in range(100_000))
    mine = SharedArrivals(arrivals, Share(worker_index=0, worker_count=1))
    while (arrival := mine.next(now_ns=0)) is not None and arrival.due_ns < 50:
        pass
    for now_ms in range(100_000):
        mine.next(now_ns=now_ms * MS)
    assert len(mine._kept) < 12_000
    assert len(mine._given) < 12_000


@pytest.mark.parametrize("total", [1, 6, 97, 1000])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_shares_of_a_concurrency_add_up_and_differ_by_at_most_one(total: int, workers: int) -> None:
    parts = [concurrency_share(total, k, workers) for k in range(workers)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1
