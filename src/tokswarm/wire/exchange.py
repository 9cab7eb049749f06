"""One request and its response on a connection: a small machine that the receive loop drives.

connecting → securing → sending → waiting → answering → over. `on_done` is called once, outside the loop's
callback, when it is over, whatever the outcome.
"""

import enum
import errno
import ssl
import time
import zlib
from collections.abc import Callable

from tokswarm.measure.record import Outcome
from tokswarm.redact import redact
from tokswarm.wire.answer import Answer, judge_answer, judge_refusal
from tokswarm.wire.connection import Connection, Connections, TunnelRefusedError
from tokswarm.wire.http1 import HttpProtocolError, ResponseParser
from tokswarm.wire.receiver import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, Receiver
from tokswarm.wire.sse import EventTooLongError

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_ERROR_BODY_BYTES = 64 * 1024
LINGER_S = 0.02
"""How long a connection may take to end its response after `[DONE]` and still be kept."""


class Deadlines:
    """How long each part of an exchange may take, ns."""

    __slots__ = ("connect_ns", "first_byte_ns", "gap_ns", "whole_ns")

    def __init__(self, *, connect_s: float, first_byte_s: float, gap_s: float, whole_s: float) -> None:
        self.connect_ns = int(connect_s * 1e9)
        self.first_byte_ns = int(first_byte_s * 1e9)
        self.gap_ns = int(gap_s * 1e9)
        self.whole_ns = int(whole_s * 1e9)


class _Phase(enum.Enum):
    CONNECTING = "connecting"
    SECURING = "securing the connection"
    SENDING = "sending"
    WAITING = "waiting"
    STREAMING = "streaming"
    COLLECTING = "collecting"
    OVER = "over"


_STREAMING, _OVER = _Phase.STREAMING, _Phase.OVER
"""At hand for the hot path: a member of an enum costs some 40 ns to look up."""


class Exchange:
    """One request on its way. All times monotonic ns."""

    __slots__ = (
        "_body",
        "_connection",
        "_deadlines",
        "_inflate",
        "_keep",
        "_on_done",
        "_parser",
        "_phase",
        "_pool",
        "_receiver",
        "_request",
        "_secret",
        "answer",
        "begun_ns",
        "check_ns",
        "connect_ns",
        "connected_ns",
        "done_ns",
        "error",
        "headers_ns",
        "last_read_ns",
        "other_address",
        "outcome",
        "raw_body",
        "recvmsg",
        "reused",
        "sent_ns",
        "tag",
    )

    def __init__(
        self,
        *,
        request: bytes,
        answer: Answer,
        pool: Connections,
        receiver: Receiver,
        deadlines: Deadlines,
        keep: bool,
        secret: str | None,
        on_done: "Callable[[Exchange], None]",
    ) -> None:
        self._request = request
        self._pool = pool
        self._receiver = receiver
        self._deadlines = deadlines
        self._keep = keep
        self._secret = secret
        self._on_done = on_done
        self._parser = ResponseParser()
        self._phase = _Phase.CONNECTING
        self._connection: Connection | None = None
        self._inflate: Callable[[bytes], bytes] | None = None
        """Set where the server packs bodies although it was asked not to."""
        self._body: list[bytes] = []
        self.answer = answer
        self.raw_body = b""
        """The body when it was no event stream."""
        self.reused = False
        """The connection had served before."""
        self.begun_ns = 0
        self.check_ns = 0
        """When to look at the deadlines next."""
        self.connected_ns: int | None = None
        """TCP was up; None: a kept connection, or not yet."""
        self.connect_ns: int | None = None
        """How long the connection took to open, tunnel and TLS included; None: a kept one."""
        self.sent_ns = 0
        self.headers_ns: int | None = None
        self.last_read_ns = 0
        self.done_ns = 0
        self.outcome: Outcome | None = None
        """None while under way."""
        self.error: str | None = None
        self.other_address = False
        """The connection was refused, and the host has another address to try."""
        self.tag: object = None
        """The caller's own."""

    @property
    def status(self) -> int | None:
        """HTTP status; None before the head."""
        return self._parser.status

    @property
    def headers(self) -> dict[str, str]:
        """Response headers, names in lower case."""
        return self._parser.headers

    def begin(self, *, fresh: bool) -> None:
        """Send the request, on a kept connection unless `fresh`. Never raises; failures end the exchange."""
        self.begun_ns = time.monotonic_ns()
        connection = None if fresh else self._pool.take_idle()
        try:
            if connection is not None:
                self._connection = connection
                self.recvmsg = connection.recvmsg
                self.reused = True
                connection.belong_to(self)
                self._send()
                return
            self._connection, established = self._pool.open(self)
            if established:
                self._tcp_is_up()
        except (OSError, TunnelRefusedError) as error:
            self.on_error(error)

    def _tcp_is_up(self) -> None:
        connection = self._connection
        assert connection is not None
        self._phase = _Phase.SECURING
        self.connected_ns = time.monotonic_ns()
        connection.establish(self)

    def _send(self) -> None:
        connection = self._connection
        assert connection is not None
        self._phase = _Phase.SENDING
        self.sent_ns = self.last_read_ns = time.monotonic_ns()
        if connection.write(self._request):
            self._phase = _Phase.WAITING
        self._request = b""

    # --- the loop's side ---

    def on_established(self) -> None:
        """The connection can carry the request."""
        self.connect_ns = time.monotonic_ns() - self.begun_ns
        self._send()

    def on_read(self, data: bytes, at_ns: int, stamped: bool) -> None:
        """Take one read, stamped."""
        # hot: once per read (benchmarks/receive_path.py)
        if not data:
            self._eof(at_ns)
            return
        self.last_read_ns = at_ns
        body = self._parser.feed(data)
        if self._inflate is not None and body:
            body = self._inflate(body)
        if self._phase is _STREAMING:
            if body:
                answer = self.answer
                answer.feed(body, at_ns, stamped)
                if answer.done:
                    self._after_done(at_ns)
                    return
        elif self.headers_ns is None:
            if self._parser.status is None or self._parser.status < 200:
                return
            self._head(at_ns)
            if self._inflate is not None and body:
                body = self._inflate(body)
            if body:
                self._first_body(body, at_ns, stamped)
        elif body:
            self._collect(body)
        if self._parser.complete and self._phase is not _OVER:
            self._complete(at_ns)

    def on_mask(self, mask: int) -> None:
        """Writable, hung up or in error."""
        connection = self._connection
        if connection is None or self._phase is _Phase.OVER:
            return
        if mask & EPOLLOUT and not mask & (EPOLLERR | EPOLLHUP):
            if self._phase is _Phase.CONNECTING:
                connection.connected()
                self._tcp_is_up()
            elif self._phase is _Phase.SENDING and connection.flush():
                self._phase = _Phase.WAITING
            if not mask & EPOLLIN:
                return
        elif self._phase is _Phase.CONNECTING:
            connection.connected()
        self._read_all(connection)

    def on_error(self, error: Exception) -> None:
        """Whatever went wrong at the socket or in what it brought ends the exchange."""
        if isinstance(error, HttpProtocolError | EventTooLongError | zlib.error):
            self._end(Outcome.PROTOCOL, str(error), keep=False)
        elif isinstance(error, ssl.SSLError):
            self._end(Outcome.TLS, _tls_text(error, self._pool.target_name), keep=False)
        elif isinstance(error, TunnelRefusedError):
            self._end(Outcome.RESET, str(error), keep=False)
        elif isinstance(error, OSError):
            outcome, text = _socket_outcome(error)
            if isinstance(error, ConnectionRefusedError) and self._connection is not None:
                self.other_address = self._pool.avoid(self._connection.address)
            self._end(outcome, f"{text} while {self._phase.value} ({self._pool.target_name})", keep=False)
        else:
            self._end(Outcome.PROTOCOL, f"{type(error).__name__}: {error}", keep=False)
            raise error

    def check_deadlines(self, now_ns: int) -> None:
        """End the exchange if a part of it took too long; need not be called again before `check_ns`."""
        limits = self._deadlines
        self.check_ns = self._next_check_ns(now_ns)
        if self._phase in (_Phase.CONNECTING, _Phase.SECURING):
            if now_ns - self.begun_ns > limits.connect_ns:
                self._end(Outcome.TIMEOUT, f"connect took longer than {limits.connect_ns / 1e9:g} s", keep=False)
        elif now_ns - self.sent_ns > limits.whole_ns:
            self._end(Outcome.TIMEOUT, f"the whole request took longer than {limits.whole_ns / 1e9:g} s", keep=False)
        elif self.headers_ns is None:
            if now_ns - self.sent_ns > limits.first_byte_ns:
                self._end(Outcome.TIMEOUT, f"no first byte within {limits.first_byte_ns / 1e9:g} s", keep=False)
        elif now_ns - self.last_read_ns > limits.gap_ns:
            self._end(Outcome.TIMEOUT, f"nothing came for {limits.gap_ns / 1e9:g} s", keep=False)

    def _next_check_ns(self, now_ns: int) -> int:
        """No deadline passes before this instant, whatever happens until then."""
        limits = self._deadlines
        if self._phase in (_Phase.CONNECTING, _Phase.SECURING):
            return min(
                self.begun_ns + limits.connect_ns, now_ns + min(limits.first_byte_ns, limits.gap_ns, limits.whole_ns)
            )
        if self.headers_ns is None:
            return min(self.sent_ns + min(limits.whole_ns, limits.first_byte_ns), now_ns + limits.gap_ns)
        return min(self.sent_ns + limits.whole_ns, self.last_read_ns + limits.gap_ns)

    def abort(self, reason: str) -> None:
        """Give the request up; the connection is closed, so that the server may notice."""
        self._end(Outcome.ABORTED, reason, keep=False)

    def _read_all(self, connection: Connection) -> None:
        """Read until nothing is left: what came before a hang-up still counts."""
        while self._phase is not _Phase.OVER:
            try:
                connection.read(self)
            except BlockingIOError:
                return

    # --- the response ---

    def _head(self, at_ns: int) -> None:
        self.headers_ns = max(at_ns, self.sent_ns)
        encoding = self._parser.headers.get("content-encoding", "identity").lower()
        if encoding in ("gzip", "x-gzip", "deflate"):
            self._inflate = zlib.decompressobj(wbits=47).decompress
        elif encoding not in ("identity", ""):
            raise HttpProtocolError(f"the content-encoding {encoding!r} was not asked for and is not understood")
        content_type = self._parser.headers.get("content-type", "").lower()
        streaming = self._parser.status == 200 and content_type.startswith("text/event-stream")
        self._phase = _Phase.STREAMING if streaming else _Phase.COLLECTING

    def _first_body(self, body: bytes, at_ns: int, stamped: bool) -> None:
        if self._phase is not _Phase.STREAMING:
            self._collect(body)
            return
        self.answer.feed(body, at_ns, stamped)
        if self.answer.done:
            self._after_done(at_ns)

    def _collect(self, body: bytes) -> None:
        self._body.append(body)
        limit = MAX_BODY_BYTES if self._parser.status == 200 else MAX_ERROR_BODY_BYTES
        if sum(map(len, self._body)) > limit:
            self.raw_body = b"".join(self._body)[:limit]
            self._end(
                Outcome.PROTOCOL if self._parser.status == 200 else Outcome.HTTP_ERROR,
                f"the body is longer than {limit} bytes",
                keep=False,
            )

    def _after_done(self, at_ns: int) -> None:
        """`[DONE]` has come: the answer is over; the response gets a moment to end, so the connection can be kept."""
        if self._parser.complete:
            self._complete(at_ns if not self.done_ns else self.done_ns)
        elif not self.done_ns:
            self.done_ns = at_ns
            self._receiver.later(LINGER_S, self._linger_over)

    def _linger_over(self) -> None:
        if self._phase is not _Phase.OVER:
            self._judge_answer(keep=False)

    def _complete(self, at_ns: int) -> None:
        self.done_ns = self.done_ns or at_ns
        keep = (
            self._keep and self._parser.keep_alive and not self._parser.leftover and self._phase is not _Phase.SENDING
        )
        if self._phase is _Phase.STREAMING:
            self.answer.end()
            self._judge_answer(keep=keep)
            return
        self.raw_body = b"".join(self._body)
        if self._parser.status == 200:
            self.answer.read_body(self.raw_body)
            self._judge_answer(keep=keep)
        else:
            self._end(*judge_refusal(self._parser.status or 0, self.raw_body), keep=keep)

    def _judge_answer(self, *, keep: bool) -> None:
        self._end(*judge_answer(self.answer), keep=keep)

    def _eof(self, at_ns: int) -> None:
        if self._parser.feed_eof():
            self._complete(at_ns)
        elif self.done_ns:
            self._judge_answer(keep=False)
        elif self.headers_ns is None:
            self._end(Outcome.RESET, "the server closed the connection before it answered", keep=False)
        else:
            self._end(Outcome.TRUNCATED, "the server closed the connection in the middle of the answer", keep=False)

    def _end(self, outcome: Outcome, error: str | None, *, keep: bool) -> None:
        if self._phase is _Phase.OVER:
            return
        self._phase = _Phase.OVER
        self.outcome = outcome
        self.error = None if error is None else redact(error, secret=self._secret)
        if not self.done_ns:
            self.done_ns = time.monotonic_ns()
        if not self.sent_ns:
            self.sent_ns = self.begun_ns
        connection, self._connection = self._connection, None
        if connection is not None:
            if keep:
                self._pool.keep(connection)
            else:
                if outcome is Outcome.OK:
                    connection.answered()
                self._pool.drop(connection)
        self._receiver.defer(self._tell)

    def _tell(self) -> None:
        self._on_done(self)


def _tls_text(error: ssl.SSLError, target_name: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {target_name} is not trusted: {error.verify_message}"
    return f"TLS with {target_name} failed: {error.reason or error}"


def _socket_outcome(error: OSError) -> tuple[Outcome, str]:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return Outcome.CLIENT_LIMIT, "this machine is out of file descriptors"
    if error.errno == errno.EADDRNOTAVAIL:
        return Outcome.CLIENT_LIMIT, "this machine is out of local ports"
    if error.errno == errno.ETIMEDOUT:
        return Outcome.TIMEOUT, "the connection timed out"
    if error.errno == errno.ECONNREFUSED:
        return Outcome.RESET, "the connection was refused"
    if error.errno in (errno.ECONNRESET, errno.EPIPE):
        return Outcome.RESET, "the connection was reset"
    return Outcome.RESET, error.strerror or str(error)
