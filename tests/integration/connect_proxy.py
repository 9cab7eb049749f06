"""An HTTP proxy that opens tunnels to one place, whatever host is asked for; it notes what was asked."""

import contextlib
import socket
import threading
from collections.abc import Iterator


class ConnectProxy:
    """Answers CONNECT with `status`; on 200 it carries bytes both ways."""

    def __init__(self, place: tuple[str, int], status: str) -> None:
        self.asked: list[bytes] = []
        self._place = place
        self._status = status
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(4096)
        self.asked.append(head)
        sock.sendall(f"HTTP/1.1 {self._status}\r\n\r\n".encode())
        if not self._status.startswith("200"):
            sock.close()
            return
        far = socket.create_connection(self._place)
        threading.Thread(target=_carry, args=(far, sock), daemon=True).start()
        _carry(sock, far)


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def connect_proxy(port: int, status: str = "200 Connection established") -> Iterator[ConnectProxy]:
    """A proxy whose tunnels end at this loopback port."""
    proxy = ConnectProxy(("127.0.0.1", port), status)
    try:
        yield proxy
    finally:
        proxy.close()
