"""Being woken at an absolute instant of the monotonic clock, to some ten microseconds.

An event loop's own timers have millisecond resolution under uvloop, which would jitter every token; a
kernel timer that the loop watches as a file has none of that. Where there is none (not Linux), the
loop's timers serve.
"""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol


class Alarm(Protocol):
    """Calls back once after each `set`; setting again moves the instant."""

    def set(self, at_ns: int) -> None:
        """Wake at this instant of `time.monotonic_ns`; at once when it has passed."""
        ...

    def close(self) -> None:
        """Never call again."""
        ...


def open_alarm(loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> Alarm:
    """The most exact alarm this platform has."""
    if sys.platform == "linux":
        return _TimerFile(loop, ring)
    return _LoopTimer(loop, ring)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class _TimerFile:
    """A Linux timerfd; Python has it in `os` from 3.13 on only."""

    _CLOCK_MONOTONIC = 1
    _ABSOLUTE = 1

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._spec = _Itimerspec()
        self._file = self._libc.timerfd_create(self._CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"timerfd_create: {os.strerror(number)}")
        loop.add_reader(self._file, self._on_readable)

    def set(self, at_ns: int) -> None:
        # 0 would disarm the timer; an instant long past is as good.
        self._spec.value.seconds, self._spec.value.nanoseconds = divmod(max(at_ns, 1), 1_000_000_000)
        if self._libc.timerfd_settime(self._file, self._ABSOLUTE, ctypes.byref(self._spec), None):
            number = ctypes.get_errno()
            raise OSError(number, f"timerfd_settime: {os.strerror(number)}")

    def close(self) -> None:
        self._loop.remove_reader(self._file)
        os.close(self._file)

    def _on_readable(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # set again between the wake-up and this read
            return
        self._ring()


class _LoopTimer:
    """The loop's own timer, for platforms without a timerfd."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at_ns: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(max(0.0, (at_ns - time.monotonic_ns()) / 1e9), self._ring)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
