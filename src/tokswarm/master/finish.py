"""What makes a run's report: record logs to Parquet, then `summary.json` and `curve.html`, in a process of its own.

Turning logs into tables holds the interpreter for hundreds of milliseconds at a time; in the master's
own process it would stall the fleet. Run by hand: `python -m tokswarm.master.finish RUN_DIR`.
"""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from gevent import subprocess

from tokswarm.errors import TokswarmError
from tokswarm.insight.run_file import RUN_FILE
from tokswarm.master.run_folder import keep_run_file

_log = logging.getLogger(__name__)

TIMEOUT_S = 900.0
NICENESS = 10


def finish(run_dir: Path) -> None:
    """Make the tables and the report of a run from what is in its directory. TokswarmError."""
    # Heavy imports that only the child process needs.
    from tokswarm.insight.report import read_run_file, write_report  # noqa: PLC0415
    from tokswarm.master.broken_off import completed  # noqa: PLC0415
    from tokswarm.sink.parquet import write_parquet  # noqa: PLC0415

    logs = sorted((run_dir / "logs").glob("*.log"))
    counts = write_parquet(logs, run_dir)
    written = read_run_file(run_dir / RUN_FILE)
    run = completed(written, logs)
    found = log_notes(torn_bytes=counts.torn_bytes, damaged_bytes=counts.damaged_bytes, unreadable=counts.unreadable)
    run = msgspec.structs.replace(run, notes=[*run.notes, *(note for note in found if note not in run.notes)])
    if run != written:
        keep_run_file(run_dir, run)
    write_report(run_dir)


def log_notes(*, torn_bytes: int, damaged_bytes: int, unreadable: list[str]) -> list[str]:
    """What a reader of the run should know of the state of its logs."""
    notes = [f"a log could not be read: {reason}" for reason in unreadable]
    if torn_bytes:
        notes.append(f"logs end within an entry, as of a killed machine or a fetch cut short: {torn_bytes} bytes")
    if damaged_bytes:
        notes.append(f"logs are damaged and were read around it: {damaged_bytes} bytes")
    return notes


def finish_in_child(run_dir: Path) -> dict[str, Any]:
    """The same in a niced child process; the summary. TokswarmError when it fails or takes too long."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tokswarm.master.finish", str(run_dir)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "POLARS_MAX_THREADS": "1"},
        start_new_session=True,  # the terminal's Ctrl-C stops the load, not the report
    )
    hint = f"try `tokswarm report {run_dir.name}` again; the logs are in {run_dir / 'logs'}"
    try:
        _, errors = child.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise TokswarmError(f"the report of {run_dir} took longer than {TIMEOUT_S:g} s", hint=hint) from error
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    if child.returncode != 0:
        said = errors.decode(errors="replace").strip()
        _log.warning("the report of %s could not be made:\n%s", run_dir, said)
        last = said.splitlines()[-1:] or [f"exit code {child.returncode}"]
        raise TokswarmError(f"the report of {run_dir} could not be made: {last[0]}", hint=hint)
    return read_summary(run_dir)


def read_summary(run_dir: Path) -> dict[str, Any]:
    """`summary.json` of a run as it is. TokswarmError when there is none."""
    path = run_dir / "summary.json"
    try:
        summary: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TokswarmError(f"{path} cannot be read: {error}") from error
    return summary


def main() -> int:
    """The child process."""
    os.nice(NICENESS)
    try:
        finish(Path(sys.argv[1]))
    except TokswarmError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
