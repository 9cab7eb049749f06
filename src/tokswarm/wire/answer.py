"""What an endpoint has answered so far: events become stamped token arrivals, usage, errors.

Reads chat completions and completions, streamed; `read_body` reads the same answers in one piece.
Role-only and empty deltas are no tokens. The stamp of an arrival is that of the read that completed
its event.
"""

from array import array
from typing import Any

import msgspec

from tokswarm.measure.histogram import Histogram
from tokswarm.measure.record import Outcome
from tokswarm.wire.sse import EventSplitter


class PromptTokensDetails(msgspec.Struct, gc=False):
    """Of the prompt tokens."""

    cached_tokens: int | None = None


class CompletionTokensDetails(msgspec.Struct, gc=False):
    """Of the completion tokens."""

    reasoning_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """Token counts as the server states them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class ServerTimes(msgspec.Struct, gc=False):
    """vLLM's per-request `metrics`."""

    queue_time_ms: float | None = None


class Delta(msgspec.Struct, gc=False):
    """What a chat event adds, or a whole message."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: msgspec.Raw | None = None
    refusal: str | None = None


class Choice(msgspec.Struct, gc=False):
    """One choice of an event or a whole answer."""

    delta: Delta | None = None
    text: str | None = None
    message: Delta | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct, gc=False):
    """One event, or a whole answer."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    metrics: ServerTimes | None = None
    error: msgspec.Raw | None = None


_decode = msgspec.json.Decoder(Chunk).decode
_OPEN_BRACE = 0x7B
_EMPTY_TOOL_CALLS = (b"null", b"[]")


class LiveRow:
    """Counters of one class in one stage in the second under way; one writer, the loop."""

    __slots__ = ("itl", "itl_counts", "output_tokens")

    def __init__(self) -> None:
        self.output_tokens = 0
        self.itl = Histogram()
        self.itl_counts = self.itl.counts
        """The histogram's own list, at hand for the hot path."""


class Answer:
    """One streamed answer, read forward."""

    __slots__ = (
        "_live",
        "_split",
        "_splitter",
        "chunks",
        "done",
        "error",
        "error_outcome",
        "finish_reason",
        "first_output_ns",
        "first_token_ns",
        "last_token_ns",
        "merged_arrivals",
        "queue_wait_ms",
        "stamps_ns",
        "unstamped_arrivals",
        "usage",
    )

    def __init__(self, live: LiveRow) -> None:
        self._live = live
        self._splitter = EventSplitter()
        self._split = self._splitter.feed
        self.stamps_ns: array[int] = array("q")
        """One for each token arrival, monotonic."""
        self.first_token_ns: int | None = None
        self.first_output_ns: int | None = None
        self.last_token_ns: int | None = None
        self.merged_arrivals = 0
        self.unstamped_arrivals = 0
        self.chunks = 0
        """Events that were chunks, with tokens or without."""
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.queue_wait_ms: float | None = None
        self.done = False
        """`[DONE]` has come."""
        self.error: str | None = None
        self.error_outcome: Outcome | None = None

    def feed(self, body: bytes, at_ns: int, stamped: bool) -> None:  # noqa: PLR0912, PLR0915 - calls cost
        """Take the body bytes of one read, with its stamp. `stamped` False: the stamp is the user clock's."""
        # hot: once per read, the loop once per token (benchmarks/receive_path.py)
        seen_ns = 0
        for data in self._split(body):
            if data[0:1] != b"{":
                self._not_json(data)
                continue
            try:
                chunk = _decode(data)
            except msgspec.ValidationError:
                chunk = lenient_chunk(data)
            except msgspec.DecodeError:
                self._fail(Outcome.PROTOCOL, f"an event is not JSON: {data[:200]!r}")
                continue
            self.chunks += 1
            choices = chunk.choices
            if choices:
                choice = choices[0]
                delta = choice.delta
                if (delta is not None and delta.content) or choice.text:
                    if self.first_output_ns is None:
                        self.first_output_ns = at_ns
                elif delta is None or not (delta.reasoning_content or delta.reasoning or _other_text(delta)):
                    if choice.finish_reason:
                        self.finish_reason = choice.finish_reason
                    if chunk.usage is not None:
                        self._usage(chunk)
                    continue
                elif delta.tool_calls is not None and self.first_output_ns is None:
                    self.first_output_ns = at_ns
                # a token arrived
                last_ns = self.last_token_ns
                live = self._live
                live.output_tokens += 1
                if last_ns is None:
                    self.first_token_ns = at_ns
                elif at_ns == seen_ns:
                    self.merged_arrivals += 1
                    live.itl_counts[0] += 1
                else:
                    gap_ns = at_ns - last_ns
                    if gap_ns < 64:
                        live.itl_counts[gap_ns if gap_ns > 0 else 0] += 1
                    else:  # measure.histogram.bucket_of, in place
                        shift = gap_ns.bit_length() - 7
                        live.itl_counts[(shift << 6) + (gap_ns >> shift)] += 1
                self.last_token_ns = seen_ns = at_ns
                self.stamps_ns.append(at_ns)
                if not stamped:
                    self.unstamped_arrivals += 1
                if choice.finish_reason:
                    self.finish_reason = choice.finish_reason
            if chunk.usage is not None:
                self._usage(chunk)
            if chunk.error is not None:
                self._in_band(bytes(chunk.error))
        if self._splitter.named:
            self._named_errors()

    def end(self) -> None:
        """The body has ended: a last `[DONE]` without its blank line still counts."""
        if not self.done and self._splitter.tail().strip() == b"[DONE]":
            self.done = True

    def read_body(self, body: bytes, at_ns: int) -> None:
        """Take a whole answer that was not streamed: tokens by usage, no arrivals."""
        try:
            chunk = _decode(body)
        except msgspec.ValidationError:
            chunk = lenient_chunk(body)
        except msgspec.DecodeError:
            self._fail(Outcome.PROTOCOL, f"the answer is neither an event stream nor JSON: {body[:200]!r}")
            return
        if chunk.error is not None:
            self._in_band(bytes(chunk.error))
        if chunk.usage is not None:
            self._usage(chunk)
        if chunk.choices:
            self.chunks += 1
            self.finish_reason = chunk.choices[0].finish_reason
            self.done = True
            message = chunk.choices[0].message
            if chunk.choices[0].text or (message is not None and (message.content or message.reasoning_content)):
                self.first_token_ns = self.first_output_ns = self.last_token_ns = at_ns

    def _usage(self, chunk: Chunk) -> None:
        self.usage = chunk.usage
        if chunk.metrics is not None:
            self.queue_wait_ms = chunk.metrics.queue_time_ms

    def _not_json(self, data: bytes) -> None:
        text = data.strip()
        if text == b"[DONE]":
            self.done = True
        elif text:
            self._fail(Outcome.PROTOCOL, f"an event is not JSON: {text[:200]!r}")

    def _named_errors(self) -> None:
        if b"error" in self._splitter.named.values() and self.error_outcome is None:
            self._fail(Outcome.IN_BAND_ERROR, "the server sent an error event")

    def _in_band(self, raw: bytes) -> None:
        if raw != b"null":
            text = error_text(raw)
            self._fail(Outcome.CONTEXT_LENGTH if is_context_error(text) else Outcome.IN_BAND_ERROR, text)

    def _fail(self, outcome: Outcome, text: str) -> None:
        if self.error_outcome is None:
            self.error_outcome, self.error = outcome, text


def _other_text(delta: Delta) -> bool:
    tool_calls = delta.tool_calls
    return bool(delta.refusal) or (tool_calls is not None and bytes(tool_calls) not in _EMPTY_TOOL_CALLS)


def is_context_error(text: str) -> bool:
    """Whether an error text says that the prompt and the answer do not fit the model's context."""
    lower = text.lower()
    return "context_length" in lower or ("context" in lower and ("length" in lower or "exceed" in lower))


def error_text(raw: bytes) -> str:
    """The human part of an OpenAI-shaped error value, or the value itself."""
    try:
        value: Any = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return raw.decode("utf-8", errors="replace")
    if isinstance(value, dict):
        inner = value.get("error", value)
        if isinstance(inner, dict):
            parts = [str(inner[key]) for key in ("code", "type", "message") if inner.get(key) not in (None, "")]
            return ": ".join(dict.fromkeys(parts)) or str(inner)
        return str(inner)
    return str(value)


def lenient_chunk(data: bytes) -> Chunk:
    """A chunk whose parts are not of the usual types: takes what is usable, leaves the rest out."""
    value: Any = msgspec.json.decode(data)
    if not isinstance(value, dict):
        return Chunk()
    chunk = Chunk()
    for name, kind in (("usage", Usage), ("metrics", ServerTimes)):
        try:
            setattr(chunk, name, msgspec.convert(value.get(name), kind | None, strict=False))
        except msgspec.ValidationError:
            continue
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
            )
            if part.get("tool_calls"):
                delta.tool_calls = msgspec.Raw(msgspec.json.encode(part["tool_calls"]))
            setattr(choice, name, delta)
    return choice


def _text_of(value: Any) -> str | None:
    """Text given as a string or as a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(str(part.get("text", "")) for part in value if isinstance(part, dict)) or None
    return None
