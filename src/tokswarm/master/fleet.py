"""The fleet on the master's side: Locust's master runner, guarded, and the workers heard from.

A worker is known by its pings, not by Locust's list: a name, the process behind it, when it was last
heard, how far its clock is off. Of two processes with one name the newer has it; the older is refused.
"""

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
import msgspec

from tokswarm.errors import ConfigError, FleetError
from tokswarm.master.link import FleetWorker, Received
from tokswarm.version import VERSION
from tokswarm.worker.join import FleetKeys, Join, fleet_keys, is_loopback
from tokswarm.worker.messages import (
    PROTOCOL,
    Ack,
    Chunk,
    Final,
    Message,
    Ping,
    Refused,
    Reshared,
    Second,
    StageDone,
    Welcome,
    decode,
    encode,
)
from tokswarm.worker.name import check_name

if TYPE_CHECKING:
    from locust.env import Environment

    from tokswarm.worker.channel import Complaints

_log = logging.getLogger(__name__)

SILENT_S = 3.0
"""A worker that missed three pings is shown as silent, and given no part in a new run."""
FORGOTTEN_S = 60.0
SKEW_PINGS = 30
"""The quickest of so many pings says how far a clock is off."""
END_LOAD_TIMEOUT_S = 10.0

INBOUND: dict[str, type[Message]] = {
    type_.TYPE: type_ for type_ in (Ping, Ack, StageDone, Second, Reshared, Final, Chunk)
}


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the master listens for workers."""

    bind_host: str = "127.0.0.1"
    bind_port: int = 5557
    """0: any free one."""
    key_file: Path | None = None
    """The fleet's keys, made when there are none; None: neither encryption nor authentication, on loopback only."""


class _Seen(msgspec.Struct):
    """A worker process that pings."""

    worker: str
    client: str
    host: str
    heard_s: float
    run_id: str
    ahead_s: deque[float]


class Fleet:
    """The workers, and the channel to them; satisfies `tokswarm.master.link.FleetLink`."""

    def __init__(self, options: FleetOptions, *, on_message: Callable[[Received], None]) -> None:
        """`on_message` is told of every message of a known worker; it must not block."""
        self.epoch = secrets.token_hex(8)
        self._options = options
        self._on_message = on_message
        self._by_client: dict[str, _Seen] = {}
        self._by_name: dict[str, str] = {}
        self._displaced: dict[str, float] = {}
        self._ending: gevent.Greenlet | None = None
        self._housekeeper: gevent.Greenlet | None = None
        self._environment: Environment | None = None
        self._complaints: Complaints | None = None
        self._runner: Any = None
        self._keys: FleetKeys | None = None

    def open(self) -> None:
        """Listen. The process must be patched. FleetError when the address cannot be used, ConfigError for keys."""
        # Locust is imported here, and not above: importing it patches the process.
        from locust.env import Environment  # noqa: PLC0415
        from locust.exception import RPCError  # noqa: PLC0415
        from locust.stats import stats_history  # noqa: PLC0415

        from tokswarm.worker.channel import (  # noqa: PLC0415
            Complaints,
            OnePerWorker,
            Placeholder,
            listen_with,
            prepare_locust,
        )

        host, port = self._options.bind_host, self._options.bind_port
        if self._options.key_file is not None:
            self._keys = fleet_keys(self._options.key_file)
        elif not is_loopback(host):
            raise ConfigError(
                f"workers would be taken on {host}:{port} without encryption, so anyone could drive the fleet",
                hint="leave out --unencrypted, or bind 127.0.0.1",
            )
        prepare_locust()
        listen_with(self._keys)
        self._complaints = Complaints()
        self._environment = Environment(user_classes=[Placeholder], dispatcher_class=OnePerWorker)  # type: ignore[arg-type]
        try:
            self._runner = self._environment.create_master_runner(host, port)
        except RPCError as error:
            raise FleetError(
                f"workers cannot be taken on {host}:{port}: {error}",
                hint="end the other master on it, or choose another --port",
            ) from error
        if port == 0:
            self._runner.master_bind_port = self._runner.server.port  # for when Locust binds anew
        self._inner = self._runner.handle_message
        self._runner.handle_message = self._guarded
        self._runner.greenlet.spawn(stats_history, self._runner)
        self._housekeeper = gevent.spawn(self._forget_the_dead)

    @property
    def port(self) -> int:
        """Where workers connect."""
        port: int = self._runner.server.port
        return port

    def join(self, host: str) -> Join | None:
        """What a worker needs that reaches this master as `host`; None when the channel is not encrypted."""
        return None if self._keys is None else self._keys.join(host, self.port)

    @property
    def environment(self) -> "Environment":
        """Locust's environment, for its web page."""
        if self._environment is None:
            raise FleetError("the fleet is not open yet")
        return self._environment

    def close(self) -> None:
        """Stop listening. Workers stay, and join the next master on this address. May be called again."""
        if self._housekeeper is not None:
            self._housekeeper.kill()
        if self._ending is not None:
            self._ending.kill()
        if self._runner is not None:
            self._runner.greenlet.kill(block=True, timeout=5)
            self._runner.server.close()
            self._runner = None

    # --- what a run needs -----------------------------------------------------------------------------

    def workers(self) -> list[FleetWorker]:
        """Those heard from lately, by name."""
        now_s = time.monotonic()
        return sorted(
            (
                FleetWorker(
                    worker=seen.worker,
                    client=seen.client,
                    host=seen.host,
                    state="silent" if now_s - seen.heard_s > SILENT_S else "running" if seen.run_id else "ready",
                    clock_ahead_s=max(seen.ahead_s),
                    pings=len(seen.ahead_s),
                )
                for seen in self._by_client.values()
            ),
            key=lambda worker: worker.worker,
        )

    def send(self, worker: str, message: Message) -> None:
        """Hand a message over for this worker; it may get lost with the worker. Never raises."""
        client = self._by_name.get(worker)
        if client is not None:
            self._send_to(client, message)

    def begin_load(self) -> None:
        """Show the fleet as running: one placeholder user per worker in Locust."""
        if self._ending is not None:
            self._ending.join(END_LOAD_TIMEOUT_S)
            self._ending.kill()  # its end must not stop what begins now
        workers = self._runner.worker_count
        if workers:
            self._runner.start(workers, spawn_rate=workers)

    def end_load(self) -> None:
        """Show the fleet as stopped; returns at once (Locust takes a second)."""
        self._ending = gevent.spawn(self._runner.stop)

    def drop(self, client: str) -> None:
        """This process is lost: Locust would wait for it at the stop. It is known again when it pings."""
        clients = self._runner.clients
        if client in clients:
            del clients[client]
            self._runner.check_stopped()

    # --- what comes in ----------------------------------------------------------------------------------

    def _guarded(self, client: str, message: Any) -> None:
        """In place of Locust's own handler, which still gets its own messages of the workers it knows."""
        try:
            type_ = INBOUND.get(message.type)
            if type_ is not None:
                self._take(client, decode(type_, message.data))
            elif message.type == "client_ready" or client in self._runner.clients:
                self._inner(client, message)
            if message.type == "quit":  # of one that Locust has dropped, too
                self._forget(client)
        except Exception as error:  # noqa: BLE001 -- root of a message: a bad one must not end the loop
            if self._complaints is not None:
                self._complaints.add(f"a message {message.type!r} could not be handled", f"from {client}: {error!r}")

    def _take(self, client: str, message: Message) -> None:
        if isinstance(message, Ping):
            self._take_ping(client, message)
        seen = self._by_client.get(client)
        if seen is None:
            return  # it did not introduce itself, or was refused
        now_s = time.monotonic()
        seen.heard_s = now_s
        self._on_message(Received(worker=seen.worker, client=client, received_s=now_s, message=message))

    def _take_ping(self, client: str, ping: Ping) -> None:
        refusal = self._refusal(client, ping)
        if refusal:
            self._send_to(client, Refused(run_id="", reason=refusal))
            return
        seen = self._by_client.get(client)
        if seen is None:
            seen = self._introduce(client, ping)
        seen.run_id = ping.run_id
        seen.ahead_s.append((ping.wall_unix_ns - time.time_ns()) / 1e9)
        unregistered = client not in self._runner.clients
        if ping.epoch != self.epoch or unregistered:
            self._send_to(client, Welcome(run_id="", epoch=self.epoch, register=unregistered))

    def _refusal(self, client: str, ping: Ping) -> str:
        if ping.protocol != PROTOCOL:
            return (
                f"it speaks protocol {ping.protocol} (tokswarm {ping.version}), the master {PROTOCOL} "
                f"(tokswarm {VERSION}); install the same version on both"
            )
        try:
            check_name(ping.worker)
        except ConfigError as error:
            return str(error)
        if client in self._displaced:
            self._displaced[client] = time.monotonic()
            return f"another worker has the name {ping.worker!r}; give each its own --name"
        return ""

    def _introduce(self, client: str, ping: Ping) -> _Seen:
        older = self._by_name.get(ping.worker)
        if older is not None:
            self._displaced[older] = time.monotonic()
            self._by_client.pop(older, None)
            self._send_to(older, Refused(run_id="", reason=f"a newer worker took the name {ping.worker!r}"))
        seen = _Seen(ping.worker, client, ping.host, time.monotonic(), ping.run_id, deque(maxlen=SKEW_PINGS))
        self._by_client[client] = seen
        self._by_name[ping.worker] = client
        _log.info("worker %s on %s has joined", ping.worker, ping.host)
        return seen

    def _forget(self, client: str) -> None:
        seen = self._by_client.pop(client, None)
        if seen is not None and self._by_name.get(seen.worker) == client:
            self._by_name.pop(seen.worker)

    def _send_to(self, client: str, message: Message) -> None:
        from locust.exception import RPCError, RPCSendError  # noqa: PLC0415 -- see open
        from locust.rpc import Message as LocustMessage  # noqa: PLC0415

        if self._runner is None:
            return
        try:
            self._runner.server.send_to_client(LocustMessage(message.TYPE, encode(message), client))
        except (RPCError, RPCSendError) as error:
            _log.warning("a message %s to %s could not be sent: %s", message.TYPE, client, error)

    def _forget_the_dead(self) -> None:
        while True:
            gevent.sleep(SILENT_S)
            now_s = time.monotonic()
            for seen in list(self._by_client.values()):
                if now_s - seen.heard_s > FORGOTTEN_S:
                    self._forget(seen.client)
                    self.drop(seen.client)
            for client, heard_s in list(self._displaced.items()):
                if now_s - heard_s > FORGOTTEN_S:
                    self._displaced.pop(client)
