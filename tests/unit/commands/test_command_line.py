"""The command line on odd but honest input: flags before a command, a reader that leaves, settings left empty."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tokswarm.__main__ import chosen_command
from tokswarm.commands import run, worker
from tokswarm.errors import ConfigError
from tokswarm.master.run import RunInfo, RunState


@pytest.mark.parametrize(
    ("arguments", "command"),
    [(["sim", "--port", "0"], "sim"), (["-v", "sim"], "sim"), (["run", "sim"], "run"), (["--help"], ""), ([], "")],
)
def test_the_command_is_found_behind_flags(arguments: list[str], command: str) -> None:
    assert chosen_command(arguments) == command


def test_the_simulator_runs_unpatched_behind_a_flag_too() -> None:
    program = (
        "import sys; sys.argv = ['tokswarm', '-v', 'sim', '--help']\n"
        "from tokswarm.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "print(sorted({'gevent', 'locust'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_worker_loads_nothing_that_only_masters_and_reports_need() -> None:
    program = (
        "import sys\n"
        "from tokswarm.cli import build\n"
        "assert list(build(['worker', '--name', 'w']).commands) == ['worker']\n"
        "print(sorted({'polars', 'plotly', 'sqlite3', 'flask', 'openai'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "tokswarm", "sim", "--help"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_setting_that_is_left_empty_counts_as_not_given(tmp_path: Path) -> None:
    path = tmp_path / "worker.yaml"
    path.write_text("master_host:\nname: node-1\n")
    assert worker._config(path) == {"name": "node-1"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"master_port: 70000", "`int` <= 65535", id="port"),
        pytest.param(b"nmae: x", "unknown field `nmae`", id="unknown"),
        pytest.param(b"name: \xff", "can't decode", id="no-utf-8"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_with_the_files_name(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "worker.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        worker._config(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_run_without_a_report_says_why_instead_of_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = RunInfo(
        run_id="r1",
        state=RunState.FAILED,
        mix_name="demo",
        base_url="http://h/v1",
        model="m",
        started_unix_ns=1,
        error="no report: the disk is full",
        run_dir=str(tmp_path),
    )
    monkeypatch.setattr(run, "_carry_out", lambda *_: (failed, None))
    code = run.run.main(args=["demo", "--json"], standalone_mode=False)
    shown = capsys.readouterr()
    assert (code, shown.out, shown.err) == (1, "", "error: no report: the disk is full\n")
