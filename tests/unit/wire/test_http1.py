"""HTTP/1.1 responses parse the same however the bytes are split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokswarm.wire.http1 import MAX_HEAD_BYTES, MAX_SIZE_LINE_BYTES, HttpProtocolError, ResponseParser

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"
WHOLE = {
    "chunked": (CHUNKED + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", b"hello world"),
    "chunk-extension-and-trailer": (CHUNKED + b"5;a=b\r\nhello\r\n0\r\nX-A: 1\r\nX-B: 2\r\n\r\n", b"hello"),
    "chunk-sizes-in-capitals": (CHUNKED + b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
    "bare-lf-after-size": (CHUNKED + b"5\nhello\r\n0\r\n\r\n", b"hello"),
    "data-that-looks-like-a-chunk": (CHUNKED + b"9\r\n3\r\nabc\r\n!\r\n0\r\n\r\n", b"3\r\nabc\r\n!"),
    "content-length": (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", b"body"),
    "empty-body": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    "no-content": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "interim-first": (
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"ok",
    ),
    "continue-first": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
}


def parse(data: bytes, cuts: list[int]) -> tuple[ResponseParser, bytes]:
    parser, body, at = ResponseParser(), b"", 0
    for cut in [*sorted(cuts), len(data)]:
        piece = data[at:cut]
        if piece:
            body += parser.feed(piece)
        at = max(at, cut)
    return parser, body


@pytest.mark.parametrize(("data", "want"), WHOLE.values(), ids=WHOLE.keys())
def test_a_response_gives_its_body_at_every_single_split(data: bytes, want: bytes) -> None:
    for cut in range(len(data)):
        parser, body = parse(data, [cut])
        assert (body, parser.complete, parser.leftover) == (want, True, b"")


@given(st.sampled_from(sorted(WHOLE)), st.lists(st.integers(0, 120)))
def test_a_response_gives_its_body_at_any_splits(name: str, cuts: list[int]) -> None:
    data, want = WHOLE[name]
    parser, body = parse(data, [cut for cut in cuts if cut < len(data)])
    assert (body, parser.complete) == (want, True)


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=8), st.lists(st.integers(0, 500)))
def test_any_chunks_at_any_splits_give_the_bytes_that_went_in(pieces: list[bytes], cuts: list[int]) -> None:
    data = CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    parser, body = parse(data, [cut for cut in cuts if cut < len(data)])
    assert (body, parser.complete) == (b"".join(pieces), True)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_any_bytes_parse_or_fail_by_name(data: bytes, cuts: list[int]) -> None:
    for start in (b"", CHUNKED, b"HTTP/1.1 200 OK\r\n"):
        try:
            parse(start + data, cuts)
        except HttpProtocolError:
            continue


def test_a_body_until_close_ends_with_the_connection() -> None:
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.1 200 OK\r\n\r\nabc") == b"abc"
    assert parser.feed(b"def") == b"def"
    assert not parser.complete
    assert parser.feed_eof()
    assert not parser.keep_alive


def test_a_close_in_the_middle_of_chunks_is_not_the_end() -> None:
    parser = ResponseParser()
    parser.feed(CHUNKED + b"5\r\nhel")
    assert not parser.feed_eof()


def test_bytes_after_the_response_are_left_over() -> None:
    parser, body = parse(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 500", [])
    assert (body, parser.leftover) == (b"ok", b"HTTP/1.1 500")


@pytest.mark.parametrize(
    ("head", "keep"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True, id="1.1-keeps"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", False, id="1.1-close"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False, id="1.0-closes"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n", True, id="1.0-keeps"),
    ],
)
def test_keep_alive_follows_version_and_header(head: bytes, *, keep: bool) -> None:
    parser, _ = parse(head, [])
    assert parser.keep_alive is keep


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"SSH-2.0-OpenSSH\r\n", id="another-protocol"),
        pytest.param(b"HTTP/2 200\r\n\r\n", id="another-version"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n", id="line-feed-in-a-field"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: b\rC: d\r\n\r\n", id="carriage-return-in-a-field"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: \x00\r\n\r\n", id="nul-in-a-field"),
        pytest.param(b"HTTP/1.1 20x OK\r\n\r\n", id="no-status"),
        pytest.param(b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n", id="no-colon"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n", id="signed-length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", id="two-lengths"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", id="unknown-encoding"),
        pytest.param(CHUNKED + b"zz\r\nabc", id="no-hex"),
        pytest.param(CHUNKED + b"-5\r\nabc", id="negative-size"),
        pytest.param(CHUNKED + b"2\r\nabc\r\n", id="chunk-longer-than-said"),
        pytest.param(b"HTTP/1.1 200\n\r\n\r\n", id="line-feed-in-status-line"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"a" * (MAX_HEAD_BYTES + 10), id="endless-head"),
    ],
)
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(HttpProtocolError):
        parse(data, [])


@pytest.mark.parametrize("size", [b"0x5", b"+5", b"0_5", b"0X5"])
def test_a_chunk_size_is_hex_digits_alone_in_a_read_of_its_own_too(size: bytes) -> None:
    parser = ResponseParser()
    parser.feed(CHUNKED)
    with pytest.raises(HttpProtocolError):
        parser.feed(size + b"\r\nhello\r\n")


def _long(what: str, excess: int) -> bytes:
    if what == "head":
        start = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: "
        return start + b"x" * (MAX_HEAD_BYTES - len(start) + excess) + b"\r\n\r\nok"
    if what == "size-line":
        return CHUNKED + b"2;" + b"e" * (MAX_SIZE_LINE_BYTES - 3 + excess) + b"\r\nok\r\n0\r\n\r\n"
    return CHUNKED + b"2\r\nok\r\n0\r\nX: " + b"x" * (MAX_HEAD_BYTES - 4 + excess) + b"\r\n\r\n"


@pytest.mark.parametrize("what", ["head", "size-line", "trailer"])
def test_limits_hold_to_the_byte_at_any_split(what: str) -> None:
    fits, exceeds = _long(what, 0), _long(what, 1)
    for cut in [0, 100, *range(len(fits) - 20, len(fits))]:
        parser, body = parse(fits, [cut])
        assert (body, parser.complete) == (b"ok", True)
    for cut in [0, 100, *range(len(exceeds) - 20, len(exceeds))]:
        with pytest.raises(HttpProtocolError):
            parse(exceeds, [cut])
