"""Answers on their way out: one token after the other as a stream, or all at once as a body."""

from array import array
from enum import StrEnum
from time import monotonic_ns

import msgspec

from tokswarm.simulator.api import PromptDetails, RequestTimes, Usage
from tokswarm.simulator.engine import Progress
from tokswarm.simulator.http1 import Exchange, chunk
from tokswarm.simulator.words import WORD_LENGTHS, WORDS, Answer


class Api(StrEnum):
    """Which endpoint is answered; they differ in shape only."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"

    @property
    def id_prefix(self) -> str:
        """What public ids of its answers begin with."""
        return {Api.CHAT: "chatcmpl-", Api.COMPLETIONS: "cmpl-", Api.RESPONSES: "resp_"}[self]

    @property
    def prompt_field(self) -> str:
        """Where its requests have the prompt."""
        return {Api.CHAT: "messages", Api.COMPLETIONS: "prompt", Api.RESPONSES: "input"}[self]

    @property
    def limit_field(self) -> str:
        """Where they limit the answer."""
        return "max_output_tokens" if self is Api.RESPONSES else "max_tokens"


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was taken up, with everything its answer says."""

    request_id: int
    api: Api
    public_id: str
    model: str
    created_unix: int
    prompt_tokens: int
    answer: Answer
    max_tokens: int
    include_usage: bool
    continuous_usage: bool

    @property
    def finish_reason(self) -> str:
        """Why the answer ends where it ends."""
        return "stop" if self.answer.stopped else "length"

    def usage(self, completion_tokens: int, cached_tokens: int | None = None) -> Usage:
        """Token counts after this many output tokens; with `cached_tokens` at the end."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            total_tokens=self.prompt_tokens + completion_tokens,
            completion_tokens=completion_tokens,
            prompt_tokens_details=None if cached_tokens is None else PromptDetails(cached_tokens),
        )


def request_times(progress: Progress, stamps_ns: "array[int]") -> RequestTimes:
    """vLLM's per-request metrics out of the engine's times and the emission stamps."""
    admitted_ns = progress.admitted_ns
    if admitted_ns is None or not stamps_ns:
        raise ValueError(f"request {progress.request.request_id} has no token yet")
    generation_ns = stamps_ns[-1] - stamps_ns[0]
    gaps = len(stamps_ns) - 1
    return RequestTimes(
        time_to_first_token_ms=(stamps_ns[0] - admitted_ns) / 1e6,
        generation_time_ms=generation_ns / 1e6,
        queue_time_ms=(admitted_ns - progress.request.arrival_ns) / 1e6,
        mean_itl_ms=generation_ns / gaps / 1e6 if gaps else None,
        tokens_per_second=len(stamps_ns) / ((stamps_ns[-1] - admitted_ns) / 1e9),
    )


class OpenAnswer:
    """An accepted request until it is answered. `stamps_ns` are the monotonic times of its tokens so far."""

    def __init__(self, accepted: Accepted, exchange: Exchange) -> None:
        self.accepted = accepted
        self.exchange = exchange
        self.stamps_ns: array[int] = array("q")
        self.due_ns: array[int] = array("q")
        """When the model wanted each token out."""

    def open(self) -> None:
        """Send what can be sent before the first token: nothing, unless it is a stream."""

    def emit(self, due_ns: int, tokens: int) -> None:
        """Send the next tokens, those of one step, or keep them for the body."""
        self._stamp(due_ns, tokens)

    def prepare(self) -> None:
        """Do now what can be done for the next token before it is due."""

    def _stamp(self, due_ns: int, tokens: int) -> None:
        now_ns = monotonic_ns()
        for _ in range(tokens):
            self.due_ns.append(due_ns)
            self.stamps_ns.append(now_ns)

    def finish(self, progress: Progress) -> None:
        """Send what comes after the last token."""
        raise NotImplementedError


class WholeAnswer(OpenAnswer):
    """Answers a chat or a completion with one JSON body after the last token."""

    def finish(self, progress: Progress) -> None:
        """Send the body."""
        accepted = self.accepted
        text = accepted.answer.text()
        end = {"logprobs": None, "finish_reason": accepted.finish_reason, "stop_reason": None}
        if accepted.api is Api.CHAT:
            kind, choice = "chat.completion", {"index": 0, "message": {"role": "assistant", "content": text}, **end}
        else:
            kind, choice = "text_completion", {"index": 0, "text": text, **end}
        body = {
            "id": accepted.public_id,
            "object": kind,
            "created": accepted.created_unix,
            "model": accepted.model,
            "choices": [choice],
            "usage": accepted.usage(len(self.stamps_ns), progress.cached_tokens),
            "metrics": request_times(progress, self.stamps_ns),
        }
        self.exchange.send(200, msgspec.json.encode(body))


class StreamedAnswer(OpenAnswer):
    """Answers a chat or a completion with server-sent events: each event one HTTP chunk, each token one write."""

    def __init__(self, accepted: Accepted, exchange: Exchange) -> None:
        super().__init__(accepted, exchange)
        self._frame = chunk if exchange.chunked else bytes
        kind = "chat.completion.chunk" if accepted.api is Api.CHAT else "text_completion"
        self._shared = (
            f'data: {{"id":"{accepted.public_id}","object":"{kind}","created":{accepted.created_unix},'
            f'"model":{msgspec.json.encode(accepted.model).decode()},'
        ).encode()
        if accepted.api is Api.CHAT:
            self._before = self._shared + b'"choices":[{"index":0,"delta":{"content":"'
            self._after = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
            self._after_last = (
                f'"}},"logprobs":null,"finish_reason":"{accepted.finish_reason}","stop_reason":null,"token_ids":null}}]'
            ).encode()
        else:
            self._before = self._shared + b'"choices":[{"index":0,"text":"'
            self._after = (
                b'","logprobs":null,"finish_reason":null,"stop_reason":null,'
                b'"prompt_token_ids":null,"token_ids":null}]}\n\n'
            )
            self._after_last = (
                f'","logprobs":null,"finish_reason":"{accepted.finish_reason}","stop_reason":null,'
                f'"prompt_token_ids":null,"token_ids":null}}]'
            ).encode()
        self._words = accepted.answer.words
        self._last = len(self._words) - 1
        self._plain_end = 0 if accepted.continuous_usage else self._last
        """Tokens before this place, but for the first, are events that differ in their word only."""
        self._ready: bytes | None = None
        """The next token's event, if it is one of those."""
        # The commonest events, ready but for their word, by its length.
        self._framed: dict[int, tuple[bytes, bytes]] = {length: self._split_frame(length) for length in WORD_LENGTHS}

    def _split_frame(self, length: int) -> tuple[bytes, bytes]:
        mark = b"\x00" * length
        before, after = self._frame(self._before + b" " + mark + self._after).split(mark)
        return before, after

    def open(self) -> None:
        """Send the head of the response."""
        self.exchange.open_stream("text/event-stream; charset=utf-8")

    def emit(self, due_ns: int, tokens: int) -> None:
        """Send the next tokens in one event, as vLLM sends those of one step."""
        # hot: one stamp, one system call (figures in docs/simulator.md#speed)
        stamps_ns = self.stamps_ns
        ready = self._ready
        if tokens == 1 and ready is not None:
            self._ready = None
            stamps_ns.append(monotonic_ns())
            self.exchange.write(ready)
            self.due_ns.append(due_ns)
            return
        place = len(stamps_ns)
        end = place + tokens
        data = self._edge(place, end - 1, b" ".join([WORDS[word] for word in self._words[place:end]]))
        self._stamp(due_ns, tokens)
        self.exchange.write(data)

    def prepare(self) -> None:
        """Frame the next token's event."""
        # hot: one join
        place = len(self.stamps_ns)
        if 0 < place < self._plain_end:
            word = WORDS[self._words[place]]
            before, after = self._framed[len(word)]
            self._ready = b"".join((before, word, after))
        else:
            self._ready = None

    def _edge(self, place: int, end_place: int, words: bytes) -> bytes:
        """The first and the last token, several tokens at a time, and every token when each carries usage."""
        accepted = self.accepted
        data = b""
        if place == 0 and accepted.api is Api.CHAT:
            data = self._frame(
                self._shared
                + b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
                + b'"logprobs":null,"finish_reason":null}]'
                + self._usage_so_far(0)
                + b',"prompt_token_ids":null,"prompt_text":null}\n\n'
            )
        text = b" " + words if place else words
        after = self._after_last if end_place == self._last else self._after.removesuffix(b"}\n\n")
        return data + self._frame(self._before + text + after + self._usage_so_far(end_place + 1) + b"}\n\n")

    def _usage_so_far(self, tokens: int) -> bytes:
        if not self.accepted.continuous_usage:
            return b""
        return b',"usage":' + msgspec.json.encode(self.accepted.usage(tokens))

    def finish(self, progress: Progress) -> None:
        """Send usage when it was asked for, the end mark, and the end of the body."""
        data = b""
        if self.accepted.include_usage:
            usage = self.accepted.usage(len(self.stamps_ns), progress.cached_tokens)
            times = request_times(progress, self.stamps_ns)
            tail = msgspec.json.encode({"choices": [], "usage": usage, "metrics": times})
            data = self._frame(self._shared + tail[1:] + b"\n\n")
        self.exchange.close_stream(data + self._frame(b"data: [DONE]\n\n"))
