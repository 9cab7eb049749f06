"""The master's own account of a run: log, store, page, and a database that may be away."""

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import gevent
import pytest
from virtual_fleet import EPOCH_UNIX_S

from tokswarm.master.journal import Journal
from tokswarm.master.merge import fleet_seconds
from tokswarm.master.run import RunInfo, RunState
from tokswarm.master.store import Store
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond, Window, WindowRow
from tokswarm.sink.record_log import read_log
from tokswarm.sink.settings import InfluxSettings

ROWS = fleet_seconds(
    EPOCH_UNIX_S,
    [Window(worker="a", second_unix=EPOCH_UNIX_S, sequence=0, rows=[WindowRow(class_name="chat", stage="s")])],
    (),
)
SERVER = ServerSecond(
    unix_ns=EPOCH_UNIX_S * 10**9, target="t", replica="h:1", up=1, engine="vllm", waiting=3, hit_ratio=0.5
)
EVENT = Event(unix_ns=EPOCH_UNIX_S * 10**9, kind="stage", title="s", text="begun")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "s.sqlite")
    store.open()
    store.add_run(
        RunInfo(run_id="r1", state=RunState.RUNNING, mix_name="m", base_url="", model="", started_unix_ns=1), ""
    )
    yield store
    store.close()


class Shown:
    def __init__(self) -> None:
        self.entries: list[FleetSecond | ServerSecond | Event] = []

    def __call__(self, entries: Sequence[FleetSecond | ServerSecond | Event]) -> None:
        self.entries += entries


def journal_of(tmp_path: Path, store: Store, shown: Shown, influx: InfluxSettings | None = None) -> Journal:
    return Journal(run_id="r1", run_dir=tmp_path / "run", store=store, influx=influx, show=shown)


def test_everything_reaches_log_store_and_page(tmp_path: Path, store: Store) -> None:
    shown = Shown()
    journal = journal_of(tmp_path, store, shown)
    journal.event(EVENT)
    journal.seconds(ROWS)
    journal.server([SERVER])
    assert journal.database_error == ""
    assert journal.close() == []
    assert journal.close() == []
    with read_log(tmp_path / "run" / "logs" / "master.log") as entries:
        assert [entry for entry, _ in entries] == [EVENT, *ROWS, SERVER]
    assert (store.events("r1"), store.seconds("r1")) == ([EVENT], sorted(ROWS, key=lambda row: row.class_name))
    assert store.server_seconds("r1") == [SERVER]
    assert shown.entries == [EVENT, *ROWS, SERVER]


def test_a_database_that_is_away_is_told_of_and_loses_nothing(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokswarm.master.journal.CLOSE_DEADLINE_S", 0.3)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        influx = InfluxSettings(url=f"http://127.0.0.1:{unused.getsockname()[1]}")
        journal = journal_of(tmp_path, store, Shown(), influx)
        journal.seconds(ROWS)
        with gevent.Timeout(10):
            while not journal.database_error:
                gevent.sleep(0.05)
        [note] = journal.close()
    assert "not in the database yet" in note
    assert "tokswarm export" in note
    with read_log(tmp_path / "run" / "logs" / "master.log") as entries:
        assert [entry for entry, _ in entries] == ROWS
