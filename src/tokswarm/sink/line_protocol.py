"""Entries of a record log as lines of InfluxDB line protocol, after the schema in `measure/schema.py`.

Points are told apart by tags and time alone, and a point sent twice must replace itself. So times of
tokens and requests are made, not taken: the wall time in whole ticks of 10 µs, plus the slot of the
request, which no other open request of the worker has. Arrivals of one request within a tick are one
point. The same entry always gives the same lines, so sums over `llm_token.n` and counts of
`llm_request` are exact however often a block was sent.
"""

import base64
import math
import re
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter, sub
from typing import Any, NamedTuple

from tokswarm.measure import schema
from tokswarm.measure.histogram import le_counts
from tokswarm.measure.record import Outcome, RequestRecord
from tokswarm.measure.schema import FieldType, Measurement
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond, Window, WindowRow, WorkerSecond
from tokswarm.sink.frame import Entry
from tokswarm.sink.token_budget import is_drawn

TICK_NS = 10_000
SLOTS = 10_000
"""Slots that fit into a tick: one a nanosecond."""

TEXT_LIMIT = 500
"""Characters of a text field; longer ones are shortened."""

PACKED_LIMIT_BYTES = 65_000
"""A text field of InfluxDB ends at 64 KiB; longer packed gaps are left out and counted."""

PACK_WINDOW_BITS, PACK_MEMORY_LEVEL = 12, 5
"""For the gaps of one request, some kilobytes: setting up zlib's usual tables takes longer than packing."""

PIECE_ARRIVALS = 128
"""Token arrivals formatted at a time: a fifth of a millisecond."""

_SAME_MOMENT_TICKS = 100
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_KEY_ESCAPES = str.maketrans({",": r"\,", "=": r"\=", " ": r"\ "})
_TEXT_ESCAPES = str.maketrans({'"': r"\"", "\\": r"\\"})
_INT64_END = 2**63


_LE_PREFIXES = ("ttft", "itl", "e2e")
_WRITTEN_APART = frozenset(
    {"itls_us", "share", "sampled", *(name for prefix in _LE_PREFIXES for name in schema.le_names(prefix))}
)
_LE_KEYS = tuple((prefix, tuple(f"{name}=".encode() for name in schema.le_names(prefix))) for prefix in _LE_PREFIXES)


class FormatCounts(NamedTuple):
    """What could not be written as it was."""

    values_dropped: int
    """Values that are no number the database takes: NaN, infinite, or beyond 64 bits."""
    texts_shortened: int
    packs_dropped: int
    """Requests whose packed gaps were too long for a field."""


class _Column(NamedTuple):
    key: bytes
    type: FieldType
    read: Callable[[Any], Any]


def _columns(measurement: Measurement, readers: dict[str, Callable[[Any], Any]]) -> tuple[_Column, ...]:
    return tuple(
        _Column(f"{field.name}=".encode(), field.type, readers.get(field.name) or attrgetter(field.name))
        for field in measurement.fields
        if field.name not in _WRITTEN_APART
    )


def _failed(finished: dict[str, int]) -> int:
    return sum(finished.values()) - finished.get(Outcome.OK, 0)


_REQUEST = _columns(
    schema.REQUEST,
    {
        "request": attrgetter("request_id"),
        "headers_ms": lambda r: None if r.headers_ns is None else (r.headers_ns - r.sent_ns) / 1e6,
    },
)
_WINDOW = _columns(
    schema.WINDOW, {"finished": lambda row: sum(row.finished.values()), "failed": lambda row: _failed(row.finished)}
)
_FLEET = _columns(
    schema.FLEET,
    {
        "finished_per_s": lambda second: sum(second.finished.values()),
        "failed_per_s": lambda second: _failed(second.finished),
        "rate_limited_per_s": lambda second: second.finished.get(Outcome.RATE_LIMITED, 0),
    },
)
_WORKER = _columns(schema.WORKER, {})
_SERVER = _columns(schema.SERVER, {})
_EVENT = _columns(
    schema.EVENT, {"end_ms": lambda event: None if event.end_unix_ns is None else event.end_unix_ns // 1_000_000}
)


def _gaps_us(record: RequestRecord) -> Iterator[bytes]:
    """All gaps of a request as int64 of µs, the first from sent, by pieces."""
    offsets_ns = record.arrival_offsets_ns()
    before_ns = 0
    for start in range(0, len(offsets_ns), 4 * PIECE_ARRIVALS):
        part = offsets_ns[start : start + 4 * PIECE_ARRIVALS]
        yield array("q", [(b - a + 500) // 1000 for a, b in pairwise((before_ns, *part))]).tobytes()
        before_ns = part[-1]


def escape_tag(value: str) -> str:
    """A tag value as line protocol writes it.

    Control characters become blanks, so that a point stays a line; backslashes become slashes, since
    servers differ on what one before a comma or at the end of a tag means.
    """
    return _CONTROL.sub(" ", value).replace("\\", "/").translate(_KEY_ESCAPES)


def escape_text(value: str) -> str:
    """A text field's value between its quotes; control characters become blanks."""
    return _CONTROL.sub(" ", value).translate(_TEXT_ESCAPES)


def tag_prefix(measurement: Measurement, values: Sequence[str]) -> bytes:
    """The line up to its fields: name and tags, sorted by name, empty ones left out."""
    tags = sorted(zip(measurement.tags, values, strict=True))
    parts = [measurement.name, *(f"{name}={escape_tag(value)}" for name, value in tags if value)]
    return ",".join(parts).encode("utf-8", "replace") + b" "


class LineFormatter:
    """Formats the entries of one log, in their order; holds the tag prefixes and what it had to leave out."""

    def __init__(self, *, run_id: str, worker: str, token_points: bool = True) -> None:
        self._run_id = run_id
        self._worker = worker
        self._token_points = token_points
        self._prefixes: dict[tuple[str, ...], bytes] = {}
        self._done_tick_by_slot: dict[int, int] = {}
        self._newest_event: dict[str, int] = {}
        self._begun_events: dict[tuple[str, int, str], int] = {}
        self._values_dropped = 0
        self._texts_shortened = 0
        self._packs_dropped = 0

    @property
    def counts(self) -> FormatCounts:
        """What could not be written as it was, so far."""
        return FormatCounts(self._values_dropped, self._texts_shortened, self._packs_dropped)

    def lines(self, entry: Entry) -> list[bytes]:
        """The lines of one entry, without line ends."""
        return [line for piece in self.pieces(entry) for line in piece]

    def pieces(self, entry: Entry) -> Iterator[list[bytes]]:
        """The same lines in pieces of bounded work, for a caller that must not hold up its loop."""
        match entry:
            case RequestRecord():
                yield from self._request(entry)
            case Window():
                for row in entry.rows:
                    yield [self._window_row(entry, row)]
            case WorkerSecond():
                prefix = self._prefix(schema.WORKER, self._run_id, entry.worker)
                yield [self._line(prefix, self._fields(_WORKER, entry), entry.second_unix * 1_000_000_000)]
            case FleetSecond():
                prefix = self._prefix(schema.FLEET, self._run_id, entry.class_name, entry.stage)
                yield [self._line(prefix, self._fields(_FLEET, entry), entry.second_unix * 1_000_000_000)]
            case ServerSecond():
                prefix = self._prefix(schema.SERVER, self._run_id, entry.target, entry.replica)
                yield [self._line(prefix, self._fields(_SERVER, entry), entry.unix_ns)]
            case Event():
                yield [self._event(entry)]

    def _request(self, record: RequestRecord) -> Iterator[list[bytes]]:
        done_unix_ns = self._done_stamp(record.slot, record.sent_unix_ns + record.done_ns - record.sent_ns)
        share = record.token_share
        drawn = self._token_points and (share is None or is_drawn(record.request_id, share))
        # Without a budget there is no such field: each field of a point costs its time on the disk.
        scale = b"" if share is None else b",share=%b" % repr(share).encode()
        if drawn and record.arrivals:
            yield from self._tokens(record, scale)
        elif drawn and record.output_tokens > 0:
            # An answer that did not stream: all its tokens came with its end.
            prefix = self._prefix(schema.TOKEN, self._run_id, self._worker, record.class_name)
            values = (prefix, record.output_tokens, record.request_id, scale, done_unix_ns)
            yield [b"%bn=%di,index=0i,request=%di%b %d" % values]
        packer = zlib.compressobj(1, zlib.DEFLATED, PACK_WINDOW_BITS, PACK_MEMORY_LEVEL)
        packed = b""
        for gaps in _gaps_us(record):
            packed += packer.compress(gaps)
            yield []
        packed = base64.b64encode(packed + packer.flush())
        fields = self._fields(_REQUEST, record)
        if self._token_points and share is not None:
            fields += b"%b,sampled=%di" % (scale, drawn)
        if len(packed) > PACKED_LIMIT_BYTES:
            self._packs_dropped += 1
        elif record.arrivals:
            fields += b',itls_us="%b"' % packed
        prefix = self._prefix(
            schema.REQUEST,
            self._run_id,
            self._worker,
            record.class_name,
            record.stage,
            record.target,
            record.outcome.value,
        )
        yield [self._line(prefix, fields, done_unix_ns)]

    def _tokens(self, record: RequestRecord, scale: bytes) -> Iterator[list[bytes]]:
        prefix = self._prefix(schema.TOKEN, self._run_id, self._worker, record.class_name).replace(b"%", b"%%")
        end = b"request=%di%b %%d" % (record.request_id, scale)
        first = b"%bn=%%di,index=%%di,%b" % (prefix, end)
        later = b"%bitl_us=%%di,n=%%di,index=%%di,%b" % (prefix, end)
        offsets_ns = record.arrival_offsets_ns()
        if min(map(sub, offsets_ns[1:], offsets_ns), default=TICK_NS) >= TICK_NS:
            return self._tokens_apart(record, offsets_ns, first, later)
        return self._tokens_by_tick(record, offsets_ns, first, later)

    @staticmethod
    def _tokens_apart(
        record: RequestRecord, offsets_ns: "array[int]", first: bytes, later: bytes
    ) -> Iterator[list[bytes]]:
        # hot: once per token (benchmarks/influx_write.py). Each arrival is a point, formatted piece by piece.
        counts = record.token_counts()
        sent_unix_ns, slot_ns = record.sent_unix_ns, record.slot % SLOTS
        yield [first % (counts[0], 0, (sent_unix_ns + offsets_ns[0]) // TICK_NS * TICK_NS + slot_ns)]
        index = counts[0]
        for start in range(1, len(offsets_ns), PIECE_ARRIVALS):
            part = offsets_ns[start : start + PIECE_ARRIVALS]
            gaps_us = [(b - a + 500) // 1000 for a, b in zip(offsets_ns[start - 1 :], part, strict=False)]
            stamps = [(sent_unix_ns + offset_ns) // TICK_NS * TICK_NS + slot_ns for offset_ns in part]
            tokens = counts[start : start + PIECE_ARRIVALS]
            indexes = list(accumulate(tokens, initial=index))
            index = indexes.pop()
            yield [later % values for values in zip(gaps_us, tokens, indexes, stamps, strict=True)]

    @staticmethod
    def _tokens_by_tick(
        record: RequestRecord, offsets_ns: "array[int]", first: bytes, later: bytes
    ) -> Iterator[list[bytes]]:
        # hot: once per token. One format per point, no lookup, no branch but those of the rule.
        sent_unix_ns, slot_ns = record.sent_unix_ns, record.slot % SLOTS
        points: list[bytes] = []
        tick = index = tokens = before_ns = 0
        itl_us: int | None = None
        for offset_ns, count in zip(offsets_ns, record.token_counts(), strict=True):
            arrival_tick = (sent_unix_ns + offset_ns) // TICK_NS
            if arrival_tick <= tick:
                tokens += count
            else:
                if itl_us is not None:
                    points.append(later % (itl_us, tokens, index, tick * TICK_NS + slot_ns))
                elif tick:
                    points.append(first % (tokens, index, tick * TICK_NS + slot_ns))
                if len(points) == PIECE_ARRIVALS:
                    yield points
                    points = []
                itl_us = (offset_ns - before_ns + 500) // 1000 if tick else None
                index += tokens
                tick, tokens = arrival_tick, count
            before_ns = offset_ns
        stamp = tick * TICK_NS + slot_ns
        points.append(first % (tokens, index, stamp) if itl_us is None else later % (itl_us, tokens, index, stamp))
        yield points

    def _done_stamp(self, slot: int, done_unix_ns: int) -> int:
        """Where the point of a request goes: requests that fail at once may end in one slot within one tick."""
        slot %= SLOTS
        tick = done_unix_ns // TICK_NS
        last = self._done_tick_by_slot.get(slot)
        if last is not None and last - _SAME_MOMENT_TICKS < tick <= last:
            tick = last + 1
        self._done_tick_by_slot[slot] = tick
        return tick * TICK_NS + slot

    def _window_row(self, window: Window, row: WindowRow) -> bytes:
        fields = [self._fields(_WINDOW, row)]
        for name, keys in _LE_KEYS:
            buckets = getattr(row, name)
            if buckets:
                fields.extend(b"%b%di" % pair for pair in zip(keys, le_counts(buckets), strict=True))
        prefix = self._prefix(schema.WINDOW, self._run_id, window.worker, row.class_name, row.stage)
        return self._line(prefix, b",".join(fields), window.second_unix * 1_000_000_000)

    def _event(self, event: Event) -> bytes:
        unix_ns = self._event_stamp(event)
        return self._line(self._prefix(schema.EVENT, self._run_id, event.kind), self._fields(_EVENT, event), unix_ns)

    def _event_stamp(self, event: Event) -> int:
        """Where the point of an event goes: one that is given again with its end replaces itself."""
        identity = (event.kind, event.unix_ns, event.title)
        if event.end_unix_ns is not None and identity in self._begun_events:
            return self._begun_events.pop(identity)
        unix_ns = event.unix_ns
        newest = self._newest_event.get(event.kind)
        if newest is not None and newest - 1000 < unix_ns <= newest:
            unix_ns = newest + 1  # two of a kind at one moment, as when two workers are lost together
        self._newest_event[event.kind] = unix_ns
        if event.end_unix_ns is None:
            self._begun_events[identity] = unix_ns
        return unix_ns

    def _prefix(self, measurement: Measurement, *values: str) -> bytes:
        key = (measurement.name, *values)
        prefix = self._prefixes.get(key)
        if prefix is None:
            prefix = self._prefixes[key] = tag_prefix(measurement, values)
        return prefix

    @staticmethod
    def _line(prefix: bytes, fields: bytes, unix_ns: int) -> bytes:
        return b"%b%b %d" % (prefix, fields, unix_ns)

    def _fields(self, columns: tuple[_Column, ...], entry: object) -> bytes:
        parts = []
        for key, kind, read in columns:
            value = read(entry)
            if value is None:
                continue
            if kind is FieldType.TEXT:
                parts.append(b'%b"%b"' % (key, self._text(value)))
            elif kind is FieldType.INTEGER and -_INT64_END <= value < _INT64_END:
                parts.append(b"%b%di" % (key, value))
            elif kind is FieldType.FLOAT and math.isfinite(value):
                parts.append(key + repr(float(value)).encode())
            else:
                self._values_dropped += 1
        return b",".join(parts)

    def _text(self, value: str) -> bytes:
        if len(value) > TEXT_LIMIT:
            self._texts_shortened += 1
            value = f"{value[: TEXT_LIMIT - 1]}…"
        return escape_text(value).encode("utf-8", "replace")
