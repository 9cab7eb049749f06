"""Alarms of a real event loop and the real clock."""

import asyncio
import time
from collections.abc import Callable

import pytest
import uvloop

from tokswarm.simulator.alarm import Alarm, open_alarm

MS = 1_000_000


@pytest.fixture(params=["linux", "elsewhere"])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("tokswarm.simulator.alarm.sys.platform", request.param)
    return str(request.param)


def rings(plan: Callable[[Alarm, int], None], seconds: float) -> list[float]:
    """When the alarm rang, ms from the start."""

    async def listen() -> list[float]:
        start_ns = time.monotonic_ns()
        times_ms: list[float] = []
        alarm = open_alarm(asyncio.get_running_loop(), lambda: times_ms.append((time.monotonic_ns() - start_ns) / MS))
        plan(alarm, start_ns)
        await asyncio.sleep(seconds)
        alarm.close()
        return times_ms

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(listen())


def test_alarm_rings_once_at_its_instant(platform: str) -> None:
    (at_ms,) = rings(lambda alarm, start_ns: alarm.set(start_ns + 40 * MS), 0.2)
    # a loop's timer counts from the start of the loop's turn, in whole milliseconds: the driver asks again
    assert at_ms >= (40.0 if platform == "linux" else 38.0)


def test_setting_again_moves_the_instant(platform: str) -> None:
    def plan(alarm: Alarm, start_ns: int) -> None:
        alarm.set(start_ns + 20 * MS)
        alarm.set(start_ns + 80 * MS)

    (at_ms,) = rings(plan, 0.25)
    assert at_ms >= (80.0 if platform == "linux" else 78.0)


@pytest.mark.parametrize("ago_ns", [5 * MS, 10**18])
def test_instant_that_has_passed_rings_at_once(platform: str, ago_ns: int) -> None:
    assert len(rings(lambda alarm, start_ns: alarm.set(start_ns - ago_ns), 0.1)) == 1


def test_closed_alarm_is_silent(platform: str) -> None:
    async def listen() -> list[int]:
        rung: list[int] = []
        alarm = open_alarm(asyncio.get_running_loop(), lambda: rung.append(1))
        alarm.set(time.monotonic_ns() + 20 * MS)
        alarm.close()
        await asyncio.sleep(0.06)
        return rung

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(listen()) == []
