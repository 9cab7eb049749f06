"""The record log: an append-only log of everything a process saw, written before anything else.

Every entry is one write to the kernel, so a process that is killed loses nothing it appended. What a
crash of the machine may leave is a torn tail: readers stop there and count it. Damage in the middle
is stepped over to the next whole frame, and counted. The log is cut into files (`segments`), so that a
full disk or a limit costs what is already in the database first, and what nobody has only then.
"""

import errno
import fcntl
import logging
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from tokswarm.errors import LogError
from tokswarm.measure.record import RequestRecord
from tokswarm.sink.frame import FRAME, MAGIC, MAX_FRAME_BYTES, SCHEMA, Entry, LogHeader, framed
from tokswarm.sink.log_reader import LogReader, read_log
from tokswarm.sink.segments import segment_bases, segment_path

__all__ = ["FRAME", "MAGIC", "SCHEMA", "Entry", "LogHeader", "LogReader", "RecordLog", "read_log"]

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 16 << 20
"""A file of the log: what is removed at a time."""
SMALLEST_SEGMENT_BYTES = 1 << 16
SEGMENTS_OF_A_LIMIT = 8
"""A limited log has files of an eighth of the limit at most, so that a removal costs no more than that."""

_CLOSED = -1
_FULL = (errno.ENOSPC, errno.EDQUOT)

_encoder = msgspec.msgpack.Encoder()


class _Segment:
    """One file of the log that is being written."""

    __slots__ = ("base", "requests", "size_bytes")

    def __init__(self, base: int, size_bytes: int = 0) -> None:
        self.base = base
        self.size_bytes = size_bytes
        self.requests = 0

    @property
    def end(self) -> int:
        """The offset of the log at which it ends."""
        return self.base + self.size_bytes


class RecordLog:
    """Appends entries to one log; the only writer of it. Opening a log again goes on at its last whole entry."""

    def __init__(
        self,
        path: Path,
        *,
        run_id: str,
        worker: str,
        limit_bytes: int | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """`limit_bytes`: the most that the log may take on the disk; None: as much as there is."""
        self.path = path
        self.run_id = run_id
        self.worker = worker
        self.delivered: Callable[[], int] | None = None
        """Says up to which offset the log is in a database; None: nothing of it is, and nothing is removed."""
        self.lost = 0
        """Entries that could not be written."""
        self.removed_requests = 0
        """Requests whose files were removed to make room: they are in the database, and no longer here."""
        self.size_bytes = 0
        """Length of the log up to its last whole entry, with what was removed."""
        self._limit_bytes = limit_bytes
        if limit_bytes is not None:
            segment_bytes = min(segment_bytes, max(limit_bytes // SEGMENTS_OF_A_LIMIT, SMALLEST_SEGMENT_BYTES))
        self._segment_bytes = segment_bytes
        self._header_bytes = 0
        self._stored_bytes = 0
        self._buffer = bytearray()
        self._torn = False
        self._full_said = False
        self._segments: list[_Segment] = []
        self._fd = _CLOSED
        self._head_fd = self._open()

    def append(self, entry: Entry) -> bool:
        """Write one entry; False, and one more in `lost`, when it cannot be written. Never raises."""
        # hot: once per request and per second; one encoding, one write.
        if self._fd == _CLOSED or (self._torn and not self._cut()):
            self.lost += 1
            return False
        buffer = self._buffer
        try:
            _encoder.encode_into(entry, buffer, FRAME.size)
        except (ValueError, TypeError, OverflowError):
            try:
                _encoder.encode_into(_encodable(entry), buffer, FRAME.size)
            except (ValueError, TypeError, OverflowError):
                self.lost += 1
                return False
        length = len(buffer)
        if length > MAX_FRAME_BYTES:
            self.lost += 1
            return False
        FRAME.pack_into(buffer, 0, length - FRAME.size, zlib.crc32(memoryview(buffer)[FRAME.size :]))
        if self._segments[-1].size_bytes >= self._segment_bytes:
            self._roll()
        if not (self._has_room(length) and self._write(buffer)):
            self.lost += 1
            return False
        segment = self._segments[-1]
        segment.size_bytes += length
        segment.requests += entry.__class__ is RequestRecord
        self.size_bytes += length
        self._stored_bytes += length
        return True

    def close(self) -> None:
        """Close the files; may be called again."""
        if self._fd not in (_CLOSED, self._head_fd):
            os.close(self._fd)
        if self._head_fd != _CLOSED:
            os.close(self._head_fd)
        self._fd = self._head_fd = _CLOSED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- room

    def _has_room(self, length: int) -> bool:
        """Whether the limit leaves room for an entry, made where it can be."""
        if self._limit_bytes is None:
            return True
        while self._stored_bytes + length > self._limit_bytes:
            if not self._make_room():
                self._say_full(f"its limit of {self._limit_bytes:,} bytes is reached")
                return False
        return True

    def _write(self, buffer: bytearray) -> bool:
        """Write a frame; once more when the disk is full and room could be made."""
        while not self._torn:
            try:
                written = os.write(self._fd, buffer)
                full = written != len(buffer)
            except OSError as error:
                written, full = 0, error.errno in _FULL
            if written == len(buffer):
                return True
            self._torn = written > 0
            if self._torn:
                self._cut()
            if not full:
                return False
            if not self._make_room():
                self._say_full("the disk is full")
                return False
        return False

    def _make_room(self) -> bool:
        """Remove the oldest file if all of it is in the database; False when it is not."""
        if self.delivered is None:
            return False
        if len(self._segments) == 1 and self._segments[0].size_bytes >= SMALLEST_SEGMENT_BYTES:
            self._roll()  # so that it can go once it is delivered
        oldest = self._segments[0]
        if len(self._segments) == 1 or oldest.end > self.delivered():
            return False
        try:
            if oldest.base == 0:
                os.ftruncate(self._head_fd, self._header_bytes)
            else:
                segment_path(self.path, oldest.base).unlink(missing_ok=True)
        except OSError:
            return False
        del self._segments[0]
        self._stored_bytes -= oldest.size_bytes - (self._header_bytes if oldest.base == 0 else 0)
        if not self.removed_requests:
            logger.warning(
                "%s: its oldest part is removed to make room: the database has it, the report will not",
                self.path,
            )
        self.removed_requests += oldest.requests
        return True

    def _roll(self) -> None:
        """Begin another file; where that cannot be, the one at hand goes on."""
        try:
            fd = os.open(
                segment_path(self.path, self.size_bytes),
                os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC,
                0o644,
            )
        except OSError:
            return
        if self._fd != self._head_fd:
            os.close(self._fd)
        self._fd = fd
        self._segments.append(_Segment(self.size_bytes))

    def _say_full(self, why: str) -> None:
        if not self._full_said:
            self._full_said = True
            logger.error("%s: records are lost, %s and none of the log is delivered yet", self.path, why)

    def _cut(self) -> bool:
        """Take back a write that a full disk broke off, so that the next entry is readable."""
        try:
            os.ftruncate(self._fd, self._segments[-1].size_bytes)
        except OSError:
            return False
        self._torn = False
        return True

    # --- opening

    def _open(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LogError(
                f"{self.path}: the record log cannot be opened: {error.strerror}",
                hint="choose another data directory with --data-dir, or mend its rights",
            ) from error
        try:
            self._begin(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _begin(self, head_fd: int) -> None:
        try:
            fcntl.flock(head_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LogError(
                f"{self.path}: another process is writing this record log",
                hint="give each worker on a machine a name or a data directory of its own",
            ) from error
        self._fd = head_fd
        if os.fstat(head_fd).st_size:
            self._recover()
        if not self._header_bytes:
            self._begin_anew()
        self.size_bytes = self._segments[-1].end
        self._stored_bytes = sum(segment.size_bytes for segment in self._segments)

    def _begin_anew(self) -> None:
        header = LogHeader(schema=SCHEMA, run_id=self.run_id, worker=self.worker)
        start = MAGIC + framed(_encoder.encode(header))
        try:
            written = os.write(self._fd, start)
        except OSError as error:
            raise LogError(
                f"{self.path}: the record log cannot be written: {error.strerror}",
                hint="free space on this disk, or choose another data directory",
            ) from error
        if written != len(start):
            raise LogError(f"{self.path}: no space left for a record log", hint="free space on this disk")
        self._header_bytes = written
        self._segments = [_Segment(0, written)]

    def _recover(self) -> None:
        """Find the last whole entry and go on there; what is torn behind it goes."""
        bases = segment_bases(self.path)
        segments = [_Segment(base) for base in bases]
        with read_log(self.path) as entries:
            header, self._header_bytes = entries.header, entries.offset
            number = 0
            for entry, end in entries:
                while number + 1 < len(bases) and end > bases[number + 1]:
                    number += 1
                segments[number].requests += entry.__class__ is RequestRecord
            whole_bytes = entries.offset
        if header is not None and (header.run_id, header.worker) != (self.run_id, self.worker):
            raise LogError(
                f"{self.path}: this is the record log of run {header.run_id!r}, worker {header.worker!r}, "
                f"not of run {self.run_id!r}, worker {self.worker!r}",
                hint="move the file away, or use another data directory",
            )
        while segments[-1].base > whole_bytes:
            segment_path(self.path, segments.pop().base).unlink(missing_ok=True)
        last = segments[-1]
        os.truncate(segment_path(self.path, last.base), whole_bytes - last.base)
        for segment in segments:
            segment.size_bytes = segment_path(self.path, segment.base).stat().st_size
        self._segments = segments
        if last.base:
            self._fd = os.open(segment_path(self.path, last.base), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)


def _encodable(entry: Entry) -> Entry:
    """The entry with text that is no Unicode (lone surrogates a server sent) made readable."""
    changes = {
        name: value.encode("utf-8", "replace").decode()
        for name, value in msgspec.structs.asdict(entry).items()
        if isinstance(value, str)
    }
    return msgspec.structs.replace(entry, **changes)
