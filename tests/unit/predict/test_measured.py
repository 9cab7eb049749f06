"""What is read of a run's folder, and what `tokswarm predict` makes of it."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from synthetic_run import bent_sweep, health, request, requests_table, run_of, sweep, workers_table

from tokswarm.errors import ReportError
from tokswarm.insight.report import write_report
from tokswarm.insight.run_file import RunFile, encode_run_file
from tokswarm.predict.measured import Figures, read_measured


def run_dir(path: Path, run: RunFile, rows: list[dict[str, Any]]) -> Path:
    """A run's folder as it is left, reported."""
    (path / "logs").mkdir()
    (path / "run.json").write_bytes(encode_run_file(run))
    requests_table(rows).write_parquet(path / "requests.parquet")
    workers_table([health(second=s) for s in range(75)]).write_parquet(path / "workers.parquet")
    write_report(path)
    return path


def test_the_figures_are_those_of_the_report(tmp_path: Path) -> None:
    run, rows = bent_sweep((1, 8))
    measured = read_measured(run_dir(tmp_path, run, rows))
    one, eight = measured.stages
    assert (one.name, one.sent_for_s, one.settle_s, one.window_s) == ("sweep-1", 10.0, 1.0, 9.0)
    assert one.figures == Figures(10.0, 100.0, 100.0, 0.0)
    assert eight.figures.output_tok_per_s == pytest.approx(40.0)
    assert eight.figures.queue_wait_mean_ms == pytest.approx(
        sum(row["queue_wait_ms"] for row in rows if row["stage"] == "sweep-8")
        / sum(1 for row in rows if row["stage"] == "sweep-8"),
        abs=0.001,
    )


def test_a_wait_that_the_server_did_not_report_is_absent(tmp_path: Path) -> None:
    run, rows = bent_sweep((1, 8))
    silent = [{**row, "queue_wait_ms": None, "queue_wait_source": None} for row in rows]
    measured = read_measured(run_dir(tmp_path, run, silent))
    assert [stage.figures.queue_wait_mean_ms for stage in measured.stages] == [None, None]


def test_lengths_are_kept_of_answers_that_end_by_themselves(tmp_path: Path) -> None:
    run, rows = bent_sweep((1,))
    assert set(read_measured(run_dir(tmp_path, run, rows)).answer_tokens["chat"]) == {10}


def test_failed_requests_measure_nothing(tmp_path: Path) -> None:
    rows = [request(queue_wait_ms=5.0, queue_wait_source="server")]
    rows += [request(sent_s=1.0, outcome="timeout", queue_wait_ms=900.0, queue_wait_source="server")]
    measured = read_measured(run_dir(tmp_path, run_of(sweep(1)), rows))
    assert measured.stages[0].figures.queue_wait_mean_ms == 5.0


def test_records_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    run, rows = bent_sweep((1,))
    folder = run_dir(tmp_path, run, rows)
    (folder / "requests.parquet").write_bytes(b"no table")
    with pytest.raises(ReportError, match=r"requests\.parquet"):
        read_measured(folder)


def test_the_command_finds_a_server_of_four_slots_and_says_what_eight_more_clients_would_get(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokswarm.cli import run_cli  # noqa: PLC0415 - loads gevent's patches nowhere, but all commands

    run, rows = bent_sweep((1, 2, 4, 8, 16))
    run = msgspec.structs.replace(run, mix=_ten_tokens(run))
    folder = run_dir(tmp_path, run, rows)
    server = tmp_path / "server.yaml"
    server.write_text(
        "max_num_seqs: 4\nmax_step_tokens: 512\nblock_tokens: 16\nnum_blocks: 512\nmax_model_len: 1024\n"
        "step_overhead_us: 50000\nsequence_overhead_us: 0\ntoken_compute_us: 100\nkv_read_us: 0\nweights_read_us: 0\n"
    )
    saved = tmp_path / "fitted.yaml"
    arguments = ["predict", str(folder), "--server", str(server), "--at", "24", "--json", "--save", str(saved)]
    assert run_cli(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [load["load"] for load in printed["fit"]["loads"]] == ["1", "2", "4", "8", "16"]
    assert [load["fitted"] for load in printed["fit"]["loads"]] == [True, False, True, False, True]
    for load in printed["fit"]["loads"]:  # a token on the edge of the window counts or does not
        assert load["predicted"]["output_tok_per_s"] == pytest.approx(load["measured"]["output_tok_per_s"], rel=0.15)
        assert load["predicted"]["itl_p50_ms"] == pytest.approx(100.0, rel=0.1)
    (at_24,) = printed["predicted"]
    assert at_24["concurrency"] == 24
    assert at_24["figures"]["output_tok_per_s"] == pytest.approx(40.0, rel=0.1)
    assert at_24["figures"]["queue_wait_mean_ms"] == pytest.approx(5_000.0, rel=0.15)

    assert run_cli(["predict", str(folder), "--server", str(saved)]) == 0
    shown = capsys.readouterr().out
    assert "held out" in shown
    assert "held-out loads are predicted within" in shown


def _ten_tokens(run: RunFile) -> Any:
    (chat,) = run.mix.classes
    length = msgspec.structs.replace(chat.output.max_tokens, fixed=10)
    output = msgspec.structs.replace(chat.output, max_tokens=length, ignore_eos=True)
    return msgspec.structs.replace(run.mix, classes=[msgspec.structs.replace(chat, output=output)])


def test_a_run_of_two_loads_is_too_few_to_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tokswarm.cli import run_cli  # noqa: PLC0415 - as above

    run, rows = bent_sweep((1, 8))
    assert run_cli(["predict", str(run_dir(tmp_path, run, rows)), "--server", "demo"]) == 2
    assert "has 2 loads, a fit needs 3 or more" in capsys.readouterr().err
