"""The live ticks."""

from typing import Any

from tokswarm.master.live import Live
from tokswarm.master.run import LiveTick


def tick(number: int) -> LiveTick:
    events: list[Any] = [number]
    return LiveTick(run=None, seconds=[], workers=[], events=events)


def test_a_reader_that_is_slow_gets_the_newest_and_no_queue() -> None:
    live = Live()
    ticks = live.ticks()
    next(ticks)
    for number in range(5):
        live.publish(tick(number))
    assert next(ticks) == tick(4)


def test_every_reader_gets_the_same_tick() -> None:
    live = Live()
    live.publish(tick(1))
    assert next(live.ticks()) is next(live.ticks())


def test_closing_ends_the_readers() -> None:
    live = Live()
    ticks = live.ticks()
    next(ticks)
    live.close()
    assert list(ticks) == []
