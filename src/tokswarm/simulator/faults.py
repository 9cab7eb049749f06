"""Wire faults: the ways in which an answer can go wrong, by name.

They are written `kind[=argument][,kind…]`. Each kind says what tokswarm's client reports for it; tests
and the table in docs/simulator.md#wire-faults are made from the same list.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from tokswarm.simulator import event_faults as events
from tokswarm.simulator.api import error_body
from tokswarm.simulator.event_faults import After, Change, Close, Coalesce, End, First, Hold, Pause, Raw, Reset
from tokswarm.simulator.faulty_exchange import FaultPlan

_STATUSES = (400, 401, 403, 404, 408, 413, 429, 500, 502, 503, 504)
_LONGEST_S = 3600.0
_MOST = 256 * 1024 * 1024


class Kind(msgspec.Struct, frozen=True):
    """One kind of fault."""

    name: str
    argument: str
    """What stands after `=`, with its default; empty: nothing does."""
    effect: str
    reported: tuple[tuple[str, str], ...]
    """Examples as they are written, each with the outcome that tokswarm's client gives the request."""
    apply: Callable[[FaultPlan, str], None]
    """Plan it; ValueError when the argument is none."""


def _whole(text: str, default: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and int(text) <= _MOST):
        raise ValueError(f"{text!r} is no whole number from 0 to {_MOST}")
    return int(text)


def _signed(text: str) -> int:
    return -_whole(text[1:], 0) if text.startswith("-") else _whole(text.removeprefix("+"), 10)


def _seconds(text: str, default: float) -> float:
    if not text:
        return default
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= _LONGEST_S:
        raise ValueError(f"{text!r} is no number of seconds from 0 to {_LONGEST_S:g}")
    return value


def _changing(change: Callable[[bytes], Iterable[bytes]]) -> Callable[[FaultPlan, str], None]:
    def apply(plan: FaultPlan, argument: str) -> None:
        _no_argument(argument)
        plan.transforms.append(Change(change))

    return apply


def _no_argument(argument: str) -> None:
    if argument:
        raise ValueError(f"it takes no argument, came {argument!r}")


# --- the kinds ----------------------------------------------------------------------------------


def _error_event(plan: FaultPlan, argument: str) -> None:
    dialect, _, after = argument.partition(":")
    message = b'{"message":"the engine died","type":"InternalServerError","param":null,"code":500}'
    context = b'{"message":"This model\'s maximum context length is 8 tokens","code":"context_length_exceeded"}'
    dialects = {
        "openai": b'data: {"error":%b}\n\ndata: [DONE]\n\n' % message,
        "named": b'event: error\ndata: {"error":%b}\n\n' % message,
        "typed": b'event: error\ndata: {"type":"error","code":"server_error","message":"the engine died"}\n\n',
        "text": b'data: {"error":"the engine died"}\n\n',
        "context": b'event: error\ndata: {"error":%b}\n\n' % context,
    }
    if dialect and dialect not in dialects:
        raise ValueError(f"{dialect!r} is none of {', '.join(dialects)}")
    plan.transforms.append(After(_whole(after, 0), dialects[dialect or "openai"], End()))


def _stall(plan: FaultPlan, argument: str) -> None:
    seconds, _, after = argument.partition(":")
    plan.transforms.append(After(_whole(after, 1), Pause(_seconds(seconds, 1.0))))


def _stall_first(plan: FaultPlan, argument: str) -> None:
    pause = Pause(_seconds(argument, 1.0))
    plan.transforms.append(After(0, pause))


def _reset(plan: FaultPlan, argument: str) -> None:
    plan.transforms.append(After(_whole(argument, 1), Reset()))
    plan.whole = Reset()


def _close(plan: FaultPlan, argument: str) -> None:
    plan.transforms.append(After(_whole(argument, 1), Close()))
    plan.whole = Close()


def _tear(plan: FaultPlan, argument: str) -> None:
    plan.transforms.append(events.TearAfter(_whole(argument, 1)))
    plan.whole = Close()


def _hang_after(plan: FaultPlan, argument: str) -> None:
    plan.transforms.append(After(_whole(argument, 1), Hold()))
    plan.whole = Hold()


def _end_early(plan: FaultPlan, argument: str) -> None:
    plan.transforms.append(After(_whole(argument, 1), End()))


def _bad_json(plan: FaultPlan, argument: str) -> None:
    plan.transforms.append(After(_whole(argument, 1), b'data: {"choices":[{"index":0,\n\n'))


def _bad_chunk(plan: FaultPlan, argument: str) -> None:
    plan.transforms.append(After(_whole(argument, 1), Raw(b"size?\r\n"), Close()))
    plan.whole = Close()


def _huge_event(plan: FaultPlan, argument: str) -> None:
    plan.transforms.append(First(events.inflated(_whole(argument, 1_000_000)), token=True))


def _mark(plan: FaultPlan, argument: str) -> None:
    _no_argument(argument)
    plan.transforms.append(First(events.with_mark))


def _usage_in_last(plan: FaultPlan, argument: str) -> None:
    _no_argument(argument)
    plan.transforms.append(events.UsageInLast())


def _coalesce(plan: FaultPlan, argument: str) -> None:
    size = _whole(argument, 0)
    plan.transforms.append(Coalesce(size or None))


def _split(plan: FaultPlan, argument: str) -> None:
    if argument == "odd":
        plan.cut = _odd_pieces
        return
    size = _whole(argument, 1)
    if not size:
        raise ValueError("pieces of 0 bytes never end")

    def pieces(data: bytes) -> Iterator[bytes]:
        return (data[place : place + size] for place in range(0, len(data), size))

    plan.cut = pieces


def _odd_pieces(data: bytes) -> Iterator[bytes]:
    place, size = 0, 1
    while place < len(data):
        yield data[place : place + size]
        place, size = place + size, size + 2


def _keep_alive(plan: FaultPlan, argument: str) -> None:
    seconds = _seconds(argument, 0.1)
    if seconds < 0.001:
        raise ValueError("comments need a millisecond between them")
    plan.keep_alive_s = seconds


def _gzip(plan: FaultPlan, argument: str) -> None:
    _no_argument(argument)
    plan.gzip = True


def _encoding(plan: FaultPlan, argument: str) -> None:
    plan.headers.append(f"content-encoding: {_token(argument or 'br')}")


def _token(text: str) -> str:
    if not text.isprintable() or not text.isascii():
        raise ValueError(f"{text!r} cannot stand in a header")
    return text


def _slow_head(plan: FaultPlan, argument: str) -> None:
    plan.head_pause_s = _seconds(argument, 0.001)


def _interim(plan: FaultPlan, argument: str) -> None:
    one = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n"
    plan.before_head += b"HTTP/1.1 102 Processing\r\n\r\n" + one * min(_whole(argument, 1), 1_000)


def _content_type(plan: FaultPlan, argument: str) -> None:
    plan.content_type = _token(argument or "text/plain")


def _until_close(plan: FaultPlan, argument: str) -> None:
    _no_argument(argument)
    plan.until_close = True


def _length(plan: FaultPlan, argument: str) -> None:
    plan.length_offset = _signed(argument)


def _close_each(plan: FaultPlan, argument: str) -> None:
    _no_argument(argument)
    plan.close = True


def _close_after(plan: FaultPlan, argument: str) -> None:
    _no_argument(argument)
    plan.after_end = (Close(),)


def _stray(plan: FaultPlan, argument: str) -> None:
    _no_argument(argument)
    plan.after_end = (Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"), Close())


def _hold_open(plan: FaultPlan, argument: str) -> None:
    _no_argument(argument)
    plan.instead_of_end = (Hold(),)


def _head_only(plan: FaultPlan, argument: str) -> None:
    _no_argument(argument)
    plan.after_head = (Hold(),)


def _status(plan: FaultPlan, argument: str) -> None:
    status = _whole(argument, 502)
    if status not in _STATUSES:
        raise ValueError(f"{status} is none of {', '.join(map(str, _STATUSES))}")
    plan.status = status


def _instead(*items: events.Item) -> Callable[[FaultPlan, str], None]:
    def apply(plan: FaultPlan, argument: str) -> None:
        _no_argument(argument)
        plan.instead = items

    return apply


def _made_up(content_type: str, body: bytes) -> Callable[[FaultPlan, str], None]:
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return _instead(Raw(head.encode() + body), Close())


_JSON_ERROR = error_body(500, "the engine died")
_PAGE = b"<html><body><h1>Please log in</h1></body></html>\n"

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        # the form of events
        Kind("crlf", "", "lines end in CR LF", (("crlf", "ok"),), _changing(events.with_crlf)),
        Kind("cr", "", "lines end in CR alone", (("cr", "ok"),), _changing(events.with_cr)),
        Kind("no_space", "", "no blank after `data:`", (("no_space", "ok"),), _changing(events.without_blank)),
        Kind(
            "fields",
            "",
            "`event`, `id` and `retry` before each `data`",
            (("fields", "ok"),),
            _changing(events.with_fields),
        ),
        Kind(
            "lines", "", "the JSON of an event over many `data` lines", (("lines", "ok"),), _changing(events.in_lines)
        ),
        Kind("comments", "", "comments before each event", (("comments", "ok"),), _changing(events.commented)),
        Kind(
            "keep_alive",
            "seconds = 0.1",
            "a comment at this interval until the first token",
            (("keep_alive=0.01,stall_first=0.1", "ok"),),
            _keep_alive,
        ),
        Kind("bom", "", "a byte order mark before the first event", (("bom", "ok"),), _mark),
        Kind(
            "unicode",
            "",
            "a character of three bytes in each token",
            (("unicode", "ok"), ("unicode,split=1", "ok")),
            _changing(events.with_character),
        ),
        Kind(
            "huge_event",
            "bytes = 1000000",
            "the first token's event is so much larger",
            (("huge_event", "ok"),),
            _huge_event,
        ),
        Kind(
            "bad_json",
            "tokens = 1",
            "an event that is no JSON after so many tokens",
            (("bad_json=2", "protocol"),),
            _bad_json,
        ),
        # usage and the end mark
        Kind("no_done", "", "no `[DONE]`, a clean end", (("no_done", "ok"),), _changing(events.without_done)),
        Kind(
            "bare_done",
            "",
            "`[DONE]` without the blank line after it",
            (("bare_done", "ok"),),
            _changing(events.unterminated_done),
        ),
        Kind(
            "hold_open",
            "",
            "`[DONE]`, and then neither an end of the body nor of the connection",
            (("hold_open", "ok"),),
            _hold_open,
        ),
        Kind(
            "duplicate_usage", "", "the usage event twice", (("duplicate_usage", "ok"),), _changing(events.usage_twice)
        ),
        Kind(
            "usage_in_last", "", "usage on the event with the finish reason", (("usage_in_last", "ok"),), _usage_in_last
        ),
        Kind(
            "usage_null",
            "",
            "`usage: null` on every other event",
            (("usage_null", "ok"),),
            _changing(events.usage_null),
        ),
        Kind(
            "no_usage", "", "no usage although it was asked for", (("no_usage", "ok"),), _changing(events.without_usage)
        ),
        Kind(
            "empty",
            "",
            "no token and no usage, only role and `[DONE]`",
            (("empty", "empty"),),
            _changing(events.without_tokens),
        ),
        # time
        Kind(
            "stall_first",
            "seconds = 1",
            "nothing for so long when the first token is ready",
            (("stall_first=0.2", "ok"), ("stall_first=30", "timeout")),
            _stall_first,
        ),
        Kind(
            "stall",
            "seconds = 1 [`:`tokens = 1]",
            "nothing for so long after so many tokens",
            (("stall=0.2:3", "ok"), ("stall=30:2", "timeout")),
            _stall,
        ),
        Kind(
            "coalesce",
            "events = 0",
            "so many events at a time, as a proxy that buffers; 0: everything at the end",
            (("coalesce", "ok"), ("coalesce=4", "ok")),
            _coalesce,
        ),
        Kind(
            "split",
            "bytes = 1, or `odd`",
            "head and body in sends of so many bytes; `odd`: of 1, 3, 5 … bytes",
            (("split", "ok"), ("split=2", "ok"), ("split=7", "ok"), ("split=odd", "ok"), ("crlf,split=3", "ok")),
            _split,
        ),
        # breaking off
        Kind(
            "reset",
            "tokens = 1",
            "a TCP reset after so many tokens",
            (("reset=3", "reset"), ("reset=0", "reset")),
            _reset,
        ),
        Kind(
            "close",
            "tokens = 1",
            "the connection closes after so many tokens, between two chunks",
            (("close=3", "truncated"),),
            _close,
        ),
        Kind(
            "tear",
            "tokens = 1",
            "the connection closes in the middle of a chunk after so many tokens",
            (("tear=3", "truncated"),),
            _tear,
        ),
        Kind(
            "end_early",
            "tokens = 1",
            "the body ends properly after so many tokens, with neither finish reason nor `[DONE]`",
            (("end_early=3", "truncated"), ("end_early=0", "empty")),
            _end_early,
        ),
        Kind(
            "hang_after", "tokens = 1", "nothing more after so many tokens", (("hang_after=3", "timeout"),), _hang_after
        ),
        Kind(
            "bad_chunk",
            "tokens = 1",
            "a chunk size that is no number after so many tokens",
            (("bad_chunk=2", "protocol"),),
            _bad_chunk,
        ),
        Kind(
            "error_event",
            "dialect = openai [`:`tokens = 0]",
            "an error in the stream, and its end; dialects: `openai` (data and `[DONE]`), `named` and `typed` "
            "(`event: error`), `text` (the error is a string), `context` (context length)",
            (
                ("error_event", "in_band_error"),
                ("error_event=openai:2", "in_band_error"),
                ("error_event=named", "in_band_error"),
                ("error_event=typed:1", "in_band_error"),
                ("error_event=text", "in_band_error"),
                ("error_event=context", "context_length"),
            ),
            _error_event,
        ),
        # the HTTP around it
        Kind("gzip", "", "the body is packed, each event flushed", (("gzip", "ok"), ("gzip,split=5", "ok")), _gzip),
        Kind(
            "encoding",
            "name = br",
            "says that the body is packed in a way nobody asked for",
            (("encoding=br", "protocol"),),
            _encoding,
        ),
        Kind(
            "slow_head",
            "seconds = 0.001",
            "the response head byte by byte, so long between two",
            (("slow_head", "ok"),),
            _slow_head,
        ),
        Kind("interim", "count = 1", "responses 102 and 103 before the answer", (("interim=3", "ok"),), _interim),
        Kind(
            "content_type",
            "type = text/plain",
            "another content type on the stream",
            (("content_type", "protocol"), ("content_type=application/json", "protocol")),
            _content_type,
        ),
        Kind(
            "until_close",
            "",
            "neither chunks nor a length: the body ends with the connection",
            (("until_close", "ok"),),
            _until_close,
        ),
        Kind(
            "length",
            "bytes = 10",
            "the body in one piece, its stated length wrong by so much; with `-` too short",
            (("length=10", "ok"), ("no_done,length=10", "truncated"), ("length=-7", "ok")),
            _length,
        ),
        Kind("close_each", "", "`connection: close`, and it closes", (("close_each", "ok"),), _close_each),
        Kind(
            "close_after",
            "",
            "says `keep-alive` and closes when the answer is complete",
            (("close_after", "ok"),),
            _close_after,
        ),
        Kind("stray", "", "bytes that belong to no answer after the end", (("stray", "ok"),), _stray),
        # instead of an answer: the model is not asked
        Kind(
            "status",
            "code = 502",
            "an HTML page with this status, as gateways give: " + ", ".join(map(str, _STATUSES)),
            (
                *((f"status={status}", "http_error") for status in _STATUSES if status != 429),
                ("status=429", "rate_limited"),
            ),
            _status,
        ),
        Kind("html", "", "200 with a page of HTML", (("html", "protocol"),), _made_up("text/html", _PAGE)),
        Kind(
            "json_error",
            "",
            "200 with an error as JSON",
            (("json_error", "in_band_error"),),
            _made_up("application/json", _JSON_ERROR),
        ),
        Kind(
            "blank",
            "",
            "200, an event stream without any event",
            (("blank", "empty"),),
            _made_up("text/event-stream", b""),
        ),
        Kind(
            "not_http",
            "",
            "bytes that are no HTTP",
            (("not_http", "protocol"),),
            _instead(Raw(b"SSH-2.0-OpenSSH_9.6\r\n"), Close()),
        ),
        Kind("hang", "", "no byte at all, the connection stays open", (("hang", "timeout"),), _instead(Hold())),
        Kind("head_only", "", "the head of an answer and nothing more", (("head_only", "timeout"),), _head_only),
        Kind(
            "close_first", "", "the connection closes before any byte", (("close_first", "reset"),), _instead(Close())
        ),
        Kind("reset_first", "", "a TCP reset before any byte", (("reset_first", "reset"),), _instead(Reset())),
    )
}
"""Every kind of fault, by name."""


def plan_faults(text: str) -> FaultPlan:
    """What `kind[=argument][,kind…]` asks for. ValueError says what is wrong with it."""
    plan = FaultPlan()
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, argument = part.partition("=")
        kind = KINDS.get(name.strip())
        if kind is None:
            raise ValueError(f"there is no fault {name!r}; there are {', '.join(KINDS)}")
        try:
            kind.apply(plan, argument.strip())
        except ValueError as error:
            raise ValueError(f"fault {name}: {error}") from error
    return plan
