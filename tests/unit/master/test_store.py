"""The run store, on a real file in a temporary directory."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tokswarm.errors import TokswarmError, UnknownRunError
from tokswarm.master.run import RunInfo, RunState
from tokswarm.master.store import Store
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "deep" / "tokswarm.sqlite")
    store.open()
    yield store
    store.close()


def info(run_id: str, state: RunState = RunState.RUNNING, started: int = 5_000_000_000) -> RunInfo:
    return RunInfo(
        run_id=run_id, state=state, mix_name="m", base_url="http://h/v1", model="x", started_unix_ns=started, workers=2
    )


def event(unix_ns: int, kind: str, title: str, text: str, end_unix_ns: int | None = None) -> Event:
    return Event(unix_ns=unix_ns, kind=kind, title=title, text=text, end_unix_ns=end_unix_ns)


def second(second_unix: int, class_name: str = "_all", tokens: int = 7) -> FleetSecond:
    return FleetSecond(
        second_unix=second_unix,
        class_name=class_name,
        stage="sweep-4",
        workers=2,
        output_tok_per_s=tokens,
        prompt_tok_per_s=11,
        offered_per_s=3,
        started_per_s=2,
        finished={"ok": 2, "timeout": 1},
        in_flight=4,
        dropped=0,
        late=1,
        goodput_per_s=None,
        goodput_ratio=None,
        cached_ratio=0.25,
        ideal_cached_ratio=0.5,
        ttft_p50_ms=12.5,
        e2e_mean_ms=100.25,
        schedule_lag_p99_ms=0.5,
    )


def test_what_was_stored_is_read_back_equal(store: Store) -> None:
    store.add_run(info("r1"), "name: m\n")
    seconds = [second(10), second(10, "chat"), second(11)]
    events = [event(1, "stage", "sweep-4", "text", 9), event(2, "worker", "w lost", "text")]
    store.add("r1", [*seconds, *events])
    store.flush()
    assert store.run("r1") == (info("r1"), "name: m\n")
    assert store.seconds("r1") == seconds
    assert store.events("r1") == events


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_of_a_version_before_keeps_its_runs_and_gains_what_it_lacks(tmp_path: Path, version: int) -> None:
    path = tmp_path / "s.sqlite"
    first = Store(path)
    first.open()
    first.add_run(info("r1"), "")
    first.close()
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE server_seconds")
        for column in ("run_second", "ttft_limit_ms", "itl_limit_ms", "e2e_limit_ms") if version == 1 else ():
            db.execute(f"ALTER TABLE seconds DROP COLUMN {column}")
        db.execute(f"PRAGMA user_version = {version}")
    db.close()
    again = Store(path)
    again.open()
    said = ServerSecond(unix_ns=5, target="t", replica="h:1", up=1, version="1", running=2, preemptions_per_s=1.0)
    again.add("r1", [said, msgspec.structs.replace(said, unix_ns=4, up=0)])
    again.flush()
    assert again.server_seconds("r1") == [msgspec.structs.replace(said, unix_ns=4, up=0), said]
    seconds = [second(3)]
    again.add("r1", seconds)
    again.flush()
    assert [run.run_id for run in again.runs()] == ["r1"]
    assert again.seconds("r1") == seconds
    again.close()


def test_runs_come_newest_first(store: Store) -> None:
    for number in (2, 3, 1):
        store.add_run(info(f"r{number}", started=number), "")
    assert [run.run_id for run in store.runs()] == ["r3", "r2", "r1"]


def test_an_event_given_again_with_its_end_replaces_the_first(store: Store) -> None:
    store.add_run(info("r1"), "")
    store.add("r1", [event(1, "stage", "s", "begun")])
    store.add("r1", [event(1, "stage", "s", "over", 8)])
    store.flush()
    assert store.events("r1") == [event(1, "stage", "s", "over", 8)]


def test_runs_are_still_there_after_a_restart(tmp_path: Path) -> None:
    first = Store(tmp_path / "s.sqlite")
    first.open()
    first.add_run(info("r1"), "")
    first.update_run(info("r1", RunState.FINISHED))
    first.add("r1", [second(10)])
    first.close()
    again = Store(tmp_path / "s.sqlite")
    again.open()
    assert [run.state for run in again.runs()] == [RunState.FINISHED]
    assert again.seconds("r1") == [second(10)]
    assert again.end_interrupted_runs() == []
    again.close()


def test_a_run_that_was_under_way_when_the_master_died_is_failed_with_its_seconds_kept(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    first = Store(path)
    first.open()
    first.add_run(info("r1"), "")
    first.add("r1", [second(10), second(12)])
    first.flush()
    again = Store(path)  # the first was never closed: its process was killed
    again.open()
    ended = again.end_interrupted_runs()
    assert ended == [
        msgspec.structs.replace(
            info("r1"), state=RunState.FAILED, error="the master ended during the run", ended_unix_ns=13_000_000_000
        )
    ]
    assert again.runs() == ended
    assert len(again.seconds("r1")) == 2
    again.close()
    first.close()


@pytest.mark.parametrize("question", ["run", "seconds", "server_seconds", "events"])
def test_an_unknown_run_is_an_error(store: Store, question: str) -> None:
    with pytest.raises(UnknownRunError, match="no run has the id 'nope'"):
        getattr(store, question)("nope")


def test_a_store_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    store = Store(path)
    with pytest.raises(TokswarmError, match="has schema 99, this tokswarm reads 3"):
        store.open()
    store.close()


def test_a_directory_that_cannot_be_made_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "s.sqlite")
    with pytest.raises(TokswarmError) as caught:
        store.open()
    assert "--data-dir" in caught.value.hint
    store.close()


def test_seconds_that_cannot_be_written_are_counted_and_do_not_stop_the_run(store: Store) -> None:
    store.add_run(info("r1"), "")
    with sqlite3.connect(store.path) as db:
        db.execute("DROP TABLE seconds")
    db.close()
    store.add("r1", [second(10), second(11)])
    store.flush()
    assert store.lost == 2


def test_a_commit_that_fails_spoils_no_later_write(store: Store) -> None:
    def breaks_at_its_commit(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA defer_foreign_keys = ON")
        db.execute("CREATE TABLE a (id INTEGER PRIMARY KEY)")
        db.execute("CREATE TABLE b (a INTEGER REFERENCES a)")
        db.execute("INSERT INTO b VALUES (1)")

    store._writes.apply(store._write_to.execute, ("PRAGMA foreign_keys = ON",))
    with pytest.raises(TokswarmError, match="cannot be written: FOREIGN KEY constraint failed"):
        store._in_transaction(breaks_at_its_commit)
    store.add_run(info("r1"), "")
    assert [each.run_id for each in store.runs()] == ["r1"]


def test_closing_twice_is_fine_and_writes_what_was_pending(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    store.open()
    store.add_run(info("r1"), "")
    store.add("r1", [second(10)])
    store.close()
    store.close()
    with sqlite3.connect(tmp_path / "s.sqlite") as db:
        assert db.execute("SELECT count(*) FROM seconds").fetchone() == (1,)
    db.close()
