"""Finished requests become records, and records become the counters of the second under way.

The record goes to the log before anything else happens with it.
"""

from collections.abc import Callable, Sequence

import msgspec

from tokswarm.measure.histogram import Buckets, bucket_of
from tokswarm.measure.record import Outcome, RequestRecord
from tokswarm.measure.window import Window, WindowRow
from tokswarm.sink.record_log import RecordLog
from tokswarm.sink.token_budget import TokenBudget
from tokswarm.traffic.mix import TrafficClass
from tokswarm.traffic.ticket import Ticket
from tokswarm.wire.answer import LiveRow
from tokswarm.worker.open_session import OpenSession
from tokswarm.worker.record_of import Ended, record_of

LATE_NS = 10_000_000
"""A request sent later than this after it was due counts as late."""


class Sending:
    """A request on its way, with what the schedule said of it."""

    __slots__ = ("planned_ns", "row", "session", "slot", "stage", "ticket")

    def __init__(
        self, ticket: Ticket, row: "Row", slot: int, planned_ns: int, session: OpenSession | None = None
    ) -> None:
        self.ticket = ticket
        self.row = row
        self.slot = slot
        self.planned_ns = planned_ns
        self.stage = row.stage
        self.session = session


class Row:
    """The counters of one class in one stage: what stays, and what is handed over each second."""

    def __init__(self, class_name: str, stage: str) -> None:
        self.live = LiveRow()
        self.in_flight = 0
        self.open_max_tokens = 0
        self.stage = stage
        self.counted = WindowRow(class_name=class_name, stage=stage)

    def take(self) -> WindowRow | None:
        """The second's counters; None when nothing happened and nothing is open.

        Where `usage` says fewer tokens than there were events, the surplus is taken off the seconds that
        follow, so that none goes below 0 while requests are open; the sum over the stage is exact.
        """
        row, live = self.counted, self.live
        row.output_tokens, live.output_tokens = live.output_tokens, 0
        if row.output_tokens < 0 and self.in_flight:
            row.output_tokens, live.output_tokens = 0, row.output_tokens
        row.itl = live.itl.take()
        row.in_flight = self.in_flight
        row.open_max_tokens = self.open_max_tokens
        self.counted = WindowRow(class_name=row.class_name, stage=row.stage)
        quiet = not (row.offered or row.dropped or row.finished or row.output_tokens or row.itl or row.in_flight)
        return None if quiet and not row.abandoned_turns else row


class Recorder:
    """Writes records to the log and keeps the rows of the second under way."""

    def __init__(
        self,
        *,
        worker: str,
        worker_index: int,
        classes: list[TrafficClass],
        target_names: Sequence[str],
        log: RecordLog,
        wall_offset_ns: Callable[[], int],
        token_budget: TokenBudget | None = None,
    ) -> None:
        """`token_budget`: None when every token may become a point of a database."""
        self._worker = worker
        self._next_id = worker_index << 40
        self._classes = classes
        self._target_names = list(target_names)
        self._log = log
        self._wall_offset_ns = wall_offset_ns
        self._token_budget = token_budget
        self._rows: dict[tuple[int, str], Row] = {}
        self._sequence = 0
        self.on_record: Callable[[RequestRecord], None] | None = None
        self.records = 0
        self.output_tokens = 0
        self.merged_arrivals = 0
        self.unstamped_arrivals = 0
        self.lag_ns: Buckets = {}
        """Schedule lag of the second under way, all classes."""

    def row(self, class_index: int, stage: str) -> Row:
        """The counters of a class in a stage."""
        key = (class_index, stage)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = Row(self._classes[class_index].name, stage)
        return row

    def begun(self, sending: Sending, sent_ns: int) -> None:
        """A request was sent."""
        row = sending.row
        row.in_flight += 1
        counted = row.counted
        counted.offered += 1
        counted.started += 1
        ticket = sending.ticket
        counted.asked_prompt_tokens += ticket.prompt_tokens
        counted.asked_max_tokens += ticket.max_tokens
        row.open_max_tokens += ticket.max_tokens
        lag_ns = max(sent_ns - sending.planned_ns, 0)
        if lag_ns > LATE_NS:
            counted.late += 1
        bucket = bucket_of(lag_ns)
        counted.schedule_lag[bucket] = counted.schedule_lag.get(bucket, 0) + 1
        self.lag_ns[bucket] = self.lag_ns.get(bucket, 0) + 1

    def dropped(self, row: Row) -> None:
        """A request was due and could not be sent, because too many are open."""
        row.counted.offered += 1
        row.counted.dropped += 1

    def abandoned(self, row: Row, turns: int) -> None:
        """So many turns of a session will not be sent, because one failed."""
        row.counted.abandoned_turns += turns

    def finished(self, exchange: Ended, sending: Sending) -> RequestRecord:
        """A request is over: log it, count it."""
        row = sending.row
        record = record_of(
            exchange,
            sending,
            request_id=self._next_id,
            traffic_class=self._classes[sending.ticket.class_index],
            target_name=self._target_names[sending.ticket.target_index],
            wall_offset_ns=self._wall_offset_ns(),
        )
        self._next_id += 1
        if self._token_budget is not None:
            share = self._token_budget.share(len(record.arrivals) // 8)
            record = msgspec.structs.replace(record, token_share=share)
        self._log.append(record)
        self.records += 1
        self.output_tokens += record.output_tokens
        self.merged_arrivals += record.merged_arrivals
        self.unstamped_arrivals += record.unstamped_arrivals
        row.in_flight -= 1
        row.open_max_tokens -= sending.ticket.max_tokens
        row.live.output_tokens += record.output_tokens - len(record.arrivals) // 8
        _count(row.counted, record)
        if self.on_record is not None:
            self.on_record(record)
        return record

    def take(self, second_unix: int) -> Window:
        """Close the second: its window. Rows in which nothing happened go, so that stages of the past cost nothing."""
        if self._token_budget is not None:
            self._token_budget.next_second()
        rows = []
        for key, row in list(self._rows.items()):
            taken = row.take()
            if taken is None:
                del self._rows[key]
            else:
                rows.append(taken)
        window = Window(worker=self._worker, second_unix=second_unix, sequence=self._sequence, rows=rows)
        self._sequence += 1
        return window


def _count(counted: WindowRow, record: RequestRecord) -> None:
    outcome = record.outcome.value
    counted.finished[outcome] = counted.finished.get(outcome, 0) + 1
    if record.slo_met is not None:
        counted.slo_known += 1
        counted.slo_met += record.slo_met
    if record.outcome is not Outcome.OK:
        return
    if record.prompt_tokens is not None:
        counted.prompt_tokens += record.prompt_tokens
        if record.cached_tokens is not None:
            counted.cache_known_prompt_tokens += record.prompt_tokens
            counted.cached_tokens += record.cached_tokens
            counted.ideal_cached_tokens += record.ideal_cached_tokens or 0
    if record.first_token_ns is not None:
        _add(counted.ttft, record.first_token_ns - record.sent_ns)
    _add(counted.e2e, record.done_ns - record.sent_ns)
    if record.queue_wait_ms is not None:
        _add(counted.queue_wait, int(record.queue_wait_ms * 1e6))


def _add(buckets: Buckets, value_ns: int) -> None:
    bucket = bucket_of(value_ns)
    buckets[bucket] = buckets.get(bucket, 0) + 1
