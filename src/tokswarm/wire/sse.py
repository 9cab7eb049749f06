"""Event streams: the WHATWG grammar on bytes, any split, parsed forward.

Lines end in CRLF, LF or CR; a blank line sends the event off; comments and unknown fields are passed
over; several `data` lines join with LF. An event without data is none. See the HTML standard, 9.2.6.
"""

import re

MAX_EVENT_BYTES = 16 * 1024 * 1024

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class EventTooLongError(Exception):
    """One event grew beyond MAX_EVENT_BYTES."""


class EventSplitter:
    """Takes body bytes, gives the data of the events that they complete."""

    __slots__ = ("_carry", "_data", "_name", "_skip_lf", "_start", "had_events", "is_clean", "named")

    def __init__(self) -> None:
        self.is_clean = False
        """Nothing is left over: a read that is one whole event of one line need not come through here."""
        self.had_events = False
        """An event has come."""
        self.named: dict[int, bytes] = {}
        """Place in the list of the last `feed` to event type, for the events that have one."""
        self._carry = b""
        self._data: list[bytes] = []
        self._name = b""
        self._skip_lf = False
        self._start = True

    def feed(self, body: bytes) -> list[bytes]:
        """The data of each event that is now complete, in order. EventTooLongError beyond the bound."""
        self.named = {}
        if self._skip_lf and body:
            self._skip_lf = False
            if body.startswith(b"\n"):
                body = body[1:]
        buffer = self._carry + body
        if self._start:
            if len(buffer) < len(_BOM) and _BOM.startswith(buffer):
                self._carry = buffer
                return []
            self._start = False
            buffer = buffer.removeprefix(_BOM)
        events: list[bytes] = []
        at = 0
        for match in _LINE_END.finditer(buffer, max(0, len(self._carry) - len(_BOM))):
            if match.start() < at:
                continue
            self._line(buffer[at : match.start()], events)
            at = match.end()
        if at == len(buffer) and buffer.endswith(b"\r"):
            self._skip_lf = True
        self._carry = buffer[at:]
        if events:
            self.had_events = True
        self.is_clean = not (self._carry or self._data or self._name or self._skip_lf)
        if len(self._carry) + sum(map(len, self._data)) > MAX_EVENT_BYTES:
            raise EventTooLongError(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        return events

    def tail(self) -> bytes:
        """Data of an event that the stream's end cut off; by the standard it is no event."""
        lines = list(self._data)
        if self._carry.startswith(b"data:"):
            lines.append(_field_value(self._carry, 5))
        return b"\n".join(lines)

    @property
    def is_blank(self) -> bool:
        """No event has come, not even the beginning of one."""
        return not (self.had_events or self._carry or self._data)

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                if self._name:
                    self.named[len(events)] = self._name
                events.append(b"\n".join(self._data))
                self._data = []
            self._name = b""
        elif line.startswith(b"data:"):
            self._data.append(_field_value(line, 5))
        elif line == b"data":
            self._data.append(b"")
        elif line.startswith(b"event:"):
            self._name = _field_value(line, 6)
        elif line == b"event":
            self._name = b""


def _field_value(line: bytes, start: int) -> bytes:
    return line[start + 1 :] if line[start : start + 1] == b" " else line[start:]
