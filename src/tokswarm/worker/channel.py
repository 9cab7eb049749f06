"""Locust as the channel between master and workers: what both sides set, guard and replace in it.

Importing this module imports Locust, which patches the process; only entry points and what they call
after patching may do so. Every choice here rests on a measured fault of plain Locust:

- one malformed frame ends the loop that receives messages, for good: receiving is guarded;
- the dispatcher calls `start` in that loop whenever a worker joins, heals or quits: ours does not;
- a worker that comes back under its identity before its old connection is known dead is not heard:
  connections are handed over, and beaten by ZMTP heartbeats;
- the parser of all options is built once per option and message: it is built once.
"""

import functools
import logging
import time
from collections.abc import Iterator
from typing import Any

import gevent
import zmq.green as zmq
from locust import User, argument_parser, runners, task
from locust.exception import RPCError
from locust.rpc import Message as LocustMessage
from locust.rpc import zmqrpc

_log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 << 20
"""A plan that replays a long trace is a few MB."""
ZMTP_BEAT_MS = 2000
ZMTP_SILENCE_MS = 6000
RECONNECT_MS = 250
LINGER_MS = 1000
WARN_EVERY_S = 5.0
NEVER_S = 1e9


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
        """A late worker has no part in the run under way."""

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


class MasterSocket(zmqrpc.Server):
    """Locust's ROUTER socket that survives whatever bytes come in, and believes no worker to be another."""

    def __init__(self, host: str, port: int) -> None:
        zmqrpc.BaseSocket.__init__(self, zmq.ROUTER, self.ipv4_only(host, port))
        self._complaints = Complaints()
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self.socket.setsockopt(zmq.LINGER, LINGER_MS)
        _beat(self.socket)
        try:
            self.port = self.socket.bind_to_random_port(f"tcp://{host}") if port == 0 else port
            if port != 0:
                self.socket.bind(f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            self.socket.close(linger=0)
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


class WorkerSocket(zmqrpc.Client):
    """Locust's DEALER socket that finds a restarted master by itself and survives unreadable bytes."""

    def __init__(self, host: str, port: int, identity: str) -> None:
        zmqrpc.BaseSocket.__init__(self, zmq.DEALER, self.ipv4_only(host, port))
        self._complaints = Complaints()
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
    zmqrpc.Server = MasterSocket  # type: ignore[misc]
    zmqrpc.Client = WorkerSocket  # type: ignore[misc]
    if not hasattr(argument_parser.default_args_dict, "cache_info"):
        argument_parser.default_args_dict = functools.cache(argument_parser.default_args_dict)
        # Locust's page would read our own command line, and end the process over its options.
        argument_parser.ui_extra_args_dict = functools.partial(argument_parser.ui_extra_args_dict, [])
