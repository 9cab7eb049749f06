"""Answers whose text is wanted: they keep their bytes, and read the text out of them afterwards.

The receive loop does no more than before but for a reference to each read; the text of a long answer
is read in pieces, between other work.
"""

from collections.abc import Callable, Iterator

import msgspec

from tokswarm.wire.answer import LiveRow
from tokswarm.wire.chat_answer import ChatAnswer, Chunk, lenient_chunk
from tokswarm.wire.responses_answer import ResponsesAnswer
from tokswarm.wire.sse import EventSplitter

EVENTS_PER_PIECE = 100
"""Some 0.3 ms of decoding."""

_decode_chunk = msgspec.json.Decoder(Chunk).decode


class _Content(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""


class _Item(msgspec.Struct, gc=False):
    type: str = ""
    content: list[_Content] = []


class _Whole(msgspec.Struct, gc=False):
    output: list[_Item] = []


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: str = ""


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_whole = msgspec.json.Decoder(_Whole).decode


class KeptBody:
    """What of an answer was kept: its reads, or its one body where it did not stream."""

    __slots__ = ("reads", "whole")

    def __init__(self) -> None:
        self.reads: list[bytes] = []
        self.whole = b""

    def texts(self, of_events: Callable[[bytes], str], of_whole: Callable[[bytes], str]) -> Iterator[str]:
        """Its text in pieces; each step is bounded work."""
        if self.whole:
            yield of_whole(self.whole)
            return
        for events in _pieces(self.reads):
            yield "".join([of_events(event) for event in events])


class KeptChatAnswer(ChatAnswer):
    """An answer of a chat or completions request, kept."""

    __slots__ = ("_kept",)

    def __init__(self, live: LiveRow) -> None:
        super().__init__(live)
        self._kept = KeptBody()

    def feed(self, body: bytes, at_ns: int, stamped: bool) -> None:
        """Take the body bytes of one read, with its stamp, and keep them."""
        super().feed(body, at_ns, stamped)
        self._kept.reads.append(body)

    def read_body(self, body: bytes) -> None:
        """Take a whole answer that was not streamed, and keep it."""
        super().read_body(body)
        self._kept.whole = body

    def texts(self) -> Iterator[str]:
        """The content in pieces, reasoning left out; each step is bounded work."""
        return self._kept.texts(_content, _content)

    def text(self) -> str:
        """The content at once."""
        return "".join(self.texts())


class KeptResponsesAnswer(ResponsesAnswer):
    """An answer of a responses request, kept."""

    __slots__ = ("_kept",)

    def __init__(self, live: LiveRow) -> None:
        super().__init__(live)
        self._kept = KeptBody()

    def feed(self, body: bytes, at_ns: int, stamped: bool) -> None:
        """Take the body bytes of one read, with its stamp, and keep them."""
        super().feed(body, at_ns, stamped)
        self._kept.reads.append(body)

    def read_body(self, body: bytes) -> None:
        """Take a whole answer that was not streamed, and keep it."""
        super().read_body(body)
        self._kept.whole = body

    def texts(self) -> Iterator[str]:
        """The output text in pieces, reasoning left out; each step is bounded work."""
        return self._kept.texts(_text_delta, _output_text)


KeptAnswer = KeptChatAnswer | KeptResponsesAnswer


def _pieces(bodies: list[bytes]) -> Iterator[list[bytes]]:
    """The events of these reads, EVENTS_PER_PIECE and a read's worth at a time."""
    splitter = EventSplitter()
    piece: list[bytes] = []
    for body in bodies:
        piece += [event for event in splitter.feed(body) if event.startswith(b"{")]
        if len(piece) >= EVENTS_PER_PIECE:
            yield piece
            piece = []
    yield piece


def _content(event: bytes) -> str:
    try:
        chunk: Chunk = _decode_chunk(event)
    except (msgspec.DecodeError, RecursionError):
        try:
            chunk = lenient_chunk(event)
        except (msgspec.DecodeError, RecursionError):
            return ""  # the answer itself has counted it as a protocol error
    for choice in chunk.choices or ():
        if choice.text:
            return choice.text
        part = choice.delta or choice.message
        if part is not None and part.content:
            return part.content
    return ""


def _text_delta(event: bytes) -> str:
    try:
        one = _decode_event(event)
    except (msgspec.DecodeError, RecursionError):
        return ""  # an event without text, of other types
    return one.delta if one.type == "response.output_text.delta" else ""


def _output_text(body: bytes) -> str:
    try:
        whole = _decode_whole(body)
    except (msgspec.DecodeError, RecursionError):
        return ""
    return "".join(
        part.text
        for item in whole.output
        if item.type == "message"
        for part in item.content
        if part.type == "output_text"
    )
