"""Requests of the OpenAI-compatible APIs as bytes: the head and the fixed part once, the rest per ticket."""

import msgspec

from tokswarm.wire.target import ResolvedTarget

PATHS = {"chat": "/chat/completions", "completions": "/completions"}


class RequestWriter:
    """Writes the generation requests of one run. Prompts are ASCII without anything JSON escapes."""

    def __init__(self, target: ResolvedTarget, model: str) -> None:
        self._api = target.spec.api
        self._head = target.head("POST", target.path + PATHS[self._api], accept="text/event-stream")
        self._model = msgspec.json.encode(model)
        self._openings: dict[bool, bytes] = {flag: self._opening(ignore_eos=flag) for flag in (False, True)}
        self._closing = b'"}]}' if self._api == "chat" else b'"}'

    def write(self, prompt: bytes, *, max_tokens: int, ignore_eos: bool) -> bytes:
        """A whole streaming request: head and body."""
        body = b"%s%d%s%s%s" % (
            self._openings[ignore_eos],
            max_tokens,
            b',"messages":[{"role":"user","content":"' if self._api == "chat" else b',"prompt":"',
            prompt,
            self._closing,
        )
        return b"%s%d\r\n\r\n%s" % (self._head, len(body), body)

    def _opening(self, *, ignore_eos: bool) -> bytes:
        eos = b'"ignore_eos":true,' if ignore_eos else b""
        return b'{"model":%s,"stream":true,"stream_options":{"include_usage":true},%s"max_tokens":' % (self._model, eos)


def plain_request(target: ResolvedTarget, method: str, path: str, body: bytes = b"") -> bytes:
    """A request outside the load: the models list, a tokenizer call."""
    head = target.head(method, path, accept="application/json")
    return b"%s%d\r\n\r\n%s" % (head, len(body), body)
