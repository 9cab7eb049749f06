"""The engine in real time, with a clock and an alarm made of numbers."""

import msgspec
import pytest
from virtual_engine import profile, request

from tokswarm.simulator.driver import MAX_LAG_NS, Driver
from tokswarm.simulator.engine import Engine, Step
from tokswarm.simulator.profile import Profile

MS = 1_000_000


class Bench:
    """A driver on a bench: `wake` sets the clock, and rings if the alarm was set for then or before."""

    def __init__(self, chosen: Profile | None = None) -> None:
        self.now_ns = 0
        self.set_for: list[int] = []
        self.delivered: list[Step] = []
        self.while_delivering = lambda: None
        self.driver = Driver(Engine(chosen or profile()), lambda: self.now_ns, self._deliver)
        self.driver.attach(self)

    def set(self, at_ns: int) -> None:
        self.set_for.append(at_ns)

    def close(self) -> None: ...

    def _deliver(self, step: Step) -> None:
        self.delivered.append(step)
        self.while_delivering()

    def wake(self, at_ns: int) -> None:
        self.now_ns = at_ns
        if self.set_for[-1] <= at_ns:
            self.driver.ring()


def test_late_wake_up_does_not_shift_the_steps_that_follow() -> None:
    bench = Bench()
    bench.driver.submit(request(1, prompt=10, output=3))
    assert bench.set_for == [10 * MS]
    bench.wake(13 * MS)
    bench.wake(20 * MS)
    bench.wake(30 * MS)
    assert [step.end_ns for step in bench.delivered] == [10 * MS, 20 * MS, 30 * MS]
    assert bench.driver.slipped_ns == 0


def test_early_ring_delivers_nothing_and_sets_the_alarm_again() -> None:
    bench = Bench()
    bench.driver.submit(request(1))
    bench.now_ns = 9 * MS
    bench.driver.ring()
    assert bench.delivered == []
    assert bench.set_for == [10 * MS, 10 * MS]


def test_clock_jumps_and_the_jump_is_counted_when_far_behind() -> None:
    bench = Bench()
    bench.driver.submit(request(1, prompt=10, output=3))
    late_ns = 10 * MS + MAX_LAG_NS + 5
    bench.wake(late_ns)
    assert bench.driver.slipped_ns == MAX_LAG_NS + 5
    assert bench.set_for[-1] == late_ns + 10 * MS


def test_request_that_comes_while_tokens_are_sent_joins_the_next_step() -> None:
    bench = Bench()
    bench.driver.submit(request(1, prompt=10, output=2))
    arrival_ns = 10 * MS - 1
    bench.while_delivering = lambda: bench.driver.submit(request(2, prompt=10, output=1, arrival_ns=arrival_ns))
    bench.wake(10 * MS)
    bench.while_delivering = lambda: None
    bench.wake(20 * MS)
    assert [one.request.request_id for one, _ in bench.delivered[-1].emitted] == [1, 2]
    assert bench.delivered[-1].start_ns == 10 * MS


def test_step_that_is_to_start_later_takes_in_who_arrives_until_then() -> None:
    waiting = msgspec.structs.replace(profile(), batching="static", prefix_cache=False, batch_wait_us=8_000.0)
    bench = Bench(waiting)
    bench.driver.submit(request(1, output=1))
    assert bench.set_for == [8 * MS]
    bench.now_ns = 5 * MS
    bench.driver.submit(request(2, output=1, arrival_ns=5 * MS))
    bench.driver.ring()  # too early
    assert bench.delivered == []
    bench.wake(9 * MS)
    bench.driver.submit(request(3, output=1, arrival_ns=9 * MS))
    bench.wake(18 * MS)
    assert [len(step.emitted) for step in bench.delivered] == [2]
    assert bench.delivered[0].start_ns == 8 * MS
    assert bench.set_for[-2:] == [18 * MS, 28 * MS]  # 3 has waited long enough by then
    bench.wake(28 * MS)
    assert [len(step.emitted) for step in bench.delivered] == [2, 1]


def test_request_handed_over_late_starts_no_step_in_the_past() -> None:
    bench = Bench()
    bench.driver.submit(request(1, output=1))
    bench.wake(10 * MS)
    bench.driver.submit(request(2, output=1, arrival_ns=4 * MS))
    bench.wake(20 * MS)
    assert [step.start_ns for step in bench.delivered] == [0, 10 * MS]


def test_idle_driver_rests_and_starts_at_the_next_arrival() -> None:
    bench = Bench()
    bench.driver.submit(request(1, prompt=10, output=1))
    bench.wake(10 * MS)
    assert bench.set_for == [10 * MS]
    bench.driver.ring()
    assert len(bench.delivered) == 1
    bench.driver.submit(request(2, prompt=10, output=1, arrival_ns=50 * MS))
    assert bench.set_for == [10 * MS, 60 * MS]


def test_request_in_its_last_step_still_counts_as_running_and_can_be_aborted() -> None:
    bench = Bench()
    bench.driver.submit(request(1, prompt=10, output=1))
    assert bench.driver.running_count == 1
    progress = bench.driver.abort(1)
    assert progress is not None
    assert progress.request.request_id == 1
    assert bench.driver.abort(2) is None
    bench.wake(10 * MS)
    assert bench.driver.running_count == 0


def test_failed_delivery_does_not_stop_the_engine() -> None:
    bench = Bench()
    bench.driver.submit(request(1, prompt=10, output=2))

    def fail() -> None:
        raise RuntimeError("boom")

    bench.while_delivering = fail
    with pytest.raises(RuntimeError, match="boom"):
        bench.wake(10 * MS)
    assert bench.set_for[-1] == 20 * MS
