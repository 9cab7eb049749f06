"""The OpenAPI document of the API: paths by hand, schemas from the structs themselves."""

from typing import Any

import msgspec

from tokswarm.master.run import LoadRequest, MixFile, RunInfo, StartRequest
from tokswarm.version import VERSION
from tokswarm.web import shapes
from tokswarm.web.problem import Problem

_SHAPES: dict[str, Any] = {
    "StartRequest": StartRequest,
    "LoadRequest": LoadRequest,
    "RunInfo": RunInfo,
    "MixFile": MixFile,
    "Worker": shapes.WORKER,
    "FleetSecond": shapes.FLEET_SECOND,
    "ServerSecond": shapes.SERVER_SECOND,
    "RunDetail": shapes.RUN_DETAIL,
    "LiveTick": shapes.LIVE_TICK,
    "Health": shapes.Health,
    "Problem": Problem,
}

_CSRF = {
    "name": "X-CSRF",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "The session's token, which the page carries; only browsers need it.",
}


def document() -> dict[str, Any]:
    """The document, OpenAPI 3.1."""
    _, components = msgspec.json.schema_components(_SHAPES.values(), ref_template="#/components/schemas/{name}")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tokswarm",
            "version": VERSION,
            "description": "Start, stop and look at load tests of LLM endpoints. Times ending in _unix_ns are "
            "nanoseconds since 1970; _ms are milliseconds; ratios are 0 to 1; null means absent.",
        },
        "servers": [{"url": "/api/v1"}],
        "paths": _paths(),
        "components": {"schemas": components},
    }


def _paths() -> dict[str, Any]:
    run = [_in_path("run_id", "Id of a run.")]
    return {
        "/mixes": {"get": _operation("listMixes", "Mixes that can be started by name", _array("MixFile"))},
        "/workers": {"get": _operation("listWorkers", "The fleet now", _array("Worker"))},
        "/runs": {
            "get": _operation("listRuns", "All runs, newest first", _array("RunInfo")),
            "post": {
                **_operation(
                    "startRun",
                    "Start a run",
                    _ref("RunInfo"),
                    status=201,
                    problems={
                        400: "The body is not JSON.",
                        403: "Refused by the gate.",
                        409: "A run is going on.",
                        413: "The body is larger than 1 MiB.",
                        422: "The request or the mix cannot be used.",
                        424: "The endpoint cannot be load-tested as asked.",
                        503: "There are no workers, or one does not answer.",
                    },
                    parameters=[_CSRF],
                ),
                "requestBody": {"required": True, "content": _as_json(_ref("StartRequest"))},
            },
        },
        "/runs/{run_id}": {
            "get": _operation(
                "getRun", "One run whole", _ref("RunDetail"), problems={404: "No such run."}, parameters=run
            )
        },
        "/runs/{run_id}/stop": {
            "post": _stop([*run, _CSRF]),
        },
        "/runs/{run_id}/load": {
            "post": {
                **_operation(
                    "changeLoad",
                    "Go on with another load for the rest of the stage under way, as a stage of its own",
                    _ref("RunInfo"),
                    status=202,
                    problems={
                        400: "The body is not JSON.",
                        403: "Refused by the gate.",
                        404: "No such run.",
                        409: "Nothing can be changed now.",
                        422: "The request makes no sense.",
                    },
                    parameters=[*run, _CSRF],
                ),
                "requestBody": {"required": True, "content": _as_json(_ref("LoadRequest"))},
            },
        },
        "/runs/{run_id}/seconds": {
            "get": _operation(
                "listSeconds",
                "All seconds of a run, oldest first",
                _array("FleetSecond"),
                problems={404: "No such run."},
                parameters=[*run, _CLASS],
            )
        },
        "/runs/{run_id}/server": {
            "get": _operation(
                "listServerSeconds",
                "What the servers of a run said of themselves, oldest first",
                _array("ServerSecond"),
                problems={404: "No such run."},
                parameters=run,
            )
        },
        "/runs/{run_id}/files/{name}": {"get": _file(run)},
        "/live": {"get": _live()},
        "/openapi.json": {"get": _operation("getOpenapi", "This document", {"type": "object"})},
        "/health": {"get": _operation("getHealth", "Whether the master answers", _ref("Health"))},
    }


_CLASS = {
    "name": "class",
    "in": "query",
    "required": False,
    "schema": {"type": "string"},
    "description": "Only seconds of this class; `_all` for the sum of all.",
}


def _stop(parameters: list[dict[str, Any]]) -> dict[str, Any]:
    operation = _operation(
        "stopRun",
        "End a run early, draining",
        _ref("RunInfo"),
        problems={403: "Refused by the gate.", 404: "No such run."},
        parameters=parameters,
    )
    operation["responses"]["200"]["description"] = "It was over already."
    operation["responses"]["202"] = {"description": "It is draining.", "content": _as_json(_ref("RunInfo"))}
    return operation


def _file(run: list[dict[str, Any]]) -> dict[str, Any]:
    name = _in_path("name", "Which file.")
    name["schema"]["enum"] = ["summary.json", "curve.html", "requests.parquet"]
    operation = _operation(
        "getFile", "A file of a run", {}, problems={404: "No such run or file."}, parameters=[*run, name]
    )
    operation["responses"]["200"]["content"] = {
        "application/json": {},
        "text/html": {},
        "application/vnd.apache.parquet": {},
    }
    return operation


def _live() -> dict[str, Any]:
    operation = _operation("live", "What changes, each second, as server-sent events", {})
    operation["responses"]["200"] = {
        "description": "The data of each event is one LiveTick; ids count up by one, so a gap means skipped seconds.",
        "content": {"text/event-stream": {"schema": _ref("LiveTick")}},
    }
    return operation


def _operation(
    name: str,
    summary: str,
    schema: dict[str, Any],
    *,
    status: int = 200,
    problems: dict[int, str] | None = None,
    parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    responses: dict[str, Any] = {str(status): {"description": summary, "content": _as_json(schema)}}
    for code, meaning in {**(problems or {}), 421: "The Host header is not this master's."}.items():
        responses[str(code)] = {"description": meaning, "content": _as_json(_ref("Problem"))}
    return {"operationId": name, "summary": summary, "parameters": parameters or [], "responses": responses}


def _in_path(name: str, meaning: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": meaning}


def _as_json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _array(name: str) -> dict[str, Any]:
    return {"type": "array", "items": _ref(name)}
