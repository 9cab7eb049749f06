import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from grafana_fake import TOKEN, Answer, FakeGrafana, fake_grafana

from tokswarm.commands.grafana import publish_command
from tokswarm.errors import ConfigError, PublishError
from tokswarm.grafana.alerts import RULES
from tokswarm.grafana.data_source import DataSource
from tokswarm.grafana.publish import Action, Source, publish
from tokswarm.grafana.server import GrafanaServer
from tokswarm.grafana.shipped import shipped_boards
from tokswarm.master.run import RunInfo, RunState
from tokswarm.master.service import STORE_FILE
from tokswarm.master.store import Store

BOARD = "tokswarm-overview"
INFLUX = {
    "INFLUXDB_V2_URL": "http://influxdb:8086",
    "INFLUXDB_V2_TOKEN": "influx-secret",
    "INFLUXDB_V2_BUCKET": "load/week",
}


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    with fake_grafana() as running:
        yield running


@pytest.fixture
def owned(grafana: FakeGrafana) -> FakeGrafana:
    """Our service account is an Admin, and there is a data source."""
    grafana.role = "Admin"
    grafana.sources["mine"] = {"uid": "mine", "name": "Mine", "type": "influxdb", "jsonData": {}}
    return grafana


VERSIONS = pytest.mark.parametrize("major", [10, 11, 12, 13])


def actions(grafana: FakeGrafana, **options: Any) -> dict[str, Action]:
    steps = publish(GrafanaServer(grafana.url, TOKEN), **{"boards": shipped_boards(), "folder": "tokswarm", **options})
    return {step.name: step.action for step in steps}


def run(grafana: FakeGrafana, *arguments: str, token: str = TOKEN, **environ: str) -> Result:
    return CliRunner().invoke(
        publish_command, list(arguments), env={"GRAFANA_URL": grafana.url, "GRAFANA_TOKEN": token, **environ}
    )


def test_a_fresh_grafana_gets_folder_and_boards(grafana: FakeGrafana) -> None:
    done = actions(grafana)
    assert set(done.values()) == {Action.CREATED}
    assert list(grafana.folders) == ["tokswarm"]
    assert set(grafana.boards) == {board["uid"] for board in shipped_boards()}
    assert BOARD in grafana.boards
    assert {board["meta"]["folderUid"] for board in grafana.boards.values()} == {"tokswarm"}
    assert grafana.sources == {}


@VERSIONS
def test_publishing_again_changes_nothing(major: int) -> None:
    with fake_grafana(major=major) as grafana:
        actions(grafana)
        before = json.dumps(grafana.boards)
        grafana.requests.clear()
        assert set(actions(grafana).values()) == {Action.UNCHANGED}
        assert grafana.changes == []
        assert json.dumps(grafana.boards) == before


@VERSIONS
def test_one_edited_board_is_the_only_one_that_is_saved(major: int) -> None:
    with fake_grafana(major=major) as grafana:
        actions(grafana)
        grafana.edit(BOARD, "mine")
        grafana.requests.clear()
        actions(grafana)
        assert grafana.changes == [("POST", "/dashboards/db")]
        assert grafana.boards[BOARD]["dashboard"]["title"] == "tokswarm: launch overview"


def test_a_board_that_was_edited_is_brought_back(grafana: FakeGrafana) -> None:
    actions(grafana)
    grafana.edit(BOARD, "mine")
    done = actions(grafana)
    assert done["tokswarm: launch overview"] is Action.UPDATED
    assert list(done.values()).count(Action.UPDATED) == 1
    assert grafana.boards[BOARD]["dashboard"]["title"] == "tokswarm: launch overview"


def test_a_board_saved_by_somebody_else_meanwhile_is_read_again(grafana: FakeGrafana) -> None:
    actions(grafana)
    grafana.edit(BOARD, "mine")
    grafana.before_save = [BOARD]
    assert actions(grafana)["tokswarm: launch overview"] is Action.UPDATED
    assert grafana.boards[BOARD]["dashboard"]["title"] == "tokswarm: launch overview"


def test_a_board_that_never_stops_changing_ends_in_an_error(grafana: FakeGrafana) -> None:
    actions(grafana)
    grafana.edit(BOARD, "mine")
    grafana.before_save = [BOARD] * 5
    with pytest.raises(PublishError, match="412 version-mismatch") as caught:
        actions(grafana)
    assert "publish again" in caught.value.hint
    assert len(grafana.before_save) == 3


def test_a_board_moves_with_the_folder(grafana: FakeGrafana) -> None:
    actions(grafana)
    assert actions(grafana, folder="Launch tests!")["tokswarm: launch overview"] is Action.UPDATED
    assert grafana.boards[BOARD]["meta"]["folderUid"] == "launch-tests"


def test_a_folder_of_this_title_is_used_whatever_its_uid(grafana: FakeGrafana) -> None:
    grafana.folders["abc123"] = {"uid": "abc123", "title": "tokswarm"}
    assert actions(grafana)["tokswarm"] is Action.UNCHANGED
    assert grafana.boards[BOARD]["meta"]["folderUid"] == "abc123"


def test_a_folder_made_between_look_and_post_is_used(grafana: FakeGrafana) -> None:
    grafana.next_answers[("GET", "/folders/tokswarm")] = [Answer(404, {"message": "folder not found"})]
    grafana.next_answers[("GET", "/folders?limit=1000")] = [Answer(200, [])]
    grafana.folders["tokswarm"] = {"uid": "tokswarm", "title": "tokswarm"}
    actions(grafana)
    assert grafana.boards[BOARD]["meta"]["folderUid"] == "tokswarm"


def test_a_dry_run_says_it_and_does_nothing(grafana: FakeGrafana) -> None:
    outcome = run(grafana, "--dry-run", "--create-datasource", **INFLUX)
    assert outcome.exit_code == 0, outcome.output
    assert grafana.changes == []
    lines = outcome.output.splitlines()
    assert "data source 'tokswarm InfluxQL': would be created" in lines
    assert "folder 'tokswarm': would be created" in lines
    assert f"board 'tokswarm: launch overview': would be created  {grafana.url}/d/{BOARD}" in lines


def test_a_dry_run_lists_what_differs_panel_by_panel() -> None:
    with fake_grafana(major=12) as grafana:
        run(grafana)
        grafana.edit(BOARD, "tokswarm: launch overview")
        stored = grafana.boards[BOARD]["dashboard"]
        stored["panels"][1]["description"] = "mine"
        del stored["panels"][2]
        stored["panels"].append({"id": 99, "title": "My own", "type": "text"})
        grafana.requests.clear()
        lines = run(grafana, "--dry-run").output.splitlines()
        assert grafana.changes == []
    where = lines.index(f"board 'tokswarm: launch overview': would be updated  {grafana.url}/d/{BOARD}")
    found = lines[where + 1 : where + 4]
    assert found[0].startswith('  ~ panels/Output tokens per second/description: "mine" becomes ')
    assert found[1:] == ["  - panels/My own: 'My own'", "  + panels/Requests in flight: 'Requests in flight'"]


def test_the_command_says_what_it_did(grafana: FakeGrafana) -> None:
    assert "folder 'tokswarm': created" in run(grafana).output
    assert f"board 'tokswarm: launch overview': unchanged  {grafana.url}/d/{BOARD}" in run(grafana).output


def test_a_data_source_is_made_from_the_workers_settings_and_the_boards_open_with_it(owned: FakeGrafana) -> None:
    grafana = owned
    assert run(grafana, "--create-datasource", **INFLUX).exit_code == 0
    source = grafana.sources["tokswarm-influxdb"]
    assert source["jsonData"] == {
        "version": "InfluxQL",
        "dbName": "load",
        "httpMode": "POST",
        "timeInterval": "1s",
        "httpHeaderName1": "Authorization",
    }
    assert source["secureJsonData"] == {"httpHeaderValue1": "Token influx-secret"}
    [variable] = [
        each for each in grafana.boards[BOARD]["dashboard"]["templating"]["list"] if each["type"] == "datasource"
    ]
    assert variable["current"]["value"] == "tokswarm-influxdb"
    again = run(grafana, "--create-datasource", **INFLUX)
    assert "data source 'tokswarm InfluxQL': updated" in again.output
    assert again.output.count("unchanged") == 1 + len(shipped_boards())


def test_a_data_source_without_a_token_sends_no_header(owned: FakeGrafana) -> None:
    grafana = owned
    settings = DataSource.from_environ({"INFLUXDB_V2_URL": "http://influxdb:8086", "INFLUXDB_V2_BUCKET": "load"})
    actions(grafana, create=settings)
    assert "httpHeaderName1" not in grafana.sources["tokswarm-influxdb"]["jsonData"]
    assert "secureJsonData" not in grafana.sources["tokswarm-influxdb"]


def test_a_provisioned_data_source_is_left_alone(grafana: FakeGrafana) -> None:
    grafana.sources["tokswarm-influxdb"] = {"uid": "tokswarm-influxdb", "name": "x", "readOnly": True}
    with pytest.raises(PublishError, match="comes from a provisioning file"):
        actions(grafana, create=DataSource(url="http://influxdb:8086", database="load", token=None))
    assert grafana.changes == []


def test_boards_open_with_the_data_source_that_was_named(grafana: FakeGrafana) -> None:
    grafana.sources["mine"] = {"uid": "mine", "name": "Mine", "type": "influxdb", "jsonData": {}}
    actions(grafana, source=Source("mine"))
    first = grafana.boards[BOARD]["dashboard"]["templating"]["list"][0]
    assert first["current"] == {"selected": True, "text": "Mine", "value": "mine"}
    assert set(actions(grafana, source=Source("mine")).values()) == {Action.UNCHANGED}


def test_a_pinned_data_source_is_written_everywhere_and_no_other_is_offered(owned: FakeGrafana) -> None:
    assert run(owned, "--pin-datasource", "mine").exit_code == 0
    for board in owned.boards.values():
        text = json.dumps(board["dashboard"])
        assert "${ds" not in text
        assert '"uid": "mine"' in text
        assert all(each["type"] != "datasource" for each in board["dashboard"]["templating"]["list"])
    assert run(owned, "--pin-datasource", "mine").output.count("unchanged") == 1 + len(owned.boards)


def test_boards_of_one_run_need_their_data_source_pinned(grafana: FakeGrafana) -> None:
    outcome = run(grafana, "--pin-run", "20261202-101500-demo-1a2b")
    assert isinstance(outcome.exception, ConfigError)
    assert "--pin-datasource" in str(outcome.exception)
    assert grafana.requests == []


def test_boards_of_one_run_are_published_beside_the_others(owned: FakeGrafana, tmp_path: Path) -> None:
    store = Store(tmp_path / STORE_FILE)
    store.open()
    info = RunInfo(
        run_id="run-1", state=RunState.RUNNING, mix_name="m", base_url="u", model="m", started_unix_ns=1_000_000_000_000
    )
    store.add_run(info, "")
    store.close()
    run(owned)
    done = run(owned, "--pin-datasource", "mine", "--pin-run", "run-1", "--data-dir", str(tmp_path))
    assert done.exit_code == 0, done.exception
    made = {
        uid: board["dashboard"] for uid, board in owned.boards.items() if board["dashboard"]["templating"]["list"] == []
    }
    assert len(made) == done.output.count(", run-1': created") > 3
    assert len(owned.boards) == len(made) + len(shipped_boards())
    assert {board["time"]["to"] for board in made.values()} == {"now"}


def test_two_ways_of_naming_a_data_source_are_one_too_many(grafana: FakeGrafana) -> None:
    outcome = run(grafana, "--pin-datasource", "mine", "--datasource-uid", "mine")
    assert isinstance(outcome.exception, ConfigError)
    assert grafana.requests == []


# --- alert rules ------------------------------------------------------------------------------------


def test_alert_rules_go_into_the_folder_with_the_data_source_that_was_named(owned: FakeGrafana) -> None:
    assert "alert rules 'tokswarm': created" in run(owned, "--datasource-uid", "mine", "--alerts").output
    [(place, group)] = owned.rule_groups.items()
    assert place == ("tokswarm", "tokswarm")
    assert [rule["uid"] for rule in group["rules"]] == [rule.uid for rule in RULES]
    asked = {query["datasourceUid"] for rule in group["rules"] for query in rule["data"]}
    assert asked == {"mine", "__expr__"}
    assert "alert rules 'tokswarm': unchanged" in run(owned, "--datasource-uid", "mine", "--alerts").output


def test_an_alert_rule_that_was_edited_is_brought_back(owned: FakeGrafana) -> None:
    run(owned, "--datasource-uid", "mine", "--alerts")
    [group] = owned.rule_groups.values()
    group["rules"][0]["for"] = "1h"
    dry = run(owned, "--datasource-uid", "mine", "--alerts", "--dry-run").output
    assert '  ~ rules/tokswarm: limits are missed/for: "1h" becomes "0s"' in dry.splitlines()
    assert group["rules"][0]["for"] == "1h"
    run(owned, "--datasource-uid", "mine", "--alerts")
    [group] = owned.rule_groups.values()
    assert group["rules"][0]["for"] == "0s"


def test_alert_rules_without_a_data_source_are_refused_before_anything_is_asked(grafana: FakeGrafana) -> None:
    outcome = run(grafana, "--alerts")
    assert isinstance(outcome.exception, ConfigError)
    assert "--pin-datasource" in outcome.exception.hint
    assert grafana.requests == []


def test_alert_rules_need_an_admin_and_the_boards_are_there_without(owned: FakeGrafana) -> None:
    owned.role = "Editor"
    outcome = run(owned, "--datasource-uid", "mine", "--alerts")
    assert isinstance(outcome.exception, PublishError)
    assert "Admin" in outcome.exception.hint
    assert len(owned.boards) == len(shipped_boards())


def test_alert_rules_of_a_provisioning_file_are_left_alone(owned: FakeGrafana) -> None:
    owned.provisioned_rules = {RULES[0].uid}
    outcome = run(owned, "--datasource-uid", "mine", "--alerts")
    assert isinstance(outcome.exception, PublishError)
    assert "provisioning file" in outcome.exception.hint
    assert owned.rule_groups == {}


# --- what goes wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "said"),
    [
        pytest.param(None, "no data source with uid 'mine'", id="missing"),
        pytest.param({"type": "influxdb", "jsonData": {"version": "Flux"}}, "influxdb with Flux", id="flux"),
        pytest.param({"type": "prometheus", "jsonData": {}}, "is prometheus", id="prometheus"),
    ],
)
def test_a_data_source_that_cannot_answer_is_refused_before_anything_is_changed(
    source: dict[str, Any] | None, said: str, grafana: FakeGrafana
) -> None:
    if source is not None:
        grafana.sources["mine"] = {"uid": "mine", "name": "Mine", **source}
    with pytest.raises(PublishError, match=said):
        actions(grafana, source=Source("mine"))
    assert grafana.changes == []


def test_a_wrong_token_is_said_and_never_shown(grafana: FakeGrafana) -> None:
    outcome = run(grafana, token="glsa_wrong-secret")
    assert isinstance(outcome.exception, PublishError)
    assert "401" in str(outcome.exception)
    assert "GRAFANA_TOKEN" in outcome.exception.hint
    assert "glsa_wrong-secret" not in outcome.output + repr(outcome.exception) + outcome.exception.hint
    assert "glsa_wrong-secret" not in repr(GrafanaServer(grafana.url, "glsa_wrong-secret"))


def test_secrets_of_the_data_source_are_not_in_its_repr() -> None:
    assert "influx-secret" not in repr(DataSource.from_environ(INFLUX))


def test_a_missing_right_names_the_role(grafana: FakeGrafana) -> None:
    grafana.role = "Viewer"
    with pytest.raises(PublishError, match="403") as caught:
        actions(grafana)
    assert "Editor" in caught.value.hint


@pytest.mark.parametrize(
    ("answer", "said", "hint"),
    [
        pytest.param(
            Answer(422, {"message": "invalid or unknown dashboard schema"}), "422 invalid or unknown", "", id="422"
        ),
        pytest.param(
            Answer(400, {"message": "Cannot save provisioned dashboard"}), "provisioned", "provisioning file", id="400"
        ),
        pytest.param(
            Answer(412, {"status": "name-exists", "message": "same name"}),
            "412 name-exists",
            "",
            id="412-is-tried-again",
        ),
        pytest.param(Answer(500, {"message": "boom"}), "500 boom", "", id="500"),
        pytest.param(Answer(502, "<html>bad gateway</html>"), "502 <html>bad gateway", "", id="502-html"),
        pytest.param(Answer(200, "<html>log in</html>"), "not JSON", "login page", id="login-page"),
        pytest.param(Answer(302, None, (("Location", "https://x.invalid/"),)), "redirect", "https", id="redirect"),
    ],
)
def test_a_refused_board_says_why(answer: Answer, said: str, hint: str, grafana: FakeGrafana) -> None:
    grafana.next_answers[("POST", "/dashboards/db")] = [answer, answer]
    with pytest.raises(PublishError, match=said) as caught:
        actions(grafana)
    assert hint in caught.value.hint


def test_an_empty_answer_to_a_save_is_a_success(grafana: FakeGrafana) -> None:
    grafana.next_answers[("POST", "/dashboards/db")] = [Answer(204), Answer(200)]
    done = actions(grafana)
    assert set(done.values()) == {Action.CREATED}


def test_an_answer_that_does_not_come_ends_in_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        server = GrafanaServer(f"http://127.0.0.1:{silent.getsockname()[1]}", TOKEN, timeout_s=0.3)
        with pytest.raises(PublishError, match="did not answer in time"):
            list(publish(server, boards=shipped_boards(), folder="tokswarm"))


def test_nobody_there_is_said_plainly() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        server = GrafanaServer(f"http://127.0.0.1:{closed.getsockname()[1]}", TOKEN)
        with pytest.raises(PublishError, match="no connection"):
            list(publish(server, boards=shipped_boards(), folder="tokswarm"))


def test_grafana_under_a_sub_path() -> None:
    with fake_grafana("/grafana") as grafana:
        assert set(actions(grafana).values()) == {Action.CREATED}
        assert f"{grafana.url}/d/{BOARD}" in run(grafana).output


@pytest.mark.parametrize(
    ("url", "token", "said"),
    [
        pytest.param("grafana.example.org", TOKEN, "expected a URL", id="no-scheme"),
        pytest.param("ftp://grafana.example.org", TOKEN, "expected a URL", id="ftp"),
        pytest.param("http://admin:pw@127.0.0.1", TOKEN, "a user in it", id="user"),
        pytest.param("http://127.0.0.1", "", "GRAFANA_TOKEN is empty", id="no-token"),
        pytest.param("http://127.0.0.1", "two words", "characters that no token has", id="blank-in-token"),
    ],
)
def test_settings_that_cannot_work_are_refused(url: str, token: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        GrafanaServer(url, token)
    assert "pw" not in str(caught.value)
    assert token == "" or token not in str(caught.value)


def test_a_missing_setting_of_the_database_is_named() -> None:
    with pytest.raises(ConfigError, match="INFLUXDB_V2_URL and INFLUXDB_V2_BUCKET not set"):
        DataSource.from_environ({})


def test_no_address_is_a_configuration_error() -> None:
    outcome = CliRunner().invoke(publish_command, [], env={"GRAFANA_URL": None, "GRAFANA_TOKEN": TOKEN})
    assert isinstance(outcome.exception, ConfigError)


def test_the_help_lists_what_it_reads() -> None:
    text = CliRunner().invoke(publish_command, ["--help"]).output
    for word in (
        "GRAFANA_URL",
        "GRAFANA_TOKEN",
        "--dry-run",
        "--datasource-uid",
        "--create-datasource",
        "--folder",
        "--alerts",
    ):
        assert word in text
