"""What an answer says when a request was not carried out: words, the field they concern, what to do."""

import re

import msgspec
from flask import Response

from tokswarm.errors import BusyError, ConfigError, FleetError, PreflightError, TokswarmError, UnknownRunError


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every error answer of the API."""

    error: str
    """What, where and what came."""
    field: str | None = None
    """The part of the request it is about; None: the request as a whole."""
    hint: str = ""
    """What to do about it; empty: nothing but what `error` says."""


STATUS: tuple[tuple[type[TokswarmError], int], ...] = (
    (ConfigError, 422),
    (PreflightError, 424),
    (BusyError, 409),
    (UnknownRunError, 404),
    (FleetError, 503),
    (TokswarmError, 500),
)
"""Error to HTTP status; the first that fits counts."""

_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `([^`]*)`")


def status_of(error: TokswarmError) -> int:
    """The HTTP status that tells the truth about an error."""
    return next(status for kind, status in STATUS if isinstance(error, kind))


def of_validation(error: msgspec.ValidationError) -> Problem:
    """What is wrong with a JSON body that is JSON but not of the right shape."""
    text = str(error)
    unknown = _UNKNOWN.match(text)
    where = _PATH.search(text)
    field = unknown.group(1) if unknown else where.group(1) if where else None
    return Problem(
        error=_PATH.sub("", text), field=field or None, hint="GET /api/v1/openapi.json lists what is expected"
    )


def response(problem: Problem, status: int) -> Response:
    """The problem as an answer."""
    return Response(msgspec.json.encode(problem), status=status, mimetype="application/json")
