"""Connections to one target: opened without blocking, kept for the next request, dropped when the peer ends them.

A plain connection's reads go straight to the exchange that owns it. One with layers (a proxy's tunnel,
TLS) stands between the loop and its owner; the stamp of a read is that of the plaintext it completed.
"""

import errno
import socket
from collections.abc import Callable
from typing import Protocol

from gevent import monkey

from tokswarm.wire.clock import ask_for_stamps
from tokswarm.wire.http1 import ResponseParser
from tokswarm.wire.receiver import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, Receiver
from tokswarm.wire.target import Address, ResolvedTarget
from tokswarm.wire.tls import TlsLayer

_plain_socket: type[socket.socket] = monkey.get_original("socket", "socket")

RecvMsg = Callable[..., tuple[bytes, list[tuple[int, int, bytes]], int, object]]


class TunnelRefusedError(Exception):
    """The proxy did not open a tunnel."""


class Owner(Protocol):
    """Who uses a connection: an exchange, or nobody (`_Idle`)."""

    recvmsg: RecvMsg

    def on_established(self) -> None:
        """The connection can carry a request."""

    def on_read(self, data: bytes, at_ns: int, stamped: bool) -> None:
        """Take one read; empty at the end of the stream."""

    def on_mask(self, mask: int) -> None:
        """Writable, hung up or in error."""

    def on_error(self, error: Exception) -> None:
        """The connection is broken."""


class Connection:
    """One socket in the receive loop."""

    __slots__ = ("_out", "_receiver", "_writing", "address", "fd", "recvmsg", "sock", "used")

    def __init__(self, sock: socket.socket, receiver: Receiver, address: Address) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.recvmsg: RecvMsg = sock.recvmsg
        self.used = False
        """A request has been answered on it before."""
        self.address = address
        self._receiver = receiver
        self._out = memoryview(b"")
        self._writing = False

    def watch(self, owner: Owner, *, connecting: bool) -> None:
        """Enter the loop."""
        self._writing = connecting
        self._receiver.add(self.sock, owner, writing=connecting)

    def belong_to(self, owner: Owner) -> None:
        """Give what arrives to another owner."""
        self._receiver.hand_over(self.fd, owner)

    def establish(self, owner: Owner) -> None:
        """TCP is up: bring up what lies above it, then tell the owner."""
        owner.on_established()

    def read(self, owner: Owner) -> None:
        """One read outside the loop's pass. BlockingIOError when nothing is there."""
        self._receiver.read(owner)

    def write(self, data: bytes) -> bool:
        """Hand bytes to the kernel; False: it took a part, `flush` when there is room. OSError when broken."""
        self._out = memoryview(bytes(self._out) + data if self._out else data)
        return self.flush()

    def flush(self) -> bool:
        """Hand on what is left; whether all is gone."""
        out = self._out
        try:
            while out:
                out = out[self.sock.send(out) :]
        except BlockingIOError:
            pass
        self._out = out
        if self._writing != bool(out):
            self._writing = bool(out)
            self._receiver.watch(self.fd, writing=self._writing)
        return not out

    def connected(self) -> None:
        """The connect has ended. OSError if it failed."""
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, errno.errorcode.get(code, str(code)))
        self.flush()

    def answered(self) -> None:
        """A response was read to its end on it."""
        self.used = True

    def close(self) -> None:
        """Leave the loop and close; once."""
        if self.fd >= 0:
            self._receiver.remove(self.fd)
            self.sock.close()
            self.fd = -1

    @property
    def is_closed(self) -> bool:
        """Whether it is closed."""
        return self.fd < 0


class LayeredConnection(Connection):
    """A connection with a proxy's tunnel, TLS, or both between the socket and its owner."""

    __slots__ = ("_layer", "_owner", "_tunnel", "_tunnel_request")

    def __init__(
        self,
        sock: socket.socket,
        receiver: Receiver,
        address: Address,
        *,
        layer: TlsLayer | None,
        tunnel_request: bytes | None,
    ) -> None:
        super().__init__(sock, receiver, address)
        self._layer = layer
        self._tunnel_request = tunnel_request
        self._tunnel: ResponseParser | None = None
        self._owner: Owner | None = None

    def watch(self, owner: Owner, *, connecting: bool) -> None:
        """Enter the loop, in front of the owner."""
        self._owner = owner
        self._writing = connecting
        self._receiver.add(self.sock, self, writing=connecting)

    def belong_to(self, owner: Owner) -> None:
        """Give what arrives to another owner."""
        self._owner = owner

    def establish(self, owner: Owner) -> None:
        """Open the tunnel, shake hands, then tell the owner."""
        self._owner = owner
        if self._tunnel_request is not None:
            self._tunnel = ResponseParser()
            super().write(self._tunnel_request)
        elif self._layer is not None:
            self._shake_hands(b"")
        else:
            owner.on_established()

    def read(self, owner: Owner) -> None:  # noqa: ARG002 - reads come through here whoever the owner is
        """One read outside the loop's pass. BlockingIOError when nothing is there."""
        self._receiver.read(self)

    def write(self, data: bytes) -> bool:
        """Encrypt and hand to the kernel."""
        layer = self._layer
        return super().write(data if layer is None else layer.encrypt(data))

    def answered(self) -> None:
        """A response was read to its end: the session can be resumed from here on."""
        if not self.used and self._layer is not None:
            self._layer.keep_session()
        self.used = True

    # --- the loop's side ---

    def on_read(self, data: bytes, at_ns: int, stamped: bool) -> None:
        """Take one read off the socket."""
        # hot: once per read of a TLS connection (benchmarks/receive_path.py)
        owner = self._owner
        layer = self._layer
        assert owner is not None
        if layer is not None and layer.is_open and data:
            plain = layer.decrypt(data)
            if layer.outgoing.pending:
                self._send_output(layer)
            if plain:
                owner.on_read(plain, at_ns, stamped)
            if layer.peer_closed and self.fd >= 0:
                owner.on_read(b"", at_ns, stamped)
        elif not data:
            owner.on_read(data, at_ns, stamped)
        elif self._tunnel is not None:
            self._tunnel_answer(self._tunnel, data)
        elif layer is not None:
            self._shake_hands(data)
            if layer.is_open and (plain := layer.decrypt(b"")):
                owner.on_read(plain, at_ns, stamped)
        else:
            owner.on_read(data, at_ns, stamped)

    def on_mask(self, mask: int) -> None:
        """Writable, hung up or in error: while layers come up it is ours, then the owner's."""
        owner = self._owner
        assert owner is not None
        if self._writing and mask & EPOLLOUT and not mask & (EPOLLERR | EPOLLHUP | EPOLLIN) and self._out:
            if self.flush():
                owner.on_mask(EPOLLOUT)
            return
        owner.on_mask(mask)

    def on_error(self, error: Exception) -> None:
        """Broken."""
        assert self._owner is not None
        self._owner.on_error(error)

    def _tunnel_answer(self, tunnel: ResponseParser, data: bytes) -> None:
        tunnel.feed(data)
        if tunnel.status is None or tunnel.status < 200:
            return
        if tunnel.status != 200:
            raise TunnelRefusedError(f"the proxy answered CONNECT with {tunnel.status}")
        self._tunnel = None
        if self._layer is not None:
            self._shake_hands(b"")
        elif self._owner is not None:
            self._owner.on_established()

    def _shake_hands(self, data: bytes) -> None:
        layer = self._layer
        assert layer is not None
        try:
            done = layer.shake_hands(data)
        finally:
            if layer.outgoing.pending:
                self._send_output(layer)
        if done:
            assert self._owner is not None
            self._owner.on_established()

    def _send_output(self, layer: TlsLayer) -> None:
        """Handshake messages, key updates, alerts: behind what is still being sent."""
        super().write(layer.take_output())


class Connections(Protocol):
    """Where an exchange gets its connection and gives it back: the pool, or a session's own."""

    target_name: str

    def avoid(self, address: Address) -> bool:
        """Never again use an address that refused, while another is left; whether one is."""
        ...

    def take_idle(self) -> "Connection | None":
        """A kept connection, or None."""
        ...

    def open(self, owner: Owner) -> "tuple[Connection, bool]":
        """A new connection in the loop, and whether TCP is already up. OSError when it cannot be."""
        ...

    def keep(self, connection: "Connection") -> None:
        """Take a connection back whose response was read to its end."""
        ...

    def drop(self, connection: "Connection") -> None:
        """Close a connection, idle or not."""
        ...


class _Idle:
    """Owns a kept connection: whatever arrives on it ends it."""

    __slots__ = ("_connection", "_pool", "recvmsg")

    def __init__(self, connection: Connection, pool: Connections) -> None:
        self._connection = connection
        self._pool = pool
        self.recvmsg = connection.recvmsg

    def on_established(self) -> None:
        """Already so."""

    def on_read(self, data: bytes, at_ns: int, stamped: bool) -> None:  # noqa: ARG002 - the loop's contract
        """The end of the stream, or bytes nobody asked for."""
        self._pool.drop(self._connection)

    def on_mask(self, mask: int) -> None:  # noqa: ARG002 - the loop's contract
        """Hung up."""
        self._pool.drop(self._connection)

    def on_error(self, error: Exception) -> None:  # noqa: ARG002 - the loop's contract
        """Broken."""
        self._pool.drop(self._connection)


class SessionConnection:
    """The connection of one session: kept between its turns, used by nobody else."""

    __slots__ = ("_kept", "_pool", "target_name")

    def __init__(self, pool: "ConnectionPool") -> None:
        self.target_name = pool.target_name
        self._pool = pool
        self._kept: Connection | None = None

    def avoid(self, address: Address) -> bool:
        """Never again use an address that refused, while another is left; whether one is."""
        return self._pool.avoid(address)

    def take_idle(self) -> Connection | None:
        """The one of the turn before; None on the first, or when the server has closed it."""
        connection, self._kept = self._kept, None
        return connection

    def open(self, owner: Owner) -> tuple[Connection, bool]:
        """A new one."""
        return self._pool.open(owner)

    def keep(self, connection: Connection) -> None:
        """Hold it for the next turn."""
        connection.answered()
        connection.belong_to(_Idle(connection, self))
        self._kept = connection

    def drop(self, connection: Connection) -> None:
        """Close it."""
        if self._kept is connection:
            self._kept = None
        self._pool.drop(connection)

    def close(self) -> None:
        """The session is over: close what is kept."""
        if self._kept is not None:
            self.drop(self._kept)


class ConnectionPool:
    """Idle connections, the newest first, and the count of open ones."""

    def __init__(self, target: ResolvedTarget, receiver: Receiver) -> None:
        self.target_name = target.place
        self.open_count = 0
        self.unstamped = False
        """The platform gives no receive stamps."""
        self._target = target
        self._receiver = receiver
        self._addresses = list(target.addresses)
        self._idle: dict[Connection, None] = {}
        self._turn = 0

    def avoid(self, address: Address) -> bool:
        """Never again use an address that refused, while another is left; whether one is."""
        others = [each for each in self._addresses if each != address]
        if others:
            self._addresses = others
        return bool(others)

    def take_idle(self) -> Connection | None:
        """The connection kept last, or None."""
        return self._idle.popitem()[0] if self._idle else None

    def open(self, owner: Owner) -> tuple[Connection, bool]:
        """A new connection in the loop, and whether TCP is already up. OSError when it cannot be."""
        while True:
            address = self._addresses[self._turn % len(self._addresses)]
            self._turn += 1
            try:
                connection, established = self._connect(address)
            except ConnectionRefusedError:
                if not self.avoid(address):
                    raise
                continue
            self.open_count += 1
            owner.recvmsg = connection.recvmsg
            connection.watch(owner, connecting=not established)
            return connection, established

    def _connect(self, address: Address) -> tuple[Connection, bool]:
        family, place = address
        sock = _plain_socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.unstamped = not ask_for_stamps(sock)
            code = sock.connect_ex(place)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, errno.errorcode.get(code, str(code)))
        except OSError:
            sock.close()
            raise
        return self._wrap(sock, address), code == 0

    def keep(self, connection: Connection) -> None:
        """Take a connection back whose response was read to its end."""
        connection.answered()
        connection.belong_to(_Idle(connection, self))
        self._idle[connection] = None

    def drop(self, connection: Connection) -> None:
        """Close a connection, idle or not."""
        if not connection.is_closed:
            self._idle.pop(connection, None)
            connection.close()
            self.open_count -= 1

    def close(self) -> None:
        """Close every idle connection."""
        for connection in list(self._idle):
            self.drop(connection)

    def _wrap(self, sock: socket.socket, address: Address) -> Connection:
        target = self._target
        if target.tls is None and target.tunnel_request is None:
            return Connection(sock, self._receiver, address)
        layer = None if target.tls is None else target.tls.layer()
        return LayeredConnection(sock, self._receiver, address, layer=layer, tunnel_request=target.tunnel_request)
