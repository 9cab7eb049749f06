"""A request that is over is gone at once and leaves no cycle: the full garbage collector runs rarely in a worker."""

import gc
from collections.abc import Sequence

import gevent
import pytest
from scripted_server import Close, Part, Pause, Reset, scripted_server
from test_wire import GOOD, STREAM_HEAD, body_answer, chunk, client_of, token

from tokswarm.wire.answer import LiveRow
from tokswarm.wire.api import RequestWriter
from tokswarm.wire.exchange import LINGER_S, Exchange

REQUESTS = 20


def exchanges() -> int:
    return sum(isinstance(each, Exchange) for each in gc.get_objects())


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(GOOD, id="ok"),
        pytest.param(body_answer("500 Internal Server Error", b'{"error":{"message":"boom"}}'), id="refused"),
        pytest.param([STREAM_HEAD, chunk(token()), Close], id="truncated"),
        pytest.param([STREAM_HEAD, chunk(token()), Pause(0.05), Reset], id="reset"),
        pytest.param([STREAM_HEAD, b"zz\r\n"], id="no-http"),
    ],
)
def test_requests_that_are_over_are_freed_without_the_collector(script: Sequence[Part]) -> None:
    over = 0

    def count(exchange: Exchange) -> None:
        nonlocal over
        assert exchange.outcome is not None
        over += 1

    with scripted_server(script) as server, client_of(server) as client:
        request = RequestWriter(client.target, "m").write(b"hello", max_tokens=3, ignore_eos=False)
        gc.collect()
        before = exchanges()  # those that an earlier test left to a timer
        gc.disable()
        try:
            for number in range(REQUESTS):
                client.start(request, LiveRow(), count, None)
                with gevent.Timeout(10):
                    while over <= number:
                        gevent.sleep(0.001)
            gevent.sleep(2 * LINGER_S)  # a timer holds each for so long after its end mark
            alive = exchanges()
        finally:
            gc.enable()
    assert alive <= before + 1
