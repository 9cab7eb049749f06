"""Our pages, their files, and Locust's page beside them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Blueprint, Flask
from flask.testing import FlaskClient

from tokswarm.errors import FleetError
from tokswarm.master.run import StartRequest
from tokswarm.testing.run_control import ScriptedControl
from tokswarm.web.app import WebSettings, install
from tokswarm.web.locust_ui import NO_MIX

HERE = "127.0.0.1:8089"
STATIC = Path(__file__).parents[3] / "src" / "tokswarm" / "web" / "static"


@pytest.fixture
def control(tmp_path: Path) -> ScriptedControl:
    return ScriptedControl(tmp_path)


@pytest.fixture
def client(control: ScriptedControl) -> FlaskClient:
    app = Flask("master")
    install(app, control, WebSettings(port=8089))
    return app.test_client()


@pytest.fixture
def beside_locust(control: ScriptedControl) -> FlaskClient:
    """An app with the views of Locust's page that change something, under the names Locust gives them."""
    app = Flask("master")
    pages = Blueprint("locust", __name__, url_prefix="/locust")
    pages.add_url_rule("/", endpoint="index", view_func=lambda: "locust")
    for endpoint, path in (
        ("swarm", "/swarm"),
        ("stop", "/stop"),
        ("update_user", "/user"),
        ("reset_stats", "/stats/reset"),
    ):
        pages.add_url_rule(path, endpoint=endpoint, view_func=lambda: "locust did it", methods=["POST"])
    app.register_blueprint(pages)
    install(app, control, WebSettings(port=8089))
    return app.test_client()


def token_of(html: str) -> str:
    found = re.search(r'name="csrf-token" content="([^"]+)"', html)
    assert found is not None
    return found.group(1)


def test_the_page_carries_the_token_that_its_session_needs(client: FlaskClient, control: ScriptedControl) -> None:
    token = token_of(client.get("/", headers={"Host": HERE}).text)
    browser = {"Host": HERE, "Origin": f"http://{HERE}", "Sec-Fetch-Site": "same-origin"}

    without = client.post("/api/v1/runs", json={"mix": "chat-sweep"}, headers=browser)
    with_token = client.post("/api/v1/runs", json={"mix": "chat-sweep"}, headers=browser | {"X-CSRF": token})

    assert (without.status_code, with_token.status_code) == (403, 201)
    assert len(control.requests) == 1


def test_the_page_is_not_stored_by_caches(client: FlaskClient) -> None:
    assert client.get("/", headers={"Host": HERE}).headers["Cache-Control"] == "no-store"


def test_a_run_has_a_page_and_an_unknown_one_is_not_found(client: FlaskClient, control: ScriptedControl) -> None:
    run_id = control.start(StartRequest(mix="chat-sweep")).run_id

    assert client.get(f"/runs/{run_id}", headers={"Host": HERE}).status_code == 200
    unknown = client.get("/runs/nope", headers={"Host": HERE})
    assert unknown.status_code == 404
    assert "csrf-token" in unknown.text


def test_no_placeholder_is_left_in_the_page(client: FlaskClient, beside_locust: FlaskClient) -> None:
    for each in (client, beside_locust):
        assert "{{" not in each.get("/", headers={"Host": HERE}).text


def test_the_link_to_locust_is_there_only_beside_locust(client: FlaskClient, beside_locust: FlaskClient) -> None:
    assert 'href="/locust/"' not in client.get("/", headers={"Host": HERE}).text
    assert 'href="/locust/"' in beside_locust.get("/", headers={"Host": HERE}).text


@pytest.mark.parametrize(
    ("name", "media_type"), [("app.js", "text/javascript"), ("style.css", "text/css"), ("icon.svg", "image/svg+xml")]
)
def test_files_have_the_type_that_nosniff_asks_for(client: FlaskClient, name: str, media_type: str) -> None:
    answer = client.get(f"/app/{name}", headers={"Host": HERE})

    assert answer.status_code == 200
    assert answer.mimetype == media_type
    assert answer.headers["Cache-Control"] == "no-cache"
    answer.close()


@pytest.mark.parametrize("name", ["index.html", "nope.js", "..%2fapp.py", "app.py"])
def test_other_files_are_not_found(client: FlaskClient, name: str) -> None:
    assert client.get(f"/app/{name}", headers={"Host": HERE}).status_code == 404


def modules() -> Iterator[tuple[str, str]]:
    for path in STATIC.glob("*.js"):
        for name in re.findall(r'from "([^"]+)"', path.read_text()):
            yield path.name, name


def test_every_module_imports_files_that_are_there() -> None:
    imports = list(modules())

    assert len(imports) > 20
    assert [pair for pair in imports if not (STATIC / pair[1]).is_file()] == []


def test_nothing_of_the_page_comes_from_elsewhere() -> None:
    namespace = "http://www.w3.org/2000/svg"
    for path in STATIC.iterdir():
        assert re.findall(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", path.read_text().replace(namespace, "")) == [], path.name


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        pytest.param(WebSettings(port=1), "10.1.2.3:1", 421, id="loopback-only"),
        pytest.param(WebSettings(port=1, host="10.1.2.3"), "10.1.2.3:1", 200, id="bound-address"),
        pytest.param(WebSettings(port=1, host="0.0.0.0"), "10.1.2.3:1", 421, id="any-address-names-nobody"),
        pytest.param(WebSettings(port=1, host="0.0.0.0"), "0.0.0.0:1", 421, id="any-address-is-no-name"),
        pytest.param(WebSettings(port=1, allowed_hosts=("Load.Example",)), "load.example:1", 200, id="allowed-name"),
    ],
)
def test_the_master_answers_for_the_names_it_was_given(
    control: ScriptedControl, settings: WebSettings, host: str, status: int
) -> None:
    app = Flask("master")
    install(app, control, settings)

    assert app.test_client().get("/", headers={"Host": host}).status_code == status


# --- Locust's page -------------------------------------------------------------------------------


def locust_post(client: FlaskClient, path: str) -> tuple[int, dict[str, object]]:
    answer = client.post(f"/locust/{path}", data={"user_count": "5", "spawn_rate": "5"}, headers={"Host": HERE})
    return answer.status_code, answer.get_json()


def test_a_start_in_locust_without_an_earlier_run_points_to_our_page(
    beside_locust: FlaskClient, control: ScriptedControl
) -> None:
    assert locust_post(beside_locust, "swarm") == (200, {"success": False, "message": NO_MIX})
    assert control.requests == []


def test_a_start_in_locust_repeats_the_run_that_was_started_last(
    beside_locust: FlaskClient, control: ScriptedControl
) -> None:
    body = {"mix": "chat-sweep", "model": "other"}
    beside_locust.post("/api/v1/runs", json=body, headers={"Host": HERE})
    control.stop(control.runs()[0].run_id)
    control.advance(2)

    _, answer = locust_post(beside_locust, "swarm")

    assert answer["success"] is True
    assert control.requests == [StartRequest(mix="chat-sweep", model="other")] * 2
    assert [run.state.value for run in control.runs()] == ["running", "finished"]


def test_a_start_in_locust_that_is_refused_says_why(beside_locust: FlaskClient, control: ScriptedControl) -> None:
    beside_locust.post("/api/v1/runs", json={"mix": "chat-sweep"}, headers={"Host": HERE})
    control.fail_with = FleetError("no worker is connected", hint="start one")

    _, answer = locust_post(beside_locust, "swarm")

    assert answer == {"success": False, "message": "no worker is connected. start one"}


def test_a_stop_in_locust_stops_the_run(beside_locust: FlaskClient, control: ScriptedControl) -> None:
    control.start(StartRequest(mix="chat-sweep"))

    _, answer = locust_post(beside_locust, "stop")

    assert answer["success"] is True
    assert control.runs()[0].state.value == "stopping"


def test_a_stop_in_locust_without_a_run_does_nothing(beside_locust: FlaskClient) -> None:
    assert locust_post(beside_locust, "stop")[1] == {"success": False, "message": "no run is under way"}


@pytest.mark.parametrize("path", ["user", "stats/reset"])
def test_locust_cannot_change_users_or_reset_statistics(beside_locust: FlaskClient, path: str) -> None:
    status, answer = locust_post(beside_locust, path)

    assert status == 403
    assert answer["hint"] == "use the tokswarm page at /"


def test_locust_pages_that_only_read_stay(beside_locust: FlaskClient) -> None:
    assert beside_locust.get("/locust/", headers={"Host": HERE}).text == "locust"
