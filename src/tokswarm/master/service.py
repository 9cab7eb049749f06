"""A whole master: fleet, run control, store, local workers and the web page, started and ended together."""

import fcntl
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gevent
import msgspec
from gevent.event import Event
from gevent.pywsgi import WSGIServer

from tokswarm.errors import FleetError, TokswarmError
from tokswarm.master.clock import SystemClock
from tokswarm.master.control import ControlOptions, RunControl
from tokswarm.master.course import BY_SIGNAL
from tokswarm.master.endpoints import PreflightResult
from tokswarm.master.finish import finish_in_child
from tokswarm.master.fleet import Fleet, FleetOptions
from tokswarm.master.journal import Journal
from tokswarm.master.link import Received
from tokswarm.master.local import Command, LocalWorkers, worker_command
from tokswarm.master.preflight import preflight
from tokswarm.master.server_watch import watch_servers
from tokswarm.master.store import Store
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event as RunEvent
from tokswarm.measure.window import FleetSecond
from tokswarm.resources import resource_dir
from tokswarm.sink.settings import InfluxSettings
from tokswarm.traffic.mix import Mix, Target
from tokswarm.web.app import WebSettings, install
from tokswarm.worker.join import write_secret

_log = logging.getLogger(__name__)

STORE_FILE = "tokswarm.sqlite"
LOCK_FILE = "master.lock"
KEY_FILE = "fleet.key"
JOIN_FILE = "fleet.join"
"""How workers on this machine join; only the owner can read it."""
ANY_ADDRESS = ("0.0.0.0", "::", "*")  # noqa: S104 -- compared with, not bound
READY_TIMEOUT_S = 30.0
WIND_DOWN_TIMEOUT_S = 180.0
"""A run that is stopped still drains, fetches its logs and makes its report."""


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a master is told."""

    data_dir: Path
    """Runs, store and logs; one master at a time."""
    bind_host: str = "127.0.0.1"
    bind_port: int = 5557
    """Where workers connect; 0: any free port."""
    encrypted: bool = True
    """False: no join string is needed; on loopback only."""
    join_host: str | None = None
    """By which host other machines reach this master; None: `bind_host`, or this machine's name when that is any."""
    join_file: Path | None = None
    """The join string is written here, too."""
    web_host: str | None = "127.0.0.1"
    """None: no web page."""
    web_port: int = 8089
    """0: any free port."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names by which browsers may reach the page."""
    local_workers: int = 0
    mixes_dir: Path | None = None
    """None: the mixes that ship with tokswarm."""


def master_is_there(data_dir: Path) -> bool:
    """Whether a master uses this data directory now."""
    try:
        with (data_dir / LOCK_FILE).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go of at once: the file is closed
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


class Service:
    """One master process. The process must be patched by gevent."""

    def __init__(
        self,
        settings: ServiceSettings,
        *,
        check_endpoint: Callable[[Mix, Target], PreflightResult] = preflight,
        report: Callable[[Path], dict[str, Any]] = finish_in_child,
        local_command: Command | None = None,
    ) -> None:
        """`local_command` None: `tokswarm worker` in this interpreter."""
        settings = msgspec.structs.replace(settings, data_dir=settings.data_dir.absolute())
        self._settings = settings
        self._local_command = local_command
        self._store = Store(settings.data_dir / STORE_FILE)
        self._influx = InfluxSettings.from_environ(os.environ)
        self.fleet = Fleet(
            FleetOptions(
                bind_host=settings.bind_host,
                bind_port=settings.bind_port,
                key_file=settings.data_dir / KEY_FILE if settings.encrypted else None,
            ),
            on_message=self._receive,
        )
        self.control = RunControl(
            ControlOptions(
                data_dir=settings.data_dir, mixes_dir=settings.mixes_dir or resource_dir("locustfiles") / "mixes"
            ),
            fleet=self.fleet,
            store=self._store,
            preflight=check_endpoint,
            watch_servers=watch_servers,
            open_journal=self._open_journal,
            report=report,
            new_clock=SystemClock,
            environ=os.environ,
        )
        self.local: LocalWorkers | None = None
        self._web: WSGIServer | None = None
        self._lock: int | None = None
        self._signals = 0
        self._ended = Event()

    def start(self) -> None:
        """Start everything; what was started is stopped again when a later part fails. TokswarmError."""
        try:
            self._take_lock()
            self._store.open()
            self.fleet.open()
            self._write_join_files()
            self.control.open()
            if self._settings.local_workers:
                command = self._local_command or worker_command(
                    master_port=self.fleet.port,
                    data_dir=self._settings.data_dir,
                    join_file=self._settings.data_dir / JOIN_FILE if self._settings.encrypted else None,
                )
                self.local = LocalWorkers(
                    self._settings.local_workers, command=command, log_dir=self._settings.data_dir / "logs"
                )
                self.local.start()
            if self._settings.web_host is not None:
                self._start_web(self._settings.web_host)
        except BaseException:
            self.stop()
            raise

    @property
    def join_string(self) -> str | None:
        """What `tokswarm worker --join` takes on other machines, a secret; None when none is needed."""
        bind_host = self._settings.bind_host
        reached_as = socket.gethostname() if bind_host in ANY_ADDRESS else bind_host
        join = self.fleet.join(self._settings.join_host or reached_as)
        return None if join is None else join.text()

    @property
    def web_url(self) -> str | None:
        """Where the page is; None without one."""
        if self._web is None:
            return None
        host = self._web.server_host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._web.server_port}/"

    @property
    def told_to_end(self) -> bool:
        """Whether a signal has come."""
        return self._signals > 0

    def wait_ready(self, workers: int, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until so many workers are ready, or a signal comes. FleetError, with what a local worker said last."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            ready = sum(worker.state == "ready" for worker in self.fleet.workers())
            if ready >= workers or self.told_to_end:
                return
            trouble = self.local.trouble() if self.local is not None else ""
            if trouble or time.monotonic() > deadline_s:
                raise FleetError(
                    f"{ready} of {workers} workers are ready after {timeout_s:g} s{': ' if trouble else ''}{trouble}",
                    hint=f"see the workers' output in {self._settings.data_dir / 'logs'}",
                )
            gevent.sleep(0.05)

    def handle_signals(self) -> None:
        """First SIGINT or SIGTERM: the run under way drains and stops, its results are kept. Second: leave at once."""
        for number in (signal.SIGINT, signal.SIGTERM):
            gevent.signal_handler(number, self._on_signal, number)

    def serve(self) -> None:
        """Handle signals, and wait for one and the end of the run it stopped."""
        self.handle_signals()
        self._ended.wait()

    def stop(self) -> None:
        """End everything, a run under way first. May be called again."""
        self.control.close(timeout_s=WIND_DOWN_TIMEOUT_S)
        if self._web is not None:
            self._web.stop(timeout=1)
            self._web = None
        if self.local is not None:
            self.local.stop()
        self.fleet.close()
        self._store.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _write_join_files(self) -> None:
        text = self.join_string
        if text is None:
            return
        write_secret(self._settings.data_dir / JOIN_FILE, text)
        if self._settings.join_file is not None:
            write_secret(self._settings.join_file, text)

    def _receive(self, received: Received) -> None:
        self.control.receive(received)

    def _on_signal(self, number: int) -> None:
        self._signals += 1
        if self._signals == 1:
            _log.info("told to end: the run under way drains; a second signal leaves at once")
            self.control.end(stopped_by=BY_SIGNAL)
            active = self.control.active()
            if active is not None:
                self.control.wait(active.run_id, timeout_s=WIND_DOWN_TIMEOUT_S)
            self._ended.set()
            return
        if self.local is not None:
            self.local.kill()
        signal.signal(number, signal.SIG_DFL)  # so that the caller sees which signal ended us
        os.kill(os.getpid(), number)

    def _take_lock(self) -> None:
        path = self._settings.data_dir / LOCK_FILE
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise TokswarmError(
                f"the data directory {path.parent} cannot be used: {error.strerror}",
                hint="check its rights, or choose another with --data-dir",
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FleetError(
                f"another master uses the data directory {path.parent}",
                hint="start the run on that master's page, or give this one another --data-dir",
            ) from error

    def _open_journal(
        self, run_id: str, run_dir: Path, show: Callable[[Sequence[FleetSecond | ServerSecond | RunEvent]], None]
    ) -> Journal:
        return Journal(run_id=run_id, run_dir=run_dir, store=self._store, influx=self._influx, show=show)

    def _start_web(self, host: str) -> None:
        environment = self.fleet.environment
        ui = environment.create_web_ui(
            host=host, port=self._settings.web_port, web_base_path="/locust", delayed_start=True
        )
        app = ui.app
        assert app is not None  # Locust makes it in the constructor
        server = WSGIServer((host, self._settings.web_port), app, log=None, error_log=_log)
        try:
            server.init_socket()
        except OSError as error:
            raise FleetError(
                f"the page cannot be served at {host}:{self._settings.web_port}: {error.strerror}",
                hint="end what uses that port, or choose another with --web-port",
            ) from error
        self._web = server
        settings = WebSettings(port=server.server_port, host=host, allowed_hosts=self._settings.allowed_hosts)
        install(app, self.control, settings)
        environment.events.init.fire(environment=environment, runner=environment.runner, web_ui=ui)
        server.start()
