"""Locust's own page under /locust: what it changes goes through the run control, or is refused.

Locust's form knows users and spawn rates, not mixes. Its start repeats the run that was started last;
its stop ends the run under way. Edits of user classes and a reset of the statistics would make a
run's numbers mean something else, and are refused.
"""

from collections.abc import Callable
from typing import Any

from flask import Flask, Response, jsonify

from tokswarm.errors import TokswarmError
from tokswarm.master.run import RunControl
from tokswarm.web import problem
from tokswarm.web.problem import Problem
from tokswarm.web.starts import Starts

NO_MIX = "start runs from the tokswarm page at /"


def install_locust_ui(app: Flask, control: RunControl, starts: Starts) -> None:
    """Replace the views of Locust's page that change something; does nothing on an app without that page."""
    if "locust.swarm" not in app.view_functions:
        return
    views: dict[str, Callable[[], Any]] = {
        "locust.swarm": lambda: _swarm(starts),
        "locust.stop": lambda: _stop(control),
        "locust.update_user": lambda: _refuse("user classes are not edited here: a mix says what is sent"),
        "locust.reset_stats": lambda: _refuse("statistics are not reset: each run begins with its own"),
    }
    app.view_functions.update(views)
    app.error_handler_spec.pop("locust", None)  # it answers with the text of inner errors


def _swarm(starts: Starts) -> Response:
    """Locust's page reads success or failure from the body and expects status 200."""
    if starts.last is None:
        return jsonify(success=False, message=NO_MIX)
    try:
        info = starts.start(starts.last)
    except TokswarmError as error:
        return jsonify(success=False, message=f"{error}. {error.hint}" if error.hint else str(error))
    return jsonify(success=True, message=f"run {info.run_id} of the mix {info.mix_name} started", host=info.base_url)


def _stop(control: RunControl) -> Response:
    running = next((run for run in control.runs() if not run.state.is_over), None)
    if running is None:
        return jsonify(success=False, message="no run is under way")
    control.stop(running.run_id)
    return jsonify(success=True, message=f"run {running.run_id} is stopping")


def _refuse(reason: str) -> Response:
    return problem.response(Problem(error=reason, hint="use the tokswarm page at /"), 403)
