"""HTTP/1.1 responses, parsed forward: each read goes in once, its body bytes come out at once.

Knows no sockets. The usual read of a token stream, one whole chunk, takes a short way through.
"""

import enum
import re

MAX_HEAD_BYTES = 64 * 1024
MAX_SIZE_LINE_BYTES = 4096

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: |\Z)")
_HEADER_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_STRAY = re.compile(rb"\x00|\r(?!\n)|(?<!\r)\n")
"""What no head may hold: it would mean one thing to us and another to a proxy."""
_HEX = re.compile(rb"[0-9A-Fa-f]{1,16}")
_DIGITS = re.compile(rb"\d{1,18}")


class HttpProtocolError(Exception):
    """The bytes are not HTTP/1.1 as we can read it."""


class _State(enum.Enum):
    HEAD = 0
    LENGTH = 1
    CHUNKED = 2
    TRAILER = 3
    UNTIL_CLOSE = 4
    DONE = 5


_CHUNKED = _State.CHUNKED
"""At hand for the hot path: a member of an enum costs some 40 ns to look up."""


class ResponseParser:
    """One response. `feed` returns the body bytes of a read; `complete` says when the last has come.

    Interim responses (1xx) are passed over. After `complete`, `leftover` holds bytes that belong to no
    response of ours; such a connection, and one with `keep_alive` False, is not used again.
    """

    __slots__ = ("_carry", "_remaining", "_state", "complete", "headers", "keep_alive", "leftover", "status")

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        """Names in lower case; repeated ones joined by a comma."""
        self.keep_alive = False
        self.complete = False
        self.leftover = b""
        self._state = _State.HEAD
        self._carry = b""
        self._remaining = 0

    def feed(self, data: bytes) -> bytes:  # noqa: PLR0911 - one way out for each state
        """The body bytes in this read. HttpProtocolError if it is not HTTP."""
        # hot: once per read (benchmarks/receive_path.py)
        if self._state is _CHUNKED:
            if not self._remaining and not self._carry:
                line_end = data.find(b"\r\n")
                size = len(data) - line_end - 4
                # So long in the fewest digits: what else `int` would take (0x5, +5, 1_0) is longer.
                if size > 0 and (size.bit_length() + 3) >> 2 == line_end and data.endswith(b"\r\n"):
                    try:
                        if int(data[:line_end], 16) == size:
                            return data[line_end + 2 : -2]
                    except ValueError:
                        pass
            return self._chunks(data)
        if self._state is _State.LENGTH:
            return self._length(data)
        if self._state is _State.UNTIL_CLOSE:
            return data
        if self._state is _State.HEAD:
            return self._head(data)
        if self._state is _State.TRAILER:
            self._trailer(data)
            return b""
        self.leftover += data
        return b""

    def feed_eof(self) -> bool:
        """The peer closed: whether the response is whole (a body until close now is)."""
        if self._state is _State.UNTIL_CLOSE:
            self._finish(b"")
        return self.complete

    def _finish(self, leftover: bytes) -> None:
        self._state = _State.DONE
        self.complete = True
        self.leftover = leftover

    def _head(self, data: bytes) -> bytes:
        data = self._carry + data
        while True:
            end = data.find(b"\r\n\r\n")
            if end > MAX_HEAD_BYTES or (end < 0 and len(data) >= MAX_HEAD_BYTES + 4):
                raise HttpProtocolError(f"the response head is longer than {MAX_HEAD_BYTES} bytes")
            if end < 0:
                if not b"HTTP/1.".startswith(data[:7]) and not data.startswith(b"HTTP/1."):
                    raise HttpProtocolError(f"not an HTTP/1.1 response: {data[:40]!r}")
                self._carry = data
                return b""
            self._parse_head(data[:end])
            data = data[end + 4 :]
            if self.status is not None and self.status >= 200:
                break
        self._carry = b""
        return self.feed(data) if data else b""

    def _parse_head(self, head: bytes) -> None:
        if (stray := _STRAY.search(head)) is not None:
            raise HttpProtocolError(f"a stray control character in the response head: {head[: stray.end()][-60:]!r}")
        first, *lines = head.split(b"\r\n")
        match = _STATUS_LINE.match(first)
        if match is None:
            raise HttpProtocolError(f"not an HTTP/1.1 status line: {first[:60]!r}")
        self.status = int(match[2])
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or _HEADER_NAME.fullmatch(name) is None:
                raise HttpProtocolError(f"not a header line: {line[:60]!r}")
            key, text = name.decode("ascii").lower(), value.strip().decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        self.headers = headers
        connection = headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (match[1] == b"1" or "keep-alive" in connection)
        if self.status >= 200:
            self._choose_framing()

    def _choose_framing(self) -> None:
        encoding = self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length")
        if self.status in (204, 304):
            self._finish(b"")
        elif encoding:
            if encoding.split(",")[-1].strip() != "chunked":
                raise HttpProtocolError(f"transfer-encoding {encoding!r} is not understood")
            self._state = _State.CHUNKED
        elif length is not None:
            sizes = {part.strip() for part in length.split(",")}
            text = sizes.pop()
            if sizes or _DIGITS.fullmatch(text.encode()) is None:
                raise HttpProtocolError(f"content-length is {length[:40]!r}")
            self._remaining = int(text)
            self._state = _State.LENGTH
            if self._remaining == 0:
                self._finish(b"")
        else:
            self.keep_alive = False
            self._state = _State.UNTIL_CLOSE

    def _length(self, data: bytes) -> bytes:
        if len(data) < self._remaining:
            self._remaining -= len(data)
            return data
        body, rest = data[: self._remaining], data[self._remaining :]
        self._finish(rest)
        return body

    def _chunks(self, data: bytes) -> bytes:
        """Any split of any chunks. `_remaining` counts what is left of a chunk, its two end bytes included."""
        if self._carry:
            data, self._carry = self._carry + data, b""
        pieces = []
        at, end = 0, len(data)
        while at < end:
            if self._remaining > 2:
                piece = data[at : at + self._remaining - 2]
                pieces.append(piece)
                at += len(piece)
                self._remaining -= len(piece)
            elif self._remaining:
                if data[at] != (13 if self._remaining == 2 else 10):
                    raise HttpProtocolError(f"a chunk does not end where its size says: {data[at : at + 20]!r}")
                at += 1
                self._remaining -= 1
            else:
                line_end = data.find(b"\n", at)
                if (line_end if line_end >= 0 else end) - at > MAX_SIZE_LINE_BYTES:
                    raise HttpProtocolError(f"no chunk size in {MAX_SIZE_LINE_BYTES} bytes")
                if line_end < 0:
                    self._carry = data[at:]
                    break
                size = _chunk_size(data[at:line_end])
                at = line_end + 1
                if size == 0:
                    self._state = _State.TRAILER
                    self._trailer(data[at:])
                    break
                self._remaining = size + 2
        return b"".join(pieces)

    def _trailer(self, data: bytes) -> None:
        data = self._carry + data
        while True:
            line_end = data.find(b"\n")
            if (line_end if line_end >= 0 else len(data)) > MAX_HEAD_BYTES:
                raise HttpProtocolError(f"a line of the trailer is longer than {MAX_HEAD_BYTES} bytes")
            if line_end < 0:
                self._carry = data
                return
            line, data = data[:line_end].rstrip(b"\r"), data[line_end + 1 :]
            if not line:
                self._carry = b""
                self._finish(data)
                return


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if _HEX.fullmatch(digits) is None:
        raise HttpProtocolError(f"not a chunk size: {line[:40]!r}")
    return int(digits, 16)
