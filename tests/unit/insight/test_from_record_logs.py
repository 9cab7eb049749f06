"""From the records workers write to the summary, through the real log and the real Parquet."""

from array import array
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from synthetic_run import T0_S, health, run_of, sweep, unix_ns

from tokswarm.insight import tables
from tokswarm.insight.percentiles import Percentiles
from tokswarm.insight.report import write_report
from tokswarm.insight.run_file import RunFile, encode_run_file
from tokswarm.measure.record import Outcome, QueueWaitSource, RequestRecord, TokenSource
from tokswarm.measure.window import FleetSecond, WorkerSecond
from tokswarm.sink.parquet import write_parquet
from tokswarm.sink.record_log import RecordLog


def record(number: int, *, sent_s: float, arrivals_ms: list[float], **fields: Any) -> RequestRecord:
    """What the recorder of a worker makes of a streamed answer of one token per arrival."""
    sent_ns = 5_000_000_000 + int(sent_s * 1e9)
    stamps = [sent_ns + int(ms * 1e6) for ms in arrivals_ms]
    values: dict[str, Any] = {
        "request_id": number,
        "slot": 0,
        "class_name": "chat",
        "stage": "sweep-1",
        "target": "t",
        "outcome": Outcome.OK,
        "planned_ns": sent_ns,
        "sent_ns": sent_ns,
        "sent_unix_ns": unix_ns(sent_s),
        "done_ns": stamps[-1],
        "first_token_ns": stamps[0],
        "first_output_ns": stamps[0],
        "last_token_ns": stamps[-1],
        "output_tokens": len(stamps),
        "output_tokens_source": TokenSource.USAGE,
        "arrivals": array("q", [stamp - sent_ns for stamp in stamps]).tobytes(),
    }
    return RequestRecord(**(values | fields))


def left_by(tmp_path: Path, run: RunFile, entries: list[Any]) -> Path:
    """A run's folder, as the master has it when the report begins."""
    log = RecordLog(tmp_path / "w1.log", run_id=run.run_id, worker="w1")
    for entry in entries:
        assert log.append(entry)
    log.close()
    write_parquet([tmp_path / "w1.log"], tmp_path)
    (tmp_path / "run.json").write_bytes(encode_run_file(run))
    return tmp_path


def worker_second(second: int, **columns: Any) -> WorkerSecond:
    known = {name: value for name, value in health(second=second, **columns).items() if name != "worker"}
    zero = dict.fromkeys(WorkerSecond.__struct_fields__, 0) | {"schedule_lag_p99_ms": None, "sink_error": ""}
    return WorkerSecond(**(zero | known | {"worker": "w1"}))


def test_what_workers_record_is_what_the_summary_says(tmp_path: Path) -> None:
    entries = [
        record(
            1,
            sent_s=1.0,
            arrivals_ms=[100, 120, 160],
            output_tokens=6,
            arrival_tokens=array("I", [1, 4, 1]).tobytes(),
            prompt_tokens=80,
            cached_tokens=20,
            ideal_cached_tokens=40,
            queue_wait_ms=7.5,
            queue_wait_source=QueueWaitSource.SERVER,
            slo_met=True,
        ),
        record(2, sent_s=4.0, arrivals_ms=[300], outcome=Outcome.RESET, output_tokens_source=TokenSource.CHUNKS),
        *(worker_second(s, cpu_ratio=0.99) for s in range(10)),
        FleetSecond(
            **dict.fromkeys(FleetSecond.__struct_fields__[:16], 0)
            | {"second_unix": T0_S, "class_name": "_all", "stage": "sweep-1", "finished": {"ok": 1}, "dropped": 3}
        ),
    ]
    summary = write_report(left_by(tmp_path, run_of(sweep(1)), entries))
    (stage,) = summary.stages
    assert summary.missing == []
    assert stage.requests == {"ok": 1, "reset": 1}
    assert (stage.output_tokens, stage.failed_output_tokens) == (7, 1)
    assert stage.ttft_ms == Percentiles(p50=100.0, p90=100.0, p99=100.0, count=1)
    assert stage.itl_ms == Percentiles(p50=20.0, p90=40.0, p99=40.0, count=5)
    assert stage.tpot_ms == Percentiles(p50=12.0, p90=12.0, p99=12.0, count=1)
    assert stage.output_tok_per_s == pytest.approx(7 / 9.84, abs=0.001)
    assert (stage.cached_ratio, stage.ideal_cached_ratio, stage.dropped) == (0.25, 0.5, 3)
    assert (stage.queue_wait_source, stage.queue_wait_ms and stage.queue_wait_ms.p50) == ("server", 7.5)
    assert stage.goodput is not None
    assert stage.goodput.met == 1
    assert summary.token_sources == {"chunks": 0.1429, "usage": 0.8571}
    assert [reason.cause for reason in summary.verdict.reasons] == ["cpu", "dropped", "failed"]


def test_a_run_that_recorded_nothing_is_reported(tmp_path: Path) -> None:
    summary = write_report(left_by(tmp_path, run_of(sweep(1)), []))
    assert (summary.verdict.state, summary.totals.requests) == ("invalid", {})


@pytest.mark.parametrize(
    ("file", "columns"),
    [
        ("requests.parquet", tables.REQUESTS),
        ("workers.parquet", tables.WORKERS),
        ("fleet.parquet", tables.FLEET),
    ],
)
def test_every_column_that_is_read_is_written(tmp_path: Path, file: str, columns: dict[str, pl.DataType]) -> None:
    left_by(tmp_path, run_of(sweep(1)), [])
    written = pl.read_parquet_schema(tmp_path / file)
    needed = {name: kind for name, kind in columns.items() if name not in tables.APPENDED}
    assert {name: written.get(name) for name in needed} == needed


def test_a_run_file_carries_the_whole_mix_as_plain_json(tmp_path: Path) -> None:
    write_report(left_by(tmp_path, run_of(sweep(1)), []))
    mix = msgspec.json.decode((tmp_path / "summary.json").read_bytes())["mix"]
    assert (mix["load"][0]["for"], mix["target"]["base_url"]) == ("10s", "http://127.0.0.1:8100/v1")
