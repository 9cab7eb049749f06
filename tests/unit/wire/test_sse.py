"""Event streams follow the WHATWG grammar at any split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokswarm.wire import sse
from tokswarm.wire.sse import EventSplitter, EventTooLongError

STREAMS = {
    "plain": (b'data: {"a":1}\n\ndata: [DONE]\n\n', [b'{"a":1}', b"[DONE]"]),
    "crlf": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    "cr-only": (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    "mixed-ends": (b"data: a\r\n\ndata: b\n\rdata: c\r\r\n", [b"a", b"b", b"c"]),
    "no-space": (b"data:a\n\n", [b"a"]),
    "one-space-only-is-taken": (b"data:  a\n\n", [b" a"]),
    "several-lines": (b"data: a\ndata: b\ndata\n\n", [b"a\nb\n"]),
    "comments": (b": ping\n\n:\ndata: a\n: OPENROUTER PROCESSING\n\n", [b"a"]),
    "other-fields": (b"event: message\nid: 7\nretry: 10\nfoo\ndata: a\n\n", [b"a"]),
    "event-without-data": (b"event: ping\n\ndata: a\n\n", [b"a"]),
    "byte-order-mark": (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    "bytes-of-a-character": ("data: 中文\n\n".encode(), ["中文".encode()]),
    "unfinished-is-no-event": (b"data: a\n\ndata: b\n", [b"a"]),
    "empty-data": (b"data:\n\n", [b""]),
}


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    splitter, events, at = EventSplitter(), [], 0
    for cut in [*sorted(cuts), len(data)]:
        events += splitter.feed(data[at:cut])
        at = max(at, cut)
    return events


@pytest.mark.parametrize(("data", "want"), STREAMS.values(), ids=STREAMS.keys())
def test_a_stream_gives_its_events_at_every_single_split(data: bytes, want: list[bytes]) -> None:
    for cut in range(len(data) + 1):
        assert split(data, [cut]) == want


@pytest.mark.parametrize(("data", "want"), STREAMS.values(), ids=STREAMS.keys())
def test_a_stream_gives_its_events_byte_by_byte(data: bytes, want: list[bytes]) -> None:
    assert split(data, list(range(len(data)))) == want


_line = st.one_of(
    st.sampled_from(
        [b"", b"", b"data", b"data:", b"data: ", b": c", b"event: error", b"id: 1", b"x: y", b"\xef\xbb\xbf"]
    ),
    st.binary(max_size=12).map(lambda raw: b"data: " + raw.replace(b"\r", b"").replace(b"\n", b"")),
)


@given(
    st.lists(st.tuples(_line, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=12),
    st.lists(st.integers(0, 200)),
)
def test_any_stream_gives_the_same_events_at_any_splits(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    data = b"".join(line + end for line, end in lines)
    assert split(data, [cut for cut in cuts if cut < len(data)]) == oracle(data)


def oracle(data: bytes) -> list[bytes]:
    """The grammar, read slowly: whole input, one line after the other."""
    text = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events: list[bytes] = []
    held: list[bytes] = []
    for line in text.split(b"\n")[:-1]:
        if not line:
            if held:
                events.append(b"\n".join(held))
            held = []
            continue
        field, colon, value = line.partition(b":")
        if field == b"data" and (colon or line == b"data"):
            held.append(value.removeprefix(b" "))
    return events


def test_event_types_are_named() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: a\n\nevent: error\ndata: b\n\n") == [b"a", b"b"]
    assert splitter.named == {1: b"error"}
    splitter.feed(b"data: c\n\n")
    assert splitter.named == {}


def test_an_unfinished_event_can_be_looked_at() -> None:
    splitter = EventSplitter()
    splitter.feed(b"data: a\n\ndata: [DONE]")
    assert splitter.tail() == b"[DONE]"


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    splitter = EventSplitter()
    splitter.feed(b"data: " + b"x" * 990)
    with pytest.raises(EventTooLongError):
        splitter.feed(b"x" * 20)


def test_a_large_event_in_small_reads_is_whole() -> None:
    payload = b"x" * 1_000_000
    data = b"data: " + payload + b"\n\n"
    splitter = EventSplitter()
    events = [event for at in range(0, len(data), 65536) for event in splitter.feed(data[at : at + 65536])]
    assert events == [payload]


def test_an_event_type_without_a_value_takes_the_type_back() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"event: error\nevent\ndata: x\n\n") == [b"x"]
    assert splitter.named == {}
