"""Answers of chat completions and completions."""

import contextlib
from collections.abc import Iterable
from typing import Any

import msgspec

from tokswarm.measure.record import Outcome
from tokswarm.wire.answer import Answer, model_of
from tokswarm.wire.usage import ServerTimes, Timings, Usage, lenient


class Delta(msgspec.Struct, gc=False):
    """What a chat event adds, or a whole message."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: msgspec.Raw | None = None
    function_call: msgspec.Raw | None = None
    refusal: str | None = None


class Choice(msgspec.Struct, gc=False):
    """One choice of an event or a whole answer."""

    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    message: Delta | None = None
    finish_reason: str | None = None


class Groq(msgspec.Struct, gc=False):
    """Where Groq puts usage."""

    usage: Usage | None = None


class Chunk(msgspec.Struct, gc=False):
    """One event, or a whole answer."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    metrics: ServerTimes | None = None
    timings: Timings | None = None
    x_groq: Groq | None = None
    error: msgspec.Raw | None = None


_decode = msgspec.json.Decoder(Chunk).decode
NEWLINE = 10
_NOTHING = (b"null", b"[]", b"{}")


class ChatAnswer(Answer):
    """One answer of a chat or completions request."""

    __slots__ = ()

    def feed(self, body: bytes, at_ns: int, stamped: bool) -> None:  # noqa: PLR0912, PLR0915 - calls cost
        """Take the body bytes of one read, with its stamp."""
        # hot: once per read, the loop once per token (benchmarks/receive_path.py)
        seen_ns = 0
        events: Iterable[bytes]
        if (
            self._splitter.is_clean
            and body.startswith(b"data: ")
            and body.find(b"\n") == len(body) - 2
            and body[-1] == NEWLINE
            and b"\r" not in body
        ):
            events = (body[6:-2],)
        else:
            events = self._split(body)
            if self._splitter.named:
                events = self._marked(events)
        for data in events:
            if data[0:1] != b"{":
                self._not_json(data)
                continue
            try:
                chunk = _decode(data)
            except (msgspec.DecodeError, RecursionError) as error:
                usable = _usable_chunk(data, error)
                if usable is None:
                    self._fail(Outcome.PROTOCOL, f"an event is not JSON: {data[:200]!r}")
                    continue
                chunk = usable
            choices = chunk.choices
            if choices:
                if len(choices) > 1:
                    self._several(choices, at_ns, stamped=stamped)
                    choice = choices[0]
                else:
                    choice = choices[0]
                delta = choice.delta
                if (delta is not None and delta.content) or choice.text:
                    if self.first_output_ns is None:
                        self.first_output_ns = at_ns
                elif delta is None or not has_text(delta):
                    if choice.finish_reason:
                        self.finish_reason = choice.finish_reason
                    self._rest(chunk)
                    continue
                elif self.first_output_ns is None and not is_reasoning(delta):
                    self.first_output_ns = at_ns
                # `_arrived`, in place
                last_ns = self.last_token_ns
                live = self._live
                live.output_tokens += 1
                if last_ns is None:
                    self.first_token_ns = at_ns
                    self.model = model_of(data)
                elif at_ns == seen_ns:
                    self.merged_arrivals += 1
                    live.itl_counts[0] += 1
                else:
                    gap_ns = at_ns - last_ns
                    if gap_ns < 64:
                        if gap_ns < 0:  # the wall clock was stepped back between the two
                            gap_ns, at_ns = 0, last_ns
                        live.itl_counts[gap_ns] += 1
                    else:
                        shift = gap_ns.bit_length() - 7
                        live.itl_counts[(shift << 6) + (gap_ns >> shift)] += 1
                self.last_token_ns = seen_ns = at_ns
                self.stamps_ns.append(at_ns)
                if not stamped:
                    self.unstamped_arrivals += 1
                if choice.finish_reason:
                    self.finish_reason = choice.finish_reason
                usage = chunk.usage
                if usage is not None and usage.completion_tokens is not None:
                    self.usage_marks.append(usage.completion_tokens)
            if (
                chunk.usage is not None
                or chunk.error is not None
                or chunk.timings is not None
                or chunk.x_groq is not None
            ):
                self._rest(chunk)

    def read_body(self, body: bytes) -> None:
        """Take a whole answer that was not streamed: tokens by usage, no arrivals."""
        if not body.strip():
            return
        try:
            chunk = _decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            usable = _usable_chunk(body, error)
            if usable is None:
                self._fail(Outcome.PROTOCOL, f"the answer is neither an event stream nor JSON: {body[:200]!r}")
                return
            chunk = usable
        self._rest(chunk)
        self.model = model_of(body)
        if chunk.choices:
            self.done = True
            self.finish_reason = chunk.choices[0].finish_reason
            for choice in chunk.choices:
                message = choice.message
                if choice.text or (message is not None and (message.content or has_text(message))):
                    self.has_text = True

    def _several(self, choices: list[Choice], at_ns: int, *, stamped: bool) -> None:
        """An event with several choices: the first is read by the caller, the others bring arrivals of their own."""
        for choice in choices[1:]:
            delta = choice.delta
            if choice.text or (delta is not None and (delta.content or has_text(delta))):
                self._arrived(at_ns, at_ns if self.last_token_ns == at_ns else 0, stamped=stamped)
                if self.first_output_ns is None:
                    self.first_output_ns = at_ns

    def _rest(self, chunk: Chunk) -> None:
        """What an event says beside tokens."""
        if chunk.usage is not None:
            self._take_usage(chunk.usage, chunk.metrics)
        elif chunk.x_groq is not None and chunk.x_groq.usage is not None:
            self._take_usage(chunk.x_groq.usage, chunk.metrics)
        elif chunk.timings is not None and self.usage is None and chunk.timings.predicted_n is not None:
            self._take_usage(chunk.timings.as_usage(), chunk.metrics)
        if chunk.error is not None:
            self._in_band(bytes(chunk.error))


def is_reasoning(delta: Delta) -> bool:
    """Whether a delta without content is reasoning only."""
    return bool(delta.reasoning_content or delta.reasoning) and not (
        delta.refusal or _given(delta.tool_calls) or _given(delta.function_call)
    )


def has_text(delta: Delta) -> bool:
    """Whether a delta without content brings text of another kind: reasoning, a tool call, a refusal."""
    return bool(
        delta.reasoning_content
        or delta.reasoning
        or delta.refusal
        or _given(delta.tool_calls)
        or _given(delta.function_call)
    )


def _given(raw: msgspec.Raw | None) -> bool:
    return raw is not None and bytes(raw) not in _NOTHING


def _usable_chunk(data: bytes, error: Exception) -> Chunk | None:
    """What is usable of data that did not decode; None when it is no JSON, or nested too deep to be read."""
    if isinstance(error, msgspec.ValidationError):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            return lenient_chunk(data)
    return None


def lenient_chunk(data: bytes) -> Chunk:
    """A chunk whose parts are not of the usual types: takes what is usable, leaves the rest out."""
    value: Any = msgspec.json.decode(data)
    if not isinstance(value, dict):
        return Chunk()
    groq = value.get("x_groq")
    chunk = Chunk(
        usage=lenient(value.get("usage"), Usage),
        metrics=lenient(value.get("metrics"), ServerTimes),
        timings=lenient(value.get("timings"), Timings),
        x_groq=Groq(usage=lenient(groq.get("usage"), Usage)) if isinstance(groq, dict) else None,
    )
    if value.get("error") is not None:
        chunk.error = msgspec.Raw(msgspec.json.encode(value["error"]))
    choices = value.get("choices")
    if isinstance(choices, list):
        chunk.choices = [_lenient_choice(choice) for choice in choices if isinstance(choice, dict)]
    return chunk


def _lenient_choice(value: dict[str, Any]) -> Choice:
    choice = Choice(text=_text_of(value.get("text")))
    if isinstance(value.get("finish_reason"), str):
        choice.finish_reason = value["finish_reason"]
    for name in ("delta", "message"):
        part = value.get(name)
        if isinstance(part, dict):
            delta = Delta(
                content=_text_of(part.get("content")),
                reasoning_content=_text_of(part.get("reasoning_content")),
                reasoning=_text_of(part.get("reasoning")),
                refusal=_text_of(part.get("refusal")),
            )
            for call in ("tool_calls", "function_call"):
                if part.get(call):
                    setattr(delta, call, msgspec.Raw(msgspec.json.encode(part[call])))
            setattr(choice, name, delta)
    return choice


def _text_of(value: Any) -> str | None:
    """Text given as a string or as a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(str(part.get("text", "")) for part in value if isinstance(part, dict)) or None
    return None
