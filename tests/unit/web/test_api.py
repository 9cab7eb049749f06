"""The API against a run control that follows a script."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from flask import Flask
from flask.testing import FlaskClient

from tokswarm.errors import BusyError, ConfigError, FleetError, PreflightError, TokswarmError
from tokswarm.master.run import RunControl, StartRequest
from tokswarm.testing.run_control import MIX_TEXT, ScriptedControl, satisfies_protocol
from tokswarm.web.api import MAX_BODY_BYTES, PREFIX, ROUTES, SECONDS_PER_BLOCK
from tokswarm.web.app import WebSettings, install

HEADERS = {"Host": "127.0.0.1:8089"}


@pytest.fixture
def control(tmp_path: Path) -> ScriptedControl:
    return ScriptedControl(tmp_path)


@pytest.fixture
def client(control: ScriptedControl) -> FlaskClient:
    app = Flask("master")
    install(app, satisfies_protocol(control), WebSettings(port=8089))
    return app.test_client()


def get(client: FlaskClient, path: str, status: int = 200) -> Any:
    answer = client.get(PREFIX + path, headers=HEADERS)
    assert answer.status_code == status, answer.text
    return answer.get_json()


def post(client: FlaskClient, path: str, body: object = None, status: int = 201) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(PREFIX + path, data=data, headers=HEADERS)
    assert answer.status_code == status, answer.text
    return answer.get_json()


def start(client: FlaskClient) -> str:
    run_id: str = post(client, "/runs", {"mix": "chat-sweep"})["run_id"]
    return run_id


def finished(client: FlaskClient, control: ScriptedControl) -> str:
    run_id = start(client)
    control.advance(62)
    assert get(client, f"/runs/{run_id}")["info"]["state"] == "finished"
    return run_id


def test_the_mixes_come_with_their_text(client: FlaskClient) -> None:
    assert [(mix["name"], mix["text"]) for mix in get(client, "/mixes")] == [("chat-sweep", MIX_TEXT)]


def test_workers_that_ran_nothing_have_no_health(client: FlaskClient) -> None:
    assert [(w["worker"], w["health"]) for w in get(client, "/workers")] == [("worker-0", None), ("worker-1", None)]


def test_the_health_of_a_worker_is_an_object(client: FlaskClient, control: ScriptedControl) -> None:
    start(client)
    control.advance()

    health = get(client, "/workers")[0]["health"]

    assert (health["worker"], health["loop_lag_p99_ms"], health["sink_error"]) == ("worker-0", 0.4, "")


def test_a_start_answers_201_with_the_run_and_where_it_is(client: FlaskClient, control: ScriptedControl) -> None:
    body = {"mix": "chat-sweep", "base_url": "http://127.0.0.1:1/v1", "model": "m"}

    answer = client.post(f"{PREFIX}/runs", json=body, headers=HEADERS)

    assert answer.status_code == 201
    assert answer.headers["Location"] == f"{PREFIX}/runs/{answer.get_json()['run_id']}"
    assert answer.get_json()["base_url"] == "http://127.0.0.1:1/v1"
    assert control.requests == [StartRequest(mix="chat-sweep", base_url="http://127.0.0.1:1/v1", model="m")]


def test_a_mix_may_come_as_text(client: FlaskClient, control: ScriptedControl) -> None:
    post(client, "/runs", {"mix_yaml": MIX_TEXT.replace("chat-sweep", "mine")})

    assert get(client, "/runs")[0]["mix_name"] == "mine"
    assert control.requests[0].mix is None


@pytest.mark.parametrize(
    ("body", "status", "field", "words"),
    [
        pytest.param(b"mix=chat-sweep", 400, None, "not JSON", id="a-form"),
        pytest.param(b"", 400, None, "not JSON", id="nothing"),
        pytest.param({"mixx": "a"}, 422, "mixx", "unknown field", id="unknown-key"),
        pytest.param({"mix": 5}, 422, "mix", "Expected `str | null`, got `int`", id="wrong-type"),
        pytest.param([], 422, None, "Expected `object`, got `array`", id="no-object"),
        pytest.param({}, 422, "mix", "neither came", id="no-mix"),
        pytest.param({"mix": "a", "mix_yaml": "b"}, 422, "mix", "both came", id="two-mixes"),
        pytest.param({"mix": "nope"}, 422, "mix", "there is no mix 'nope'", id="unknown-mix"),
        pytest.param({"mix_yaml": "nmae: x"}, 422, "mix_yaml", "line 1: unknown key `nmae`", id="bad-mix"),
    ],
)
def test_a_bad_start_says_what_field_is_wrong_and_how(
    client: FlaskClient, body: object, status: int, field: str | None, words: str
) -> None:
    problem = post(client, "/runs", body, status)

    assert set(problem) == {"error", "field", "hint"}
    assert problem["field"] == field
    assert words in problem["error"]
    assert problem["hint"]
    assert get(client, "/runs") == []


@pytest.mark.parametrize(
    ("error", "status", "field"),
    [
        pytest.param(ConfigError("e", hint="h"), 422, "mix", id="bad-mix"),
        pytest.param(PreflightError("e", hint="h"), 424, "base_url", id="endpoint-does-not-do"),
        pytest.param(BusyError("e", hint="h"), 409, None, id="busy"),
        pytest.param(FleetError("e", hint="h"), 503, None, id="no-workers"),
        pytest.param(TokswarmError("e", hint="h"), 500, None, id="anything-else"),
    ],
)
def test_the_status_of_a_refused_start_tells_why(
    client: FlaskClient, control: ScriptedControl, error: TokswarmError, status: int, field: str | None
) -> None:
    control.fail_with = error

    assert post(client, "/runs", {"mix": "chat-sweep"}, status) == {"error": "e", "field": field, "hint": "h"}


def test_a_second_start_is_refused_and_leaves_the_first_alone(client: FlaskClient) -> None:
    first = start(client)

    problem = post(client, "/runs", {"mix": "chat-sweep"}, 409)

    assert "a run is going on" in problem["error"]
    assert [run["run_id"] for run in get(client, "/runs")] == [first]
    assert get(client, f"/runs/{first}")["info"]["state"] == "running"


def test_without_workers_a_start_is_refused(tmp_path: Path) -> None:
    app = Flask("master")
    install(app, ScriptedControl(tmp_path, workers=0), WebSettings(port=8089))

    assert "no worker" in post(app.test_client(), "/runs", {"mix": "chat-sweep"}, 503)["error"]


def test_an_unforeseen_error_is_a_500_that_shows_nothing_inner(
    client: FlaskClient, control: ScriptedControl, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("secret inside")

    monkeypatch.setattr(control, "runs", fail)

    problem = get(client, "/runs", 500)

    assert "secret inside" not in json.dumps(problem)
    assert "secret inside" in caplog.text


def test_a_body_that_is_too_large_is_refused(client: FlaskClient) -> None:
    problem = post(client, "/runs", b"x" * (MAX_BODY_BYTES + 1), 413)

    assert "Too Large" in problem["error"]


def test_runs_are_listed_newest_first(client: FlaskClient, control: ScriptedControl) -> None:
    first = finished(client, control)
    second = start(client)

    assert [run["run_id"] for run in get(client, "/runs")] == [second, first]


def test_a_run_comes_whole_once_it_is_reported(client: FlaskClient, control: ScriptedControl) -> None:
    run_id = start(client)
    assert get(client, f"/runs/{run_id}")["summary"] is None
    control.advance(62)

    detail = get(client, f"/runs/{run_id}")

    assert detail["mix_yaml"] == MIX_TEXT
    assert detail["summary"]["stages"][-1]["name"] == "sweep-32"
    assert detail["events"][0]["title"] == "run started"
    assert detail["info"]["requests"]["rate_limited"] == 10


def test_a_stop_drains_first_and_may_be_asked_for_twice(client: FlaskClient, control: ScriptedControl) -> None:
    run_id = start(client)

    assert post(client, f"/runs/{run_id}/stop", status=202)["state"] == "stopping"
    assert post(client, f"/runs/{run_id}/stop", status=202)["state"] == "stopping"
    control.advance(2)
    assert post(client, f"/runs/{run_id}/stop", status=200)["state"] == "finished"


def test_seconds_are_objects_and_can_be_of_one_class(client: FlaskClient, control: ScriptedControl) -> None:
    run_id = start(client)
    control.advance(3)

    everything = get(client, f"/runs/{run_id}/seconds")
    chat = get(client, f"/runs/{run_id}/seconds?class=chat")

    assert [s["class_name"] for s in everything] == ["_all", "chat", "report"] * 3
    assert chat == [s for s in everything if s["class_name"] == "chat"]
    assert chat[0]["finished"] == {"ok": 1}


def test_what_the_servers_said_are_objects_too(client: FlaskClient, control: ScriptedControl) -> None:
    run_id = start(client)
    control.advance(2)

    [first, second] = get(client, f"/runs/{run_id}/server")

    assert second["unix_ns"] - first["unix_ns"] == 10**9
    assert (first["engine"], first["up"], first["running"], first["hit_ratio"]) == ("vllm", 1, 1, None)


def test_a_run_without_seconds_has_an_empty_list(client: FlaskClient) -> None:
    run_id = start(client)
    assert get(client, f"/runs/{run_id}/seconds") == []
    assert get(client, f"/runs/{run_id}/server") == []


def test_many_seconds_come_in_blocks_that_join(
    client: FlaskClient, control: ScriptedControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = start(client)
    control.advance()
    one = control.seconds(run_id)[0]
    many = [msgspec.structs.replace(one, second_unix=n) for n in range(2 * SECONDS_PER_BLOCK + 1)]
    monkeypatch.setattr(control, "seconds", lambda run_id: many)

    assert [s["second_unix"] for s in get(client, f"/runs/{run_id}/seconds")] == list(range(2 * SECONDS_PER_BLOCK + 1))


@pytest.mark.parametrize("path", ["/runs/x", "/runs/x/seconds", "/runs/x/server", "/runs/x/files/summary.json"])
def test_an_unknown_run_is_not_found(client: FlaskClient, path: str) -> None:
    assert "no run 'x'" in get(client, path, 404)["error"]


def test_an_unknown_run_cannot_be_stopped(client: FlaskClient) -> None:
    assert "no run 'x'" in post(client, "/runs/x/stop", status=404)["error"]


def test_the_summary_is_handed_out_as_it_is_on_disk(client: FlaskClient, control: ScriptedControl) -> None:
    run_id = finished(client, control)

    answer = client.get(f"{PREFIX}/runs/{run_id}/files/summary.json", headers=HEADERS)

    assert answer.content_type == "application/json"
    assert answer.data == Path(control.run(run_id).info.run_dir, "summary.json").read_bytes()
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{run_id}-summary.json"'


def test_the_curve_page_may_run_its_scripts_in_an_origin_of_its_own(
    client: FlaskClient, control: ScriptedControl
) -> None:
    run_id = finished(client, control)

    answer = client.get(f"{PREFIX}/runs/{run_id}/files/curve.html", headers=HEADERS)

    policy = answer.headers["Content-Security-Policy"]
    assert answer.mimetype == "text/html"
    assert policy.startswith("sandbox allow-scripts")
    assert "allow-same-origin" not in policy
    assert "default-src 'none'" in policy


@pytest.mark.parametrize(
    "name",
    ["run.json", "..%2f..%2fetc%2fpasswd", "..", "%2e%2e%2fsecret", "summary.json%00", "mix.yaml", "SUMMARY.JSON"],
)
def test_other_names_than_the_three_are_not_found(client: FlaskClient, control: ScriptedControl, name: str) -> None:
    run_id = finished(client, control)
    Path(control.run(run_id).info.run_dir, "run.json").write_text("{}")
    Path(control.run(run_id).info.run_dir).with_name("secret").write_text("secret")

    answer = client.get(f"{PREFIX}/runs/{run_id}/files/{name}", headers=HEADERS)

    assert answer.status_code == 404


def test_a_file_that_is_not_there_yet_says_when_it_will_be(client: FlaskClient) -> None:
    problem = get(client, f"/runs/{start(client)}/files/summary.json", 404)

    assert problem["hint"] == "it is written when the run ends"


def test_the_live_stream_is_an_event_stream_that_nobody_stores(client: FlaskClient) -> None:
    answer = client.get(f"{PREFIX}/live", headers=HEADERS)

    assert answer.mimetype == "text/event-stream"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert next(iter(answer.response)) == b"retry: 2000\n\n"
    answer.close()


def test_health_says_the_version_and_the_workers(client: FlaskClient) -> None:
    health = get(client, "/health")

    assert (health["status"], health["workers"]) == ("ok", 2)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        pytest.param("GET", "/nothing", 404, id="no-such-path"),
        pytest.param("PUT", "/runs", 405, id="no-such-method"),
        pytest.param("GET", "/runs/x/stop", 405, id="a-change-by-get"),
    ],
)
def test_paths_that_do_not_exist_are_answered_in_json(client: FlaskClient, method: str, path: str, status: int) -> None:
    answer = client.open(PREFIX + path, method=method, headers=HEADERS)

    assert answer.status_code == status
    assert set(answer.get_json()) == {"error", "field", "hint"}
    assert ("Allow" in answer.headers) is (status == 405)


def test_a_request_the_gate_refuses_is_answered_in_json(client: FlaskClient) -> None:
    answer = client.post(f"{PREFIX}/runs", headers=HEADERS | {"Origin": "https://evil.example"})

    assert answer.status_code == 403
    assert answer.get_json()["field"] == "Origin"


# --- the OpenAPI document ------------------------------------------------------------------------


def schema_of(document: dict[str, Any], path: str, method: str, status: str) -> dict[str, Any]:
    schema = document["paths"][path][method]["responses"][status]["content"]["application/json"]["schema"]
    return {**schema, "components": document["components"]}


def test_the_document_has_exactly_the_routes_there_are(client: FlaskClient) -> None:
    document = get(client, "/openapi.json")

    written = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    served = {(route.method, route.path.replace("<", "{").replace(">", "}")) for route in ROUTES}
    assert written == served


def test_every_path_parameter_is_described(client: FlaskClient) -> None:
    for path, methods in get(client, "/openapi.json")["paths"].items():
        for operation in methods.values():
            in_path = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert in_path == {part.strip("{}") for part in path.split("/") if part.startswith("{")}


def test_every_reference_of_the_document_leads_somewhere(client: FlaskClient) -> None:
    document = get(client, "/openapi.json")
    text = json.dumps(document)

    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}

    assert names <= set(document["components"]["schemas"])
    assert {"RunInfo", "FleetSecond", "Problem"} <= names


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        pytest.param({}, "concurrency", "exactly one of concurrency and rate", id="neither"),
        pytest.param({"concurrency": 2, "rate": "1/s"}, "rate", "exactly one of concurrency and rate", id="both"),
        pytest.param({"concurrency": 0}, "concurrency", "expected at least 1", id="none-in-flight"),
        pytest.param({"rate": "12"}, "rate", "has no unit", id="rate-without-unit"),
        pytest.param({"rate": "0/s"}, "rate", "it must be above 0", id="no-rate"),
        pytest.param({"concurency": 2}, "concurency", "unknown field", id="misspelt"),
        pytest.param({"concurrency": "64"}, "concurrency", "Expected `int | null`", id="text-for-a-number"),
    ],
)
def test_a_change_of_load_that_makes_no_sense_is_refused_with_its_field(
    client: FlaskClient, control: ScriptedControl, body: dict[str, object], field: str, words: str
) -> None:
    run_id = start(client)
    control.advance(5)
    refused = post(client, f"/runs/{run_id}/load", body, 422)
    assert refused["field"] == field
    assert words in refused["error"]


def test_the_load_is_changed_only_while_a_stage_sends(client: FlaskClient, control: ScriptedControl) -> None:
    run_id = start(client)
    control.advance(5)
    assert post(client, f"/runs/{run_id}/load", {"rate": "12/s"}, 202)["run_id"] == run_id
    post(client, f"/runs/{run_id}/stop", status=202)
    assert "no stage is sending" in post(client, f"/runs/{run_id}/load", {"rate": "12/s"}, 409)["error"]
    assert "no run 'x'" in post(client, "/runs/x/load", {"rate": "12/s"}, 404)["error"]


def test_answers_are_as_the_document_says(client: FlaskClient, control: ScriptedControl) -> None:
    document = get(client, "/openapi.json")
    busy = start(client)
    control.advance(5)
    answers = [
        ("/mixes", "get", "200", get(client, "/mixes")),
        ("/workers", "get", "200", get(client, "/workers")),
        ("/runs", "get", "200", get(client, "/runs")),
        ("/runs", "post", "409", post(client, "/runs", {"mix": "chat-sweep"}, 409)),
        ("/runs/{run_id}", "get", "200", get(client, f"/runs/{busy}")),
        ("/runs/{run_id}", "get", "404", get(client, "/runs/x", 404)),
        ("/runs/{run_id}/load", "post", "202", post(client, f"/runs/{busy}/load", {"concurrency": 64}, 202)),
        ("/runs/{run_id}/load", "post", "422", post(client, f"/runs/{busy}/load", {"rate": "12"}, 422)),
        ("/runs/{run_id}/stop", "post", "202", post(client, f"/runs/{busy}/stop", status=202)),
        ("/runs/{run_id}/seconds", "get", "200", get(client, f"/runs/{busy}/seconds")),
        ("/runs/{run_id}/server", "get", "200", get(client, f"/runs/{busy}/server")),
        ("/health", "get", "200", get(client, "/health")),
    ]

    for path, method, status, answer in answers:
        jsonschema.validate(answer, schema_of(document, path, method, status))


def test_the_document_tells_a_wrong_answer_from_a_right_one(client: FlaskClient, control: ScriptedControl) -> None:
    document = get(client, "/openapi.json")
    run_id = start(client)
    control.advance()
    seconds = get(client, f"/runs/{run_id}/seconds")
    del seconds[0]["in_flight"]

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(seconds, schema_of(document, "/runs/{run_id}/seconds", "get", "200"))


def test_the_scripted_control_is_a_run_control(control: ScriptedControl) -> None:
    names = [name for name in vars(RunControl) if not name.startswith("_")]

    assert len(names) == 10
    assert all(callable(getattr(control, name)) for name in names)
