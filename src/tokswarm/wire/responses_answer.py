"""Answers of the responses API: typed events, usage and outcome in the last one."""

import contextlib
from typing import Any

import msgspec

from tokswarm.measure.record import Outcome
from tokswarm.wire.answer import Answer
from tokswarm.wire.usage import ServerTimes, Usage, lenient

REASONING_DELTAS = (
    "response.reasoning_text.delta",
    "response.reasoning_summary_text.delta",
    "response.reasoning.delta",
)
LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


class IncompleteDetails(msgspec.Struct, gc=False):
    """Why an answer is not whole."""

    reason: str | None = None


class Response(msgspec.Struct, gc=False):
    """The response object, as the first and last events carry it."""

    status: str | None = None
    model: str | None = None
    usage: Usage | None = None
    metrics: ServerTimes | None = None
    incomplete_details: IncompleteDetails | None = None
    error: msgspec.Raw | None = None
    output: msgspec.Raw | None = None


class Event(msgspec.Struct, gc=False):
    """One typed event."""

    type: str = ""
    delta: str | None = None
    response: Response | None = None
    message: str | None = None
    error: msgspec.Raw | None = None


_decode = msgspec.json.Decoder(Event).decode
_decode_whole = msgspec.json.Decoder(Response).decode


class ResponsesAnswer(Answer):
    """One answer of a responses request."""

    __slots__ = ()

    def feed(self, body: bytes, at_ns: int, stamped: bool) -> None:
        """Take the body bytes of one read, with its stamp."""
        # hot: once per read, the loop once per token
        seen_ns = 0
        for data in self._split(body):
            if data[0:1] != b"{":
                self._not_json(data)
                continue
            try:
                event = _decode(data)
            except (msgspec.DecodeError, RecursionError) as error:
                usable = _usable(data, error)
                if usable is None:
                    self._fail(Outcome.PROTOCOL, f"an event is not JSON: {data[:200]!r}")
                    continue
                event = _lenient_event(usable)
            if event.delta:
                if self.first_output_ns is None and event.type not in REASONING_DELTAS:
                    self.first_output_ns = at_ns
                self._arrived(at_ns, seen_ns, stamped=stamped)
                seen_ns = at_ns
            elif event.type in LAST_EVENTS:
                self._last(event)
            elif event.type == "error" or event.error is not None:
                raw = bytes(event.error) if event.error is not None else msgspec.json.encode(event.message)
                self._in_band(raw)

    def read_body(self, body: bytes) -> None:
        """Take a whole answer that was not streamed."""
        if not body.strip():
            return
        try:
            response = _decode_whole(body)
        except (msgspec.DecodeError, RecursionError) as error:
            usable = _usable(body, error)
            if usable is None:
                self._fail(Outcome.PROTOCOL, f"the answer is neither an event stream nor JSON: {body[:200]!r}")
                return
            response = _lenient_response(usable)
        self._whole(response)
        self.has_text = response.output is not None and bytes(response.output) not in (b"null", b"[]")

    def _last(self, event: Event) -> None:
        if event.response is not None:
            self._whole(event.response)
        self.done = True
        if event.type == "response.failed" and self.error_outcome is None:
            self._fail(Outcome.IN_BAND_ERROR, "the response failed")

    def _whole(self, response: Response) -> None:
        self.model = response.model
        if response.usage is not None:
            self._take_usage(response.usage, response.metrics)
        if response.error is not None:
            self._in_band(bytes(response.error))
        if response.status is not None:
            reason = response.incomplete_details.reason if response.incomplete_details is not None else None
            self.finish_reason = reason or response.status
            self.done = True


def _usable(data: bytes, error: Exception) -> dict[str, Any] | None:
    """The object that did not decode, without types; None when it is none, or nested too deep to be read."""
    if isinstance(error, msgspec.ValidationError):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            value: Any = msgspec.json.decode(data)
            return value if isinstance(value, dict) else {}
    return None


def _lenient_event(value: dict[str, Any]) -> Event:
    delta = value.get("delta")
    if isinstance(delta, dict):
        delta = msgspec.json.encode(delta).decode()
    event = Event(type=str(value.get("type", "")), delta=delta if isinstance(delta, str) else None)
    if isinstance(value.get("response"), dict):
        event.response = _lenient_response(value["response"])
    if value.get("error") is not None:
        event.error = msgspec.Raw(msgspec.json.encode(value["error"]))
    return event


def _lenient_response(value: Any) -> Response:
    if not isinstance(value, dict):
        return Response()
    response = Response(
        status=value["status"] if isinstance(value.get("status"), str) else None,
        model=value["model"] if isinstance(value.get("model"), str) else None,
        usage=lenient(value.get("usage"), Usage),
        metrics=lenient(value.get("metrics"), ServerTimes),
        incomplete_details=lenient(value.get("incomplete_details"), IncompleteDetails),
    )
    for name in ("error", "output"):
        if value.get(name) is not None:
            setattr(response, name, msgspec.Raw(msgspec.json.encode(value[name])))
    return response
