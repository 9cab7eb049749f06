"""A run whose master was killed, completed from what it left."""

from pathlib import Path

import msgspec
import pytest
from virtual_fleet import Stand, VirtualFleet, stage

from tokswarm.insight.report import read_run_file
from tokswarm.insight.run_file import RunFile, StageTimes
from tokswarm.master.broken_off import completed, take_left_logs
from tokswarm.master.course import end_title
from tokswarm.measure.window import Event, WorkerSecond
from tokswarm.sink.record_log import RecordLog

BEGAN_S = 1_700_000_000
_S = 1_000_000_000


def second(worker: str, at_s: int) -> WorkerSecond:
    fields = dict.fromkeys(WorkerSecond.__struct_fields__, 0)
    texts = {"worker": worker, "second_unix": at_s, "sink_error": "", "schedule_lag_p99_ms": None}
    return WorkerSecond(**{**fields, **texts})


@pytest.fixture
def run(tmp_path: Path) -> RunFile:
    """The account of a run of two stages as its master writes it before they begin."""
    info = Stand(tmp_path, VirtualFleet("a"), stage("s1", 10), stage("s2", 10)).run()
    whole = read_run_file(tmp_path / "run" / "run.json")
    return msgspec.structs.replace(
        whole, run_id=info.run_id, stage_times=[], started_unix_ns=BEGAN_S * _S, stopped_by="plan", error=""
    )


def logs(folder: Path, run_id: str, *events: Event) -> list[Path]:
    """The logs of the master and of a worker that was heard for 14 seconds."""
    with RecordLog(folder / "master.log", run_id=run_id, worker="master") as log:
        for event in events:
            log.append(event)
    with RecordLog(folder / "a.log", run_id=run_id, worker="a") as log:
        for at_s in range(14):
            log.append(second("a", BEGAN_S + at_s))
    return sorted(folder.glob("*.log"))


def begun(name: str, at_s: int, end_s: int | None = None) -> Event:
    end_unix_ns = None if end_s is None else (BEGAN_S + end_s) * _S
    return Event(unix_ns=(BEGAN_S + at_s) * _S, kind="stage", title=name, text="", end_unix_ns=end_unix_ns)


def test_stages_that_began_are_found_and_the_last_one_ends_with_the_last_second(run: RunFile, tmp_path: Path) -> None:
    left = logs(tmp_path / "left", run.run_id, begun("s1", 0), begun("s1", 0, 11), begun("s2", 11))
    mended = completed(run, left)
    assert mended.stage_times == [
        StageTimes(
            name="s1",
            start_unix_ns=BEGAN_S * _S,
            stop_unix_ns=(BEGAN_S + 10) * _S,
            end_unix_ns=(BEGAN_S + 11) * _S,
        ),
        StageTimes(
            name="s2",
            start_unix_ns=(BEGAN_S + 11) * _S,
            stop_unix_ns=(BEGAN_S + 14) * _S,
            end_unix_ns=(BEGAN_S + 14) * _S,
        ),
    ]
    assert mended.ended_unix_ns == (BEGAN_S + 14) * _S
    assert (mended.stopped_by, mended.error) == ("error", "the master ended during the run")
    assert completed(mended, left) == mended


def test_a_run_that_its_master_ended_is_left_as_it_is(run: RunFile, tmp_path: Path) -> None:
    end = Event(unix_ns=(BEGAN_S + 9) * _S, kind="run", title=end_title(run.run_id), text="")
    assert completed(run, logs(tmp_path / "left", run.run_id, begun("s1", 0), end)) is run


def test_a_run_that_never_began_has_an_end_all_the_same(run: RunFile, tmp_path: Path) -> None:
    (tmp_path / "other.log").write_bytes(b"not a log")
    mended = completed(run, [tmp_path / "other.log"])
    assert (mended.stage_times, mended.ended_unix_ns) == ([], run.started_unix_ns)
    assert mended.stopped_by == "error"


def test_logs_are_taken_where_they_hold_more_than_what_was_fetched(tmp_path: Path) -> None:
    run_dir, left = tmp_path / "runs" / "r", tmp_path / "records" / "r"
    for folder in (run_dir / "logs", left):
        folder.mkdir(parents=True)
    for name, kept, there in (("a", None, b"12"), ("b", b"1", b"12"), ("c", b"12", b"12"), ("d", b"123", b"12")):
        if kept is not None:
            (run_dir / "logs" / f"{name}.log").write_bytes(kept)
        (left / f"{name}.log").write_bytes(there)
    assert take_left_logs(run_dir) == ["a", "b"]
    held = {path.name: path.read_bytes() for path in (run_dir / "logs").iterdir()}
    assert held == {"a.log": b"12", "b.log": b"12", "c.log": b"12", "d.log": b"123"}
    assert take_left_logs(run_dir) == []
    assert take_left_logs(tmp_path / "elsewhere" / "runs" / "r") == []
