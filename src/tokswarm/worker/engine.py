"""The arrival engine: sends one worker's share of each stage, on time, and drains it.

Closed loop: a fixed number of users, each sending its next request when the last is over. Open loop
and replay: requests at absolute times whatever the server does; one that could not be sent because
too many are open is counted, never silently delayed. A class with sessions: what a user or the schedule
sends begins one, and its later turns follow when their user has thought.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import gevent
from gevent.event import Event

from tokswarm.measure.record import Outcome, RequestRecord
from tokswarm.traffic.plan import ClosedLoop, PlannedStage, Shard
from tokswarm.traffic.schedule import TicketSource
from tokswarm.traffic.share import Arrival, Share, SharedArrivals, Unsent, concurrency_share
from tokswarm.traffic.ticket import Ticket
from tokswarm.wire.answer import LiveRow
from tokswarm.wire.api import RequestWriter
from tokswarm.wire.client import Call
from tokswarm.wire.clock import ReceiveClock
from tokswarm.wire.connection import SessionConnection
from tokswarm.worker.open_session import OpenSession
from tokswarm.worker.record_of import Ended
from tokswarm.worker.recorder import Recorder, Row, Sending
from tokswarm.worker.slots import Slots

log = logging.getLogger(__name__)

FAILURE_PAUSE_S = 0.1
"""A closed-loop user waits this long after a request that never reached the server, so that a dead
endpoint is not met with a storm of connections."""

SEND_SLICE_NS = 1_000_000
"""How long a schedule that is behind sends on before sockets and pings get their turn."""

SEND_PAUSE_S = 0.00005
"""That turn; a sleep of 0 would let no socket in."""

OVERTIME_NS = 1_000_000_000
"""An arrival that is still unsent this long after its stage's end is dropped: the next stage is not to wait for it."""

SKIP_MOST = 200
"""Arrivals before a late worker's share that it passes over at a time."""

ABORT_WAIT_S = 2.0
"""Aborted requests are over at once; this only bounds the wait for it."""


class Client(Protocol):
    """What sends: `LoadClient`, or `SdkClient`."""

    clock: ReceiveClock

    def start(self, call: Call, live: LiveRow, on_done: Callable[[Any], None], tag: object) -> "Started":
        """Send a request; never blocks, never raises."""
        ...

    def defer(self, action: Callable[[], None]) -> None:
        """Run this soon."""
        ...

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run this after a delay."""
        ...

    def session_connection(self) -> SessionConnection:
        """A connection for the turns of one session."""
        ...

    def abort_all(self, reason: str) -> int:
        """Give up everything under way."""
        ...


class Started(Protocol):
    """A request on its way."""

    begun_ns: int
    sent_ns: int


class Over(Ended, Protocol):
    """A request that is over, with what the engine gave it to carry."""

    tag: object


class StageCount:
    """How a stage ended for this worker."""

    __slots__ = ("aborted", "finished")

    def __init__(self) -> None:
        self.finished = 0
        self.aborted = 0


class Lane:
    """The users of a closed loop that send to one target, or to all; of a schedule an empty one."""

    __slots__ = ("tickets", "users", "wanted")

    def __init__(self) -> None:
        self.tickets: Iterator[Ticket] = iter(())
        self.users = 0
        self.wanted = 0
        """How many there should be: those beyond it end when they are free."""


class Engine:
    """One worker's load, stage by stage."""

    def __init__(self, shard: Shard, routes: Sequence[tuple[Client, RequestWriter]], recorder: Recorder) -> None:
        """`routes`: for each target of the mix who sends to it and who writes the requests."""
        self._shard = shard
        self._routes = list(routes)
        self._client = self._routes[0][0]
        """Its clock and timers serve for all targets."""
        self._recorder = recorder
        self._source = TicketSource(shard.plan, shard.worker_index, shard.worker_count, joins_late=shard.joins_late)
        self._ignore_eos = [each.output.ignore_eos for each in shard.plan.mix.classes]
        self._slots = Slots()
        self._lanes = [Lane()]
        """Of the stage under way, by target; the same objects as long as it goes on."""
        self._arrivals: SharedArrivals | None = None
        """Of its schedule."""
        self._part = -1
        """Of the share that its users go by."""
        self._orders: list[tuple[int, Callable[[], object]]] = []
        """For a stage that has not begun here yet."""
        self._start_ns = self._stop_ns = self._start_unix_ns = 0
        self._stage_index = -1
        self._stage = ""
        self._closed = False
        self._sending = False
        self._open = 0
        self._sessions: set[OpenSession] = set()
        self._count = StageCount()
        self._idle = Event()
        self._call = Event()
        """Something has changed: whoever waits looks again."""
        self._halt = Event()
        self._halt_reason = ""
        self._halt_end_ns = 0

    def run_stage(self, index: int, start_unix_ns: int, share: Share | None = None) -> StageCount:
        """Send the stage's share from that instant of the wall clock, then drain; blocks until it is over.

        `share` None: as the plan shares it out.
        """
        stage = self._shard.plan.stages[index]
        share = share or self._source.share
        self._count = StageCount()
        self._stage_index, self._stage = index, stage.name
        self._closed = isinstance(stage.load, ClosedLoop)
        self._begin_lanes()
        self._arrivals = None if self._closed else SharedArrivals(self._source.arrivals(index), share)
        self._idle.set()
        self._start_unix_ns = start_unix_ns
        self._start_ns = start_unix_ns - self._client.clock.offset_ns
        self._stop_ns = self._start_ns + int(stage.duration_s * 1e9)
        self._sending = True
        orders, self._orders = self._orders, []
        for of_stage, order in orders:
            if of_stage == index:
                order()
        if self._arrivals is None:
            if not self._sleep_until(self._start_ns + share.from_ns):
                self._run_users(share)
        elif not self._sleep_until(self._start_ns) and self._skip_to_share(self._arrivals):
            self._run_schedule(self._arrivals)
        self._sending = False
        self._drain(stage)
        for session in self._sessions:
            session.close()
        self._sessions.clear()
        return self._count

    def reshare(self, index: int, share: Share, unsent: Sequence[Unsent] = ()) -> tuple[list[int], int]:
        """Go by this share of a stage from its instant on.

        How many arrivals of each lost worker now count as dropped, and how many requests were sent that are
        another's by this order, because it came late.
        """
        if index > self._stage_index:
            self._orders.append((index, partial(self.reshare, index, share, unsent)))
        elif index == self._stage_index and self._sending:
            self._call.set()
            if self._arrivals is not None:
                doubled = self._arrivals.reshare(share)
                return [self._drop(self._arrivals, each) for each in unsent], doubled
            delay_ns = self._start_ns + share.from_ns - time.monotonic_ns()
            self._client.later(max(delay_ns, 0) / 1e9, partial(self._go_by, share, self._lanes[0]))
        return [0] * len(unsent), 0

    def end_stage(self, index: int, at_unix_ns: int) -> None:
        """Send nothing of this stage that is due from this instant of the wall clock on."""
        if index > self._stage_index:
            self._orders.append((index, partial(self.end_stage, index, at_unix_ns)))
        elif index == self._stage_index:
            self._stop_ns = min(self._stop_ns, self._start_ns + at_unix_ns - self._start_unix_ns)
            self._call.set()

    def halt(self, reason: str, drain_s: float) -> None:
        """End the load now: no more requests, and what is open gets at most this long. Asking again may shorten it."""
        self._halt_reason = self._halt_reason or reason
        self._halt_end_ns = time.monotonic_ns() + int(drain_s * 1e9)
        self._sending = False
        self._halt.set()
        self._call.set()
        if drain_s <= 0:
            self._abort_all(reason)

    def _abort_all(self, reason: str) -> None:
        for client, _ in self._routes:
            client.abort_all(reason)

    def _begin_lanes(self) -> None:
        self._part = -1
        count = len(self._routes)
        # Of mirrored traffic each target has users of its own.
        self._lanes = [Lane() for _ in range(count)] if self._source.is_mirrored else [Lane()] * count

    def _called(self, within_s: float) -> bool:
        """Wait until something has changed, or the time is up; whether it was the former."""
        if self._halt.is_set():
            return True
        if not self._call.wait(within_s):
            return False
        self._call.clear()
        return True

    def _sleep_until(self, when_ns: int) -> bool:
        """Sleep, or be halted; whether it was the latter."""
        while not self._halt.is_set() and (left_ns := when_ns - time.monotonic_ns()) > 0:
            self._called(left_ns / 1e9)
        return bool(self._halt.is_set())

    def _is_over(self) -> bool:
        """Wait for the end of the sending; whether it has come, or only something has changed."""
        left_ns = self._stop_ns - time.monotonic_ns()
        if left_ns > 0:
            self._called(left_ns / 1e9)
        return self._halt.is_set() or time.monotonic_ns() >= self._stop_ns

    def _run_users(self, share: Share) -> None:
        self._go_by(share, self._lanes[0])
        while not self._is_over():
            pass

    def _go_by(self, share: Share, of_stage: Lane) -> None:
        """As many users from now on as are in this share; nothing once its stage is over, or a newer one holds."""
        load = self._shard.plan.stages[self._stage_index].load
        if not self._sending or of_stage is not self._lanes[0] or share.part <= self._part:
            return
        assert isinstance(load, ClosedLoop)
        self._part = share.part
        tickets_of_lanes = self._source.lanes(self._stage_index, share, self._elapsed_ns)
        for lane, tickets in dict(zip(self._lanes, tickets_of_lanes, strict=True)).items():
            lane.tickets = tickets
            lane.wanted = concurrency_share(load.concurrency, share.worker_index, share.worker_count)
            while lane.users < lane.wanted:
                lane.users += 1
                self._client.defer(partial(self._next_of_user, lane))

    def _elapsed_ns(self) -> int:
        """Since the start of the stage under way."""
        return max(0, time.monotonic_ns() - self._start_ns)

    def _next_of_user(self, lane: Lane) -> None:
        """The next request of a free user; nothing once the stage of its lane is over, or there is a user too many."""
        if not self._sending or lane not in self._lanes:
            return
        if lane.users > lane.wanted:
            lane.users -= 1
        elif (ticket := next(lane.tickets, None)) is not None:
            self._send(ticket, time.monotonic_ns())

    def _skip_to_share(self, arrivals: SharedArrivals) -> bool:
        """Pass over what was due before a late worker has its share; whether it was not halted meanwhile."""
        while not arrivals.skip(most=SKIP_MOST):
            self._called(SEND_PAUSE_S)
            if self._halt.is_set():
                return False
        return True

    def _run_schedule(self, arrivals: SharedArrivals) -> None:
        slept_ns = time.monotonic_ns()
        while True:
            arrival = arrivals.next(now_ns=slept_ns - self._start_ns)
            if arrival is None or (due_ns := self._start_ns + arrival.due_ns) >= self._stop_ns:
                if arrival is not None:
                    arrivals.put_back(arrival)
                if self._is_over():  # if not, the crew may have changed, and more be this worker's
                    return
                continue
            now_ns = time.monotonic_ns()
            if due_ns > now_ns or now_ns - slept_ns > SEND_SLICE_NS:
                if self._called(max((due_ns - now_ns) / 1e9, SEND_PAUSE_S)):
                    if self._halt.is_set():
                        return
                    arrivals.put_back(arrival)
                    continue
                slept_ns = time.monotonic_ns()
            if slept_ns < self._stop_ns + OVERTIME_NS:
                tickets = list(self._source.tickets_of(self._stage_index, arrival))
                for ticket in tickets:
                    self._send(ticket, due_ns)
                if not tickets:
                    self._drop_one(arrival)
            elif slept_ns < self._stop_ns + 2 * OVERTIME_NS:
                self._drop_one(arrival)
            else:
                log.warning("stage %s: this worker cannot keep up; arrivals beyond those counted were due", self._stage)
                return

    def _drop(self, arrivals: SharedArrivals, unsent: Unsent) -> int:
        lost = arrivals.unsent(unsent)
        return sum(self._drop_one(arrival) for arrival in lost)

    def _drop_one(self, arrival: Arrival) -> int:
        """Count what is not sent."""
        classes = self._source.classes_of(self._stage_index, arrival)
        for class_index in classes:
            self._recorder.dropped(self._recorder.row(class_index, self._stage))
        return len(classes)

    def _send(self, ticket: Ticket, planned_ns: int, session: OpenSession | None = None) -> None:
        row = self._recorder.row(ticket.class_index, self._stage)
        slot = self._slots.take()
        if slot is None:
            self._recorder.dropped(row)
            if session is not None:
                self._end_session(session, row)
            return
        if ticket.turn == 1:
            session = self._begin_session(ticket)
        ignore_eos = self._ignore_eos[ticket.class_index]
        client, writer = self._routes[ticket.target_index]
        if session is None:
            call = writer.write(ticket.prompt, max_tokens=ticket.max_tokens, ignore_eos=ignore_eos)
        else:
            call = session.call(writer, ticket, ignore_eos=ignore_eos)
        sending = Sending(ticket, row, slot, planned_ns, session)
        self._open += 1
        self._idle.clear()
        exchange = client.start(call, row.live, self._over, sending)
        self._recorder.begun(sending, exchange.sent_ns or exchange.begun_ns)

    def _over(self, exchange: Over) -> None:
        sending = exchange.tag
        assert isinstance(sending, Sending)
        record = self._recorder.finished(exchange, sending)
        self._slots.give_back(sending.slot)
        self._count.finished += 1
        if exchange.outcome is Outcome.ABORTED:
            self._count.aborted += 1
        self._open -= 1
        if not self._open:
            self._idle.set()
        if sending.session is not None and self._sending and self._goes_on(exchange, sending, sending.session, record):
            return
        if self._closed and self._sending:
            lane = self._lanes[sending.ticket.target_index]
            if exchange.headers_ns is None and exchange.outcome is not Outcome.TIMEOUT:
                self._client.later(FAILURE_PAUSE_S, partial(self._next_of_user, lane))
            else:
                self._next_of_user(lane)

    # --- sessions ---

    def _begin_session(self, first: Ticket) -> OpenSession | None:
        session = self._source.session(self._stage_index, first)
        if session is None:
            return None
        sticky = session.spec.sticky == "connection"
        client, _ = self._routes[first.target_index]
        opened = OpenSession(session, client.session_connection() if sticky else None)
        self._sessions.add(opened)
        return opened

    def _goes_on(self, exchange: Over, sending: Sending, session: OpenSession, record: RequestRecord) -> bool:
        """Whether another turn follows the one that is over; if so, prepare it and wait for its time."""
        if exchange.outcome is not Outcome.OK or not session.left:
            self._end_session(session, sending.row)
            return False
        due_ns = exchange.done_ns + session.think_ns()
        reading = session.reading(exchange.answer)
        self._client.defer(partial(self._hear, session, record, reading, due_ns, self._lanes[0]))
        return True

    def _hear(
        self,
        session: OpenSession,
        record: RequestRecord,
        reading: Iterator[None],
        due_ns: int,
        lane: Lane,
    ) -> None:
        """Take in an answer in steps of bounded work, then let the user think for what is left of the time."""
        if next(reading, reading) is None:
            self._client.later(SEND_PAUSE_S, partial(self._hear, session, record, reading, due_ns, lane))
            return
        session.answered(record)
        self._next_turn(session, due_ns, lane)

    def _next_turn(self, session: OpenSession, due_ns: int, lane: Lane) -> None:
        """The next turn of a session, once its user has thought; nothing when its stage is over."""
        if not self._sending or lane is not self._lanes[0]:
            return
        wait_ns = due_ns - time.monotonic_ns()
        if wait_ns > 0:  # again, where the timer was early: the loop's own clock lags a little
            self._client.later(wait_ns / 1e9, partial(self._next_turn, session, due_ns, lane))
        else:
            self._send(session.next_ticket(), due_ns, session)

    def _end_session(self, session: OpenSession, row: Row) -> None:
        """No further turn is sent; those that are left are counted."""
        if session.left:
            self._recorder.abandoned(row, session.left)
        session.close()
        self._sessions.discard(session)

    def _drain(self, stage: PlannedStage) -> None:
        """Wait for what is open: the stage's drain, or the shorter one of a halt."""
        begun_ns = time.monotonic_ns()
        while not self._idle.is_set():
            end_ns = begun_ns + int(stage.drain_s * 1e9)
            if self._halt.is_set():
                end_ns = min(end_ns, self._halt_end_ns)
            left_s = (end_ns - time.monotonic_ns()) / 1e9
            if left_s <= 0:
                break
            self._idle.wait(min(left_s, 0.05))
        if not self._idle.is_set():
            self._abort_all(self._halt_reason or f"still open {stage.drain_s:g} s after the stage ended")
            with gevent.Timeout(ABORT_WAIT_S, False):
                self._idle.wait()
