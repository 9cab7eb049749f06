"""Live data for browsers: one reader of the run control's ticks, any number of event streams.

Each tick is encoded once, and only the newest is kept. A stream that is still writing when the next
tick comes finds the one after: slow clients skip seconds, and nothing ever queues up. The ids count
up by one, so a client sees that it skipped. The reader runs only while somebody listens.
"""

import logging
from collections.abc import Callable, Iterator

import gevent
import msgspec
from gevent.event import Event

from tokswarm.master.run import LiveTick
from tokswarm.web import shapes

logger = logging.getLogger(__name__)

RETRY_MS = 2000
"""How long a browser waits before it connects again."""

COMMENT_EVERY_S = 15.0
"""A line now and then keeps proxies from closing a silent stream, and shows us closed tabs."""


class LiveFeed:
    """The newest tick as a server-sent event, for every stream that wants it."""

    def __init__(self, ticks: Callable[[], Iterator[LiveTick]], *, comment_every_s: float = COMMENT_EVERY_S) -> None:
        self._ticks = ticks
        self._comment_every_s = comment_every_s
        self._reader: gevent.Greenlet | None = None
        self._listeners = 0
        self._number = 0
        self._block = b""
        self._changed = Event()

    @property
    def listeners(self) -> int:
        """Streams that are open now."""
        return self._listeners

    def stream(self) -> Iterator[bytes]:
        """One client's event stream; ends when the ticks end, and the client then connects again."""
        self._listeners += 1
        try:
            reader = self._ensure_reader()
            yield b"retry: %d\n\n" % RETRY_MS
            sent = -1
            while True:
                if self._block and self._number != sent:
                    sent = self._number
                    yield self._block
                elif reader.dead:
                    return
                elif not self._changed.wait(self._comment_every_s):
                    yield b": nothing new\n\n"
        finally:
            self._listeners -= 1

    def _ensure_reader(self) -> gevent.Greenlet:
        if self._reader is None or self._reader.dead:
            self._reader = gevent.spawn(self._read)
            self._reader.name = "live-feed"
        return self._reader

    def _read(self) -> None:
        try:
            for tick in self._ticks():
                if self._listeners == 0:
                    break
                self._number += 1
                body = msgspec.json.encode(shapes.live_tick(tick))
                self._publish(b"id: %d\ndata: %b\n\n" % (self._number, body))
        except Exception:
            logger.exception("the live feed ended; clients will connect again")
        finally:
            self._reader = None
            self._publish(b"")

    def _publish(self, block: bytes) -> None:
        self._block = block
        changed, self._changed = self._changed, Event()
        changed.set()
