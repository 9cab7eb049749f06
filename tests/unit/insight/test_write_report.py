import json
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from synthetic_run import T0_S, bent_sweep, health, request, requests_table, run_of, sweep, workers_table

from tokswarm.errors import ReportError
from tokswarm.insight.report import encode_summary, read_run_file, read_summary, write_report
from tokswarm.insight.run_file import RunFile, encode_run_file


def run_dir(path: Path, run: RunFile, rows: list[dict[str, Any]] | None = None) -> Path:
    """A run's folder as the master leaves it; without rows it has no tables."""
    (path / "run.json").write_bytes(encode_run_file(run))
    if rows is not None:
        requests_table(rows).write_parquet(path / "requests.parquet")
        workers_table([health(second=s) for s in range(75)]).write_parquet(path / "workers.parquet")
        fleet = {"second_unix": [T0_S], "class_name": ["_all"], "stage": ["sweep-1"], "dropped": [0]}
        pl.DataFrame(fleet).write_parquet(path / "fleet.parquet")
    return path


def test_a_report_is_a_summary_and_a_page_beside_the_records(tmp_path: Path) -> None:
    run, rows = bent_sweep()
    summary = write_report(run_dir(tmp_path, run, rows))
    assert read_summary(tmp_path / "summary.json") == read_summary(tmp_path) == summary
    assert "tok/s bends at concurrency 4" in summary.bend.line
    assert (tmp_path / "curve.html").read_text().startswith("<!doctype html>")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"run.json", "requests.parquet", "workers.parquet", "fleet.parquet", "summary.json", "curve.html"}


def test_a_summary_file_reads_as_agreed(tmp_path: Path, golden: Any) -> None:
    run, rows = bent_sweep((1, 8))
    write_report(run_dir(tmp_path, run, rows))
    golden("summary.json", (tmp_path / "summary.json").read_text())


def test_writing_a_report_again_changes_nothing(tmp_path: Path) -> None:
    run, rows = bent_sweep((1, 2, 4))
    write_report(run_dir(tmp_path, run, rows))
    first = [(tmp_path / name).read_bytes() for name in ("summary.json", "curve.html")]
    write_report(tmp_path)
    assert [(tmp_path / name).read_bytes() for name in ("summary.json", "curve.html")] == first


def test_the_order_of_records_does_not_matter(tmp_path: Path) -> None:
    run, rows = bent_sweep((1, 8))
    first = encode_summary(write_report(run_dir(tmp_path, run, rows)))
    assert encode_summary(write_report(run_dir(tmp_path, run, rows[::-1]))) == first


def test_a_run_without_tables_is_reported_with_what_is_missing(tmp_path: Path) -> None:
    summary = write_report(run_dir(tmp_path, run_of(sweep(1), begun=0)))
    assert summary.missing[:4] == [
        "no requests.parquet",
        "no workers.parquet",
        "no fleet.parquet",
        "stage sweep-1 never began",
    ]
    assert summary.verdict.state == "invalid"
    assert (tmp_path / "curve.html").is_file()


def test_tables_without_rows_are_reported(tmp_path: Path) -> None:
    summary = write_report(run_dir(tmp_path, run_of(sweep(1)), []))
    assert summary.missing == ["stage sweep-1 has no finished request"]
    assert summary.stages[0].output_tok_per_s == 0.0


def test_a_partial_run_reports_the_stages_that_began(tmp_path: Path) -> None:
    rows = [request(stage="sweep-1", sent_s=i) for i in range(9)]
    summary = write_report(run_dir(tmp_path, run_of(sweep(1, 2, 4), begun=1, stopped_by="user"), rows))
    assert [stage.name for stage in summary.stages] == ["sweep-1"]
    assert summary.missing == ["stage sweep-2 never began", "stage sweep-4 never began"]
    assert (summary.verdict.state, summary.stopped_by) == ("valid", "user")


def test_a_stage_is_written_name_first_and_classes_last(tmp_path: Path) -> None:
    run, rows = bent_sweep((1,))
    write_report(run_dir(tmp_path, run, rows))
    (stage,) = json.loads((tmp_path / "summary.json").read_text())["stages"]
    keys = list(stage)
    assert (keys[:3], keys[-1]) == (["name", "load", "concurrency"], "classes")


def test_absent_is_null_and_nothing_is_nan(tmp_path: Path) -> None:
    write_report(run_dir(tmp_path, run_of(sweep(1)), [request(arrivals_ms=[], outcome="reset", output_tokens=0)]))

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in summary.json")

    summary = json.loads((tmp_path / "summary.json").read_text(), parse_constant=refuse)
    stage = summary["stages"][0]
    assert [stage[key] for key in ("ttft_ms", "itl_ms", "e2e_ms", "cached_ratio", "linear_ratio")] == [None] * 5


def test_a_run_file_is_the_same_after_a_trip_through_json(tmp_path: Path) -> None:
    run = run_of(sweep(1, 2), notes=["n"])
    (tmp_path / "run.json").write_bytes(encode_run_file(run))
    assert read_run_file(tmp_path / "run.json") == run


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(None, "No such file", id="absent"),
        pytest.param(b"", "not a run of this version", id="empty"),
        pytest.param(b'{"run_id": "x"}', "missing required field", id="another-shape"),
    ],
)
def test_a_folder_without_a_readable_run_file_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ReportError, match=words) as caught:
        write_report(tmp_path)
    assert caught.value.hint


def test_a_table_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    run_dir(tmp_path, run_of(sweep(1)), [request()])
    (tmp_path / "requests.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(ReportError, match=r"requests\.parquet: no readable Parquet"):
        write_report(tmp_path)


def test_a_table_that_is_damaged_inside_is_refused_and_leaves_no_summary(tmp_path: Path) -> None:
    run_dir(tmp_path, run_of(sweep(1)), [request(sent_s=i / 100) for i in range(900)])
    whole = (tmp_path / "requests.parquet").read_bytes()
    (tmp_path / "requests.parquet").write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    with pytest.raises(ReportError, match="no readable Parquet"):
        write_report(tmp_path)
    assert not (tmp_path / "summary.json").exists()


def test_a_summary_of_another_version_is_refused(tmp_path: Path) -> None:
    run, rows = bent_sweep((1,))
    summary = write_report(run_dir(tmp_path, run, rows))
    newer = msgspec.structs.replace(summary, schema_version=99)
    (tmp_path / "summary.json").write_bytes(encode_summary(newer))
    with pytest.raises(ReportError, match="schema_version is 99, this tokswarm reads 1"):
        read_summary(tmp_path)


@pytest.mark.parametrize("content", [b"{}", b"[1]", b'{"schema_version": 1}', b"torn"])
def test_what_is_no_summary_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(ReportError, match="no summary"):
        read_summary(tmp_path)
