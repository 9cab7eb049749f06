"""With a database on, what it holds is what the run counted, and every board shows it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from board_expectations import Expectation
from board_goldens import GOLDENS_OF_ONE_RUN, disagreements
from board_queries import BOARDS, choices_of, values_of
from board_tables import Chosen, Seen
from databases import Influxd, VictoriaMetrics, free_port, influxd, victoria_metrics
from endpoints import simulator
from grafana_macros import AllValues, TimeRange, fill_in
from product import RunFolder, assert_good, only_run, run_mix, tokswarm, write_mix

from tokswarm.measure.window import Event

CONTEXT_TOKENS = 1_500
PROFILE = f"""\
description: a small server, whose prefix cache is too small for what is asked of it
max_num_seqs: 6
num_blocks: 120
max_model_len: {CONTEXT_TOKENS}
"""
CLASSES = [
    {
        "name": "chat",
        "weight": 6,
        "prompt": {
            "tokens": {"uniform": {"low": 200, "high": 280}},
            "shared_prefix": {"groups": 6, "tokens": 160},
        },
        "output": {"max_tokens": {"uniform": {"low": 8, "high": 40}}, "ignore_eos": True},
        "slo": {"ttft": {"p99": "400ms"}, "itl": {"p99": "60ms"}},
    },
    {
        "name": "too-long",
        "weight": 1,
        "prompt": {"tokens": {"fixed": 2 * CONTEXT_TOKENS}},
        "output": {"max_tokens": {"fixed": 8}},
        "slo": {"e2e": {"p99": "3s"}},
    },
]
A_COUNTED_FIELD = {
    "llm_request": "request",
    "llm_window": "started",
    "llm_worker": "sockets",
    "llm_fleet": "workers",
    "llm_server": "up",
    "llm_event": "title",
}


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    profile = tmp_path_factory.mktemp("profile") / "small.yaml"
    profile.write_text(PROFILE, encoding="utf-8")
    with simulator(profile) as base_url:
        yield base_url


def mix_against(base_url: str, folder: Path, *, stage_s: int) -> Path:
    return write_mix(
        folder / "churn.yaml",
        base_url,
        classes=CLASSES,
        load=[
            {"name": "warm-up", "concurrency": 1, "for": "3s", "drain": "5s", "warmup": True},
            {"name": "sweep", "concurrency": [2, 10], "for": f"{stage_s}s", "drain": "10s"},
            {"name": "open", "rate": "12/s", "for": f"{stage_s}s", "drain": "10s"},
        ],
    )


# --- InfluxDB ---------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """A run, and the database that was told of it."""

    run: RunFolder
    database: Influxd


@pytest.fixture(scope="module")
def kept(small_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder = tmp_path_factory.mktemp("influxd")
    with influxd() as database:
        mix = mix_against(small_server, folder, stage_s=5)
        yield Kept(run_mix(mix, folder / "data", workers=2, settings=database.environ()), database)


def held(database: Influxd, run_id: str) -> dict[str, int]:
    return {
        name: database.value(f"SELECT count({field}) FROM {name} WHERE run = '{run_id}'") or 0
        for name, field in A_COUNTED_FIELD.items()
    }


def test_influxd_holds_every_finished_request(kept: Kept) -> None:
    outcomes = {
        row["outcome"]: row["count"]
        for row in kept.database.rows("SELECT count(request) FROM llm_request GROUP BY outcome")
    }
    assert set(outcomes) == {"ok", "context_length"}
    assert sum(outcomes.values()) == kept.run.finished_requests
    for outcome, count in outcomes.items():
        parts = (kept.run.summary[part]["requests"].get(outcome, 0) for part in ("totals", "warmup_totals"))
        assert sum(parts) == count, outcome


def test_influxd_holds_every_output_token(kept: Kept) -> None:
    assert kept.database.value("SELECT sum(n) FROM llm_token") == kept.run.output_tokens
    by_request = kept.database.rows("SELECT request, output_tokens FROM llm_request")
    assert sum(row["output_tokens"] for row in by_request) == kept.run.output_tokens


def test_windows_of_workers_and_of_the_fleet_add_up_to_the_same_tokens(kept: Kept) -> None:
    assert kept.database.value("SELECT sum(output_tokens) FROM llm_window") == kept.run.output_tokens
    finished = kept.database.value("SELECT sum(finished) FROM llm_window")
    assert finished == kept.run.finished_requests
    whole = "WHERE class = '_all'"
    late = [note for note in kept.run.summary["notes"] if "windows" in note]
    if not late:  # a stalled machine may keep windows from the live figures, and says so
        assert kept.database.value(f"SELECT sum(output_tok_per_s) FROM llm_fleet {whole}") == kept.run.output_tokens
        assert kept.database.value(f"SELECT sum(finished_per_s) FROM llm_fleet {whole}") == finished


def test_influxd_holds_every_point_of_every_measurement(kept: Kept) -> None:
    assert held(kept.database, kept.run.run_id) == kept.run.points
    assert all(count > 0 for count in kept.run.points.values())
    kinds = {row["kind"] for row in kept.database.rows("SELECT title FROM llm_event GROUP BY kind")}
    assert kinds >= {"run", "stage", "verdict"}


def test_an_export_of_what_was_delivered_changes_nothing(kept: Kept) -> None:
    end = tokswarm(
        *("export", kept.run.run_id, "--data-dir", kept.run.path.parents[1], "--from-start"),
        settings=kept.database.environ(),
    )
    assert end.code == 0, end
    assert end.out.endswith("points written, 0 refused by the database\n")
    assert held(kept.database, kept.run.run_id) == kept.run.points
    assert kept.database.value("SELECT sum(n) FROM llm_token") == kept.run.output_tokens


# --- the boards on that run -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def span(kept: Kept) -> TimeRange:
    """What the picker shows when the run is looked at: it, and until its verdict is known on a busy machine."""
    summary = kept.run.summary
    return TimeRange(summary["started_unix_ns"] // 1_000_000 - 5_000, summary["ended_unix_ns"] // 1_000_000 + 60_000)


@pytest.mark.parametrize("name", BOARDS)
def test_every_variable_of_a_board_offers_what_the_run_had(name: str, kept: Kept, span: TimeRange) -> None:
    chosen = choices_of(BOARDS[name], kept.database.query, span)
    assert chosen["run"] == kept.run.run_id
    assert all(chosen[variable] == AllValues(".*") for variable in ("class", "stage", "target", "worker"))


@pytest.mark.parametrize(("target", "expectation"), GOLDENS_OF_ONE_RUN)
def test_every_panel_shows_what_the_tables_of_a_real_run_hold(
    target: dict[str, Any], expectation: Expectation, kept: Kept, span: TimeRange
) -> None:
    seen = Seen(kept.run.path, Chosen(10))
    more = {"run": kept.run.run_id, "request": str(seen.request_id)}
    assert disagreements(kept.database.query, target, expectation, seen, span, more) == []


@pytest.mark.parametrize("name", BOARDS)
def test_every_annotation_of_a_board_shows_a_real_run(name: str, kept: Kept, span: TimeRange) -> None:
    for annotation in BOARDS[name]["annotations"]["list"]:
        chosen = choices_of(BOARDS[name], kept.database.query, span)
        series = kept.database.query(fill_in(annotation["target"]["query"], chosen, span))
        assert all(None not in row for one in series for row in one["values"])
        titles = values_of(series, "title")
        if annotation["name"] == "Cliffs":
            continue  # whether there is one is the server's affair
        if annotation["name"] == "Stages":
            assert titles == ["warm-up", "sweep-2", "sweep-10", "open"]
        else:
            assert f"the run is {kept.run.summary['verdict']['state']}" in titles


# --- VictoriaMetrics --------------------------------------------------------------------------------


class KeptElsewhere(NamedTuple):
    """A run, and the other database that was told of it."""

    run: RunFolder
    database: VictoriaMetrics


@pytest.fixture(scope="module")
def kept_elsewhere(small_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeptElsewhere]:
    folder = tmp_path_factory.mktemp("victoria-metrics")
    with victoria_metrics() as database:
        mix = mix_against(small_server, folder, stage_s=2)
        yield KeptElsewhere(run_mix(mix, folder / "data", workers=2, settings=database.environ()), database)


def values(database: VictoriaMetrics, selector: str) -> list[float]:
    return [value for series in database.samples(selector) for value in series["values"]]


def test_victoria_metrics_holds_every_finished_request(kept_elsewhere: KeptElsewhere) -> None:
    run, database = kept_elsewhere
    assert len(values(database, "llm_request_request")) == run.finished_requests
    for outcome in ("ok", "context_length"):
        parts = (run.summary[part]["requests"].get(outcome, 0) for part in ("totals", "warmup_totals"))
        assert len(values(database, f'llm_request_request{{outcome="{outcome}"}}')) == sum(parts) > 0


def test_victoria_metrics_holds_every_output_token(kept_elsewhere: KeptElsewhere) -> None:
    run, database = kept_elsewhere
    assert sum(values(database, "llm_token_n")) == run.output_tokens > 0


def test_victoria_metrics_holds_every_point_of_every_measurement(kept_elsewhere: KeptElsewhere) -> None:
    run, database = kept_elsewhere
    # It keeps numbers only: of an event that is its end.
    fields = {**A_COUNTED_FIELD, "llm_event": "end_ms"}
    found = {name: len(values(database, f"{name}_{field}")) for name, field in fields.items()}
    ended = {(event.kind, event.unix_ns, event.title) for event in run.all_of(Event) if event.end_unix_ns is not None}
    assert found.pop("llm_event") == len(ended) >= len(run.summary["stages"])
    assert found == {name: count for name, count in run.points.items() if name != "llm_event"}


# --- a database that is away ------------------------------------------------------------------------


class Outage(NamedTuple):
    """A run whose database could not be reached, and what the command said."""

    run: RunFolder
    data_dir: Path
    said: str


@pytest.fixture(scope="module")
def outage(small_server: str, tmp_path_factory: pytest.TempPathFactory) -> Outage:
    folder = tmp_path_factory.mktemp("outage")
    mix = write_mix(
        folder / "outage.yaml",
        small_server,
        classes=CLASSES,
        load=[{"name": "short", "concurrency": 4, "for": "3s", "drain": "10s"}],
    )
    away = {
        "INFLUXDB_V2_URL": f"http://127.0.0.1:{free_port()}",
        "INFLUXDB_V2_TOKEN": "of-nobody",
        "INFLUXDB_V2_ORG": "-",
        "INFLUXDB_V2_BUCKET": "tokswarm",
    }
    end = tokswarm("run", mix, "--workers", 2, "--data-dir", folder / "data", settings=away)
    run = only_run(folder / "data")
    assert_good(end, run)
    return Outage(run, folder / "data", end.err)


def test_a_run_goes_on_without_its_database_and_says_so(outage: Outage) -> None:
    assert outage.run.finished_requests > 10
    notes = " ".join(outage.run.summary["notes"])
    assert "the database did not take data of" in notes
    assert "send them with `tokswarm export`" in notes
    assert "the database did not take data of" in outage.said
    troubles = [event for event in outage.run.all_of(Event) if event.kind == "database"]
    assert {event.title for event in troubles} >= {"the database does not take the data of local-1"}
    assert all("refused" in event.text for event in troubles)


def test_everything_is_delivered_later(outage: Outage) -> None:
    with influxd() as database:
        arguments = ("export", outage.run.run_id, "--data-dir", outage.data_dir)
        end = tokswarm(*arguments, settings=database.environ())
        assert end.code == 0, end
        assert held(database, outage.run.run_id) == outage.run.points
        assert database.value("SELECT count(request) FROM llm_request") == outage.run.finished_requests
        assert database.value("SELECT sum(n) FROM llm_token") == outage.run.output_tokens > 0
        again = tokswarm(*arguments, settings=database.environ())
        assert (again.code, again.out) == (0, "0 points written, 0 refused by the database\n")


def test_an_export_to_a_database_that_is_away_fails_and_can_be_repeated(outage: Outage) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    end = tokswarm(
        *("export", outage.run.run_id, "--data-dir", outage.data_dir, "--from-start"),
        settings={"INFLUXDB_V2_URL": url, "INFLUXDB_V2_BUCKET": "tokswarm"},
    )
    assert end.code == 1
    assert url in end.err
    assert "hint: " in end.err
