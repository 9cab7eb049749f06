"""A small HTTP/1.1 server side: requests in by httptools, answers out by one `write` to the socket each.

Keep-alive, pipelining (answers in order), bodies by content-length or chunks, `Expect: 100-continue`,
bounded heads and bodies, event streams in chunks (close-delimited for HTTP/1.0). What is wrong on the wire
is answered with the right status and the connection is closed.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import cast
from urllib.parse import quote, unquote

import httptools
import msgspec

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_PIPELINED = 16
"""Requests read ahead on one connection before it is read no further."""
MAX_UNREAD_BYTES = 4 * 1024 * 1024
"""Stream bytes a client may leave unread before it is cut off."""


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One whole request."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    """Names in lower case; the last of equal names."""
    body: bytes
    version: str
    keep_alive: bool


class Refusal(msgspec.Struct, frozen=True):
    """A request that could not be read."""

    status: int
    message: str


ErrorBody = Callable[[int, str], bytes]
"""Makes the JSON body of an error from a status and a message."""


class Exchange:
    """One request and the answer to it. Answers once: `send`, or `open_stream` … `close_stream`."""

    __slots__ = (
        "_connection",
        "_descriptor",
        "_streaming",
        "_transport",
        "chunked",
        "headers",
        "on_disconnect",
        "open",
        "request",
    )

    def __init__(self, connection: "Connection", request: HttpRequest) -> None:
        self.request = request
        self.open = True
        """False once answered, or when the client has gone."""
        self.on_disconnect: Callable[[], None] | None = None
        """Called when the client leaves before the answer is complete."""
        self.chunked = request.version != "1.0"
        """Whether a stream is framed in chunks; else it ends with the connection."""
        self.headers: list[str] = []
        """Further lines for the head of the answer, whatever it will be: who served, what is left of a limit."""
        self._connection = connection
        self._streaming = False
        self._descriptor = connection.descriptor
        self._transport = connection.transport

    @property
    def streaming(self) -> bool:
        """A stream has been opened."""
        return self._streaming

    def send(
        self, status: int, body: bytes, content_type: str = "application/json", headers: tuple[str, ...] = ()
    ) -> None:
        """Answer with a whole body; `headers` are further lines."""
        head = response_head(
            status,
            content_type,
            (f"content-length: {len(body)}", *self.headers, *headers),
            close=not self.request.keep_alive,
        )
        self.write(head if self.request.method == "HEAD" else head + body)
        self._done(close=not self.request.keep_alive)

    def open_stream(self, content_type: str) -> None:
        """Send the head of a 200 whose body follows in pieces."""
        framing = ("transfer-encoding: chunked",) if self.chunked else ()
        close = not (self.chunked and self.request.keep_alive)
        self._streaming = True
        self.write(response_head(200, content_type, ("cache-control: no-cache", *framing, *self.headers), close=close))

    def write(self, data: bytes) -> None:
        """Send bytes that are framed already: one system call when the client keeps up."""
        # hot: once a token. Straight to the socket, so that a stamp taken just before is the time of the send.
        transport = self._transport
        if not self.open or transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size():
            transport.write(data)
            return
        try:
            sent = os.write(self._descriptor, data)
        except BlockingIOError:
            sent = 0
        except OSError:  # gone; the loop reports it as a lost connection
            transport.abort()
            return
        if sent < len(data):
            transport.write(data[sent:])

    def close_stream(self, last: bytes = b"") -> None:
        """End the stream, after these last framed bytes."""
        if self.chunked:
            last += b"0\r\n\r\n"
        if last:
            self.write(last)
        self._done(close=not (self.chunked and self.request.keep_alive))

    def cut(self) -> None:
        """Break the connection: what was sent so far stays incomplete."""
        if self._connection.transport is not None:
            self._connection.transport.abort()

    def _done(self, *, close: bool) -> None:
        if self.open:
            self.open = False
            self._connection.answered(close=close)


def chunk(data: bytes) -> bytes:
    """Frame bytes as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def response_head(status: int, content_type: str, lines: tuple[str, ...], *, close: bool) -> bytes:
    """The head of a response up to its blank line."""
    kept = "connection: close" if close else "connection: keep-alive"
    phrase = HTTPStatus(status).phrase
    return "\r\n".join((f"HTTP/1.1 {status} {phrase}", f"content-type: {content_type}", *lines, kept, "", "")).encode()


def _without_upgrade(asked: HttpRequest) -> bytes:
    """The head of a request that asked for another protocol, without asking; to be parsed anew.

    A server may go on in HTTP/1.1, but the parser takes the request for complete without its body.
    """
    target = f"{asked.path}?{asked.query}" if asked.query else asked.path
    left_out = ("upgrade", "connection", "http2-settings", "expect")
    lines = [f"{name}: {value}" for name, value in asked.headers.items() if name not in left_out]
    return "\r\n".join((f"{asked.method} {quote(target, safe='/?=&%')} HTTP/1.1", *lines, "", "")).encode("latin-1")


class Connection(asyncio.Protocol):
    """One client connection: parses requests and answers them one at a time."""

    def __init__(
        self,
        handle: Callable[[Exchange], None],
        error_body: ErrorBody,
        connections: "set[Connection]",
        open_exchange: "Callable[[Connection, HttpRequest], Exchange]" = Exchange,
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self.descriptor = -1
        self._handle = handle
        self._error_body = error_body
        self._open_exchange = open_exchange
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._ready: deque[HttpRequest | Refusal] = deque()
        self._current: Exchange | None = None
        self._refused = False
        self._advancing = False
        self._clear()

    def _clear(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._in_head = True

    # --- asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; the write buffer is bounded by cutting slow readers off."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES)
        self.descriptor = self.transport.get_extra_info("socket").fileno()
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse on; every request that is complete by now is answered in turn."""
        if self._refused:
            return
        # Bytes of a head are counted by the read they came in: exact enough for a bound.
        self._head_bytes += len(data)
        self._feed(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, f"the head of the request is longer than {MAX_HEAD_BYTES} bytes")
        self._advance()
        if len(self._ready) >= MAX_PIPELINED and self.transport is not None:
            self.transport.pause_reading()

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self._refused:
                    return
                asked = cast(HttpRequest, self._ready.pop())
                if asked.method == "CONNECT":
                    self._refuse(400, "this is no proxy")
                    return
                self._parser = httptools.HttpRequestParser(self)
                data = _without_upgrade(asked) + data[upgrade.args[0] :]
            except httptools.HttpParserError as error:
                self._refuse(400, f"not an HTTP/1.1 request: {error}")
                return
            else:
                return

    def pause_writing(self) -> None:
        """Cut off a client that does not read its stream."""
        exchange = self._current
        if exchange is not None and exchange.streaming and self.transport is not None:
            log.warning("a client left %d bytes of its stream unread and was cut off", MAX_UNREAD_BYTES)
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Tell the exchange in progress that nobody listens any more."""
        self._connections.discard(self)
        self.transport = None
        self._ready.clear()
        exchange, self._current = self._current, None
        if exchange is not None:
            exchange.open = False
            if exchange.on_disconnect is not None:
                exchange.on_disconnect()

    # --- httptools ---------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        """Collect the target; it may come in pieces."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Let a client that asks first send its body."""
        self._in_head = False
        if self._headers.get("expect", "").lower() == "100-continue" and self.transport is not None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Collect the body within its bound."""
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY_BYTES:
            self._refuse(413, f"the body of the request is longer than {MAX_BODY_BYTES} bytes")
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Queue the request for its answer."""
        if self._refused:
            return
        target = self._url.decode("latin-1")
        path, _, query = target.partition("?")
        self._ready.append(
            HttpRequest(
                method=self._parser.get_method().decode("latin-1"),
                path=unquote(path),
                query=query,
                headers=self._headers,
                body=b"".join(self._body),
                version=self._parser.get_http_version(),
                keep_alive=self._parser.should_keep_alive(),
            )
        )
        self._clear()

    # --- answers in order --------------------------------------------------------------------------

    def answered(self, *, close: bool) -> None:
        """The exchange in progress is complete; go on with the next, or close."""
        self._current = None
        if self.transport is None:
            return
        if close:
            self._refused = True
            self.transport.close()
            return
        if len(self._ready) < MAX_PIPELINED and not self.transport.is_reading():
            self.transport.resume_reading()
        self._advance()

    def _refuse(self, status: int, message: str) -> None:
        if not self._refused:
            self._refused = True
            self._ready.append(Refusal(status, message))

    def _advance(self) -> None:
        # A request answered at once calls `answered`, which calls this: the outer loop goes on instead.
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._ready and self._current is None and self.transport is not None:
                self._answer(self._ready.popleft())
        finally:
            self._advancing = False

    def _answer(self, item: HttpRequest | Refusal) -> None:
        if isinstance(item, Refusal):
            refused = HttpRequest(method="", path="", query="", headers={}, body=b"", version="1.1", keep_alive=False)
            self._current = Exchange(self, refused)
            self._current.send(item.status, self._error_body(item.status, item.message))
            return
        exchange = self._current = self._open_exchange(self, item)
        try:
            self._handle(exchange)
        except Exception:  # the root of a request
            log.exception("a request to %s failed", item.path)
            if exchange.open and not exchange.streaming:
                exchange.send(500, self._error_body(500, "internal error"))
            elif exchange.open:
                exchange.cut()
