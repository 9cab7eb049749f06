"""Requests of the OpenAI-compatible APIs as bytes: the head and the fixed part once, the rest per ticket."""

from collections.abc import Collection, Iterator, Sequence

import msgspec

from tokswarm.traffic.session import SESSION_HEADER
from tokswarm.wire.answer import Answer
from tokswarm.wire.chat_answer import ChatAnswer
from tokswarm.wire.client import Call
from tokswarm.wire.connection import SessionConnection
from tokswarm.wire.kept_answer import KeptChatAnswer, KeptResponsesAnswer
from tokswarm.wire.responses_answer import ResponsesAnswer
from tokswarm.wire.target import ResolvedTarget

PATHS = {"chat": "/chat/completions", "completions": "/completions", "responses": "/responses"}
DIALECTS: dict[str, type[Answer]] = {"chat": ChatAnswer, "completions": ChatAnswer, "responses": ResponsesAnswer}
KEPT_DIALECTS: dict[str, type[Answer]] = {
    "chat": KeptChatAnswer,
    "completions": KeptChatAnswer,
    "responses": KeptResponsesAnswer,
}
"""Of answers whose text goes into the next turn."""

PROMPT_OPENINGS = {
    "chat": b',"messages":[{"role":"user","content":"',
    "completions": b',"prompt":"',
    "responses": b',"input":"',
}
PROMPT_CLOSINGS = {"chat": b'"}]}', "completions": b'"}', "responses": b'"}'}
TURNS_OPENINGS = {"chat": b',"messages":[', "responses": b',"input":['}
"""Of the APIs that take a conversation apart; completions get one text."""
USER, ASSISTANT = b'{"role":"user","content":"', b'{"role":"assistant","content":"'

NEWER_MAX_TOKENS = "max_completion_tokens"


class RequestWriter:
    """Writes the generation requests of one run. Prompts are ASCII without anything JSON escapes."""

    def __init__(self, target: ResolvedTarget, model: str, dropped: Collection[str] = ()) -> None:
        """`dropped`: optional fields the endpoint refuses; with `max_tokens` among them its newer name is sent."""
        spec = target.spec
        self._api = spec.api
        self._dialect = DIALECTS[spec.api]
        self._kept_dialect = KEPT_DIALECTS[spec.api]
        accept = "text/event-stream" if spec.stream else "application/json"
        self._head = target.head("POST", target.path + PATHS[spec.api] + target.query, accept=accept)
        self._prompt_opening = PROMPT_OPENINGS[spec.api]
        self._prompt_closing = PROMPT_CLOSINGS[spec.api]
        self._separator = b"," if spec.prompt_format == "token_ids" else b" "
        if spec.prompt_format == "token_ids":
            self._prompt_opening, self._prompt_closing = b',"prompt":[', b"]}"
        self._openings = {flag: _opening(target, model, dropped, ignore_eos=flag) for flag in (False, True)}

    def write(self, prompt: bytes, *, max_tokens: int, ignore_eos: bool) -> Call:
        """A whole request: head and body, and who reads the answer."""
        opening = self._openings[ignore_eos]
        body = b"%s%d%s%s%s" % (opening, max_tokens, self._prompt_opening, prompt, self._prompt_closing)
        return Call(b"%s%d\r\n\r\n%s" % (self._head, len(body), body), self._dialect)

    def write_turn(
        self,
        prompt: bytes,
        history: Sequence[bytes],
        *,
        max_tokens: int,
        ignore_eos: bool,
        keep_text: bool,
        session_name: str | None,
        connection: SessionConnection | None,
    ) -> Call:
        """A turn of a session: `history` is what was said before, a user's text and an answer in turn.

        `keep_text`: the answer's text is wanted; `session_name`: goes into a header; `connection`: the session's own.
        """
        body = b"".join((self._openings[ignore_eos], b"%d" % max_tokens, *self._conversation(prompt, history)))
        head = self._head
        if session_name is not None:
            line, _, rest = head.partition(b"\r\n")
            head = b"%s\r\n%s: %s\r\n%s" % (line, SESSION_HEADER.encode(), session_name.encode(), rest)
        dialect = self._kept_dialect if keep_text else self._dialect
        return Call(b"%s%d\r\n\r\n%s" % (head, len(body), body), dialect, connection)

    def _conversation(self, prompt: bytes, history: Sequence[bytes]) -> Iterator[bytes]:
        opening = TURNS_OPENINGS.get(self._api)
        if not history or opening is None:
            yield self._prompt_opening
            for text in history:
                yield text
                yield self._separator
            yield prompt
            yield self._prompt_closing
            return
        yield opening
        for place, text in enumerate(history):
            yield ASSISTANT if place % 2 else USER
            yield text
            yield b'"},'
        yield USER
        yield prompt
        yield b'"}]}'


def _opening(target: ResolvedTarget, model: str, dropped: Collection[str], *, ignore_eos: bool) -> bytes:
    """The body up to the value of the token limit."""
    spec = target.spec
    fields: dict[str, object] = {"model": model, **spec.extra_body, "stream": spec.stream}
    if spec.stream and spec.api != "responses" and "stream_options" not in dropped:
        fields.setdefault("stream_options", {"include_usage": True})
    if ignore_eos and "ignore_eos" not in dropped:
        fields["ignore_eos"] = True
    for name in dropped:
        fields.pop(name, None)
    if spec.api == "responses":
        limit = "max_output_tokens"
    else:
        limit = NEWER_MAX_TOKENS if "max_tokens" in dropped else "max_tokens"
    return msgspec.json.encode(fields)[:-1] + b',"%s":' % limit.encode()


def plain_call(target: ResolvedTarget, method: str, path: str, body: bytes = b"") -> Call:
    """A request outside the load: the models list, a tokenizer call."""
    head = target.head(method, path, accept="application/json")
    return Call(b"%s%d\r\n\r\n%s" % (head, len(body), body))
