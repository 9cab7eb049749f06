"""What a worker node does without Locust: names, and pieces of its logs."""

import subprocess
import sys
from pathlib import Path

import pytest

from tokswarm.errors import ConfigError, FleetError
from tokswarm.worker.messages import Fetch
from tokswarm.worker.name import check_name, default_name, is_file_name
from tokswarm.worker.node import read_log_chunk


def fetch(offset: int, limit_bytes: int, run_id: str = "r1") -> Fetch:
    return Fetch(run_id=run_id, offset=offset, limit_bytes=limit_bytes)


@pytest.fixture
def records_dir(tmp_path: Path) -> Path:
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / "w.log").write_bytes(b"0123456789")
    return tmp_path


@pytest.mark.parametrize(
    ("offset", "limit_bytes", "data"),
    [
        pytest.param(0, 4, b"0123", id="first"),
        pytest.param(8, 4, b"89", id="last"),
        pytest.param(10, 4, b"", id="end"),
        pytest.param(99, 4, b"", id="beyond"),
        pytest.param(-5, 2, b"01", id="before-the-beginning"),
        pytest.param(0, -1, b"", id="nothing-asked"),
    ],
)
def test_a_piece_of_the_log_is_what_was_asked(records_dir: Path, offset: int, limit_bytes: int, data: bytes) -> None:
    assert read_log_chunk(records_dir, fetch(offset, limit_bytes), worker="w") == data


def test_no_log_is_an_empty_piece(records_dir: Path) -> None:
    assert read_log_chunk(records_dir, fetch(0, 4, "r2"), worker="w") == b""


@pytest.mark.parametrize("run_id", ["../r1", "/etc", "", ".", "a/b", "r1\n"])
def test_a_run_id_that_leads_elsewhere_is_refused(records_dir: Path, run_id: str) -> None:
    with pytest.raises(FleetError, match="no name for a directory"):
        read_log_chunk(records_dir, fetch(0, 4, run_id), worker="w")


@pytest.mark.parametrize("name", ["", "master", "a b", "../x", ".hidden", "x" * 81, "ä", "a\n"])
def test_a_name_that_is_no_file_name_or_the_masters_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="the worker's name is") as caught:
        check_name(name)
    assert "--name" in caught.value.hint


def test_the_name_a_worker_gives_itself_can_be_used() -> None:
    check_name(default_name())
    assert is_file_name("20261202-104233-chat-3f2a")


@pytest.mark.parametrize(
    "module", ["worker.node", "worker.duty", "master.fleet", "master.control", "master.service", "master.local"]
)
def test_importing_a_module_does_not_patch_the_process(module: str) -> None:
    code = f"import tokswarm.{module}; from gevent import monkey; print(monkey.is_module_patched('socket'))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
