"""Looking at runs without a master: `tokswarm runs`, `report`, `export` and `mix check`, on a real run."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from endpoints import simulator
from product import RunFolder, assert_good, only_run, tokswarm, write_mix

from tokswarm.insight.report import read_summary
from tokswarm.resources import resource_dir


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where one short sweep was kept, and what `--json` printed of it in `printed.json`."""
    folder = tmp_path_factory.mktemp("results")
    with simulator("demo") as base_url:
        mix = write_mix(
            folder / "results.yaml",
            "http://127.0.0.1:9/v1",
            classes=[
                {
                    "name": "chat",
                    "prompt": {"tokens": {"fixed": 40}},
                    "output": {"max_tokens": {"fixed": 20}, "ignore_eos": True},
                }
            ],
            load=[{"name": "sweep", "concurrency": [1, 4, 16], "for": "2s", "drain": "5s"}],
        )
        end = tokswarm(
            *("run", mix, "--base-url", base_url, "--model", "tiny", "--data-dir", folder / "data", "--json")
        )
    assert_good(end, only_run(folder / "data"))
    (folder / "printed.json").write_text(end.out)
    return folder / "data"


@pytest.fixture(scope="module")
def run(data_dir: Path) -> RunFolder:
    return only_run(data_dir)


def test_json_prints_the_summary_and_nothing_else(data_dir: Path, run: RunFolder) -> None:
    assert json.loads((data_dir.parent / "printed.json").read_text()) == run.summary


def test_the_target_of_the_command_line_takes_the_place_of_the_mixs(run: RunFolder) -> None:
    assert run.summary["model"] == "tiny"
    assert ":9/" not in run.summary["base_url"]


def test_the_summary_reads_back_as_what_the_documentation_describes(run: RunFolder) -> None:
    summary = read_summary(run.path)
    assert (summary.schema_version, summary.run_id, summary.stopped_by) == (1, run.run_id, "plan")
    assert [stage.concurrency for stage in summary.stages] == [1, 4, 16]
    assert summary.stages[0].linear_ratio == 1
    assert summary.totals.output_tokens == 20 * summary.totals.requests["ok"] == run.output_tokens


def test_each_event_is_kept_once(run: RunFolder) -> None:
    events = json.loads((run.path / "events.json").read_text())
    stages = [event for event in events if event["kind"] == "stage"]
    assert [event["title"] for event in stages] == ["sweep-1", "sweep-4", "sweep-16"]
    assert all(event["end_unix_ns"] > event["unix_ns"] for event in stages)


def test_runs_lists_what_the_data_directory_has(data_dir: Path, run: RunFolder) -> None:
    end = tokswarm("runs", "--data-dir", data_dir, "--json")
    assert end.code == 0
    [info] = [json.loads(line) for line in end.out.splitlines()]
    assert (info["run_id"], info["state"], info["mix_name"], info["workers"]) == (
        run.run_id,
        "finished",
        "results",
        2,
    )
    assert info["output_tokens"] == run.output_tokens
    assert info["verdict"] == run.summary["verdict"]["state"]
    assert info["requests"] == run.summary["totals"]["requests"]
    table = tokswarm("runs", "--data-dir", data_dir)
    assert table.code == 0
    assert "results" in table.out


def test_runs_of_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    end = tokswarm("runs", "--data-dir", tmp_path)
    assert end.code == 2
    assert f"no run has been kept in {tmp_path}" in end.err


@pytest.mark.parametrize("by", ["id", "folder"])
def test_report_shows_the_table_of_a_run(by: str, data_dir: Path, run: RunFolder) -> None:
    end = tokswarm("report", run.run_id if by == "id" else run.path, "--data-dir", data_dir)
    assert end.code == 0
    assert "tok/s" in end.out
    assert f"verdict: {run.summary['verdict']['state']}" in end.out
    assert str(run.path / "curve.html") in end.out


def test_a_report_can_be_made_again_from_the_logs_alone(data_dir: Path, run: RunFolder, tmp_path: Path) -> None:
    copy = tmp_path / run.run_id
    (copy / "logs").mkdir(parents=True)
    for path in (run.path / "run.json", *(run.path / "logs").glob("*.log")):
        (copy / path.relative_to(run.path)).write_bytes(path.read_bytes())
    end = tokswarm("report", copy, "--again", "--json")
    assert end.code == 0, end
    again, before = json.loads(end.out), dict(run.summary)
    assert again == before


def test_a_run_that_is_not_there_is_an_error(data_dir: Path) -> None:
    for command in ("report", "export"):
        settings = {"INFLUXDB_V2_URL": "http://127.0.0.1:9"}
        end = tokswarm(command, "no-such-run", "--data-dir", data_dir, settings=settings)
        assert end.code == 1
        assert "error: no run 'no-such-run' in " in end.err
        assert "hint: `tokswarm runs` lists them" in end.err


def test_an_export_needs_a_database(data_dir: Path, run: RunFolder) -> None:
    end = tokswarm("export", run.run_id, "--data-dir", data_dir)
    assert end.code == 2
    assert "INFLUXDB_V2_URL" in end.err


@pytest.mark.parametrize("name", ["demo", "mooncake-conversation"])
def test_a_mix_that_ships_passes_its_check_by_its_name(name: str) -> None:
    end = tokswarm("mix", "check", name)
    assert end.code == 0, end
    path = resource_dir("locustfiles") / "mixes" / f"{name}.yaml"
    first, *stages = end.out.splitlines()
    assert first.startswith(f"{path}: {name}, ")
    assert len(stages) >= 1
    assert all(" s, drain up to " in stage for stage in stages)
