"""The InfluxDB writer against real databases: counts and sums come out exactly, whatever the answers were."""

import json
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import msgspec
import pytest
from database_totals import held, settings_of
from databases import BUCKET, TOKEN, Influxd, VictoriaMetrics, call, free_port, influxd, victoria_metrics
from synthetic_log import entries, requests, totals, write_log

from tokswarm.errors import SinkError
from tokswarm.sink.influx import InfluxSink, export_run, probe
from tokswarm.sink.line_protocol import FormatCounts
from tokswarm.sink.record_log import RecordLog
from tokswarm.sink.settings import InfluxSettings, Secret

NOW_S = int(time.time()) - 120


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


def started(path: Path, database: Influxd | VictoriaMetrics, **options: object) -> InfluxSink:
    sink = InfluxSink(path, settings_of(database), "run-1", "w0", **options)  # type: ignore[arg-type]
    sink.start()
    return sink


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "logs" / "w0.log"
    write_log(path, entries(1500, worker="w0", seed=1, begin_unix_s=NOW_S), run_id="run-1", worker="w0")
    return path


WANT = totals(entries(1500, worker="w0", seed=1, begin_unix_s=NOW_S))


def test_influxd_holds_every_request_and_every_token(database: Influxd, tmp_path: Path) -> None:
    want = [0, 0, 0, 0]
    points = 0
    for number, worker in enumerate(("w0", "w1")):
        mixed = entries(3000, worker=worker, seed=number, begin_unix_s=NOW_S)
        write_log(tmp_path / f"logs/{worker}.log", mixed, run_id="run-1", worker=worker)
        want = [a + b for a, b in zip(want, totals(mixed), strict=True)]
    delivery = export_run(tmp_path, settings_of(database))
    assert (delivery.dropped_points, delivery.backlog_bytes, delivery.error) == (0, 0, None)
    assert held(database) == tuple(want)
    for measurement, field in {
        "llm_token": "n",
        "llm_request": "request",
        "llm_window": "started",
        "llm_fleet": "workers",
        "llm_worker": "sockets",
        "llm_event": "title",
    }.items():
        points += database.value(f"SELECT count({field}) FROM {measurement}")
    # Both workers logged the same fleet second and event, and a point that comes twice is one.
    assert points == delivery.written_points - 2
    [row] = database.rows("SELECT * FROM llm_event")
    assert (row["kind"], row["title"], row["text"]) == ("stage", "sweep, 50", "50 in flight")
    seen = [write for write in database.seen() if write["status"] == 204]
    assert all(write["gzip"] and write["precision"] == "ns" and write["lines"] <= 5000 for write in seen)


def test_sending_everything_again_changes_nothing(database: Influxd, log: Path) -> None:
    assert export_run(log.parents[1], settings_of(database)).error is None
    again = export_run(log.parents[1], settings_of(database))
    assert again.written_points == 0
    whole = export_run(log.parents[1], settings_of(database), from_start=True)
    assert whole.written_points > WANT.requests
    assert held(database) == WANT


def test_victoria_metrics_holds_every_request_and_every_token(tmp_path: Path) -> None:
    mixed = entries(3000, worker="w0", seed=3, begin_unix_s=NOW_S)
    write_log(tmp_path / "logs/w0.log", mixed, run_id="run-1", worker="w0")
    with victoria_metrics() as database:
        delivery = export_run(tmp_path, settings_of(database))
        assert (delivery.dropped_points, delivery.backlog_bytes, delivery.error) == (0, 0, None)
        requests = [value for series in database.samples("llm_request_request") for value in series["values"]]
        tokens = [value for series in database.samples("llm_token_n") for value in series["values"]]
        assert "compatible server" in probe(settings_of(database)) or "InfluxDB" in probe(settings_of(database))
    want = totals(mixed)
    assert (len(requests), sum(tokens)) == (want.requests, want.output_tokens)


def test_a_run_is_delivered_while_it_goes_on(database: Influxd, tmp_path: Path) -> None:
    mixed = entries(600, worker="w0", seed=4, begin_unix_s=NOW_S)
    path = tmp_path / "w0.log"
    with RecordLog(path, run_id="run-1", worker="w0") as log:
        sink = started(path, database)
        for entry in mixed[:300]:
            log.append(entry)
        deadline = time.monotonic() + 10
        while sink.backlog_bytes and time.monotonic() < deadline:
            gevent.sleep(0.05)
        assert sink.backlog_bytes == 0
        assert held(database)[:2] == totals(mixed[:300])[:2]
        for entry in mixed[300:]:
            log.append(entry)
        delivery = sink.stop(10)
    assert (delivery.backlog_bytes, delivery.error) == (0, None)
    assert held(database) == totals(mixed)
    assert sink.stop(10) is delivery


def test_a_database_killed_midway_loses_nothing(database: Influxd, log: Path) -> None:
    database.rule(answers=[{"delay_s": 0.2}] * 3)
    sink = started(log, database)
    while sink.written_points == 0:
        gevent.sleep(0.02)
    database.kill()
    gevent.sleep(0.5)
    backlog = sink.backlog_bytes
    assert backlog > 0
    error = sink.error
    assert error is not None
    assert error.startswith("503 influxd is away")
    database.restart()
    delivery = sink.stop(20)
    assert (delivery.backlog_bytes, delivery.dropped_points, delivery.error) == (0, 0, None)
    assert held(database) == WANT


def test_a_writer_that_died_goes_on_from_its_offset(database: Influxd, log: Path) -> None:
    database.rule(answers=[{}, {"status": 503, "body": "away"}])
    first = started(log, database)
    while first.error is None:
        gevent.sleep(0.02)
    first._greenlet.kill()  # type: ignore[union-attr]
    second = started(log, database)
    delivery = second.stop(20)
    assert delivery.error is None
    assert delivery.written_points > 0
    assert first.written_points > 0
    assert held(database) == WANT


def test_an_answer_that_got_lost_is_sent_again_and_counts_once(database: Influxd, log: Path) -> None:
    database.rule(answers=[{"status": 500, "body": "lost", "forward": True}])
    delivery = started(log, database).stop(20)
    assert (delivery.backlog_bytes, delivery.error) == (0, None)
    assert held(database) == WANT


def test_retry_after_is_obeyed(database: Influxd, log: Path) -> None:
    seen = len(database.seen())
    database.rule(answers=[{"status": 429, "headers": {"Retry-After": "1"}, "body": '{"message":"slow down"}'}])
    sink = started(log, database)
    gevent.sleep(0.3)
    assert sink.error == "429 slow down"
    assert sink.stop(20).error is None
    writes = database.seen()[seen:]
    assert [write["status"] for write in writes[:2]] == [429, 204]
    assert writes[1]["at"] - writes[0]["at"] >= 1.0
    assert held(database) == WANT


def test_a_wait_beyond_the_deadline_is_not_waited_for(database: Influxd, log: Path) -> None:
    database.rule(answers=[{"status": 429, "headers": {"Retry-After": "60"}}])
    sink = started(log, database)
    gevent.sleep(0.3)
    began = time.monotonic()
    delivery = sink.stop(5)
    assert time.monotonic() - began < 2
    assert delivery.written_points == 0
    assert delivery.backlog_bytes > 0
    assert delivery.error == "429"


def test_blocks_too_large_for_the_server_are_halved(database: Influxd, log: Path) -> None:
    seen = len(database.seen())
    database.rule(max_body_bytes=20_000)
    delivery = started(log, database).stop(20)
    assert (delivery.backlog_bytes, delivery.dropped_points, delivery.error) == (0, 0, None)
    writes = database.seen()[seen:]
    assert {write["status"] for write in writes} == {204, 413}
    # The first block finds the size by halves (7 refusals); the later ones know it.
    assert sum(write["status"] == 413 for write in writes) <= 8
    assert held(database) == WANT


def test_a_poisoned_line_is_found_dropped_and_said(
    database: Influxd, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database.rule(poison="llm_event")
    with caplog.at_level(logging.WARNING):
        delivery = started(log, database).stop(20)
    assert (delivery.backlog_bytes, delivery.dropped_points) == (0, 1)
    assert delivery.error == "1 points refused: 400 unable to parse: llm_event is not taken here"
    assert held(database) == WANT
    assert [record.getMessage() for record in caplog.records if "refuses points" in record.getMessage()] != []


def test_a_field_of_another_type_costs_its_points_alone_and_few_writes(database: Influxd, log: Path) -> None:
    database.write([b"llm_worker,run=run-1,worker=w0 sockets=1.5 %d" % (NOW_S * 10**9)])
    seen = len(database.seen())
    delivery = started(log, database).stop(20)
    assert delivery.dropped_points == 20
    assert delivery.error is not None
    assert "field type conflict" in delivery.error
    assert len(database.seen()) - seen < 20
    assert held(database) == WANT


def test_a_wrong_token_is_said_once_and_the_log_waits(
    database: Influxd, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = InfluxSettings(url=database.url, token=Secret("n0t-the-t0ken"), bucket=BUCKET)
    with caplog.at_level(logging.WARNING):
        sink = InfluxSink(log, settings, "run-1", "w0")
        sink.start()
        with gevent.Timeout(10):
            while sink.error is None:
                gevent.sleep(0.02)
        error = sink.error
        delivery = sink.stop(5)
    assert error is not None
    assert error.startswith("401 authorization failed (is INFLUXDB_V2_TOKEN right")
    assert delivery.backlog_bytes == log.stat().st_size - sink._offset
    assert delivery.error == error
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "n0t-the-t0ken" not in "".join(said) + error
    assert held(database).requests == 0
    assert export_run(log.parents[1], settings_of(database)).error is None
    assert held(database) == WANT


def test_a_missing_bucket_is_named(database: Influxd, log: Path) -> None:
    settings = InfluxSettings(url=database.url, token=Secret(TOKEN), bucket="nowhere")
    sink = InfluxSink(log, settings, "run-1", "w0")
    sink.start()
    delivery = sink.stop(5)
    assert delivery.error is not None
    assert "does the bucket 'nowhere' exist" in delivery.error
    assert delivery.error.endswith("""; to make it: influx -execute 'CREATE DATABASE "nowhere"'""")


def test_an_unreachable_database_ends_within_the_deadline(log: Path) -> None:
    sink = InfluxSink(log, InfluxSettings(url=f"http://127.0.0.1:{free_port()}"), "run-1", "w0")
    sink.start()
    began = time.monotonic()
    delivery = sink.stop(1.0)
    assert time.monotonic() - began < 3
    assert delivery.backlog_bytes > 0
    assert delivery.error is not None
    assert "cannot be reached: [Errno 111] Connection refused" in delivery.error


def test_without_token_points_requests_are_still_all_there(database: Influxd, log: Path) -> None:
    environ = {**database.environ(), "TOKSWARM_TOKEN_POINTS": "off"}
    settings = InfluxSettings.from_environ(environ)
    assert settings is not None
    sink = InfluxSink(log, settings, "run-1", "w0")
    sink.start()
    assert sink.stop(20).error is None
    assert held(database) == WANT._replace(output_tokens=0)
    assert database.value("SELECT sum(output_tokens) FROM llm_request") == WANT.output_tokens


def test_a_torn_log_delivers_its_whole_entries(database: Influxd, log: Path) -> None:
    with log.open("ab") as file:
        file.write(b"\x40\x00\x00\x00torn")
    delivery = export_run(log.parents[1], settings_of(database))
    assert delivery.backlog_bytes == 0
    assert delivery.error == "w0.log: 8 bytes at the end of the record log are torn"
    assert held(database) == WANT


def test_a_log_that_is_none_is_named_and_the_others_are_delivered(database: Influxd, log: Path) -> None:
    log.with_name("a.log").write_bytes(b"something else")
    log.with_name("b.log").touch()
    delivery = export_run(log.parents[1], settings_of(database))
    assert delivery.backlog_bytes == len(b"something else")
    assert delivery.error is not None
    assert "this is no record log" in delivery.error
    assert held(database) == WANT


def test_what_no_field_can_hold_is_left_out_and_counted(database: Influxd, tmp_path: Path) -> None:
    [record] = requests(1, seed=1, begin_unix_ns=NOW_S * 10**9)
    odd = msgspec.structs.replace(record, processing_ms=math.inf, error="x" * 1000)
    write_log(tmp_path / "w0.log", [odd], run_id="run-1", worker="w0")
    delivery = started(tmp_path / "w0.log", database).stop(10)
    assert delivery.left_out == FormatCounts(values_dropped=1, texts_shortened=1, packs_dropped=0)
    assert held(database).requests == 1


def test_probe_says_what_is_there(database: Influxd) -> None:
    assert probe(settings_of(database)) == f"InfluxDB 1.6.7 OSS at {database.url}, bucket 'tokswarm'"
    old = InfluxSettings(url=database.direct_url)
    assert probe(old).startswith("InfluxDB 1.6.7")


def test_probe_names_what_it_cannot_reach() -> None:
    port = free_port()
    with pytest.raises(SinkError, match=rf"127\.0\.0\.1:{port} cannot be reached: .*Connection refused"):
        probe(InfluxSettings(url=f"http://127.0.0.1:{port}"))


def test_a_run_without_logs_cannot_be_exported(database: Influxd, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="there are no record logs"):
        export_run(tmp_path, settings_of(database))


LAG = """
import gevent.monkey
gevent.monkey.patch_all()
import json, os, sys, time
from pathlib import Path
import gevent
from tokswarm.sink.influx import InfluxSink
from tokswarm.sink.settings import InfluxSettings

lags = []
def watch():
    while True:
        due = time.perf_counter() + 0.001
        gevent.sleep(0.001)
        lags.append(time.perf_counter() - due)

sink = InfluxSink(Path(sys.argv[1]), InfluxSettings.from_environ(os.environ), "run-1", "w0")
gevent.sleep(0.1)
watcher = gevent.spawn(watch)
gevent.sleep(0.1)
sink.start()
while sink.backlog_bytes:
    gevent.sleep(0.01)
watcher.kill()
lags.sort()
delivery = sink.stop(5)
print(json.dumps({"written": delivery.written_points, "p95_ms": lags[len(lags) * 95 // 100] * 1e3, "n": len(lags)}))
"""


def test_catching_up_does_not_hold_the_loop_of_a_patched_process(database: Influxd, tmp_path: Path) -> None:
    path = tmp_path / "w0.log"
    write_log(path, entries(6000, worker="w0", seed=6, begin_unix_s=NOW_S), run_id="run-1", worker="w0")
    # The database answers slowly too: a call that did not yield would show as a lag of half a second.
    database.rule(answers=[{"delay_s": 0.5}])
    child = subprocess.run(
        [sys.executable, "-c", LAG, str(path)],
        env={**os.environ, **database.environ()},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = json.loads(child.stdout)
    assert found["written"] > 60_000
    assert found["n"] > 200
    assert found["p95_ms"] < 2.5, found


SILENT = """
import gevent.monkey
gevent.monkey.patch_all()
import json, socket, sys, time
from pathlib import Path
import gevent
from tokswarm.sink.influx import InfluxSink
from tokswarm.sink.settings import InfluxSettings

listener = socket.create_server(("127.0.0.1", 0))
url = f"http://127.0.0.1:{listener.getsockname()[1]}"
sink = InfluxSink(Path(sys.argv[1]), InfluxSettings(url=url), "run-1", "w0")
sink.start()
gevent.sleep(0.3)
began = time.monotonic()
delivery = sink.stop(1.0)
print(json.dumps({"took_s": time.monotonic() - began, "backlog": delivery.backlog_bytes, "error": delivery.error}))
"""


def test_a_database_that_never_answers_does_not_outlast_the_deadline(log: Path) -> None:
    command = [sys.executable, "-c", SILENT, str(log)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    found = json.loads(child.stdout)
    assert 1.0 <= found["took_s"] < 2.5
    assert found["backlog"] > 0
    assert found["error"] == "no more time"


def test_the_facade_answers_as_the_real_api_for_an_unknown_path(database: Influxd) -> None:
    assert call(database.url, "POST", "/api/v2/query", b"x")[0] == 404
