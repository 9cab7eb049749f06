"""The record log: an append-only file of everything a process saw, written before anything else.

    file  = b"TSWL" frame(LogHeader) frame(Entry)*
    frame = [payload length u32][CRC-32 of the payload u32][payload, msgpack], little endian

Every entry is one write to the kernel, so a process that is killed loses nothing it appended. What a
crash of the machine may leave is a torn tail: readers stop there and count it. Damage in the middle
is stepped over to the next whole frame, and counted.
"""

import fcntl
import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from tokswarm.errors import LogError
from tokswarm.measure.record import RequestRecord
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond, Window, WorkerSecond

Entry = RequestRecord | Window | WorkerSecond | FleetSecond | ServerSecond | Event
"""What a log holds after its header."""

SCHEMA = 1
"""Goes up when an older reader would misread a log."""

MAGIC = b"TSWL"
FRAME = struct.Struct("<II")
MAX_FRAME_BYTES = 1 << 26
"""No entry is longer: a length beyond it is damage, and is not believed."""

_READ_BYTES = 1 << 17
_CLOSED = -1
# An entry begins with its array head and its two-letter tag, eight bytes after the start of its frame.
_PAYLOAD_START = re.compile(rb"(?:[\x90-\x9f]|\xdc..)\xa2[rwhfse][0-9]", re.DOTALL)
_HINT_DAMAGE = "keep the file, and read it with the version of tokswarm that wrote it"


class LogHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Whose log it is."""

    schema: int
    run_id: str
    worker: str


class _SchemaOnly(msgspec.Struct):
    schema: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


def _frame(payload: bytes) -> bytes:
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload


class RecordLog:
    """Appends entries to one file; the only writer of it. Opening a log again goes on at its last whole entry."""

    def __init__(self, path: Path, *, run_id: str, worker: str) -> None:
        self.path = path
        self.run_id = run_id
        self.worker = worker
        self.lost = 0
        """Entries that could not be written."""
        self.size_bytes = 0
        """Length of the file up to its last whole entry."""
        self._buffer = bytearray()
        self._torn = False
        self._fd = self._open()

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
        try:
            written = os.write(self._fd, buffer)
        except OSError:
            written = 0
        if written != length:
            self._torn = written > 0
            if self._torn:
                self._cut()
            self.lost += 1
            return False
        self.size_bytes += length
        return True

    def close(self) -> None:
        """Close the file; may be called again."""
        if self._fd != _CLOSED:
            os.close(self._fd)
            self._fd = _CLOSED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut(self) -> bool:
        """Take back a write that a full disk broke off, so that the next entry is readable."""
        try:
            os.ftruncate(self._fd, self.size_bytes)
        except OSError:
            return False
        self._torn = False
        return True

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

    def _begin(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LogError(
                f"{self.path}: another process is writing this record log",
                hint="give each worker on a machine a name or a data directory of its own",
            ) from error
        size = os.fstat(fd).st_size
        if size:
            with read_log(self.path) as entries:
                for _ in entries:
                    pass
                header, size = entries.header, entries.offset
            if header is not None and (header.run_id, header.worker) != (self.run_id, self.worker):
                raise LogError(
                    f"{self.path}: this is the record log of run {header.run_id!r}, worker {header.worker!r}, "
                    f"not of run {self.run_id!r}, worker {self.worker!r}",
                    hint="move the file away, or use another data directory",
                )
            os.ftruncate(fd, size)
        if size == 0:
            header = LogHeader(schema=SCHEMA, run_id=self.run_id, worker=self.worker)
            start = MAGIC + _frame(_encoder.encode(header))
            try:
                size = os.write(fd, start)
            except OSError as error:
                raise LogError(
                    f"{self.path}: the record log cannot be written: {error.strerror}",
                    hint="free space on this disk, or choose another data directory",
                ) from error
            if size != len(start):
                raise LogError(f"{self.path}: no space left for a record log", hint="free space on this disk")
        self.size_bytes = size


def _encodable(entry: Entry) -> Entry:
    """The entry with text that is no Unicode (lone surrogates a server sent) made readable."""
    changes = {
        name: value.encode("utf-8", "replace").decode()
        for name, value in msgspec.structs.asdict(entry).items()
        if isinstance(value, str)
    }
    return msgspec.structs.replace(entry, **changes)


class _Frame(NamedTuple):
    entry: Entry
    start: int
    end: int


class LogReader(Iterator[tuple[Entry, int]]):
    """Entries of a log, each with the offset after it; see `read_log`."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self.path = path
        self.header: LogHeader | None = None
        """None: the file ends before its header does."""
        self.offset = 0
        """Up to where the log was read."""
        self.torn_bytes = 0
        """Bytes at the end that make no whole entry; final once the log has no more writer."""
        self.damaged_bytes = 0
        """Bytes in the middle that make no whole entry and were stepped over."""
        self._window = b""
        self._window_at = 0
        self._fd = _CLOSED
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._read_header(start)
        except OSError as error:
            self.close()
            raise LogError(f"{path}: the record log cannot be read: {error.strerror}") from error
        except LogError:
            self.close()
            raise

    def __next__(self) -> tuple[Entry, int]:
        if self._fd == _CLOSED or self.header is None:
            raise StopIteration
        frame = self._frame_at(self.offset) or self._next_whole()
        if frame is None:
            self.torn_bytes = os.fstat(self._fd).st_size - self.offset
            self._window = b""  # what a writer has begun may be cut off and written anew
            raise StopIteration
        self.damaged_bytes += frame.start - self.offset
        self.offset = frame.end
        return frame.entry, frame.end

    def close(self) -> None:
        """Close the file; iterating ends. May be called again."""
        if self._fd != _CLOSED:
            os.close(self._fd)
            self._fd = _CLOSED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _read_header(self, start: int) -> None:
        payload_at = len(MAGIC) + FRAME.size
        whole = self._holds(0, payload_at)
        if not MAGIC.startswith(self._window[: len(MAGIC)]):
            raise LogError(
                f"{self.path}: this is no record log (it begins {self._window[: len(MAGIC)]!r})",
                hint="record logs are the .log files in a run's logs folder",
            )
        length, crc = FRAME.unpack_from(self._window, len(MAGIC)) if whole else (0, 0)
        if not whole or length > MAX_FRAME_BYTES or not self._holds(0, payload_at + length):
            self.torn_bytes = len(self._window)
            return
        payload = self._window[payload_at : payload_at + length]
        if zlib.crc32(payload) != crc:
            raise LogError(f"{self.path}: the header of this record log is damaged", hint=_HINT_DAMAGE)
        self.header = self._decode_header(payload)
        self.offset = max(start, payload_at + length)

    def _decode_header(self, payload: bytes) -> LogHeader:
        try:
            schema = msgspec.msgpack.decode(payload, type=_SchemaOnly).schema
            if schema <= SCHEMA:
                return msgspec.msgpack.decode(payload, type=LogHeader)
        except msgspec.MsgspecError as error:
            raise LogError(
                f"{self.path}: the header of this record log is not understood: {error}", hint=_HINT_DAMAGE
            ) from error
        raise LogError(
            f"{self.path}: this record log has schema {schema}, this version reads up to {SCHEMA}",
            hint="read it with the version of tokswarm that wrote it, or a newer one",
        )

    def _holds(self, keep: int, end: int) -> bool:
        """Whether the file reaches to `end`; the window then spans `keep` to `end`."""
        window_end = self._window_at + len(self._window)
        if not self._window_at <= keep <= window_end:
            self._window, self._window_at, window_end = b"", keep, keep
        if window_end >= end:
            return True
        data = os.pread(self._fd, max(_READ_BYTES, min(end - window_end, MAX_FRAME_BYTES)), window_end)
        self._window = self._window[keep - self._window_at :] + data
        self._window_at = keep
        return self._window_at + len(self._window) >= end

    def _frame_at(self, start: int) -> _Frame | None:
        """The whole entry that begins here, if one does."""
        if not self._holds(start, start + FRAME.size):
            return None
        length, crc = FRAME.unpack_from(self._window, start - self._window_at)
        end = start + FRAME.size + length
        if not 0 < length <= MAX_FRAME_BYTES or not self._holds(start, end):
            return None
        payload = memoryview(self._window)[start + FRAME.size - self._window_at : end - self._window_at]
        if zlib.crc32(payload) != crc:
            return None
        try:
            return _Frame(_decoder.decode(payload), start, end)
        except msgspec.MsgspecError:
            return None

    def _next_whole(self) -> _Frame | None:
        """The first whole entry beyond damage; None when none follows, so that it is a torn tail."""
        at = self.offset + 1
        while self._holds(at, at + FRAME.size + 1):
            match = _PAYLOAD_START.search(self._window, at + FRAME.size - self._window_at)
            if match is None:
                # A start may straddle the end of the window: go on a little before it.
                at = max(at + 1, self._window_at + len(self._window) - FRAME.size - 6)
                continue
            start = self._window_at + match.start() - FRAME.size
            frame = self._frame_at(start)
            if frame is not None:
                return frame
            at = start + 1
        return None


def read_log(path: Path, start: int = 0) -> LogReader:
    """Yield each entry and the offset after it, from the offset `start` (one yielded before; 0 is the beginning).

    Ends at the last whole entry there is now; reading again from there later gives what was appended
    since. `torn_bytes` and `damaged_bytes` of the reader say what could not be read. LogError when
    there is no such file, or it is no record log, or a newer one.
    """
    return LogReader(path, start)
