"""Supervised child processes, with small scripts in place of workers."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest

from tokswarm.master import local
from tokswarm.master.local import LocalWorkers, worker_command

SLEEP = "import time; time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., LocalWorkers]]:
    started: list[LocalWorkers] = []

    def start(script: str, count: int = 1) -> LocalWorkers:
        workers = LocalWorkers(count, command=lambda name: [sys.executable, "-c", script], log_dir=tmp_path)
        started.append(workers)
        workers.start()
        return workers

    yield start
    for workers in started:
        workers.stop()


def wait_for(condition: Callable[[], object], timeout_s: float = 10) -> None:
    with gevent.Timeout(timeout_s):
        while not condition():
            gevent.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_worker_that_dies_is_started_again(start: Callable[..., LocalWorkers]) -> None:
    workers = start(SLEEP, 2)
    wait_for(lambda: len(workers.pids()) == 2)
    first = workers.pids()
    os.kill(first["local-1"], signal.SIGKILL)
    wait_for(lambda: workers.pids().get("local-1") not in (None, first["local-1"]))
    assert workers.pids()["local-2"] == first["local-2"]


def test_a_worker_that_is_refused_is_not_started_again_and_its_last_words_are_kept(
    start: Callable[..., LocalWorkers],
) -> None:
    workers = start("import sys; print('wrong version'); sys.exit(2)")
    wait_for(workers.trouble)
    assert workers.trouble() == "worker local-1 ended with code 2: wrong version"
    assert workers.pids() == {}


def test_all_end_when_told_and_telling_twice_is_fine(start: Callable[..., LocalWorkers]) -> None:
    workers = start(SLEEP, 2)
    wait_for(lambda: len(workers.pids()) == 2)
    pids = list(workers.pids().values())
    workers.stop()
    workers.stop()
    assert all(is_gone(pid) for pid in pids)


def test_a_worker_that_does_not_listen_is_killed_in_bounded_time(
    start: Callable[..., LocalWorkers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "END_TIMEOUT_S", 0.5)
    workers = start(STUBBORN)
    wait_for(lambda: (tmp_path / "local-1.log").exists() and (tmp_path / "local-1.log").read_text())
    [pid] = workers.pids().values()
    workers.stop()
    assert is_gone(pid)


def test_the_terminals_interrupt_does_not_reach_the_workers(start: Callable[..., LocalWorkers]) -> None:
    workers = start(SLEEP)
    wait_for(workers.pids)
    assert os.getpgid(workers.pids()["local-1"]) != os.getpgid(0)


def test_the_real_command_is_one_of_the_product(tmp_path: Path) -> None:
    join_file = tmp_path / "fleet.join"
    command = worker_command(master_port=5557, data_dir=tmp_path, join_file=join_file)("local-1")
    assert command[1:4] == ["-m", "tokswarm", "worker"]
    assert command[4:] == [
        *("--join", f"file:{join_file}", "--master-host", "127.0.0.1", "--master-port", "5557"),
        *("--data-dir", str(tmp_path), "--name", "local-1"),
    ]
