"""Reading a record log, whole or from an offset on, while it is written or after."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from tokswarm.errors import LogError
from tokswarm.sink.frame import FRAME, MAGIC, MAX_FRAME_BYTES, PAYLOAD_START, SCHEMA, Entry, LogHeader
from tokswarm.sink.segments import Segments

_READ_BYTES = 1 << 17
_HINT_DAMAGE = "keep the file, and read it with the version of tokswarm that wrote it"


class _SchemaOnly(msgspec.Struct):
    schema: int


_decoder = msgspec.msgpack.Decoder(Entry)


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
        self.removed_bytes = 0
        """Bytes that were removed from the disk after they had been delivered."""
        self._window = b""
        self._window_at = 0
        self._segments: Segments | None = None
        try:
            self._segments = Segments(path)
            self._read_header(start)
        except OSError as error:
            self.close()
            raise LogError(f"{path}: the record log cannot be read: {error.strerror}") from error
        except LogError:
            self.close()
            raise

    def __next__(self) -> tuple[Entry, int]:
        if self._segments is None or self.header is None:
            raise StopIteration
        ended_at = -1
        while (frame := self._frame_at(self.offset) or self._next_whole()) is None:
            end = self._window_at + len(self._window)
            self._window = b""  # what a writer has begun may be cut off and written anew
            beyond = self._segments.after(end)
            if beyond is None:
                self.torn_bytes = self._segments.end() - self.offset
                raise StopIteration
            if end == ended_at:  # and not: appended between the two looks
                self.damaged_bytes += end - self.offset
                self.removed_bytes += beyond - end
                self.offset = beyond
            ended_at = end
        self.damaged_bytes += frame.start - self.offset
        self.offset = frame.end
        return frame.entry, frame.end

    def close(self) -> None:
        """Close the files; iterating ends. May be called again."""
        if self._segments is not None:
            self._segments.close()
            self._segments = None

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
        assert self._segments is not None  # a closed reader reads nothing
        data = self._segments.read(max(_READ_BYTES, min(end - window_end, MAX_FRAME_BYTES)), window_end)
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
        if self._window_at + len(self._window) <= self.offset:
            return None  # nothing follows at all
        at = self.offset + 1
        while self._holds(at, at + FRAME.size + 1):
            match = PAYLOAD_START.search(self._window, at + FRAME.size - self._window_at)
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
    since. `torn_bytes`, `damaged_bytes` and `removed_bytes` of the reader say what could not be read. LogError
    when there is no such file, or it is no record log, or a newer one.
    """
    return LogReader(path, start)
