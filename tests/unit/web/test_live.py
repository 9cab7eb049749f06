"""One reader of ticks, many streams; slow ones skip."""

import json
from collections.abc import Iterator

import gevent
import pytest
from gevent.event import Event
from gevent.queue import Queue

from tokswarm.master.run import LiveTick, WorkerInfo
from tokswarm.web.live import LiveFeed

END = None
FAIL = RuntimeError("no more ticks")


class Ticks:
    """Ticks as the test puts them; counts its readers."""

    def __init__(self) -> None:
        self.queue: Queue = Queue()
        self.readers = 0
        self.taken = Event()

    def put(self, name: str) -> None:
        """Give a tick that names a worker, and wait until the feed has taken it."""
        worker = WorkerInfo(worker=name, state="ready", host="h")
        self._give(LiveTick(run=None, seconds=[], workers=[worker], events=[]))

    def fail(self) -> None:
        self._give(FAIL)

    def _give(self, item: LiveTick | RuntimeError | None) -> None:
        self.queue.put(item)
        settle()

    def __call__(self) -> Iterator[LiveTick]:
        self.readers += 1
        while True:
            item = self.queue.get()
            if item is FAIL:
                raise FAIL
            yield item


def settle() -> None:
    """Let every greenlet that can run do so."""
    for _ in range(5):
        gevent.sleep(0)


def parse(block: bytes) -> tuple[int, str]:
    head, body = block.decode().removesuffix("\n\n").split("\n")
    return int(head.removeprefix("id: ")), json.loads(body.removeprefix("data: "))["workers"][0]["worker"]


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def feed(ticks: Ticks) -> LiveFeed:
    return LiveFeed(ticks)


def opened(feed: LiveFeed) -> Iterator[bytes]:
    stream = feed.stream()
    assert next(stream) == b"retry: 2000\n\n"
    settle()
    return stream


def test_a_stream_gets_each_tick_as_one_event_with_a_running_id(ticks: Ticks, feed: LiveFeed) -> None:
    stream = opened(feed)

    ticks.put("a")
    first = next(stream)
    ticks.put("b")
    second = next(stream)

    assert [parse(first), parse(second)] == [(1, "a"), (2, "b")]


def test_a_slow_stream_skips_to_the_newest(ticks: Ticks, feed: LiveFeed) -> None:
    stream = opened(feed)
    ticks.put("a")
    next(stream)

    for name in ("b", "c", "d"):
        ticks.put(name)

    assert parse(next(stream)) == (4, "d")


def test_a_new_stream_begins_with_the_newest_tick(ticks: Ticks, feed: LiveFeed) -> None:
    first = opened(feed)
    ticks.put("a")
    next(first)

    late = opened(feed)

    assert parse(next(late)) == (1, "a")


def test_all_streams_share_one_reader_and_one_encoding(ticks: Ticks, feed: LiveFeed) -> None:
    streams = [opened(feed) for _ in range(3)]

    ticks.put("a")
    blocks = [next(stream) for stream in streams]

    assert ticks.readers == 1
    assert blocks[0] is blocks[1] is blocks[2]


def test_the_reader_ends_when_nobody_listens_and_comes_back(ticks: Ticks, feed: LiveFeed) -> None:
    stream = opened(feed)
    ticks.put("a")
    next(stream)
    stream.close()
    assert feed.listeners == 0

    ticks.put("unheard")
    again = opened(feed)
    ticks.put("b")

    assert ticks.readers == 2
    assert parse(next(again)) == (2, "b")


def test_a_stream_ends_when_the_ticks_fail_so_that_its_client_connects_again(
    ticks: Ticks, feed: LiveFeed, caplog: pytest.LogCaptureFixture
) -> None:
    stream = opened(feed)
    ticks.fail()

    assert list(stream) == []
    assert "the live feed ended" in caplog.text
    again = opened(feed)
    ticks.put("a")
    assert parse(next(again)) == (1, "a")


def test_a_silent_stream_gets_a_comment(ticks: Ticks) -> None:
    stream = opened(LiveFeed(ticks, comment_every_s=0.001))
    ticks.put("a")

    assert parse(next(stream)) == (1, "a")
    assert next(stream) == b": nothing new\n\n"
