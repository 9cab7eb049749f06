"""Locust as the channel between master and workers: what both sides set, guard and replace in it.

Importing this module imports Locust, which patches the process; only entry points and what they call
after patching may do so. Every choice here rests on a measured fault of plain Locust:

- one malformed frame ends the loop that receives messages, for good: receiving is guarded;
- the dispatcher calls `start` in that loop whenever a worker joins, heals or quits: ours does not;
- a worker that comes back under its identity before its old connection is known dead is not heard:
  connections are handed over, and beaten by ZMTP heartbeats;
- the parser of all options is built once per option and message: it is built once;
- whoever reaches the port is believed: the channel is encrypted, and only workers with the fleet's key are let in.
  Without a ZAP handler CURVE lets in everyone, so the domain is enforced: no handler, no entry.
"""

import functools
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import zmq.green as zmq
from locust import User, argument_parser, runners, task
from locust.exception import RPCError
from locust.rpc import Message as LocustMessage
from locust.rpc import zmqrpc
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from tokswarm.errors import FleetError
from tokswarm.worker.join import FleetKeys, Join, public_key

_log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 << 20
"""A plan that replays a long trace is a few MB."""
ZMTP_BEAT_MS = 2000
ZMTP_SILENCE_MS = 6000
RECONNECT_MS = 250
LINGER_MS = 1000
WARN_EVERY_S = 5.0
NEVER_S = 1e9
HANDSHAKE_MS = 5000
CUT_HANDSHAKES = 3
"""So many in a row, before any that succeeded, are no accident of a master that is just starting."""
_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"
_ZAP_DOMAIN = b"tokswarm"


class Placeholder(User):
    """The one Locust user of each worker: it shows the fleet as running and sends nothing; the engine is the load."""

    @task
    def idle(self) -> None:
        """Sleep until the run stops."""
        gevent.sleep(3600)


class OnePerWorker:
    """A dispatcher that places one Placeholder on each worker there is at the start, and then keeps still."""

    dispatch_in_progress = True  # so that Locust never calls start() from its message loop

    def __init__(self, worker_nodes: list[Any], user_classes: list[Any]) -> None:  # noqa: ARG002 -- Locust's signature
        self._ids = [node.id for node in worker_nodes]

    def new_dispatch(self, target_user_count: int, spawn_rate: float, user_classes: Any = None) -> None:
        """Nothing to work out."""

    def __iter__(self) -> Iterator[dict[str, dict[str, int]]]:
        yield {node_id: {Placeholder.__name__: 1} for node_id in self._ids}

    def add_worker(self, worker_node: Any) -> None:
        """A late worker gets its share of the run under way by a message of ours."""

    def remove_worker(self, worker_node: Any) -> None:
        """Nobody takes its place."""


class Complaints:
    """One log line per kind and five seconds, with a count, however many come."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._said_s: dict[str, float] = {}

    def add(self, kind: str, detail: str) -> None:
        """Say it, or hold it back and count it."""
        now_s = time.monotonic()
        if now_s - self._said_s.get(kind, -WARN_EVERY_S) < WARN_EVERY_S:
            self._held[kind] = self._held.get(kind, 0) + 1
            return
        self._said_s[kind] = now_s
        _log.warning("%s: %s (%d more before)", kind, detail, self._held.pop(kind, 0))


class Gate:
    """Who may speak to a CURVE socket of this context: who has the fleet's key (the ZAP of ZeroMQ, RFC 27)."""

    def __init__(self, context: Any, client_public: bytes, complaints: Complaints) -> None:
        self._client_public = client_public
        self._complaints = complaints
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_ZAP_ADDRESS)
        self._greenlet = gevent.spawn(self._serve)

    def close(self) -> None:
        """Let nobody in any more."""
        self._greenlet.kill()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            frames = self._socket.recv_multipart()
            request = frames[1] if len(frames) > 1 else b""
            let_in = frames[5:] == [b"CURVE", self._client_public] and frames[2] == _ZAP_DOMAIN
            if not let_in:
                address = frames[3].decode(errors="replace") if len(frames) > 3 else "?"
                self._complaints.add("a worker with another fleet's join string was not let in", f"from {address}")
            status = (b"200", b"", b"worker") if let_in else (b"400", b"not of this fleet", b"")
            self._socket.send_multipart([_ZAP_VERSION, request, *status, b""])


class MasterSocket(zmqrpc.Server):
    """Locust's ROUTER socket that survives whatever bytes come in, and believes no worker to be another."""

    def __init__(self, host: str, port: int, *, keys: FleetKeys | None) -> None:
        """`keys` None: neither encrypted nor authenticated."""
        zmqrpc.BaseSocket.__init__(self, zmq.ROUTER, self.ipv4_only(host, port))
        self._complaints = Complaints()
        self._gate: Gate | None = None
        if keys is not None:
            self._gate = Gate(self.socket.context, keys.client_public, self._complaints)
            self.socket.setsockopt(zmq.CURVE_SERVER, 1)
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(keys.server_secret))
            self.socket.setsockopt(zmq.ZAP_DOMAIN, _ZAP_DOMAIN)
            self.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self.socket.setsockopt(zmq.LINGER, LINGER_MS)
        _beat(self.socket)
        try:
            self.port = self.socket.bind_to_random_port(f"tcp://{host}") if port == 0 else port
            if port != 0:
                self.socket.bind(f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            self.close(linger=0)
            raise RPCError(f"Socket bind failure: {error}") from error

    def recv_from_client(self) -> tuple[str, LocustMessage]:
        """The next message that is one. RPCError when the socket itself is broken."""
        while True:
            try:
                sender, message = super().recv_from_client()  # type: ignore[no-untyped-call]
            except RPCError as error:
                if isinstance(error.__cause__, zmq.ZMQError):
                    raise
                self._complaints.add("a message that cannot be read was dropped", repr(error))
            except Exception as error:  # noqa: BLE001 -- foreign bytes: decoding them may raise anything
                self._complaints.add("a message that cannot be read was dropped", repr(error))
            else:
                if isinstance(message.type, str) and message.node_id == sender:
                    return str(sender), message
                self._complaints.add("a message under another's name was dropped", f"from {sender!r}")

    def close(self, linger: int | None = None) -> None:
        """Stop listening; nobody is let in any more."""
        if self._gate is not None:
            self._gate.close()
            self._gate = None
        super().close(linger=linger)  # type: ignore[no-untyped-call]


class Handshakes:
    """What the handshakes with a master say about the join string."""

    EVENTS = (
        zmq.EVENT_HANDSHAKE_SUCCEEDED
        | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    )

    def __init__(self, host: str, port: int) -> None:
        self._master = f"the master at {host}:{port}"
        self._cut = 0
        self._succeeded = False

    def see(self, event: int) -> str:
        """Why there is no use in trying on; empty while there is."""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._succeeded = True
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return f"{self._master} did not accept the join string: it is not, or no longer, that of its fleet"
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            return f"{self._master} does not encrypt its channel as the join string asks"
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and not self._succeeded:
            self._cut += 1
            if self._cut >= CUT_HANDSHAKES:
                return f"{self._master} did not accept the join string: it is another master, or takes none"
        return ""


class WorkerSocket(zmqrpc.Client):
    """Locust's DEALER socket that finds a restarted master by itself and survives unreadable bytes."""

    def __init__(
        self, host: str, port: int, identity: str, *, join: Join | None, on_refused: Callable[[str], None]
    ) -> None:
        """`join` None: neither encrypted nor authenticated. `on_refused` is told why the master lets nobody in."""
        zmqrpc.BaseSocket.__init__(self, zmq.DEALER, self.ipv4_only(host, port))
        self._complaints = Complaints()
        self._watcher: gevent.Greenlet | None = None
        if join is not None:
            self.socket.setsockopt(zmq.CURVE_SERVERKEY, z85.encode(join.server_public))
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, z85.encode(public_key(join.client_secret)))
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(join.client_secret))
        monitor = self.socket.get_monitor_socket(Handshakes.EVENTS)
        self._watcher = gevent.spawn(_watch, monitor, Handshakes(host, port), on_refused)
        self.socket.setsockopt(zmq.IDENTITY, identity.encode())
        self.socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self.socket.setsockopt(zmq.LINGER, LINGER_MS)
        _beat(self.socket)
        self.socket.connect(f"tcp://{host}:{port}")

    def recv(self) -> LocustMessage:
        """The next message that is one. RPCError when the socket itself is broken."""
        while True:
            try:
                message: LocustMessage = super().recv()  # type: ignore[no-untyped-call]
            except RPCError as error:
                if isinstance(error.__cause__, zmq.ZMQError):
                    raise
                self._complaints.add("a message that cannot be read was dropped", repr(error))
            except Exception as error:  # noqa: BLE001 -- foreign bytes: decoding them may raise anything
                self._complaints.add("a message that cannot be read was dropped", repr(error))
            else:
                if isinstance(message.type, str):
                    return message
                self._complaints.add("a message without a type was dropped", "from the master")

    def close(self, linger: int | None = None) -> None:
        """Leave the master."""
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher = None
            self.socket.disable_monitor()
        super().close(linger=linger)  # type: ignore[no-untyped-call]


def _watch(monitor: Any, handshakes: Handshakes, on_refused: Callable[[str], None]) -> None:
    while True:
        reason = handshakes.see(parse_monitor_message(monitor.recv_multipart())["event"])
        if reason:
            on_refused(reason)
            return


def _beat(socket: Any) -> None:
    socket.setsockopt(zmq.HEARTBEAT_IVL, ZMTP_BEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, ZMTP_SILENCE_MS)


def prepare_locust() -> None:
    """Set Locust up for us: once, before a runner is made, in a patched process."""
    runners.HEARTBEAT_INTERVAL = 1
    runners.HEARTBEAT_LIVENESS = 5
    # Lost workers are removed by the run; Locust's own removal calls start(), which may overlap a stop.
    runners.HEARTBEAT_DEAD_INTERNAL = int(-NEVER_S)
    # It compares wall clocks, so a step of the clock would end a worker; the node has its own, monotonic rule.
    runners.MASTER_HEARTBEAT_TIMEOUT = int(NEVER_S)
    runners.WORKER_REPORT_INTERVAL = 3.0
    runners.WORKER_LOG_REPORT_INTERVAL = -1
    if not hasattr(argument_parser.default_args_dict, "cache_info"):
        argument_parser.default_args_dict = functools.cache(argument_parser.default_args_dict)
        # Locust's page would read our own command line, and end the process over its options.
        argument_parser.ui_extra_args_dict = functools.partial(argument_parser.ui_extra_args_dict, [])


def listen_with(keys: FleetKeys | None) -> None:
    """Masters made from now on let in the workers of this fleet; None: whoever comes."""
    _need_curve(keys)
    zmqrpc.Server = functools.partial(MasterSocket, keys=keys)  # type: ignore[misc, assignment]


def connect_with(join: Join | None, *, on_refused: Callable[[str], None]) -> None:
    """Workers made from now on join by this; None: without a key."""
    _need_curve(join)
    zmqrpc.Client = functools.partial(WorkerSocket, join=join, on_refused=on_refused)  # type: ignore[misc, assignment]


def _need_curve(secret: object) -> None:
    if secret is not None and not zmq.has("curve"):
        raise FleetError(
            "this installation of ZeroMQ cannot encrypt: it was built without CURVE",
            hint="install pyzmq from its wheels: pip install --force-reinstall --only-binary pyzmq pyzmq",
        )
