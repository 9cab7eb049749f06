"""An exchange that goes wrong on purpose: what is written passes through transforms, is framed, and sent act by act.

It tells the answer that the stream is not in chunks, so that events come unframed; how they really travel
is decided here.
"""

import asyncio
import gzip
import socket
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from tokswarm.simulator.event_faults import Act, End, Hold, Item, Pause, Piece, Raw, Reset, Tear, Transform
from tokswarm.simulator.http1 import Connection, Exchange, HttpRequest, chunk, response_head

_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class FaultPlan:
    """What is to go wrong with one answer: filled in by the kinds of fault, then carried out."""

    def __init__(self) -> None:
        self.transforms: list[Transform] = []
        self.instead: tuple[Item, ...] | None = None
        """Sent instead of any answer; the request never reaches the model."""
        self.whole: Act | None = None
        """What happens in the middle of an answer that is no stream."""
        self.status: int | None = None
        """Answered with this status and a page of HTML."""
        self.before_head: bytes = b""
        self.after_head: tuple[Item, ...] = ()
        self.after_end: tuple[Item, ...] = ()
        """Instead of leaving the connection to the next request."""
        self.instead_of_end: tuple[Item, ...] | None = None
        self.head_pause_s: float | None = None
        """Between single bytes of the head."""
        self.keep_alive_s: float | None = None
        """Between comments until the first event."""
        self.content_type: str | None = None
        self.headers: list[str] = []
        self.gzip = False
        self.until_close = False
        """Neither chunks nor a length."""
        self.close = False
        """Says that the connection closes, and closes it."""
        self.length_offset: int | None = None
        """The body comes in one piece, its length stated wrongly by so much."""
        self.cut: Callable[[bytes], Iterator[bytes]] | None = None
        """Into which pieces what is sent is cut."""


class FaultyExchange(Exchange):
    """One request and the faulty answer to it."""

    __slots__ = (
        "_collected",
        "_deflate",
        "_framed",
        "_keep_alive_timer",
        "_over",
        "_plan",
        "_queue",
        "_timer",
    )

    def __init__(self, connection: Connection, request: HttpRequest, plan: FaultPlan) -> None:
        super().__init__(connection, request)
        self._plan = plan
        self._framed = self.chunked and not plan.until_close and plan.length_offset is None
        self.chunked = False
        self.headers += plan.headers
        self._queue: deque[Item] = deque()
        self._timer: asyncio.Handle | None = None
        self._keep_alive_timer: asyncio.TimerHandle | None = None
        self._deflate = zlib.compressobj(wbits=31) if plan.gzip else None
        self._collected: list[bytes] | None = None if plan.length_offset is None else []
        self._over = False

    @property
    def replaced(self) -> bool:
        """The answer is made up here; nobody else is to be asked."""
        return self._plan.instead is not None or self._plan.status is not None

    def replace(self) -> None:
        """Send what comes instead of an answer."""
        if self._plan.status is not None:
            self.send(self._plan.status, _page(self._plan.status), "text/html", _refusal_lines(self._plan.status))
        else:
            self._act(self._plan.instead or ())

    # --- what the answer calls ---------------------------------------------------------------------

    def send(
        self, status: int, body: bytes, content_type: str = "application/json", headers: tuple[str, ...] = ()
    ) -> None:
        """Answer with a whole body; of the faults those of head and body apply, those of events do not."""
        plan = self._plan
        packed = gzip.compress(body) if plan.gzip else body
        length = [f"content-length: {len(packed) + (plan.length_offset or 0)}"]
        framing = [] if plan.until_close else length
        self._send_head(status, content_type, (*framing, *headers))
        if plan.whole is not None and status == 200:
            middle = len(packed) // 2
            self._act((Raw(packed[:middle]), plan.whole))
            return
        self._act((Raw(packed), End()))

    def open_stream(self, content_type: str) -> None:
        """Send the head, unless the length of the body must be known first."""
        self._streaming = True
        if self._collected is None:
            framing = ("transfer-encoding: chunked",) if self._framed else ()
            self._send_head(200, content_type, ("cache-control: no-cache", *framing))
            if self._plan.keep_alive_s is not None:
                self._comment()

    def write(self, data: bytes) -> None:
        """Take whole events of the answer."""
        self._stop_comments()
        for event in data.split(b"\n\n")[:-1]:
            self._act(self._through(event + b"\n\n", self._plan.transforms))

    def close_stream(self, last: bytes = b"") -> None:
        """The answer is complete, after these last events."""
        self.write(last)
        self._act((*self._flushed(), End()))

    def cut(self) -> None:
        """Break the connection."""
        self._over = True
        super().cut()

    # --- transforms --------------------------------------------------------------------------------

    def _through(self, item: Item, transforms: list[Transform]) -> Iterator[Item]:
        """An item after all transforms; before an act, what is held back is let go."""
        if not transforms:
            yield item
            return
        first, rest = transforms[0], transforms[1:]
        for made in first.feed(item) if isinstance(item, bytes) else (*first.flush(), item):
            yield from self._through(made, rest)

    def _flushed(self) -> Iterator[Item]:
        for place, transform in enumerate(self._plan.transforms):
            for made in transform.flush():
                yield from self._through(made, self._plan.transforms[place + 1 :])

    def _comment(self) -> None:
        self._act((b": keep-alive\n\n",))
        self._keep_alive_timer = asyncio.get_running_loop().call_later(self._plan.keep_alive_s or 0, self._comment)

    def _stop_comments(self) -> None:
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()
            self._keep_alive_timer = None

    # --- acts, in order ----------------------------------------------------------------------------

    def _act(self, items: Iterable[Item]) -> None:
        self._queue.extend(items)
        self._go_on()

    def _go_on(self) -> None:
        while self._queue and self._timer is None:
            if not self.open or self._over:
                self._queue.clear()
                self._stop_comments()
                return
            item = self._queue.popleft()
            if isinstance(item, bytes):
                self._send_body(item)
            elif isinstance(item, Pause):
                self._timer = asyncio.get_running_loop().call_later(item.seconds, self._resume)
            else:
                self._do(item)

    def _resume(self) -> None:
        self._timer = None
        self._go_on()

    def _do(self, act: Act) -> None:
        if isinstance(act, Raw):
            self._put(act.data)
        elif isinstance(act, Piece):
            super().write(act.data)
        elif isinstance(act, End):
            self._end_body()
        else:
            if isinstance(act, Tear):
                framed = self._frame(act.event)
                super().write(framed[: len(framed) // 2])
            self._over = True
            if isinstance(act, Reset):
                self._reset()
            elif not isinstance(act, Hold) and self._connection.transport is not None:
                self._connection.transport.close()

    def _reset(self) -> None:
        transport = self._connection.transport
        if transport is not None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            transport.abort()

    def _frame(self, data: bytes) -> bytes:
        if self._deflate is not None:
            data = self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return chunk(data) if self._framed and data else data

    def _send_body(self, data: bytes) -> None:
        if self._collected is not None:
            self._collected.append(data)
        else:
            self._put(self._frame(data))

    def _end_body(self) -> None:
        plan = self._plan
        if self._collected is not None and self._streaming:
            body = b"".join(self._collected)
            self._collected = None
            offset = plan.length_offset or 0
            self._send_head(200, "text/event-stream; charset=utf-8", (f"content-length: {len(body) + offset}",))
            self._act((Raw(body), End()))
            return
        if self._streaming:
            if self._deflate is not None:
                rest = self._deflate.flush(zlib.Z_FINISH)
                super().write(chunk(rest) if self._framed else rest)
            if plan.instead_of_end is not None:
                self._queue.extend(plan.instead_of_end)
                return
            if self._framed:
                super().write(b"0\r\n\r\n")
        if plan.after_end:
            self._queue.extend(plan.after_end)
            return
        self._over = True
        self._done(close=self._closes)

    @property
    def _closes(self) -> bool:
        """Whether the connection ends with this answer."""
        plan = self._plan
        unbounded = plan.until_close or (self._streaming and not self._framed and plan.length_offset is None)
        short = (plan.length_offset or 0) > 0
        return plan.close or unbounded or short or not self.request.keep_alive

    def _send_head(self, status: int, content_type: str, lines: tuple[str, ...]) -> None:
        plan = self._plan
        kind = content_type if plan.content_type is None else plan.content_type
        packed = ("content-encoding: gzip",) if plan.gzip else ()
        # A body that is too short is not announced as the last one: that would tell the client why.
        told = self._closes and not (plan.length_offset or 0) > 0
        head = plan.before_head + response_head(status, kind, (*lines, *packed, *self.headers), close=told)
        if plan.head_pause_s is None:
            self._act((Raw(head), *plan.after_head))
            return
        slow: list[Item] = []
        for place in range(len(head)):
            slow += [Raw(head[place : place + 1]), Pause(plan.head_pause_s)]
        self._act((*slow, *plan.after_head))

    def _put(self, data: bytes) -> None:
        """Hand bytes to the socket, in pieces if so planned."""
        if self._plan.cut is None:
            super().write(data)
            return
        pieces: list[Item] = []
        for piece in self._plan.cut(data):
            pieces += [Piece(piece), Pause(0)]
        self._queue.extendleft(reversed(pieces))


def _page(status: int) -> bytes:
    """What a gateway answers with when its upstream does not."""
    return f"<html><head><title>{status}</title></head><body><h1>{status}</h1><hr>gateway</body></html>\n".encode()


def _refusal_lines(status: int) -> tuple[str, ...]:
    return ("retry-after: 1",) if status in (429, 503) else ()
