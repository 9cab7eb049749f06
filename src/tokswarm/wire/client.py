"""The load client of a worker: requests in, exchanges out, all on one receive loop."""

import time
from collections.abc import Callable
from typing import NamedTuple

import gevent
from gevent.hub import Waiter

from tokswarm.measure.record import Outcome
from tokswarm.wire.answer import Answer, LiveRow
from tokswarm.wire.chat_answer import ChatAnswer
from tokswarm.wire.clock import ReceiveClock
from tokswarm.wire.connection import ConnectionPool, SessionConnection
from tokswarm.wire.exchange import Deadlines, Exchange
from tokswarm.wire.receiver import Receiver
from tokswarm.wire.target import ResolvedTarget

CHECK_S = 0.1
"""How often deadlines are looked at."""

CHECKS_PER_SLICE = 500
"""About a millisecond's worth; sockets get their turn after it."""


class Call(NamedTuple):
    """A whole request as bytes, and who reads its answer."""

    request: bytes
    dialect: Callable[[LiveRow], Answer] = ChatAnswer
    connection: SessionConnection | None = None
    """The session's own; None: any."""


class LoadClient:
    """Sends to one target. `start` never blocks and never raises; `ask` waits for the answer."""

    def __init__(self, target: ResolvedTarget) -> None:
        if not target.addresses:
            target.resolve()
        self.target = target
        self.clock = ReceiveClock()
        self.receiver = Receiver(self.clock)
        self.stale_retries = 0
        """Requests sent again, once, because a kept connection died before the first byte of an answer."""
        self._pool = ConnectionPool(target, self.receiver)
        self._open: dict[Exchange, None] = {}
        spec = target.spec
        self._fresh = spec.connections == "new"
        self._deadlines = Deadlines(
            connect_s=spec.connect_timeout.seconds,
            first_byte_s=spec.first_byte_timeout.seconds,
            gap_s=spec.gap_timeout.seconds,
            whole_s=spec.timeout.seconds,
        )
        self._checker = gevent.spawn(self._check)

    @property
    def in_flight(self) -> int:
        """Requests begun and not over."""
        return len(self._open)

    @property
    def sockets(self) -> int:
        """Open connections."""
        return self._pool.open_count

    def start(self, call: Call, live: LiveRow, on_done: Callable[[Exchange], None], tag: object) -> Exchange:
        """Send a request; `on_done` gets the exchange when it is over (after a stale retry, another one)."""
        return self._begin(call, live, on_done, tag, fresh=self._fresh)

    def ask(self, call: Call, *, timeout_s: float) -> Exchange:
        """Send a request on a fresh connection and wait for its end (preflight)."""
        waiter: Waiter[Exchange] = Waiter()
        self._begin(call, LiveRow(), waiter.switch, waiter, fresh=True)
        guard = gevent.spawn_later(timeout_s, self._abort_tagged, waiter, f"no whole answer within {timeout_s:g} s")
        exchange: Exchange = waiter.get()
        guard.kill(block=False)
        return exchange

    def session_connection(self) -> SessionConnection:
        """A connection for the turns of one session, opened with the first; whoever asked for it closes it."""
        return SessionConnection(self._pool)

    def defer(self, action: Callable[[], None]) -> None:
        """Run this soon, in the loop's slices."""
        self.receiver.defer(action)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run this after a delay."""
        self.receiver.later(delay_s, action)

    @property
    def reads(self) -> int:
        """Socket reads so far."""
        return self.receiver.reads

    def abort_all(self, reason: str) -> int:
        """Give up everything under way; how many that were."""
        open_now = list(self._open)
        for exchange in open_now:
            exchange.abort(reason)
        return len(open_now)

    def close(self) -> None:
        """Abort what is open and close every socket."""
        self.abort_all("the client was closed")
        self._checker.kill()
        self._pool.close()
        self.receiver.close()
        self.clock.close()

    def _begin(
        self,
        call: Call,
        live: LiveRow,
        on_done: Callable[[Exchange], None],
        tag: object,
        *,
        fresh: bool,
    ) -> Exchange:
        def over(exchange: Exchange) -> None:
            del self._open[exchange]
            if exchange.outcome is Outcome.RESET and exchange.reused and exchange.headers_ns is None:
                self.stale_retries += 1
                self._begin(call, live, on_done, tag, fresh=True)
            elif exchange.other_address:
                self._begin(call, live, on_done, tag, fresh=True)
            else:
                on_done(exchange)

        exchange = Exchange(
            request=call.request,
            answer=call.dialect(live),
            pool=call.connection or self._pool,
            receiver=self.receiver,
            deadlines=self._deadlines,
            keep=not self._fresh,
            secret=self.target.secret,
            on_done=over,
        )
        exchange.tag = tag
        self._open[exchange] = None
        exchange.begin(fresh=fresh)
        return exchange

    def _abort_tagged(self, tag: object, reason: str) -> None:
        for exchange in list(self._open):
            if exchange.tag is tag:
                exchange.abort(reason)

    def _check(self) -> None:
        next_clock_ns = 0
        while True:
            gevent.sleep(CHECK_S)
            now_ns = time.monotonic_ns()
            if now_ns >= next_clock_ns:
                next_clock_ns = now_ns + 1_000_000_000
                self.clock.check()
            due = [exchange for exchange in self._open if exchange.check_ns < now_ns]
            for number, exchange in enumerate(due, start=1):
                exchange.check_deadlines(now_ns)
                if number % CHECKS_PER_SLICE == 0:
                    gevent.sleep(0.001)
