"""Master and worker processes for tests, each ended by its process id."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("INFLUXDB")}


class RefusedError(Exception):
    """The master answered with an error of ours."""

    def __init__(self, kind: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.hint = hint


class MasterProcess:
    """A master, driven over its standard input."""

    def __init__(self, data_dir: Path, *, port: int = 0, local_workers: int = 0, report: str = "counted") -> None:
        self.data_dir = data_dir
        self._log = (data_dir / "master.out").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, _HERE / "scripted_master.py", str(port), str(data_dir), str(local_workers), report],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_ENVIRON,
        )
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._news = threading.Condition()
        self._silent = False
        threading.Thread(target=self._read, daemon=True).start()
        self.port: int = self.ask("port")

    def ask(self, name: str, *arguments: Any, timeout_s: float = 30) -> Any:
        return self.answer(self.tell(name, *arguments), timeout_s=timeout_s)

    def tell(self, name: str, *arguments: Any) -> int:
        self._number += 1
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([self._number, name, arguments]).encode() + b"\n")
        self.process.stdin.flush()
        return self._number

    def answer(self, number: int, *, timeout_s: float = 30) -> Any:
        with self._news:
            self._news.wait_for(lambda: number in self._answers or self._silent, timeout_s)
            if number not in self._answers:
                said = (self.data_dir / "master.out").read_text()[-3000:]
                raise TimeoutError(f"no answer to command {number}: {said}")
            answer = self._answers.pop(number)
        if "error" in answer:
            raise RefusedError(answer["error"], answer["message"], answer["hint"])
        return answer["result"]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            number, answer = json.loads(line)
            with self._news:
                self._answers[number] = answer
                self._news.notify_all()
        with self._news:
            self._silent = True
            self._news.notify_all()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()


class WorkerProcess:
    """A scripted worker."""

    def __init__(self, data_dir: Path, *, port: int, name: str, patience_s: tuple[float, ...] = ()) -> None:
        self.name = name
        self.output = data_dir / f"{name}.out"
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, _HERE / "scripted_worker.py", str(port), str(data_dir), name, *map(str, patience_s)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_ENVIRON,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()


class Fleet:
    """Starts masters and workers in one directory, and ends what is left."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._masters: list[MasterProcess] = []
        self._workers: list[WorkerProcess] = []

    def master(self, *, port: int = 0, local_workers: int = 0, report: str = "counted") -> MasterProcess:
        self._masters.append(MasterProcess(self.data_dir, port=port, local_workers=local_workers, report=report))
        return self._masters[-1]

    def worker(self, master: MasterProcess, name: str, *, patience_s: tuple[float, ...] = ()) -> WorkerProcess:
        """`patience_s`: after how long without the master its load ends, and then itself."""
        self._workers.append(WorkerProcess(self.data_dir, port=master.port, name=name, patience_s=patience_s))
        return self._workers[-1]

    def close(self) -> None:
        for process in (*self._workers, *self._masters):
            process.close()


@contextlib.contextmanager
def fleet_in(data_dir: Path) -> Iterator[Fleet]:
    fleet = Fleet(data_dir)
    try:
        yield fleet
    finally:
        fleet.close()


def until(what: str, ask: Any, *, timeout_s: float = 20) -> Any:
    """Poll until the answer is true; TimeoutError names what was waited for."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        answer = ask()
        if answer:
            return answer
        time.sleep(0.1)
    raise TimeoutError(f"not within {timeout_s} s: {what}")
