"""What an endpoint has answered so far: stamped token arrivals, usage, errors.

`chat_answer` and `responses_answer` read the two dialects. A token is an event with text of any kind;
role-only and empty deltas are none. The stamp of an arrival is that of the read that completed its event.
"""

from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import msgspec

from tokswarm.measure.histogram import Histogram, bucket_of
from tokswarm.measure.record import Outcome
from tokswarm.wire.sse import EventSplitter
from tokswarm.wire.usage import ServerTimes, Usage

BAD_REQUEST, TOO_MANY_REQUESTS = 400, 429


class LiveRow:
    """Counters of one class in one stage in the second under way; one writer, the loop."""

    __slots__ = ("itl", "itl_counts", "output_tokens")

    def __init__(self) -> None:
        self.output_tokens = 0
        self.itl = Histogram()
        self.itl_counts = self.itl.counts
        """The histogram's own list, at hand for the hot path."""


class Answer:
    """One answer, read forward. A dialect overrides `feed` and `read_body`."""

    __slots__ = (
        "_live",
        "_split",
        "_splitter",
        "done",
        "error",
        "error_outcome",
        "finish_reason",
        "first_output_ns",
        "first_token_ns",
        "has_text",
        "last_token_ns",
        "merged_arrivals",
        "model",
        "queue_wait_ms",
        "read_arrivals",
        "stamps_ns",
        "unstamped_arrivals",
        "usage",
        "usage_marks",
    )

    def __init__(self, live: LiveRow) -> None:
        self._live = live
        self._splitter = EventSplitter()
        self._split = self._splitter.feed
        self.stamps_ns: array[int] = array("q")
        """One for each token arrival, monotonic."""
        self.usage_marks: array[int] = array("I")
        """Output tokens up to each arrival, where the server says so with every chunk (continuous usage)."""
        self.first_token_ns: int | None = None
        self.first_output_ns: int | None = None
        self.last_token_ns: int | None = None
        self.has_text = False
        """An answer in one piece had text."""
        self.merged_arrivals = 0
        self.unstamped_arrivals = 0
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.model: str | None = None
        """Which model it says it is from."""
        self.queue_wait_ms: float | None = None
        self.done = False
        """The end mark has come."""
        self.error: str | None = None
        self.error_outcome: Outcome | None = None

    def feed(self, body: bytes, at_ns: int, stamped: bool) -> None:
        """Take the body bytes of one read, with its stamp. `stamped` False: the stamp is the user clock's."""
        raise NotImplementedError

    def read_body(self, body: bytes) -> None:
        """Take a whole answer that was not streamed: tokens by usage, no arrivals."""
        raise NotImplementedError

    def end(self) -> None:
        """The body has ended: a last `[DONE]` without its blank line still counts."""
        if not self.done and self._splitter.tail().strip() == b"[DONE]":
            self.done = True

    @property
    def is_blank(self) -> bool:
        """The body brought nothing at all."""
        return self._splitter.is_blank and not self.done and self.usage is None

    def counts(self) -> "array[int] | None":
        """Tokens of each arrival by continuous usage; None where the server does not give it."""
        marks = self.usage_marks
        if not marks or len(marks) != len(self.stamps_ns):
            return None
        gaps = (max(after - before, 0) for before, after in pairwise(marks))
        return array("I", [marks[0], *gaps])

    def _arrived(self, at_ns: int, seen_ns: int, *, stamped: bool) -> None:
        """A token arrived; `seen_ns` is the stamp of the read's arrival before, 0 for none."""
        live = self._live
        live.output_tokens += 1
        if self.last_token_ns is not None:
            at_ns = max(at_ns, self.last_token_ns)  # the wall clock may have been stepped back
        if self.last_token_ns is None:
            self.first_token_ns = at_ns
        elif at_ns == seen_ns:
            self.merged_arrivals += 1
            live.itl_counts[0] += 1
        else:
            live.itl_counts[bucket_of(at_ns - self.last_token_ns)] += 1
        self.last_token_ns = at_ns
        self.stamps_ns.append(at_ns)
        if not stamped:
            self.unstamped_arrivals += 1

    def _take_usage(self, usage: Usage, times: ServerTimes | None) -> None:
        self.usage = usage
        if times is not None:
            self.queue_wait_ms = times.queue_time_ms

    def _not_json(self, data: bytes) -> None:
        text = data.strip()
        if text == b"[DONE]":
            self.done = True
        elif text:
            self._fail(Outcome.PROTOCOL, f"an event is not JSON: {text[:200]!r}")

    def _marked(self, events: Iterable[bytes]) -> Iterator[bytes]:
        """The events of a read, each that is of the type `error` counted as one once it has been read."""
        named = self._splitter.named
        for at, data in enumerate(events):
            yield data
            if named.get(at) == b"error":
                self._fail(Outcome.IN_BAND_ERROR, "the server sent an error event")

    def _in_band(self, raw: bytes) -> None:
        if raw != b"null":
            text = error_text(raw)
            self._fail(Outcome.CONTEXT_LENGTH if is_context_error(text) else Outcome.IN_BAND_ERROR, text)

    def _fail(self, outcome: Outcome, text: str) -> None:
        if self.error_outcome is None:
            self.error_outcome, self.error = outcome, text


class _Named(msgspec.Struct, gc=False):
    model: str | None = None


_decode_named = msgspec.json.Decoder(_Named).decode


def model_of(data: bytes) -> str | None:
    """The model that an event or a whole answer names."""
    try:
        return _decode_named(data).model
    except (msgspec.DecodeError, RecursionError):
        return None


def judge_answer(answer: Answer) -> tuple[Outcome, str | None]:
    """How a 200 ended, once its body has."""
    if answer.error_outcome is not None:
        return answer.error_outcome, answer.error
    if answer.is_blank:
        return Outcome.EMPTY, "the answer is empty"
    if not answer.done and answer.finish_reason is None:
        return Outcome.TRUNCATED, "the stream ended without finish_reason and without [DONE]"
    if not (answer.stamps_ns or answer.has_text or (answer.usage is not None and answer.usage.output)):
        return Outcome.EMPTY, "the answer has no token"
    return Outcome.OK, None


def judge_refusal(status: int, body: bytes) -> tuple[Outcome, str]:
    """How a request ended that was answered with another status."""
    text = error_text(body)
    if status == TOO_MANY_REQUESTS:
        outcome = Outcome.RATE_LIMITED
    elif status == BAD_REQUEST and is_context_error(text):
        outcome = Outcome.CONTEXT_LENGTH
    else:
        outcome = Outcome.HTTP_ERROR
    return outcome, f"HTTP {status}: {text}"


def is_context_error(text: str) -> bool:
    """Whether an error text says that the prompt and the answer do not fit the model's context."""
    lower = text.lower()
    return any(mark in lower for mark in ("context_length", "max_model_len", "maximum context")) or (
        "context" in lower and ("length" in lower or "exceed" in lower or "window" in lower)
    )


def error_text(raw: bytes) -> str:
    """The human part of an OpenAI-shaped error value, or the value itself."""
    try:
        value: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return raw.decode("utf-8", errors="replace")
    if isinstance(value, dict):
        inner = value.get("error", value)
        if isinstance(inner, dict):
            parts = [str(inner[key]) for key in ("code", "type", "message") if inner.get(key) not in (None, "")]
            return ": ".join(dict.fromkeys(parts)) or str(inner)
        return str(inner)
    return str(value)
