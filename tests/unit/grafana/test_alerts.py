"""The alert rules as files and as the API takes them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from board_rules import query_problems
from jsonschema import Draft7Validator

from tokswarm.grafana.alerts import RULES, AlertRule, provisioning_file, rule_group
from tokswarm.grafana.data_source import DATA_SOURCE_UID
from tokswarm.measure.schema import MEASUREMENTS
from tokswarm.resources import resource_dir

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "data" / "grafana-schema" / "alerting.jsonschema.json").read_text(encoding="utf-8")
)
TAGS = {tag for measurement in MEASUREMENTS for tag in measurement.tags}
EACH_RULE = pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.uid) for rule in RULES])


def schema_errors(definition: str, value: object) -> list[str]:
    schema = {"$ref": f"#/definitions/{definition}", "definitions": SCHEMA["definitions"]}
    return [
        f"{'/'.join(map(str, error.path))}: {error.message[:200]}"
        for error in Draft7Validator(schema).iter_errors(value)
    ]


def shipped() -> dict[str, Any]:
    """The file as Grafana reads it: a doubled dollar sign is one, a single one would be taken for a setting."""
    text = (resource_dir("dashboards") / "provisioning" / "alerting" / "tokswarm.yaml").read_text(encoding="utf-8")
    assert re.search(r"(?<!\$)\$(\$\$)*(?!\$)", text) is None
    loaded: dict[str, Any] = yaml.safe_load(text.replace("$$", "$"))
    return loaded


def test_the_rule_group_is_valid_against_grafanas_schema() -> None:
    group = rule_group(data_source_uid="mine", folder_uid="tokswarm")
    assert schema_errors("RuleGroup", group) == []
    assert group["interval"] % 10 == 0


def test_a_rule_that_the_schema_does_not_know_is_seen() -> None:
    group = rule_group(data_source_uid="mine", folder_uid="tokswarm")
    group["rules"][0]["noDataState"] = "Fine"
    assert schema_errors("RuleGroup", group) != []


def test_the_provisioning_file_holds_the_same_rules() -> None:
    [group] = shipped()["groups"]
    made = rule_group(data_source_uid=DATA_SOURCE_UID, folder_uid="tokswarm")
    of_a_file = ("orgID", "folderUID", "ruleGroup")
    assert group["rules"] == [{k: v for k, v in rule.items() if k not in of_a_file} for rule in made["rules"]]
    assert (group["name"], group["interval"]) == (made["title"], f"{made['interval']}s")


def test_the_provisioning_files_agree_on_folder_and_data_source() -> None:
    folder = resource_dir("dashboards") / "provisioning"
    boards = yaml.safe_load((folder / "dashboards" / "tokswarm.yaml").read_text(encoding="utf-8"))
    sources = yaml.safe_load((folder / "datasources" / "tokswarm.yaml").read_text(encoding="utf-8"))
    [group] = shipped()["groups"]
    assert group["folder"] == boards["providers"][0]["folder"]
    asked = {query["datasourceUid"] for rule in group["rules"] for query in rule["data"]}
    assert asked == {sources["datasources"][0]["uid"], "__expr__"}


def test_uids_and_titles_are_fixed_and_differ() -> None:
    assert len({rule.uid for rule in RULES}) == len({rule.title for rule in RULES}) == len(RULES)
    assert all(re.fullmatch(r"tokswarm-[a-z-]{1,31}", rule.uid) for rule in RULES)


@EACH_RULE
def test_a_rule_uses_no_template_variable_and_only_names_of_the_schema(rule: AlertRule) -> None:
    for watch in rule.watches:
        assert query_problems(watch.query, variables=set()) == []


@EACH_RULE
def test_a_summary_names_labels_that_the_query_groups_by(rule: AlertRule) -> None:
    named = set(re.findall(r"\$labels\.(\w+)", rule.summary))
    assert named
    for watch in rule.watches:
        grouped = set(re.findall(r'"(\w+)"', watch.query.partition(" GROUP BY ")[2]))
        assert named <= grouped <= TAGS


@EACH_RULE
def test_a_rule_leads_to_a_board_that_ships_and_says_what_to_do(rule: AlertRule) -> None:
    uids = {json.loads(path.read_text(encoding="utf-8"))["uid"] for path in resource_dir("dashboards").glob("*.json")}
    assert rule.board_uid in uids
    assert len(rule.description) > 120


@EACH_RULE
def test_every_step_of_a_rule_refers_to_one_before_it(rule: AlertRule) -> None:
    group = rule_group(data_source_uid="mine", folder_uid="f")
    [made] = [each for each in group["rules"] if each["uid"] == rule.uid]
    known: set[str] = set()
    for step in made["data"]:
        used = set(re.findall(r"\$(\w+)", step["model"].get("expression", ""))) or {step["model"].get("expression")}
        if step["datasourceUid"] == "__expr__":
            assert used <= known, step["refId"]
        known.add(step["refId"])
    assert made["condition"] in known


def test_a_file_for_another_data_source_names_it() -> None:
    text = provisioning_file(data_source_uid="elsewhere", folder="launches")
    assert DATA_SOURCE_UID not in text
    assert "folder: launches" in text
