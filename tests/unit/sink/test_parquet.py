import json
from array import array
from pathlib import Path

import msgspec
import polars as pl
import pytest

from tokswarm.measure.record import Outcome, QueueWaitSource, RequestRecord, TokenSource
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond, Window, WorkerSecond
from tokswarm.sink import parquet
from tokswarm.sink.parquet import LogCounts, write_parquet
from tokswarm.sink.record_log import Entry, RecordLog

STREAMED = RequestRecord(
    request_id=(1 << 40) + 1,
    slot=1,
    class_name="chat",
    stage="sweep-4",
    target="tiny",
    outcome=Outcome.OK,
    planned_ns=1_000_000,
    sent_ns=3_000_000,
    sent_unix_ns=1_700_000_000_000_000_000,
    done_ns=103_000_000,
    first_token_ns=23_000_000,
    first_output_ns=43_000_000,
    last_token_ns=83_000_000,
    output_tokens=7,
    output_tokens_source=TokenSource.USAGE,
    queue_wait_ms=1.5,
    queue_wait_source=QueueWaitSource.SERVER,
    slo_met=True,
    arrivals=array("q", [20_000_000, 40_000_000, 80_000_000]).tobytes(),
    arrival_tokens=array("I", [1, 2, 4]).tobytes(),
)
ONE_EACH = msgspec.structs.replace(STREAMED, request_id=2, output_tokens=3, arrival_tokens=b"")
FAILED = RequestRecord(
    request_id=3,
    slot=2,
    class_name="chat",
    stage="sweep-4",
    target="tiny",
    outcome=Outcome.RATE_LIMITED,
    planned_ns=5,
    sent_ns=5,
    sent_unix_ns=1_700_000_000_000_000_000,
    done_ns=1_000_005,
    status=429,
    error="slow down",
)
SECOND = WorkerSecond(
    worker="w0",
    second_unix=1_700_000_000,
    loop_lag_p99_ms=0.5,
    loop_lag_max_ms=1.5,
    cpu_ratio=0.25,
    schedule_lag_p99_ms=None,
    in_flight=4,
    sockets=4,
    rss_bytes=1 << 33,
    log_bytes=100,
    log_lost=0,
    sink_backlog_bytes=10,
    sink_error="",
    reads=9,
    merged_arrivals=1,
    unstamped_arrivals=0,
)
FLEET = FleetSecond(
    second_unix=1_700_000_000,
    class_name="_all",
    stage="sweep-4",
    workers=2,
    output_tok_per_s=100,
    prompt_tok_per_s=50,
    offered_per_s=3,
    started_per_s=3,
    finished={"ok": 2, "rate_limited": 1, "reset": 1},
    in_flight=4,
    dropped=0,
    late=0,
    goodput_per_s=None,
    goodput_ratio=None,
    cached_ratio=0.5,
    ideal_cached_ratio=None,
)
SERVER = ServerSecond(
    unix_ns=1_700_000_000_000_000_000,
    target="tiny",
    replica="127.0.0.1:8011",
    up=1,
    engine="vllm",
    waiting=3,
    kv_use_ratio=0.5,
)


def write(path: Path, entries: list[Entry], worker: str) -> Path:
    with RecordLog(path, run_id="run-1", worker=worker) as log:
        for entry in entries:
            assert log.append(entry)
    return path


def test_requests_keep_their_fields_and_gain_what_follows_from_them(tmp_path: Path) -> None:
    logs = [
        write(tmp_path / "w0.log", [STREAMED, FAILED], "w0"),
        write(tmp_path / "w1.log", [ONE_EACH], "w1"),
    ]
    counts = write_parquet(logs, tmp_path / "out")
    assert counts == LogCounts(requests=3, output_tokens=10)
    table = pl.read_parquet(tmp_path / "out" / "requests.parquet")
    first, failed, one_each = table.to_dicts()
    plain = {name: value for name, value in msgspec.structs.asdict(STREAMED).items() if not name.startswith("arrival")}
    assert first == {
        "worker": "w0",
        **plain,
        "ttft_ms": 20.0,
        "ttfo_ms": 40.0,
        "tpot_ms": 10.0,
        "e2e_ms": 100.0,
        "schedule_lag_ms": 2.0,
        "arrivals_ns": [20_000_000, 40_000_000, 80_000_000],
        "arrival_tokens": [1, 2, 4],
    }
    assert (failed["outcome"], failed["ttft_ms"], failed["arrivals_ns"], failed["arrival_tokens"]) == (
        "rate_limited",
        None,
        [],
        [],
    )
    assert (one_each["worker"], one_each["arrival_tokens"]) == ("w1", [1, 1, 1])
    assert table.schema["arrivals_ns"] == pl.List(pl.Int64)
    assert table.schema["arrival_tokens"] == pl.List(pl.UInt32)
    assert table.schema["slo_met"] == pl.Boolean
    assert table.schema["queue_wait_source"] == pl.String


def test_seconds_and_events_have_tables_of_their_own(tmp_path: Path) -> None:
    begun = Event(unix_ns=2, kind="stage", title="b", text="")
    late = msgspec.structs.replace(begun, end_unix_ns=9)  # the same, once its end was known
    early = Event(unix_ns=1, kind="run", title="a", text="t")
    window = Window(worker="w0", second_unix=1, sequence=0, rows=[])
    log = write(tmp_path / "w0.log", [SECOND, FLEET, SERVER, begun, late, early, window], "w0")
    counts = write_parquet([log], tmp_path)
    assert counts == LogCounts(windows=1, worker_seconds=1, fleet_seconds=1, server_seconds=1, events=3)
    [worker] = pl.read_parquet(tmp_path / "workers.parquet").to_dicts()
    assert worker == msgspec.structs.asdict(SECOND)
    [fleet] = pl.read_parquet(tmp_path / "fleet.parquet").to_dicts()
    finished = json.loads(fleet.pop("finished_json"))
    want = msgspec.structs.asdict(FLEET)
    assert finished == want.pop("finished")
    assert pl.read_parquet(tmp_path / "server.parquet").to_dicts() == [msgspec.structs.asdict(SERVER)]
    assert fleet == {**want, "finished_total": 4, "finished_ok": 2, "rate_limited": 1}
    assert json.loads((tmp_path / "events.json").read_bytes()) == [
        {"unix_ns": 1, "kind": "run", "title": "a", "text": "t", "end_unix_ns": None},
        {"unix_ns": 2, "kind": "stage", "title": "b", "text": "", "end_unix_ns": 9},
    ]


def test_a_run_without_entries_has_tables_of_the_same_shape(tmp_path: Path) -> None:
    full = write(tmp_path / "w0.log", [STREAMED, SECOND, FLEET, SERVER], "w0")
    write_parquet([full], tmp_path / "full")
    assert write_parquet([write(tmp_path / "w1.log", [], "w1")], tmp_path / "empty") == LogCounts()
    write_parquet([], tmp_path / "none")
    for name in ("requests", "workers", "fleet", "server"):
        schema = pl.read_parquet_schema(tmp_path / "full" / f"{name}.parquet")
        for other in ("empty", "none"):
            table = pl.read_parquet(tmp_path / other / f"{name}.parquet")
            assert table.height == 0
            assert dict(table.schema) == dict(schema)
    assert json.loads((tmp_path / "none" / "events.json").read_bytes()) == []


def test_many_batches_come_out_in_order_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "BATCH_ROWS", 7)
    records = [msgspec.structs.replace(STREAMED, request_id=n) for n in range(100)]
    seconds = [msgspec.structs.replace(SECOND, second_unix=n) for n in range(30)]
    log = write(tmp_path / "w0.log", [*records, *seconds], "w0")
    assert write_parquet([log], tmp_path).requests == 100
    assert pl.read_parquet(tmp_path / "requests.parquet")["request_id"].to_list() == list(range(100))
    assert pl.read_parquet(tmp_path / "workers.parquet")["second_unix"].to_list() == list(range(30))


def test_long_answers_make_smaller_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "BATCH_ARRIVALS_BYTES", 100)
    log = write(tmp_path / "w0.log", [STREAMED] * 50, "w0")
    assert write_parquet([log], tmp_path).requests == 50
    assert pl.read_parquet(tmp_path / "requests.parquet")["arrival_tokens"].to_list() == [[1, 2, 4]] * 50


def test_torn_damaged_and_unreadable_logs_are_counted_and_cost_their_own_rows_alone(tmp_path: Path) -> None:
    torn = write(tmp_path / "w0.log", [STREAMED, FAILED], "w0")
    torn.write_bytes(torn.read_bytes()[:-3])
    damaged = write(tmp_path / "w1.log", [STREAMED, ONE_EACH], "w1")
    data = bytearray(damaged.read_bytes())
    at = data.index(b"chat")
    data[at] ^= 1
    damaged.write_bytes(data)
    foreign = tmp_path / "w2.log"
    foreign.write_bytes(b"something else")
    counts = write_parquet([torn, damaged, foreign, tmp_path / "w3.log"], tmp_path)
    assert counts.requests == 2
    assert counts.torn_bytes > 0
    assert counts.damaged_bytes > 0
    assert [reason.split(":")[0] for reason in counts.unreadable] == [str(foreign), str(tmp_path / "w3.log")]
    assert pl.read_parquet(tmp_path / "requests.parquet")["request_id"].to_list() == [STREAMED.request_id, 2]


def test_a_count_beyond_64_bits_is_absent_and_breaks_nothing(tmp_path: Path) -> None:
    log = write(tmp_path / "w0.log", [msgspec.structs.replace(STREAMED, prompt_tokens=2**64 - 1)], "w0")
    write_parquet([log], tmp_path)
    assert pl.read_parquet(tmp_path / "requests.parquet")["prompt_tokens"].to_list() == [None]


def test_a_write_that_fails_leaves_the_older_file_and_no_half_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write(tmp_path / "w0.log", [STREAMED], "w0")
    write_parquet([log], tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", fail)
    with pytest.raises(OSError, match="disk full"):
        write_parquet([log], tmp_path)
    assert pl.read_parquet_schema(tmp_path / "workers.parquet")["worker"] == pl.String
    assert not list(tmp_path.glob("*.new"))
