"""Virtual time against the driver with a clock that is late, and against hand-made schedules."""

from array import array
from collections.abc import Iterator
from itertools import count

import msgspec
import pytest
from virtual_engine import profile, request

from tokswarm.simulator.driver import Driver
from tokswarm.simulator.engine import Engine, Progress, Request, Step
from tokswarm.simulator.profile import Profile
from tokswarm.simulator.virtual import Served, closed_loop, open_loop

MS = 1_000_000
CHURN = profile(num_blocks=24, max_model_len=256, max_num_seqs=6, token_compute_us=300.0, kv_read_us=1.5)


def churn(**changes: object) -> Profile:
    return msgspec.structs.replace(CHURN, **changes)


def arrivals() -> list[Request]:
    """Enough at once for queueing, eviction and preemption, then pauses."""
    return [
        msgspec.structs.replace(
            request(
                n,
                prompt=20 + 13 * n % 90,
                output=5 + 17 * n % 40,
                arrival_ns=at * MS,
                shared=16 * (n % 4),
                family=n % 3,
            ),
            priority=n % 3,
        )
        for n, at in enumerate([0, 0, 3, 10, 10, 11, 40, 95, 95, 95, 600, 2_000, 2_004, 9_000, 9_001, 9_002])
    ]


def in_real_time(chosen: Profile, requests: list[Request], late_ns: Iterator[int]) -> dict[int, Served]:
    """The driver as the server runs it: woken late each time, requests handed over when they arrive."""
    now_ns = 0
    alarm_ns: list[int] = []
    stamps: dict[int, array[int]] = {}
    ended: dict[int, Served] = {}

    def deliver(step: Step) -> None:
        for one, tokens in step.emitted:
            stamps.setdefault(one.request.request_id, array("q")).extend([step.end_ns] * tokens)
        for one in step.finished:
            ended[one.request.request_id] = as_served(one, stamps[one.request.request_id])

    class Alarm:
        def set(self, at_ns: int) -> None:
            alarm_ns[:] = [at_ns]

        def close(self) -> None: ...

    driver = Driver(Engine(chosen), lambda: now_ns, deliver)
    driver.attach(Alarm())
    left = list(requests)
    while left or alarm_ns:
        wake_ns = alarm_ns[0] + next(late_ns) if alarm_ns else None
        if left and (wake_ns is None or left[0].arrival_ns <= wake_ns):
            now_ns = max(now_ns, left[0].arrival_ns)
            driver.submit(left.pop(0))
        elif wake_ns is not None:
            now_ns = max(now_ns, wake_ns)
            alarm_ns.clear()
            driver.ring()
    assert driver.slipped_ns == 0
    return ended


def as_served(progress: Progress, stamps: "array[int]") -> Served:
    assert progress.admitted_ns is not None
    return Served(
        request=progress.request,
        admitted_ns=progress.admitted_ns,
        token_ns=stamps,
        cached_tokens=progress.cached_tokens,
        recomputed_tokens=progress.recomputed_tokens,
        preemptions=progress.preemptions,
    )


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(CHURN, id="churn"),
        pytest.param(churn(scheduling="priority"), id="priority"),
        pytest.param(churn(preemption="swap", swap_blocks=9, swap_block_us=40.0), id="swap"),
        pytest.param(churn(speculative_tokens=3, speculative_acceptance=0.6), id="drafts"),
        pytest.param(churn(batching="static", prefix_cache=False, batch_wait_us=4_500.0), id="static"),
    ],
)
@pytest.mark.parametrize("late_us", [[0], [90, 4_000, 0, 700]], ids=["punctual", "late"])
def test_every_stamp_is_that_of_the_driver_in_real_time(chosen: Profile, late_us: list[int]) -> None:
    late_ns = (late_us[n % len(late_us)] * 1_000 for n in count())
    virtual = {one.request.request_id: one for one in open_loop(Engine(chosen), arrivals())}
    assert virtual == in_real_time(chosen, arrivals(), late_ns)
    assert all(len(one.token_ns) == one.request.output_tokens for one in virtual.values())


def test_workload_of_that_comparison_queues_and_churns() -> None:
    served = list(open_loop(Engine(CHURN), arrivals()))
    assert sum(one.preemptions for one in served) > 0
    assert sum(one.recomputed_tokens for one in served) > 0
    assert sum(one.cached_tokens for one in served) > 0
    assert max(one.queue_ns for one in served) > 0


def test_open_loop_gives_requests_in_the_order_in_which_they_end() -> None:
    served = list(open_loop(Engine(profile()), [request(1, output=9), request(2, output=2, arrival_ns=5 * MS)]))
    assert [(one.request.request_id, one.ended_ns) for one in served] == [(2, 30 * MS), (1, 90 * MS)]
    assert (served[0].queue_ns, served[0].first_token_ns) == (5 * MS, 20 * MS)


def test_open_loop_refuses_arrivals_that_run_backwards() -> None:
    with pytest.raises(ValueError, match="request 2 arrives at 1 ns, before one ahead"):
        list(open_loop(Engine(profile()), [request(1, arrival_ns=5), request(2, arrival_ns=1)]))


def test_client_without_think_time_loses_no_step() -> None:
    rows = iter(range(3))

    def draw(client: int, arrival_ns: int) -> Request | None:
        number = next(rows, None)
        return None if number is None else request(number, prompt=10, output=4, arrival_ns=arrival_ns)

    served = list(closed_loop(Engine(profile()), 1, draw, start_ns=7 * MS))
    assert [one.request.arrival_ns // MS for one in served] == [7, 47, 87]
    assert [one.queue_ns for one in served] == [0, 0, 0]
    assert [stamp // MS for one in served for stamp in one.token_ns] == list(range(17, 128, 10))


def test_client_thinks_between_its_last_token_and_its_next_request() -> None:
    asked: list[tuple[int, int]] = []

    def draw(client: int, arrival_ns: int) -> Request | None:
        asked.append((client, arrival_ns // MS))
        return request(len(asked), prompt=10, output=1 + 2 * client, arrival_ns=arrival_ns) if len(asked) < 6 else None

    list(closed_loop(Engine(profile()), 2, draw, think_ns=25 * MS))
    # 0 is alone in the first step; 1 joins the second and needs three of them; 0 joins it at 75
    assert asked == [(0, 0), (1, 0), (0, 35), (1, 65), (0, 75), (0, 110), (1, 120)]


def test_closed_loop_can_go_on_for_ever_and_be_left() -> None:
    numbers = count()

    def draw(client: int, arrival_ns: int) -> Request:
        return request(next(numbers), prompt=10, output=5, arrival_ns=arrival_ns)

    first = [one for one, _ in zip(closed_loop(Engine(profile()), 8, draw), range(100), strict=False)]
    assert len(first) == 100


def test_steps_can_be_watched() -> None:
    watched: list[Step] = []
    list(open_loop(Engine(profile()), [request(1, output=3)], watched.append))
    assert [step.end_ns // MS for step in watched] == [10, 20, 30]
