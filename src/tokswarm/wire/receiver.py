"""The receive loop: one epoll for all sockets of a worker, watched by one hub watcher.

Every read is stamped by the kernel and handed, in the callback, to whoever owns the socket. A fault
of one socket ends that socket's exchange and nothing else: an exception that left the callback would
make the whole worker deaf.
"""

import logging
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import gevent.hub
from gevent import monkey

from tokswarm.wire.clock import STAMP_SPACE_BYTES, ReceiveClock, unpack_stamp

log = logging.getLogger(__name__)

READ_BYTES = 64 * 1024
EVENTS_PER_PASS = 128
"""So that what else the worker does gets its turn within 2 ms; what is left over is ready in the next pass."""
SLICE_NS = 1_000_000
"""How long finished requests may be worked on before sockets get their turn."""
FEW_READS = 32
BUSY_GAP_NS = 300_000
REST_S = 0.0002
"""A pass of few reads that follows the one before within BUSY_GAP_NS is itself followed by a rest: what
arrives meanwhile is stamped by the kernel and taken in one pass, at a third less CPU per read."""
STEP_SEEN_NS = 1_000_000
CLOCK_LOOK_MASK = 15
"""Every 16th pass looks at the wall clock; a difference beyond STEP_SEEN_NS is a step, or a pause between two looks."""
EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP = 1, 4, 8, 16

_sleep = monkey.get_original("time", "sleep")


class Reader(Protocol):
    """The owner of a socket in the loop."""

    recvmsg: Callable[..., tuple[bytes, list[tuple[int, int, bytes]], int, object]]

    def on_read(self, data: bytes, at_ns: int, stamped: bool) -> None:
        """Take one read; empty at the end of the stream."""

    def on_mask(self, mask: int) -> None:
        """The socket is writable, hung up or in error."""

    def on_error(self, error: Exception) -> None:
        """Reading failed, or taking the read did."""


class Receiver:
    """All sockets of one process. `defer` runs what follows a request outside the callback, in slices."""

    def __init__(self, clock: ReceiveClock) -> None:
        self.clock = clock
        self.reads = 0
        """Reads that brought bytes."""
        self.faults = 0
        """Exceptions stopped at the callback; each was logged."""
        self._passes = -1
        self._rested_ns = 0
        self._readers: dict[int, Reader] = {}
        epoll = monkey.get_original("select", "epoll") if not hasattr(select, "epoll") else select.epoll
        self._epoll = epoll()
        self._poll = self._epoll.poll
        hub = gevent.hub.get_hub()
        self._loop = hub.loop
        self._watcher = hub.loop.io(self._epoll.fileno(), 1)
        self._watcher.start(self._on_ready)
        self._deferred: deque[Callable[[], None]] = deque()
        self._timer = hub.loop.timer(0.00001)
        self._timer_set = False

    def __len__(self) -> int:
        return len(self._readers)

    def add(self, sock: socket.socket, reader: Reader, *, writing: bool) -> None:
        """Watch a socket for bytes, and for room to write when `writing`."""
        fd = sock.fileno()
        self._readers[fd] = reader
        self._epoll.register(fd, EPOLLIN | EPOLLOUT if writing else EPOLLIN)

    def hand_over(self, fd: int, reader: Reader) -> None:
        """Give a watched socket another owner."""
        self._readers[fd] = reader

    def watch(self, fd: int, *, writing: bool) -> None:
        """Watch for room to write, or no longer."""
        self._epoll.modify(fd, EPOLLIN | EPOLLOUT if writing else EPOLLIN)

    def remove(self, fd: int) -> None:
        """Stop watching; before the socket is closed."""
        if self._readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def defer(self, action: Callable[[], None]) -> None:
        """Run this soon, outside the callback, at most SLICE_NS of such work between two looks at the sockets."""
        self._deferred.append(action)
        if not self._timer_set:
            self._timer_set = True
            self._timer.start(self._run_deferred)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run this after a delay, outside the callback."""
        timer = self._loop.timer(delay_s)

        def fire() -> None:
            timer.close()
            self.defer(action)

        timer.start(fire)

    def close(self) -> None:
        """Stop watching everything."""
        self._watcher.stop()
        self._watcher.close()
        self._timer.stop()
        self._timer.close()
        self._epoll.close()
        self._readers.clear()

    def read(self, reader: Reader) -> None:
        """One stamped read for this owner. BlockingIOError when nothing is there."""
        data, ancillary, _, _ = reader.recvmsg(READ_BYTES, STAMP_SPACE_BYTES)
        self.reads += 1
        if ancillary:
            seconds, nanoseconds = unpack_stamp(ancillary[0][2])
            reader.on_read(data, seconds * 1_000_000_000 + nanoseconds - self.clock.offset_ns, True)
        else:
            reader.on_read(data, time.monotonic_ns(), False)

    def _on_ready(self) -> None:
        # hot: once per pass, the loop once per read (benchmarks/receive_path.py)
        readers = self._readers
        self._passes += 1
        if not self._passes & CLOCK_LOOK_MASK and self._clock_moved():
            self.clock.check()
        offset_ns = self.clock.offset_ns
        reads = 0
        all_stamped = True
        for fd, mask in self._poll(0, EVENTS_PER_PASS):
            reader = readers.get(fd)
            if reader is None:
                continue
            try:
                if mask != EPOLLIN:
                    reader.on_mask(mask)
                    continue
                # `read`, in place
                data, ancillary, _, _ = reader.recvmsg(READ_BYTES, STAMP_SPACE_BYTES)
                reads += 1
                if ancillary:
                    seconds, nanoseconds = unpack_stamp(ancillary[0][2])
                    reader.on_read(data, seconds * 1_000_000_000 + nanoseconds - offset_ns, True)
                else:
                    all_stamped = False
                    reader.on_read(data, time.monotonic_ns(), False)
            except BlockingIOError:
                continue
            except Exception as error:  # noqa: BLE001 - the root of a socket's work; see the module's first lines
                self._fault(reader, error)
        self.reads += reads
        if reads < FEW_READS and all_stamped:
            self._rest()

    def _rest(self) -> None:
        """Let a few arrivals gather, unless they are rare or a finished request waits to be followed up."""
        now_ns = time.monotonic_ns()
        if now_ns - self._rested_ns < BUSY_GAP_NS and not self._timer_set:
            _sleep(REST_S)
            now_ns = time.monotonic_ns()
        self._rested_ns = now_ns

    def _clock_moved(self) -> bool:
        """Whether the wall clock was stepped, or this process stood still between the two looks."""
        return abs(time.time_ns() - time.monotonic_ns() - self.clock.offset_ns) > STEP_SEEN_NS

    def _fault(self, reader: Reader, error: Exception) -> None:
        try:
            reader.on_error(error)
        except Exception:
            self.faults += 1
            log.exception("a socket's owner failed twice")

    def _run_deferred(self) -> None:
        self._timer.stop()
        stop_ns = time.monotonic_ns() + SLICE_NS
        deferred = self._deferred
        while deferred:
            action = deferred.popleft()
            try:
                action()
            except Exception:
                self.faults += 1
                log.exception("what follows a request failed")
            if time.monotonic_ns() > stop_ns:
                break
        if deferred:
            self._timer.start(self._run_deferred)
        else:
            self._timer_set = False
