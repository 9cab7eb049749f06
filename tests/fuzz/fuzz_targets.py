"""The laws that hold for any bytes a server sends or a disk gives back, one function for each reader.

A function takes the bytes, feeds them whole, byte by byte and at cuts that follow from the bytes
themselves, and raises when a law is broken. `fuzz.py` feeds them what a fuzzer invents, `test_corpus.py`
what was found before.
"""

import contextlib
import os
import random
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httptools
import msgspec

from tokswarm.errors import LogError
from tokswarm.measure.record import Outcome, RequestRecord
from tokswarm.sink.record_log import FRAME, MAGIC, SCHEMA, LogHeader, RecordLog, read_log
from tokswarm.traffic.mix import Distribution, Limit, Output, Prompt, Slo, TrafficClass
from tokswarm.traffic.ticket import Ticket
from tokswarm.traffic.units import Duration
from tokswarm.wire.answer import Answer, LiveRow, judge_answer, judge_refusal
from tokswarm.wire.chat_answer import ChatAnswer
from tokswarm.wire.http1 import HttpProtocolError, ResponseParser
from tokswarm.wire.response_headers import server_word
from tokswarm.wire.responses_answer import ResponsesAnswer
from tokswarm.wire.sse import EventSplitter
from tokswarm.worker.record_of import record_of

MAX_BYTEWISE = 1024
"""Longer inputs are not fed byte by byte: it takes too long and shows nothing new."""


def splits(data: bytes) -> Iterator[list[bytes]]:
    """The bytes whole, byte by byte, and cut in three ways that follow from the bytes."""
    yield [data]
    if len(data) <= MAX_BYTEWISE:
        yield [data[at : at + 1] for at in range(len(data))]
    chance = random.Random(zlib.crc32(data))
    for count in (1, 3, 12):
        cuts = sorted(chance.randint(0, len(data)) for _ in range(count))
        yield [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if begin < end]


# --- HTTP/1.1 -------------------------------------------------------------------------------------


def parse_response(pieces: list[bytes]) -> dict[str, Any]:
    """What the response parser makes of these reads, and of the connection's end after them.

    Of a response that breaks the grammar only the outcome and the head count: body bytes that share a
    read with the breach are given up with it.
    """
    parser = ResponseParser()
    body = b""
    try:
        for piece in pieces:
            body += parser.feed(piece)
    except HttpProtocolError:
        return {"error": True}
    before_eof = parser.complete
    return {
        "error": False,
        "body": body,
        "complete": before_eof,
        "whole_at_eof": parser.feed_eof(),
        "status": parser.status,
        "headers": parser.headers,
        "keep_alive": parser.keep_alive,
        "leftover": parser.leftover,
    }


class _Llhttp:
    """llhttp's view: the first final response of the bytes."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.headers: dict[str, str] = {}
        self.body = b""
        self.status = 0
        self.whole = False

    def on_message_begin(self) -> None:
        if not self.whole:
            self.headers, self.body, self.status = {}, b"", 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.whole:
            key, text = name.decode("latin-1").lower(), value.strip(b" \t\r\n").decode("latin-1")
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        if not self.whole:
            self.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if not self.whole:
            self.body += body

    def on_message_complete(self) -> None:
        if self.status >= 200:
            self.whole = True


def llhttp_response(data: bytes) -> _Llhttp | None:
    """The first final response by llhttp; None when it refuses the bytes, or has not seen the end of one."""
    view = _Llhttp()
    with contextlib.suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
        view.parser.feed_data(data)
    return view if view.whole else None


def check_http1(data: bytes) -> None:
    """Any split gives the same response; a whole one is also llhttp's.

    llhttp is stricter than we are on purpose (both framings named, the same length given twice, bare LF or
    spaces at a chunk's size) and laxer (empty lines before the status line, other versions), so it is asked
    only of what both read to the end. Two more differences are ours: the trailer's fields are no headers, and
    101 is passed over like any 1xx.
    """
    want = None
    for pieces in splits(data):
        got = parse_response(pieces)
        if want is None:
            want = got
        assert got == want, f"a split changes the response: {got} instead of {want}"
    assert want is not None
    theirs = llhttp_response(data)
    if want["error"] or not want["complete"] or theirs is None or b"HTTP/1.1 101" in data:
        return
    assert (want["status"], want["body"]) == (theirs.status, theirs.body), (want, vars(theirs))
    for name, text in want["headers"].items():
        # In both, the trailer's fields are added behind the head's by llhttp.
        assert theirs.headers[name].startswith(text), (name, text, theirs.headers)


# --- event streams --------------------------------------------------------------------------------


def read_events(data: bytes) -> list[tuple[bytes, bytes]]:
    """Data and type of each event, read slowly and by the letter of the standard: one byte after the other."""
    lines: list[bytes] = []
    line = bytearray()
    after_cr = False
    for byte in data.removeprefix(b"\xef\xbb\xbf"):
        if byte == 10 and after_cr:
            after_cr = False
            continue
        after_cr = byte == 13
        if byte in (10, 13):
            lines.append(bytes(line))
            line.clear()
        else:
            line.append(byte)
    events: list[tuple[bytes, bytes]] = []
    held, kind = b"", b""
    for each in lines:
        if not each:
            if held:
                events.append((held[:-1], kind))
            held, kind = b"", b""
            continue
        name, _, value = each.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            held += value + b"\n"
        elif name == b"event":
            kind = value
    return events


def check_sse(data: bytes) -> None:
    """Any split gives the events that the standard says, with their types, and the same cut-off rest."""
    want = read_events(data)
    tail = None
    for pieces in splits(data):
        splitter = EventSplitter()
        got: list[tuple[bytes, bytes]] = []
        for piece in pieces:
            got += [(event, splitter.named.get(at, b"")) for at, event in enumerate(splitter.feed(piece))]
        assert got == want, f"{got} instead of {want}"
        tail = splitter.tail() if tail is None else tail
        assert splitter.tail() == tail


# --- answers --------------------------------------------------------------------------------------

_CLASS = TrafficClass(
    name="fuzz",
    prompt=Prompt(tokens=Distribution(fixed=1)),
    output=Output(max_tokens=Distribution(fixed=8)),
    slo=Slo(ttft=Limit(p99=Duration.parse("1s")), itl=Limit(p99=Duration.parse("1s"))),
)
_TICKET = Ticket(index=0, class_index=0, due_ns=None, prompt=b"", prompt_tokens=1, max_tokens=8, ideal_cached_tokens=0)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RequestRecord).decode


def _seen(answer: Answer) -> dict[str, Any]:
    """What may not depend on where reads begin and end; which arrivals share a read does."""
    answer.end()
    return {
        "arrivals": len(answer.stamps_ns),
        "live": answer._live.output_tokens,
        "marks": list(answer.usage_marks),
        "has_text": answer.has_text,
        "output": answer.first_output_ns is not None,
        "finish": answer.finish_reason,
        "usage": answer.usage,
        "queue": answer.queue_wait_ms,
        "done": answer.done,
        "outcome": answer.error_outcome,
        "error": answer.error,
    }


def _record(answer: Answer, outcome: Outcome, error: str | None, headers: dict[str, str] | None = None) -> None:
    """The answer becomes a record, and the record comes back from its bytes."""
    ended = SimpleNamespace(
        answer=answer,
        outcome=outcome,
        sent_ns=1000,
        done_ns=10**9,
        headers_ns=2000,
        connect_ns=None,
        error=None if error is None else error.encode("utf-8", "replace").decode(),
        status=200,
        headers=headers or {},
        served_by=None,
    )
    planned = SimpleNamespace(ticket=_TICKET, slot=0, planned_ns=0, stage="all")
    record = record_of(ended, planned, request_id=1, traffic_class=_CLASS, target_name="t", wall_offset_ns=0)
    assert record.output_tokens >= 0
    assert record.queue_wait_ms is None or 0 <= int(record.queue_wait_ms * 1e6) < 1 << 63
    assert _decode(_encode(record)) == record


def _check_answer(dialect: Callable[[LiveRow], Answer], data: bytes) -> None:
    want = None
    for pieces in splits(data):
        answer = dialect(LiveRow())
        for at, piece in enumerate(pieces):
            answer.feed(piece, 5000 + at, True)
        got = _seen(answer)
        if want is None:
            want = got
        assert got == want, f"a split changes the answer: {got} instead of {want}"
        _record(answer, *judge_answer(answer))
    for body in (data, data.strip().removeprefix(b"data:").strip()):
        answer = dialect(LiveRow())
        answer.read_body(body)
        _record(answer, *judge_answer(answer))
        outcome, text = judge_refusal(400, body)
        assert outcome in (Outcome.HTTP_ERROR, Outcome.CONTEXT_LENGTH)
        assert text.startswith("HTTP 400: ")


def check_chat(data: bytes) -> None:
    """Any body of a chat or completions answer is read at any split to the same record, and never raises."""
    _check_answer(ChatAnswer, data)


def check_responses(data: bytes) -> None:
    """The same for the responses API."""
    _check_answer(ResponsesAnswer, data)


# --- response headers -----------------------------------------------------------------------------


def check_headers(data: bytes) -> None:
    """Header lines, whatever they say, become a record with finite figures, or are no HTTP."""
    parser = ResponseParser()
    try:
        parser.feed(b"HTTP/1.1 429 Too Many Requests\r\n" + data.rstrip(b"\r\n") + b"\r\n\r\n")
    except HttpProtocolError:
        return
    word = server_word(parser.headers)
    for figure in word[1:]:
        assert figure is None or 0 <= figure < 1 << 63, word
    _record(ChatAnswer(LiveRow()), Outcome.RATE_LIMITED, None, parser.headers)


# --- record logs ----------------------------------------------------------------------------------


def check_record_log(data: bytes) -> None:
    """Any file is read to its end or refused by LogError, at once and from any entry on; writing goes on after it."""
    with tempfile.TemporaryDirectory(prefix="tokswarm-fuzz-", dir=_memory_dir()) as folder:
        path = Path(folder, "w.log")
        path.write_bytes(data)
        try:
            with read_log(path) as reader:
                entries = list(reader)
                header, offset = reader.header, reader.offset
                assert header is None or offset + reader.torn_bytes == len(data)
                assert reader.damaged_bytes >= 0
        except LogError:
            return
        if entries:
            middle = len(entries) // 2
            with read_log(path, entries[middle][1]) as later:
                assert _encode(list(later)) == _encode(entries[middle + 1 :])
        try:
            log = RecordLog(path, run_id="r", worker="w")
        except LogError:
            assert header is not None
            assert (header.run_id, header.worker) != ("r", "w")
            return
        added = entries[0][0] if entries else None
        with log:
            if added is not None:
                assert log.append(added)
        with read_log(path) as reader:
            after = [entry for entry, _ in reader]
        before = [entry for entry, _ in entries]
        # Compared as bytes: no-numbers, which other programs may write, differ from themselves.
        assert _encode(after) == _encode(before if added is None else [*before, added])


def _memory_dir() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def log_of(payloads: list[bytes]) -> bytes:
    """A record log with these payloads as its entries, whatever they are, each whole by its length and CRC."""
    header = msgspec.msgpack.encode(LogHeader(schema=SCHEMA, run_id="r", worker="w"))
    return MAGIC + b"".join(FRAME.pack(len(each), zlib.crc32(each)) + each for each in [header, *payloads])


TARGETS: dict[str, Callable[[bytes], None]] = {
    "http1": check_http1,
    "headers": check_headers,
    "sse": check_sse,
    "chat": check_chat,
    "responses": check_responses,
    "record_log": check_record_log,
}
