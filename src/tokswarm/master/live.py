"""What readers of the live page get: one tick a second, the newest only, made once for all of them."""

from collections.abc import Iterator

from gevent.event import Event as _Event

from tokswarm.master.run import LiveTick

TICK_TIMEOUT_S = 5.0
"""A reader that hears nothing for so long gets the last tick again, and so finds out that it lives."""


class Live:
    """The newest tick, and a bell that rings for the next."""

    def __init__(self) -> None:
        self._newest = LiveTick(run=None, seconds=[], workers=[], events=[])
        self._bell = _Event()
        self._closed = False

    def publish(self, tick: LiveTick) -> None:
        """Make this the newest tick."""
        self._newest = tick
        bell, self._bell = self._bell, _Event()
        bell.set()

    def close(self) -> None:
        """End all readers."""
        self._closed = True
        self._bell.set()

    def ticks(self) -> Iterator[LiveTick]:
        """The newest tick at once, then each as it comes; a reader that is slow skips some."""
        while not self._closed:
            bell = self._bell
            yield self._newest
            bell.wait(TICK_TIMEOUT_S)
