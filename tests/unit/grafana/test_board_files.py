import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft7Validator

from tokswarm.resources import resource_dir

pytest.importorskip("grafana_foundation_sdk", reason="the boards are built with the extra `boards`")

from board_rules import problems, query_problems

from tokswarm.grafana.build import ALERTS, BOARDS, build_all, main

SCHEMAS = Path(__file__).parents[2] / "data" / "grafana-schema"
DASHBOARDS = resource_dir("dashboards")


def board(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DASHBOARDS / name).read_text(encoding="utf-8"))
    return loaded


def schema_errors(schema: dict[str, Any], value: object) -> list[str]:
    return [
        f"{'/'.join(map(str, error.path))}: {error.message[:200]}"
        for error in Draft7Validator(schema).iter_errors(value)
    ]


@pytest.mark.parametrize("name", [*BOARDS, ALERTS])
def test_the_shipped_file_is_what_the_code_builds(name: str) -> None:
    assert (DASHBOARDS / name).read_text(encoding="utf-8") == build_all()[name]


def test_every_shipped_json_file_is_built_by_the_code() -> None:
    assert {path.name for path in DASHBOARDS.glob("*.json")} == set(BOARDS)


def grafana_schema(kind: str) -> dict[str, Any]:
    """Grafana's, with one mistake of its generator mended.

    It writes Go's `any` as "object" for what a matcher compares with and what an override sets; Grafana itself
    saves strings and numbers there (`byName` takes a string, `byIndex` a number).
    """
    schema: dict[str, Any] = json.loads((SCHEMAS / f"{kind}.jsonschema.json").read_text(encoding="utf-8"))
    for definition, key in (("MatcherConfig", "options"), ("DynamicConfigValue", "value")):
        if definition in schema["definitions"]:
            assert schema["definitions"][definition]["properties"][key]["type"] == "object"
            schema["definitions"][definition]["properties"][key] = {}
    return schema


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_is_valid_against_grafanas_schema(name: str) -> None:
    schema = grafana_schema("dashboard")
    assert schema_errors(schema, board(name)) == []


@pytest.mark.parametrize("name", BOARDS)
def test_the_options_of_every_panel_are_valid_against_the_schema_of_its_kind(name: str) -> None:
    for panel in board(name)["panels"]:
        if panel["type"] == "row":
            continue
        kind = grafana_schema(panel["type"])
        options = {"$ref": "#/definitions/Options", "definitions": kind["definitions"]}
        assert schema_errors(options, panel["options"]) == [], panel["title"]
        custom = panel["fieldConfig"]["defaults"].get("custom")
        if custom is not None:
            own = {"$ref": "#/definitions/FieldConfig", "definitions": kind["definitions"]}
            assert schema_errors(own, custom) == [], panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_obeys_the_rules(name: str) -> None:
    assert problems(board(name)) == []


def test_uids_are_fixed_and_differ() -> None:
    assert [board(name)["uid"] for name in BOARDS] == [
        f"tokswarm-{name}"
        for name in (
            *("overview", "throughput", "latency", "queue-wait"),
            *("cache-churn", "request", "generator", "compare"),
        )
    ]


def test_a_board_that_reads_every_token_is_not_refreshed_by_itself() -> None:
    broken = board("one-request.json")
    assert problems(broken) == []
    broken["refresh"] = "5s"
    assert any("none for a board that reads every token" in problem for problem in problems(broken))


def _first_panel(broken: dict[str, Any]) -> dict[str, Any]:
    panel: dict[str, Any] = next(panel for panel in broken["panels"] if panel["type"] != "row")
    return panel


def _set(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(broken: dict[str, Any]) -> None:
        place: Any = _first_panel(broken) if path[0] == "panel" else broken
        keys = path[1:] if path[0] == "panel" else path
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "word"),
    [
        pytest.param(_set("id", value=7), "id must be null", id="id"),
        pytest.param(_set("uid", value="x"), "uid must be fixed", id="uid"),
        pytest.param(_set("schemaVersion", value=16), "schemaVersion", id="schema"),
        pytest.param(_set("__inputs", value=[]), "__inputs must be absent", id="inputs"),
        pytest.param(_set("refresh", value="7s"), "refresh must be", id="refresh"),
        pytest.param(_set("links", value=[]), "no link", id="links"),
        pytest.param(_set("annotations", "list", value=[]), "no annotations", id="annotations"),
        pytest.param(_set("templating", "list", 1, "sort", value=1), "newest run first", id="run-order"),
        pytest.param(_set("templating", "list", 2, "allValue", value=""), "begin with All", id="all"),
        pytest.param(_set("panel", "title", value=""), "no title", id="title"),
        pytest.param(_set("panel", "description", value="Tokens."), "no description", id="description"),
        pytest.param(_set("panel", "fieldConfig", "defaults", "unit", value=""), "no unit", id="unit"),
        pytest.param(_set("panel", "type", value="graph"), "no core panel", id="core"),
        pytest.param(_set("panel", "id", value=3), "ids are not unique", id="ids"),
        pytest.param(_set("panel", "gridPos", value={"h": 9, "w": 24, "x": 0, "y": 0}), "overlap", id="overlap"),
        pytest.param(_set("panel", "gridPos", "x", value=23), "wider than the grid", id="width"),
        pytest.param(
            _set("panel", "datasource", value={"type": "influxdb", "uid": "abc"}), "data source", id="literal-uid"
        ),
        pytest.param(
            _set("panel", "targets", 0, "query", value='SELECT "x" FROM "llm_fleet"'), "x is no tag or field", id="name"
        ),
    ],
)
def test_the_rules_see_a_broken_board(change: Callable[[dict[str, Any]], None], word: str) -> None:
    broken = deepcopy(board("overview.json"))
    change(broken)
    assert any(word in problem for problem in problems(broken)), problems(broken)


@pytest.mark.parametrize(
    ("query", "word"),
    [
        pytest.param(
            'SELECT sum("n") FROM "llm_tokens" WHERE $timeFilter', "unknown measurement llm_tokens", id="measurement"
        ),
        pytest.param(
            'SELECT sum("itl_ms") FROM "llm_token" WHERE $timeFilter', "itl_ms is no tag or field", id="field"
        ),
        pytest.param(
            'SELECT sum("n") FROM "llm_token" WHERE "stage" =~ /^$stage$/ AND $timeFilter', "stage is no tag", id="tag"
        ),
        pytest.param('SELECT sum("n") FROM "llm_token"', "without $timeFilter", id="time"),
        pytest.param(
            'SELECT sum("v") FROM (SELECT sum("n") AS "v" FROM "llm_token") WHERE $timeFilter',
            "without $timeFilter",
            id="sub-query",
        ),
        pytest.param('SELECT spread("n") FROM "llm_token" WHERE $timeFilter', "function spread", id="function"),
        pytest.param('SELECT sum("n") FROM "llm_token" WHERE $timeFilter GROUP BY time(1s)', "without fill", id="fill"),
        pytest.param(
            'SELECT sum("n") FROM "llm_token" WHERE "run" =~ /^$which$/ AND $timeFilter',
            "unknown variable $which",
            id="variable",
        ),
        pytest.param(
            'SHOW TAG VALUES ON "db" FROM "llm_token" WITH KEY = "run" WHERE $timeFilter',
            "ON does not work",
            id="database",
        ),
    ],
)
def test_the_rules_see_a_broken_query(query: str, word: str) -> None:
    assert any(word in problem for problem in query_problems(query, {"run", "stage"})), query_problems(
        query, {"run", "stage"}
    )


def test_building_twice_writes_once(tmp_path: Path) -> None:
    run = CliRunner()
    assert run.invoke(main, ["--check", str(tmp_path)]).exit_code == 1
    assert list(tmp_path.iterdir()) == []
    assert run.invoke(main, [str(tmp_path)]).exit_code == 0
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {*BOARDS, ALERTS}
    assert run.invoke(main, ["--check", str(tmp_path)]).exit_code == 0


def test_check_names_the_board_that_differs(tmp_path: Path) -> None:
    run = CliRunner()
    run.invoke(main, [str(tmp_path)])
    (tmp_path / "overview.json").write_text("{}\n", encoding="utf-8")
    outcome = run.invoke(main, ["--check", str(tmp_path)])
    assert outcome.exit_code == 1
    assert "overview.json" in outcome.output
    assert (tmp_path / "overview.json").read_text(encoding="utf-8") == "{}\n"
