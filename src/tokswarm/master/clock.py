"""The master's clocks and its way of waiting, as one argument, so that a run can be tested in virtual time."""

import time
from typing import Protocol

from gevent.event import Event as _Event


class Clock(Protocol):
    """Two clocks and one alarm."""

    def monotonic_s(self) -> float:
        """For durations."""
        ...

    def unix_ns(self) -> int:
        """To place things in time."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Until `wake` was called since the last wait, or the timeout."""
        ...

    def wake(self) -> None:
        """End a wait, from any greenlet."""
        ...


class SystemClock:
    """The real one; waiting lets other greenlets run."""

    def __init__(self) -> None:
        self._alarm = _Event()

    def monotonic_s(self) -> float:
        """For durations."""
        return time.monotonic()

    def unix_ns(self) -> int:
        """To place things in time."""
        return time.time_ns()

    def wait(self, timeout_s: float) -> None:
        """Until `wake` was called since the last wait, or the timeout."""
        self._alarm.wait(timeout_s)
        self._alarm.clear()

    def wake(self) -> None:
        """End a wait, from any greenlet."""
        self._alarm.set()
