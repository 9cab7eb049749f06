"""TLS without its own sockets: ciphertext in, plaintext out, so that the receive loop keeps its stamps.

One context per worker. A session is kept after the first answer on a connection (in TLS 1.3 the ticket
comes after the handshake) and offered by every later connection.
"""

import ssl

RECORD_BYTES = 16 * 1024
USUAL_BYTES = 2 * 1024
"""A read of a whole record takes a buffer of its size from cold memory; a token seldom needs as much."""


class TlsSettings:
    """The context and the newest session of one target, with counts of handshakes."""

    def __init__(self, *, server_name: str, verify: bool, ca_file: str | None) -> None:
        """ssl.SSLError or OSError when the CA file cannot be used."""
        context = ssl.create_default_context(cafile=ca_file)
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["http/1.1"])
        self.context = context
        self._server_name = server_name
        self.session: ssl.SSLSession | None = None
        self.handshakes = 0
        self.resumed = 0

    def layer(self) -> "TlsLayer":
        """A fresh layer for a new connection."""
        return TlsLayer(self, self.context, self._server_name)


class TlsLayer:
    """One connection's TLS."""

    __slots__ = ("_incoming", "_object", "_read", "_settings", "is_open", "outgoing", "peer_closed")

    def __init__(self, settings: TlsSettings, context: ssl.SSLContext, server_name: str) -> None:
        self._settings = settings
        self._incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self.outgoing, server_hostname=server_name, session=settings.session
        )
        self._read = self._object.read
        self.is_open = False
        self.peer_closed = False
        """The peer has said that nothing more will come."""

    def take_output(self) -> bytes:
        """What TLS itself has to send."""
        return self.outgoing.read()

    def shake_hands(self, data: bytes) -> bool:
        """Go on with the handshake; whether it is done. ssl.SSLError when it fails."""
        if data:
            self._incoming.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.is_open = True
        self._settings.handshakes += 1
        if self._object.session_reused:
            self._settings.resumed += 1
        return True

    def decrypt(self, data: bytes) -> bytes:
        """The plaintext that this read completes; records cut off wait for the rest."""
        # hot: once per read (benchmarks/receive_path.py)
        incoming = self._incoming
        if data:
            incoming.write(data)
        read = self._read
        plain = b""
        try:
            piece = plain = read(USUAL_BYTES)
            while piece and (incoming.pending or len(piece) == USUAL_BYTES):
                piece = read(RECORD_BYTES)
                plain += piece
        except ssl.SSLWantReadError:
            return plain
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            piece = b""
        if not piece:
            self.peer_closed = True
        return plain

    def encrypt(self, data: bytes) -> bytes:
        """Ciphertext for the peer, whatever TLS itself had to send first."""
        view = memoryview(data)
        while view:
            view = view[self._object.write(view) :]
        return self.outgoing.read()

    def keep_session(self) -> None:
        """Let later connections resume from this one."""
        self._settings.session = self._object.session
