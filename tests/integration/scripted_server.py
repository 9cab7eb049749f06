"""A server that answers each request with bytes from a script: the truth of a wire test.

It runs in a thread of its own with plain blocking sockets, reads one whole request per answer, and
then plays the parts: bytes, pauses, a reset, a close, or holding the connection open.
"""

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

HOLD_S = 30.0


class Pause(NamedTuple):
    """Wait before the next part."""

    seconds: float


class Reset:
    """Send a RST."""


class Close:
    """Close properly."""


class Hold:
    """Keep the connection open and say nothing more."""


Part = bytes | Pause | type[Reset] | type[Close] | type[Hold]
Script = Callable[[int], Sequence[Part]]
"""From the number of the request (0, 1, …) to its answer."""


class ScriptedServer:
    """Counts what it saw."""

    def __init__(self, script: Script, context: ssl.SSLContext | None, unix_path: Path | None) -> None:
        self.connections = 0
        self.requests: list[bytes] = []
        self.ending = threading.Event()
        self._script = script
        self._context = context
        if unix_path is not None:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(unix_path))
            self._listener.listen()
            self.port = 0
        else:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.ending.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError, ssl.SSLError):
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True)
            while request := _read_request(sock):
                self.requests.append(request)
                for part in self._script(len(self.requests) - 1):
                    if not self._play(sock, part):
                        return
        sock.close()

    def _play(self, sock: socket.socket, part: Part) -> bool:
        if isinstance(part, bytes):
            sock.sendall(part)
        elif isinstance(part, Pause):
            time.sleep(part.seconds)
        elif part is Reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            return False
        elif part is Close:
            sock.close()
            return False
        else:
            self.ending.wait(HOLD_S)
            sock.close()
            return False
        return True


def _read_request(sock: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    while len(body) < length:
        piece = sock.recv(65536)
        if not piece:
            return b""
        body += piece
    return head + b"\r\n\r\n" + body


@contextlib.contextmanager
def scripted_server(
    script: Script | Sequence[Part], *, context: ssl.SSLContext | None = None, unix_path: Path | None = None
) -> Iterator[ScriptedServer]:
    """A server on a free loopback port that plays the script (the same for each request, or one by number)."""
    parts = script
    server = ScriptedServer(parts if callable(parts) else lambda _: parts, context, unix_path)
    try:
        yield server
    finally:
        server.close()
