"""What a worker of before left undelivered: sent by the one that is there now, once, and by one of them alone."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest
from database_totals import held, settings_of
from databases import BUCKET, Influxd, free_port, influxd
from synthetic_log import entries, totals, write_log

from tokswarm.errors import ConfigError
from tokswarm.sink.committed_offset import commit_offset, offset_path
from tokswarm.sink.influx import InfluxSink
from tokswarm.sink.leftover import Leftovers, keep_days, undelivered
from tokswarm.sink.record_log import RecordLog
from tokswarm.sink.settings import InfluxSettings

NOW_S = int(time.time()) - 120
MIXED = entries(800, worker="w0", seed=1, begin_unix_s=NOW_S)


@pytest.fixture(scope="module")
def server() -> Iterator[Influxd]:
    with influxd() as database:
        yield database


@pytest.fixture
def database(server: Influxd) -> Influxd:
    server.rule()
    server.query(f'DROP DATABASE "{BUCKET}"')
    server.query(f'CREATE DATABASE "{BUCKET}"')
    return server


def left_log(records_dir: Path, run_id: str, database: str | None, *, worker: str = "w0") -> Path:
    """A log whose writer died before the database took anything; `database` None: it had none."""
    path = records_dir / run_id / f"{worker}.log"
    write_log(path, MIXED, run_id=run_id, worker=worker)
    if database is not None:
        commit_offset(offset_path(path), run_id, 0, database)
    return path


def until(what: object, *, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not what():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it never came"
        gevent.sleep(0.05)


def test_a_log_of_a_killed_worker_is_sent_by_the_next_one_exactly(database: Influxd, tmp_path: Path) -> None:
    settings = settings_of(database)
    path = left_log(tmp_path, "run-1", settings.database)
    database.rule(answers=[{}, {"status": 503, "body": "away"}])
    first = InfluxSink(path, settings, "run-1", "w0")
    first.start()
    until(lambda: first.error is not None)
    first._greenlet.kill()  # type: ignore[union-attr]
    assert held(database) != totals(MIXED)
    leftovers = Leftovers(tmp_path, settings, quiet_s=0.0)
    leftovers.start()
    until(lambda: not list(undelivered(tmp_path, settings.database, quiet_s=0.0)))
    leftovers.stop()
    assert held(database) == totals(MIXED)


def test_what_waits_for_another_database_or_for_none_stays(database: Influxd, tmp_path: Path) -> None:
    settings = settings_of(database)
    left_log(tmp_path, "run-1", None)
    left_log(tmp_path, "run-2", "http://elsewhere/tokswarm")
    mine = left_log(tmp_path, "run-3", settings.database)
    assert list(undelivered(tmp_path, settings.database, quiet_s=0.0)) == [mine]


def test_a_log_that_somebody_writes_or_sends_is_left_alone(database: Influxd, tmp_path: Path) -> None:
    settings = settings_of(database)
    path = left_log(tmp_path, "run-1", settings.database)
    assert list(undelivered(tmp_path, settings.database, quiet_s=60.0)) == []
    with RecordLog(path, run_id="run-1", worker="w0"):
        assert list(undelivered(tmp_path, settings.database, quiet_s=0.0)) == []
    seen = len(database.seen())
    with path.with_name("w0.log.sending").open("wb") as claim:
        fcntl.flock(claim, fcntl.LOCK_EX)
        leftovers = Leftovers(tmp_path, settings, quiet_s=0.0)
        leftovers.start()
        gevent.sleep(0.5)
        leftovers.stop()
    assert len(database.seen()) == seen


def test_a_database_that_is_away_is_asked_again_later(database: Influxd, tmp_path: Path) -> None:
    away = InfluxSettings(url=f"http://127.0.0.1:{free_port()}")
    left_log(tmp_path, "run-1", away.database)
    leftovers = Leftovers(tmp_path, away, quiet_s=0.0, look_again_s=0.05)
    leftovers.start()
    gevent.sleep(0.3)
    leftovers.stop()
    assert list(undelivered(tmp_path, away.database, quiet_s=0.0)) != []


def test_old_records_go_when_days_are_set_and_those_in_use_stay(tmp_path: Path) -> None:
    old, new, used = (left_log(tmp_path, f"run-{number}", None) for number in (1, 2, 3))
    then = time.time() - 8 * 86_400
    with RecordLog(used, run_id="run-3", worker="w0"):
        for run_dir in (old.parent, used.parent):
            for path in [*run_dir.iterdir(), run_dir]:
                os.utime(path, (then, then))
        for days in (None, 30.0, 7.0):
            leftovers = Leftovers(tmp_path, None, keep_days=days)
            leftovers.start()
            gevent.sleep(0.05)
            leftovers.stop()
            assert old.exists() == (days != 7.0)
            assert new.exists()
            assert used.exists()


@pytest.mark.parametrize(("written", "days"), [("", None), ("14", 14.0), ("1.5", 1.5)])
def test_days_are_a_number(written: str, days: float | None) -> None:
    assert keep_days({"TOKSWARM_KEEP_RECORDS_DAYS": written}) == days


@pytest.mark.parametrize("written", ["0", "-3", "two", "inf", "nan"])
def test_days_that_would_remove_what_is_in_use_are_refused(written: str) -> None:
    with pytest.raises(ConfigError, match="expected a number of days"):
        keep_days({"TOKSWARM_KEEP_RECORDS_DAYS": written})


KILLED = """
import gevent.monkey
gevent.monkey.patch_all()
import os, pathlib, signal, sys, time
sys.path.insert(0, sys.argv[2])
import gevent
from synthetic_log import entries
from tokswarm.sink.influx import InfluxSink
from tokswarm.sink.record_log import RecordLog
from tokswarm.sink.settings import InfluxSettings

path = pathlib.Path(sys.argv[1])
mixed = entries(800, worker="w0", seed=1, begin_unix_s=int(sys.argv[3]))
log = RecordLog(path, run_id="run-1", worker="w0", segment_bytes=1 << 16)
sink = InfluxSink(path, InfluxSettings.from_environ(os.environ), "run-1", "w0")
sink.start()
for number, entry in enumerate(mixed):
    log.append(entry)
    if number == len(mixed) // 2:
        while not sink.written_points:
            gevent.sleep(0.01)
        print("half", flush=True)
        sys.stdin.readline()
while sink.error is None:
    gevent.sleep(0.01)
os.write(log._fd, b"torn by the kill")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_killed_in_an_outage_leaves_nothing_behind_that_the_next_one_does_not_send(
    database: Influxd, tmp_path: Path
) -> None:
    settings = settings_of(database)
    path = tmp_path / "run-1" / "w0.log"
    worker = subprocess.Popen(
        [sys.executable, "-c", KILLED, path, Path(__file__).parent, str(NOW_S)],
        env={**os.environ, **database.environ()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    assert worker.stdout.readline() == "half\n"
    database.kill()
    worker.stdin.write("the database is away\n")
    worker.stdin.flush()
    assert worker.wait(30) == -signal.SIGKILL
    database.restart()
    assert 0 < held(database).requests < totals(MIXED).requests
    leftovers = Leftovers(tmp_path, settings, quiet_s=0.0)
    leftovers.start()
    until(lambda: held(database) == totals(MIXED))
    leftovers.stop()


def test_series_stay_as_few_as_tags_make_them(database: Influxd, tmp_path: Path) -> None:
    settings = settings_of(database)
    for number in range(3):
        left_log(tmp_path, f"run-{number}", settings.database)
    leftovers = Leftovers(tmp_path, settings, quiet_s=0.0)
    leftovers.start()
    until(lambda: held(database).requests == 3 * totals(MIXED).requests)
    leftovers.stop()
    until(lambda: not list(undelivered(tmp_path, settings.database, quiet_s=0.0)))
    # Of a run: tokens of 2 classes, requests of those with 3 outcomes, windows; a worker, the fleet, an event.
    assert database.value("SHOW SERIES CARDINALITY") <= 3 * (2 + 2 * 3 + 2 + 3)
