"""Answers of the responses API: typed events with a running number, or one response object."""

import time
from typing import Any

import msgspec

from tokswarm.simulator.answers import Accepted, OpenAnswer, request_times
from tokswarm.simulator.api import PromptDetails, ResponsesUsage
from tokswarm.simulator.engine import Progress
from tokswarm.simulator.http1 import Exchange, chunk
from tokswarm.simulator.words import WORDS

_TEXT_DELTA = b"response.output_text.delta"


class _Shape:
    """The JSON objects of one answer."""

    def __init__(self, accepted: Accepted) -> None:
        self._accepted = accepted
        self.item_id = "msg_" + accepted.public_id.removeprefix("resp_")

    def part(self, text: str) -> dict[str, Any]:
        """The text as a part of the message."""
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": []}

    def item(self, status: str, *parts: dict[str, Any]) -> dict[str, Any]:
        """The message."""
        return {
            "id": self.item_id,
            "content": list(parts),
            "role": "assistant",
            "status": status,
            "type": "message",
            "phase": None,
        }

    def beginning(self) -> dict[str, Any]:
        """The response before its first token."""
        return self._response("in_progress", [], {"usage": None, "incomplete_details": None})

    def end(self, answer: OpenAnswer, progress: Progress) -> dict[str, Any]:
        """The response after its last token."""
        accepted = self._accepted
        stopped = accepted.answer.stopped
        usage = ResponsesUsage(
            input_tokens=accepted.prompt_tokens,
            input_tokens_details=PromptDetails(progress.cached_tokens),
            output_tokens=len(answer.stamps_ns),
            total_tokens=accepted.prompt_tokens + len(answer.stamps_ns),
        )
        return self._response(
            "completed" if stopped else "incomplete",
            [self.item("completed", self.part(accepted.answer.text()))],
            {
                "usage": usage,
                "metrics": request_times(progress, answer.stamps_ns),
                "incomplete_details": None if stopped else {"reason": "max_output_tokens"},
            },
        )

    def _response(self, status: str, output: list[dict[str, Any]], rest: dict[str, Any]) -> dict[str, Any]:
        accepted = self._accepted
        return {
            "id": accepted.public_id,
            "created_at": accepted.created_unix,
            "instructions": None,
            "metadata": None,
            "model": accepted.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": accepted.max_tokens,
            "previous_response_id": None,
            "service_tier": "auto",
            "status": status,
            "truncation": "disabled",
            "user": None,
            **rest,
        }


class WholeResponse(OpenAnswer):
    """Answers with the response object after the last token."""

    def finish(self, progress: Progress) -> None:
        """Send the body."""
        self.exchange.send(200, msgspec.json.encode(_Shape(self.accepted).end(self, progress)))


class StreamedResponse(OpenAnswer):
    """Answers with named events: each one HTTP chunk, each token one write."""

    def __init__(self, accepted: Accepted, exchange: Exchange) -> None:
        super().__init__(accepted, exchange)
        self._frame = chunk if exchange.chunked else bytes
        self._shape = _Shape(accepted)
        self._words = accepted.answer.words
        self._number = 0
        self._before = b'event: %b\ndata: {"content_index":0,"delta":"' % _TEXT_DELTA
        self._between = b'","item_id":"%b","logprobs":[],"output_index":0,"sequence_number":' % (
            self._shape.item_id.encode()
        )
        self._after = b',"type":"%b"}\n\n' % _TEXT_DELTA

    def open(self) -> None:
        """Send the head of the response and its first two events."""
        self.exchange.open_stream("text/event-stream; charset=utf-8")
        beginning = self._shape.beginning()
        created = self._event("response.created", {"response": beginning})
        self.exchange.write(created + self._event("response.in_progress", {"response": beginning}))

    def emit(self, due_ns: int, tokens: int) -> None:
        """Send the next tokens as one event; before the first come those that open the message."""
        # hot: once a token
        place = len(self.stamps_ns)
        words = self._words
        text = WORDS[words[place]]
        if tokens > 1:
            text = b" ".join([WORDS[word] for word in words[place : place + tokens]])
        data = b"" if place else self._opening()
        number = self._number
        self._number = number + 1
        data += self._frame(
            b"%b%b%b%b%d%b" % (self._before, b" " if place else b"", text, self._between, number, self._after)
        )
        now_ns = time.monotonic_ns()
        for _ in range(tokens):
            self.due_ns.append(due_ns)
            self.stamps_ns.append(now_ns)
        self.exchange.write(data)

    def finish(self, progress: Progress) -> None:
        """Send what closes the message, the whole response, and the end of the body."""
        shape, text = self._shape, self.accepted.answer.text()
        at = {"item_id": shape.item_id, "output_index": 0}
        part = shape.part(text)
        self.exchange.close_stream(
            self._event("response.output_text.done", {"content_index": 0, **at, "logprobs": [], "text": text})
            + self._event("response.content_part.done", {"content_index": 0, **at, "part": part})
            + self._event("response.output_item.done", {"item": shape.item("completed", part), "output_index": 0})
            + self._event("response.completed", {"response": shape.end(self, progress)})
        )

    def _opening(self) -> bytes:
        shape = self._shape
        added = self._event("response.output_item.added", {"item": shape.item("in_progress"), "output_index": 0})
        part = {"content_index": 0, "item_id": shape.item_id, "output_index": 0, "part": shape.part("")}
        return added + self._event("response.content_part.added", part)

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        data = msgspec.json.encode({**fields, "sequence_number": self._number, "type": kind})
        self._number += 1
        return self._frame(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
