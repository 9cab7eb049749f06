"""What can go wrong with the events of a stream: transforms that events and acts pass through, one after the other.

An event is its bytes with the blank line that ends it; an act is something the exchange does instead of sending.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec


class Pause(msgspec.Struct, frozen=True):
    """Send nothing for a while; what comes meanwhile waits."""

    seconds: float


class Tear(msgspec.Struct, frozen=True):
    """Send the first half of this event and close the connection."""

    event: bytes


class Raw(msgspec.Struct, frozen=True):
    """Send bytes as they are, unframed."""

    data: bytes


class Piece(msgspec.Struct, frozen=True):
    """One send to the socket."""

    data: bytes


class Reset(msgspec.Struct, frozen=True):
    """Break the connection with a TCP reset."""


class Close(msgspec.Struct, frozen=True):
    """Close the connection as it stands."""


class Hold(msgspec.Struct, frozen=True):
    """Send nothing more and keep the connection open."""


class End(msgspec.Struct, frozen=True):
    """End the body properly, now."""


Act = Pause | Tear | Raw | Piece | Reset | Close | Hold | End
Item = bytes | Act


class Transform:
    """Passes everything on; the others change some of it."""

    def feed(self, item: bytes) -> Iterator[Item]:
        """Take an event."""
        yield item

    def flush(self) -> Iterator[Item]:
        """No more will come, or an act is about to be done."""
        return iter(())


def is_token(event: bytes) -> bool:
    """Whether an event of this server has text."""
    return (
        b'"delta":{"content":"' in event
        or b'"index":0,"text":"' in event
        or b"event: response.output_text.delta\n" in event
    )


def is_usage(event: bytes) -> bool:
    """Whether an event is the one that brings usage."""
    return b'"choices":[],"usage":' in event


def read(event: bytes) -> dict[str, Any]:
    """The JSON of an event."""
    value: dict[str, Any] = msgspec.json.decode(event[event.index(b"data: ") + 6 :])
    return value


def rewritten(event: bytes, value: object) -> bytes:
    """The event with another JSON."""
    return event[: event.index(b"data: ") + 6] + msgspec.json.encode(value) + b"\n\n"


class After(Transform):
    """Puts something in once so many tokens have passed, before the next event; never when fewer come."""

    def __init__(self, tokens: int, *items: Item) -> None:
        self._left = tokens
        self._items: tuple[Item, ...] = items

    def feed(self, item: bytes) -> Iterator[Item]:
        """Count tokens."""
        if not self._left:
            yield from self._items
            self._items = ()
        elif is_token(item):
            self._left -= 1
        yield item


class TearAfter(Transform):
    """Tears the event that comes after so many tokens."""

    def __init__(self, tokens: int) -> None:
        self._left = tokens

    def feed(self, item: bytes) -> Iterator[Item]:
        """Count tokens."""
        if not self._left:
            yield Tear(item)
            return
        if is_token(item):
            self._left -= 1
        yield item


class Change(Transform):
    """Puts other events in the place of each."""

    def __init__(self, change: Callable[[bytes], Iterable[bytes]]) -> None:
        self._change = change

    def feed(self, item: bytes) -> Iterator[Item]:
        """Change an event."""
        yield from self._change(item)


class First(Transform):
    """Changes the first event, or the first token."""

    def __init__(self, change: Callable[[bytes], bytes], *, token: bool = False) -> None:
        self._change: Callable[[bytes], bytes] | None = change
        self._token = token

    def feed(self, item: bytes) -> Iterator[Item]:
        """Change it, once."""
        change = self._change
        if change is not None and (not self._token or is_token(item)):
            self._change = None
            item = change(item)
        yield item


class UsageInLast(Transform):
    """Moves usage onto the event that has the finish reason."""

    def __init__(self) -> None:
        self._kept: bytes | None = None

    def feed(self, item: bytes) -> Iterator[Item]:
        """Keep the event with the finish reason until the next has come."""
        kept, self._kept = self._kept, None
        if kept is not None and is_usage(item):
            usage = read(item)
            yield rewritten(kept, {**read(kept), "usage": usage["usage"], "metrics": usage.get("metrics")})
            return
        if kept is not None:
            yield kept
        if b'"finish_reason":"' in item:
            self._kept = item
        else:
            yield item

    def flush(self) -> Iterator[Item]:
        """Give back what is kept."""
        kept, self._kept = self._kept, None
        if kept is not None:
            yield kept


class Coalesce(Transform):
    """Holds events back and lets them go so many at a time; None: all at the end."""

    def __init__(self, events: int | None) -> None:
        self._events = events
        self._held: list[bytes] = []

    def feed(self, item: bytes) -> Iterator[Item]:
        """Hold an event."""
        self._held.append(item)
        if self._events is not None and len(self._held) >= self._events:
            yield from self.flush()

    def flush(self) -> Iterator[Item]:
        """Let go what is held."""
        if self._held:
            yield b"".join(self._held)
            self._held = []


# --- changes of single events -------------------------------------------------------------------


def without_done(event: bytes) -> Iterable[bytes]:
    """No end mark."""
    return () if event.startswith(b"data: [DONE]") else (event,)


def usage_twice(event: bytes) -> Iterable[bytes]:
    """Usage comes two times."""
    return (event, event) if is_usage(event) else (event,)


def without_usage(event: bytes) -> Iterable[bytes]:
    """No usage, in either API."""
    if is_usage(event):
        return ()
    if event.startswith(b"event: response.completed"):
        value = read(event)
        return (rewritten(event, {**value, "response": {**value["response"], "usage": None}}),)
    return (event,)


def usage_null(event: bytes) -> Iterable[bytes]:
    """Events without usage say that it is null."""
    if event.startswith(b"data: {") and b'"usage":' not in event:
        return (event[:-3] + b',"usage":null}\n\n',)
    return (event,)


def without_tokens(event: bytes) -> Iterable[bytes]:
    """Nothing but the beginning and the end mark."""
    if is_token(event) or is_usage(event) or event.startswith((b"event: response.output", b"event: response.content")):
        return ()
    if event.startswith(b"event: response.completed"):
        value = read(event)
        return (rewritten(event, {**value, "response": {**value["response"], "usage": None, "output": []}}),)
    return (event,)


def commented(event: bytes) -> Iterable[bytes]:
    """Comments before each event: one of the kind proxies send, and an empty one."""
    return (b": PROCESSING\n\n", b":\n" + event)


def with_crlf(event: bytes) -> Iterable[bytes]:
    """Lines end as in HTTP."""
    return (event.replace(b"\n", b"\r\n"),)


def with_cr(event: bytes) -> Iterable[bytes]:
    """Lines end with a carriage return alone."""
    return (event.replace(b"\n", b"\r"),)


def without_blank(event: bytes) -> Iterable[bytes]:
    """No blank after `data:`."""
    return (event.replace(b"data: ", b"data:"),)


def with_fields(event: bytes) -> Iterable[bytes]:
    """The other fields of the grammar, before the data."""
    kind = b"" if event.startswith(b"event: ") else b"event: message\n"
    return (kind + b"id: 7\nretry: 1000\n" + event,)


def in_lines(event: bytes) -> Iterable[bytes]:
    """The JSON over several data lines."""
    return (event.replace(b',"', b',\ndata: "'),)


def with_character(event: bytes) -> Iterable[bytes]:
    """A character of three bytes in each token."""
    if is_token(event):
        for field in (b'"content":"', b'"text":"', b'"delta":"'):
            event = event.replace(field, field + "中".encode())
    return (event,)


def unterminated_done(event: bytes) -> Iterable[bytes]:
    """The end mark without the blank line that ends an event."""
    return (event.rstrip(b"\n"),) if event.startswith(b"data: [DONE]") else (event,)


def with_mark(event: bytes) -> bytes:
    """A byte order mark at the very beginning."""
    return b"\xef\xbb\xbf" + event


def inflated(size_bytes: int) -> Callable[[bytes], bytes]:
    """An event of this many bytes more."""
    return lambda event: event.replace(b"data: {", b'data: {"padding":"%b",' % (b"x" * size_bytes), 1)
