"""The HTTP API under /api/v1: one small function per route, found in a table.

A route parses, calls the run control, and encodes. Reads are GET, changes are POST, and the status
says what happened; every error is a `Problem`. docs/api.md has an example of each.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import gevent
import msgspec
from flask import Blueprint, Response, request, send_file
from werkzeug.exceptions import HTTPException

from tokswarm.errors import ConfigError, PreflightError, TokswarmError
from tokswarm.master.run import LoadRequest, RunControl, RunInfo, StartRequest
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import FleetSecond
from tokswarm.version import VERSION
from tokswarm.web import openapi, problem, shapes
from tokswarm.web.gate import REPORT_POLICY
from tokswarm.web.live import LiveFeed
from tokswarm.web.problem import Problem
from tokswarm.web.starts import Starts

logger = logging.getLogger(__name__)

_Second = TypeVar("_Second", FleetSecond, ServerSecond)

PREFIX = "/api/v1"

MAX_BODY_BYTES = 1 << 20
"""A mix is a few kilobytes; a trace belongs in a file beside it."""

SECONDS_PER_BLOCK = 500
"""Seconds are encoded in pieces of this size, so that a long run does not hold up the fleet."""


class RunFile(NamedTuple):
    """A file of a run that may be fetched."""

    media_type: str
    policy: str | None
    """Its Content-Security-Policy; None: that of our pages."""


FILES: dict[str, RunFile] = {
    "summary.json": RunFile("application/json", None),
    "curve.html": RunFile("text/html", REPORT_POLICY),
    "requests.parquet": RunFile("application/vnd.apache.parquet", None),
}


class Api(NamedTuple):
    """What the routes work on."""

    control: RunControl
    starts: Starts
    feed: LiveFeed


def get_mixes(api: Api) -> Response:
    """The mixes that can be started by name."""
    return _json(api.control.mixes())


def get_workers(api: Api) -> Response:
    """The fleet now."""
    return _json([shapes.worker(each) for each in api.control.workers()])


def get_runs(api: Api) -> Response:
    """All runs, newest first."""
    return _json(api.control.runs())


def start_run(api: Api) -> Response:
    """Start a run of a mix: by name, or as YAML text."""
    wanted = _decode_start(request.get_data())
    if isinstance(wanted, Problem):
        return problem.response(wanted, 422)
    try:
        info = api.starts.start(wanted)
    except ConfigError as error:
        field = "mix_yaml" if wanted.mix_yaml is not None else "mix"
        return _failed(error, field=field)
    except PreflightError as error:
        return _failed(error, field="base_url")
    answer = _json(info, status=201)
    answer.headers["Location"] = f"{PREFIX}/runs/{info.run_id}"
    return answer


def _decode_start(body: bytes) -> StartRequest | Problem:
    try:
        wanted = msgspec.json.decode(body, type=StartRequest)
    except msgspec.ValidationError as error:
        return problem.of_validation(error)
    if (wanted.mix is None) == (wanted.mix_yaml is None):
        came = "neither" if wanted.mix is None else "both"
        return Problem(
            error=f"a run needs a mix by name (`mix`) or as text (`mix_yaml`); {came} came",
            field="mix",
            hint=f"GET {PREFIX}/mixes lists the names",
        )
    return wanted


def get_run(api: Api, run_id: str) -> Response:
    """One run: its state, mix, events and, once it is reported, its summary."""
    return _json(shapes.run_detail(api.control.run(run_id)))


def stop_run(api: Api, run_id: str) -> Response:
    """End a run early: it drains, and is reported. 202 while it does, 200 when it is over already."""
    info = api.control.stop(run_id)
    return _json(info, status=200 if info.state.is_over else 202)


def change_load(api: Api, run_id: str) -> Response:
    """Go on with another load for the rest of the stage under way; it is a stage of its own."""
    try:
        wanted = msgspec.json.decode(request.get_data(), type=LoadRequest)
    except msgspec.ValidationError as error:
        return problem.response(problem.of_validation(error), 422)
    try:
        info = api.control.change_load(run_id, wanted)
    except ConfigError as error:
        return _failed(error, field="concurrency" if wanted.rate is None else "rate")
    return _json(info, status=202)


def get_seconds(api: Api, run_id: str) -> Response:
    """All seconds of a run, oldest first; `?class=_all` for those of one class."""
    wanted = request.args.get("class")
    seconds = api.control.seconds(run_id)
    if wanted is not None:
        seconds = [each for each in seconds if each.class_name == wanted]
    return _in_blocks(seconds, shapes.second)


def get_server_seconds(api: Api, run_id: str) -> Response:
    """What the servers of a run said of themselves, oldest first."""
    return _in_blocks(api.control.server_seconds(run_id), shapes.server_second)


def _in_blocks(seconds: Sequence[_Second], shape: Callable[[_Second], shapes.Plain]) -> Response:
    def blocks() -> Iterator[bytes]:
        yield b"["
        for start in range(0, len(seconds), SECONDS_PER_BLOCK):
            block = msgspec.json.encode([shape(each) for each in seconds[start : start + SECONDS_PER_BLOCK]])
            yield (b"," if start else b"") + block[1:-1]
            gevent.sleep(0.001)
        yield b"]"

    return Response(blocks(), mimetype="application/json", headers={"Cache-Control": "no-store"})


def get_file(api: Api, run_id: str, name: str) -> Response:
    """A file of a run: summary.json, curve.html or requests.parquet."""
    kind = FILES.get(name)
    if kind is None:
        wrong = Problem(
            error=f"{name!r} is not a file of a run that can be fetched",
            field="name",
            hint=f"there are {', '.join(FILES)}",
        )
        return problem.response(wrong, 404)
    info = api.control.run(run_id).info
    path = Path(info.run_dir, name)
    if not info.run_dir or not path.is_file():
        return problem.response(_no_file_yet(info, name), 404)
    answer = send_file(path.absolute(), mimetype=kind.media_type, conditional=True)
    answer.headers["Content-Disposition"] = f'{"inline" if kind.policy else "attachment"}; filename="{run_id}-{name}"'
    if kind.policy:
        answer.headers["Content-Security-Policy"] = kind.policy
    return answer


def _no_file_yet(info: RunInfo, name: str) -> Problem:
    hint = "the run has no report: see its error and notes" if info.state.is_over else "it is written when the run ends"
    return Problem(error=f"run {info.run_id} has no {name}", field="name", hint=hint)


def get_live(api: Api) -> Response:
    """What changes, each second, as server-sent events."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return Response(api.feed.stream(), mimetype="text/event-stream", headers=headers)


def get_openapi(_api: Api) -> Response:
    """This API, as an OpenAPI document."""
    return _json(openapi.document())


def get_health(api: Api) -> Response:
    """That the master answers, and with how many workers."""
    return _json(shapes.Health(status="ok", version=VERSION, workers=len(api.control.workers())))


class Route(NamedTuple):
    """One route of the API."""

    method: str
    path: str
    view: Callable[..., Response]


ROUTES = (
    Route("GET", "/mixes", get_mixes),
    Route("GET", "/workers", get_workers),
    Route("GET", "/runs", get_runs),
    Route("POST", "/runs", start_run),
    Route("GET", "/runs/<run_id>", get_run),
    Route("POST", "/runs/<run_id>/stop", stop_run),
    Route("POST", "/runs/<run_id>/load", change_load),
    Route("GET", "/runs/<run_id>/seconds", get_seconds),
    Route("GET", "/runs/<run_id>/server", get_server_seconds),
    Route("GET", "/runs/<run_id>/files/<name>", get_file),
    Route("GET", "/live", get_live),
    Route("GET", "/openapi.json", get_openapi),
    Route("GET", "/health", get_health),
)


def blueprint(api: Api) -> Blueprint:
    """All routes, and the answers to their errors."""
    routes = Blueprint("tokswarm_api", __name__, url_prefix=PREFIX)
    for route in ROUTES:
        routes.add_url_rule(
            route.path, endpoint=route.view.__name__, view_func=partial(route.view, api), methods=[route.method]
        )
    routes.before_request(_limit_body)
    routes.register_error_handler(TokswarmError, _failed)
    routes.register_error_handler(msgspec.DecodeError, _not_json)
    routes.register_error_handler(HTTPException, http_problem)
    routes.register_error_handler(Exception, _unexpected)
    return routes


def http_problem(error: HTTPException) -> Response:
    """What Flask itself refuses (no such path, method, size), in our words' form, with its headers."""
    answer = problem.response(
        Problem(error=f"{request.method} {request.path}: {error.name}", hint=error.description or ""), error.code or 500
    )
    for name, value in error.get_headers():
        if name.lower() not in ("content-type", "content-length"):
            answer.headers[name] = value
    return answer


def _limit_body() -> None:
    request.max_content_length = MAX_BODY_BYTES


def _failed(error: TokswarmError, *, field: str | None = None) -> Response:
    return problem.response(Problem(error=str(error), field=field, hint=error.hint), problem.status_of(error))


def _not_json(error: msgspec.DecodeError) -> Response:
    return problem.response(Problem(error=f"the body is not JSON: {error}", hint="send a JSON object"), 400)


def _unexpected(error: Exception) -> Response:
    logger.error("request failed: %s %s", request.method, request.path, exc_info=error)
    return problem.response(
        Problem(error="the master failed on this request", hint="its log has the traceback; please report it"), 500
    )


def _json(value: object, *, status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(value), status=status, mimetype="application/json", headers={"Cache-Control": "no-store"}
    )
