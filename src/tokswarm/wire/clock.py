"""The receive clock: kernel stamps of arriving segments, on the monotonic clock.

The kernel stamps with CLOCK_REALTIME; durations need CLOCK_MONOTONIC. The difference of the two is
taken as the narrowest of many bracketed readings and taken again each second: both clocks share one
rate, so only a step of the wall clock changes it.
"""

import socket
import time
from collections.abc import Callable
from struct import Struct

SO_TIMESTAMPNS = 35
STAMP_SPACE_BYTES = 64
"""Room for one stamp in recvmsg's ancillary data."""

_READINGS = 50
STEP_NS = 1_000
"""A change of the offset beyond this is a step of the wall clock."""

unpack_stamp: Callable[[bytes], tuple[int, int]] = Struct("qq").unpack_from
"""Seconds and nanoseconds out of the ancillary data of one stamp."""


def wall_offset_ns() -> int:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC, from the narrowest of bracketed readings (tens of ns wide)."""
    best_width = best_offset = None
    for _ in range(_READINGS):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        width = after - before
        if best_width is None or width < best_width:
            best_width, best_offset = width, wall - (before + after) // 2
    assert best_offset is not None
    return best_offset


class ReceiveClock:
    """Turns kernel stamps into monotonic ns; holds the switch that makes the kernel stamp at all.

    The kernel's stamping is global and switched on asynchronously by the first socket that asks, so
    one idle socket asks for the life of the clock.
    """

    def __init__(self) -> None:
        self.offset_ns = wall_offset_ns()
        self.steps = 0
        """Steps of the wall clock seen so far."""
        self._keeper: socket.socket | None = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        ask_for_stamps(self._keeper)

    def check(self) -> int:
        """Take the offset again (each second); the step of the wall clock since the last check, ns, 0 when none."""
        offset_ns = wall_offset_ns()
        step_ns = offset_ns - self.offset_ns
        self.offset_ns = offset_ns
        if abs(step_ns) <= STEP_NS:
            return 0
        self.steps += 1
        return step_ns

    def to_unix_ns(self, monotonic_ns: int) -> int:
        """The wall time of a monotonic stamp of this process."""
        return monotonic_ns + self.offset_ns

    def close(self) -> None:
        """Let the kernel stop stamping."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None


def ask_for_stamps(sock: socket.socket) -> bool:
    """Have the kernel stamp what arrives on this socket; False where the platform cannot."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True
