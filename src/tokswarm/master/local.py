"""Worker processes on the master's own machine: started, supervised and ended with it."""

import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gevent
from gevent import subprocess

from tokswarm.errors import FleetError
from tokswarm.worker.node import EXIT_REFUSED

_log = logging.getLogger(__name__)

RESTART_S = 0.2
RESTART_MAX_S = 10.0
HEALTHY_S = 10.0
"""A worker that lived this long is restarted without further delay."""
END_TIMEOUT_S = 15.0
"""A worker that is told to end drains and closes its log."""

Command = Callable[[str], list[str]]
"""The command line of the worker with this name."""


def worker_command(*, master_port: int, data_dir: Path, join_file: Path | None) -> Command:
    """`tokswarm worker` in this interpreter, on the master at this port of loopback; no file: not encrypted."""
    joining = ["--unencrypted"] if join_file is None else ["--join", f"file:{join_file}"]

    def command(name: str) -> list[str]:
        return [
            *(sys.executable, "-m", "tokswarm", "worker"),
            *joining,
            *("--master-host", "127.0.0.1", "--master-port", str(master_port)),
            *("--data-dir", str(data_dir), "--name", name),
        ]

    return command


class LocalWorkers:
    """So many workers, each restarted when it dies. They survive the terminal's Ctrl-C, which is the master's."""

    def __init__(self, count: int, *, command: Command, log_dir: Path) -> None:
        """What a worker prints goes to `NAME.log` in `log_dir`."""
        self.names = [f"local-{number}" for number in range(1, count + 1)]
        self._command = command
        self._log_dir = log_dir
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._supervisors: list[gevent.Greenlet] = []
        self._given_up: dict[str, int] = {}

    def start(self) -> None:
        """Start them all. FleetError when their output cannot be kept."""
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FleetError(
                f"the directory {self._log_dir} cannot be made: {error.strerror}",
                hint="check the rights of the data directory, or choose another with --data-dir",
            ) from error
        self._supervisors = [gevent.spawn(self._supervise, name) for name in self.names]

    def pids(self) -> dict[str, int]:
        """Process ids by name, of those that run."""
        return {name: child.pid for name, child in self._children.items() if child.poll() is None}

    def trouble(self) -> str:
        """What the workers that will not come back said last; empty when there is none."""
        return "; ".join(
            f"worker {name} ended with code {code}: {_last_line(self._log_dir / f'{name}.log')}"
            for name, code in self._given_up.items()
        )

    def stop(self) -> None:
        """End them all: told to, then killed after `END_TIMEOUT_S`. May be called again."""
        gevent.killall(self._supervisors)
        running = [child for child in self._children.values() if child.poll() is None]
        for child in running:
            child.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + END_TIMEOUT_S
        for child in running:
            try:
                child.wait(max(deadline_s - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                _log.warning("a local worker (pid %d) did not end when told to; it is killed", child.pid)
                child.kill()
                child.wait()

    def kill(self) -> None:
        """End them at once."""
        for pid in self.pids().values():
            os.kill(pid, signal.SIGKILL)

    def _supervise(self, name: str) -> None:
        delay_s = RESTART_S
        while True:
            began_s = time.monotonic()
            with (self._log_dir / f"{name}.log").open("ab") as output:
                child = subprocess.Popen(
                    self._command(name),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._children[name] = child
            code = child.wait()
            if code == EXIT_REFUSED:
                self._given_up[name] = code
                _log.error("local worker %s is not started again: %s", name, self.trouble())
                return
            delay_s = RESTART_S if time.monotonic() - began_s > HEALTHY_S else min(delay_s * 2, RESTART_MAX_S)
            _log.warning("local worker %s ended with code %d; it is started again in %.1f s", name, code, delay_s)
            gevent.sleep(delay_s * random.uniform(0.5, 1.5))  # noqa: S311 -- spreads restarts, guards nothing


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
