import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from grafana_fake import TOKEN, Answer, FakeGrafana, fake_grafana

from tokswarm.errors import ConfigError, PublishError
from tokswarm.grafana.publish import Action, DataSource, command, publish, shipped_boards
from tokswarm.grafana.server import GrafanaServer

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


def actions(grafana: FakeGrafana, **options: Any) -> dict[str, Action]:
    steps = publish(GrafanaServer(grafana.url, TOKEN), **{"folder": "tokswarm", **options})
    return {step.name: step.action for step in steps}


def run(grafana: FakeGrafana, *arguments: str, token: str = TOKEN, **environ: str) -> Result:
    return CliRunner().invoke(
        command(), list(arguments), env={"GRAFANA_URL": grafana.url, "GRAFANA_TOKEN": token, **environ}
    )


def test_a_fresh_grafana_gets_folder_and_boards(grafana: FakeGrafana) -> None:
    done = actions(grafana)
    assert set(done.values()) == {Action.CREATED}
    assert list(grafana.folders) == ["tokswarm"]
    assert set(grafana.boards) == {board["uid"] for board in shipped_boards()}
    assert BOARD in grafana.boards
    assert {board["meta"]["folderUid"] for board in grafana.boards.values()} == {"tokswarm"}
    assert grafana.sources == {}


def test_publishing_again_changes_nothing(grafana: FakeGrafana) -> None:
    actions(grafana)
    before = json.dumps(grafana.boards)
    grafana.requests.clear()
    assert set(actions(grafana).values()) == {Action.UNCHANGED}
    assert grafana.changes == []
    assert json.dumps(grafana.boards) == before


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


def test_the_command_says_what_it_did(grafana: FakeGrafana) -> None:
    assert "folder 'tokswarm': created" in run(grafana).output
    assert f"board 'tokswarm: launch overview': unchanged  {grafana.url}/d/{BOARD}" in run(grafana).output


def test_a_data_source_is_made_from_the_workers_settings_and_the_boards_open_with_it(grafana: FakeGrafana) -> None:
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


def test_a_data_source_without_a_token_sends_no_header(grafana: FakeGrafana) -> None:
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
    actions(grafana, data_source_uid="mine")
    first = grafana.boards[BOARD]["dashboard"]["templating"]["list"][0]
    assert first["current"] == {"selected": True, "text": "Mine", "value": "mine"}
    assert set(actions(grafana, data_source_uid="mine").values()) == {Action.UNCHANGED}


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
        actions(grafana, data_source_uid="mine")
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
            list(publish(server, folder="tokswarm"))


def test_nobody_there_is_said_plainly() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        server = GrafanaServer(f"http://127.0.0.1:{closed.getsockname()[1]}", TOKEN)
        with pytest.raises(PublishError, match="no connection"):
            list(publish(server, folder="tokswarm"))


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
    outcome = CliRunner().invoke(command(), [], env={"GRAFANA_URL": None, "GRAFANA_TOKEN": TOKEN})
    assert isinstance(outcome.exception, ConfigError)


def test_the_help_lists_what_it_reads() -> None:
    text = CliRunner().invoke(command(), ["--help"]).output
    for word in ("GRAFANA_URL", "GRAFANA_TOKEN", "--dry-run", "--datasource-uid", "--create-datasource", "--folder"):
        assert word in text
