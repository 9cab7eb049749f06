"""Requests of the OpenAI-compatible APIs as bytes: the head and the fixed part once, the rest per ticket."""

from collections.abc import Collection

import msgspec

from tokswarm.wire.answer import Answer
from tokswarm.wire.chat_answer import ChatAnswer
from tokswarm.wire.client import Call
from tokswarm.wire.responses_answer import ResponsesAnswer
from tokswarm.wire.target import ResolvedTarget

PATHS = {"chat": "/chat/completions", "completions": "/completions", "responses": "/responses"}
DIALECTS: dict[str, type[Answer]] = {"chat": ChatAnswer, "completions": ChatAnswer, "responses": ResponsesAnswer}

PROMPT_OPENINGS = {
    "chat": b',"messages":[{"role":"user","content":"',
    "completions": b',"prompt":"',
    "responses": b',"input":"',
}
PROMPT_CLOSINGS = {"chat": b'"}]}', "completions": b'"}', "responses": b'"}'}

NEWER_MAX_TOKENS = "max_completion_tokens"


class RequestWriter:
    """Writes the generation requests of one run. Prompts are ASCII without anything JSON escapes."""

    def __init__(self, target: ResolvedTarget, model: str, dropped: Collection[str] = ()) -> None:
        """`dropped`: optional fields the endpoint refuses; with `max_tokens` among them its newer name is sent."""
        spec = target.spec
        self._dialect = DIALECTS[spec.api]
        accept = "text/event-stream" if spec.stream else "application/json"
        self._head = target.head("POST", target.path + PATHS[spec.api] + target.query, accept=accept)
        self._prompt_opening = PROMPT_OPENINGS[spec.api]
        self._prompt_closing = PROMPT_CLOSINGS[spec.api]
        if spec.prompt_format == "token_ids":
            self._prompt_opening, self._prompt_closing = b',"prompt":[', b"]}"
        self._openings = {flag: _opening(target, model, dropped, ignore_eos=flag) for flag in (False, True)}

    def write(self, prompt: bytes, *, max_tokens: int, ignore_eos: bool) -> Call:
        """A whole request: head and body, and who reads the answer."""
        opening = self._openings[ignore_eos]
        body = b"%s%d%s%s%s" % (opening, max_tokens, self._prompt_opening, prompt, self._prompt_closing)
        return Call(b"%s%d\r\n\r\n%s" % (self._head, len(body), body), self._dialect)


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
