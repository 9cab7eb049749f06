"""Connections to one target: opened without blocking, kept for the next request, dropped when the peer ends them."""

import errno
import socket
from collections.abc import Callable

from gevent import monkey

from tokswarm.wire.clock import ask_for_stamps
from tokswarm.wire.receiver import Receiver
from tokswarm.wire.target import ResolvedTarget

_plain_socket: type[socket.socket] = monkey.get_original("socket", "socket")


class Connection:
    """One socket in the receive loop. While idle it owns itself, and whatever arrives then ends it."""

    __slots__ = ("_pool", "fd", "recvmsg", "send", "sock", "stamps", "used")

    def __init__(self, pool: "ConnectionPool", sock: socket.socket, *, stamps: bool) -> None:
        self._pool = pool
        self.sock = sock
        self.fd = sock.fileno()
        self.recvmsg: Callable[..., tuple[bytes, list[tuple[int, int, bytes]], int, object]] = sock.recvmsg
        self.send = sock.send
        self.stamps = stamps
        self.used = False
        """A request has been answered on it before."""

    def on_read(self, data: bytes, at_ns: int, stamped: bool) -> None:  # noqa: ARG002 - the loop's contract
        """Idle, yet something came: the end of the stream, or bytes nobody asked for."""
        self._pool.drop(self)

    def on_mask(self, mask: int) -> None:  # noqa: ARG002 - the loop's contract
        """Idle and hung up."""
        self._pool.drop(self)

    def on_error(self, error: Exception) -> None:  # noqa: ARG002 - the loop's contract
        """Idle and broken."""
        self._pool.drop(self)


class ConnectionPool:
    """Idle connections, the newest first, and the count of open ones."""

    def __init__(self, target: ResolvedTarget, receiver: Receiver) -> None:
        self._target = target
        self._receiver = receiver
        self._idle: list[Connection] = []
        self._turn = 0
        self.open_count = 0
        self.target_name = target.name

    def take_idle(self) -> Connection | None:
        """A kept connection, or None."""
        return self._idle.pop() if self._idle else None

    def open(self) -> tuple[Connection, bool]:
        """A new connection in the loop, and whether it is already established. OSError when it cannot be."""
        family, address = self._target.addresses[self._turn % len(self._target.addresses)]
        self._turn += 1
        sock = _plain_socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stamps = ask_for_stamps(sock)
            code = sock.connect_ex(address)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, errno.errorcode.get(code, str(code)))
        except OSError:
            sock.close()
            raise
        self.open_count += 1
        return Connection(self, sock, stamps=stamps), code == 0

    def keep(self, connection: Connection) -> None:
        """Take a connection back whose response was read to its end."""
        connection.used = True
        self._receiver.hand_over(connection.fd, connection)
        self._idle.append(connection)

    def drop(self, connection: Connection) -> None:
        """Close a connection, idle or not."""
        if connection.fd < 0:
            return
        if connection in self._idle:
            self._idle.remove(connection)
        self._receiver.remove(connection.fd)
        connection.sock.close()
        connection.fd = -1
        self.open_count -= 1

    def close(self) -> None:
        """Close every idle connection."""
        for connection in list(self._idle):
            self.drop(connection)
