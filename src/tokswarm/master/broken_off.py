"""A run whose master was killed: its account is completed from the logs, so that it can be reported and exported.

What such a master leaves undone is fetching the workers' logs and saying when the last stage ended.
The workers of its own machine have left their logs in the same data directory.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from tokswarm.errors import LogError
from tokswarm.insight.run_file import RunFile, StageTimes
from tokswarm.master.course import BY_ERROR, end_title
from tokswarm.master.journal import MASTER
from tokswarm.master.run import MASTER_ENDED
from tokswarm.measure.window import Event, WorkerSecond
from tokswarm.sink.record_log import Entry, read_log
from tokswarm.sink.segments import copy_stored, stored_bytes

E = TypeVar("E", bound=Entry)


def take_left_logs(run_dir: Path) -> list[str]:
    """Copy the logs that workers left in this data directory and no master fetched whole; whose they are.

    For runs that are over only: a master that fetches a log writes the same file.
    """
    taken: list[str] = []
    for log in sorted((run_dir.parent.parent / "records" / run_dir.name).glob("*.log")):
        kept = run_dir / "logs" / log.name
        if not kept.exists() or kept.stat().st_size < stored_bytes(log):
            draft = kept.with_suffix(".log.part")
            copy_stored(log, draft)
            draft.replace(kept)
            taken.append(log.stem)
    return taken


def completed(run: RunFile, logs: list[Path]) -> RunFile:
    """The run as it went, when its master could not write that down; the same run when it could."""
    events = [event for path in logs if path.stem == MASTER for event in _read(path, Event)]
    if run.error or any(event.title == end_title(run.run_id) for event in events):
        return run
    seconds = [second.second_unix for path in logs for second in _read(path, WorkerSecond)]
    last_ns = max([(second + 1) * 1_000_000_000 for second in seconds] + [event.unix_ns for event in events], default=0)
    planned_ns = {stage.name: round(stage.duration_s * 1e9) for stage in run.stages}
    begun = {event.title: event for event in events if event.kind == "stage"}  # the later one knows its end
    return msgspec.structs.replace(
        run,
        stage_times=[
            StageTimes(
                name=name,
                start_unix_ns=event.unix_ns,
                stop_unix_ns=max(min(event.unix_ns + planned_ns[name], last_ns), event.unix_ns),
                end_unix_ns=event.end_unix_ns or max(last_ns, event.unix_ns),
            )
            for name, event in begun.items()
        ],
        ended_unix_ns=max(last_ns, run.started_unix_ns),
        stopped_by=BY_ERROR,
        error=MASTER_ENDED,
    )


def _read(path: Path, kind: type[E]) -> Iterator[E]:
    with contextlib.suppress(LogError), read_log(path) as reader:  # the report says which log cannot be read
        for entry, _ in reader:
            if isinstance(entry, kind):
                yield entry
