"""Finished requests become records, and records become the counters of the second under way.

The record goes to the log before anything else happens with it.
"""

from array import array
from collections.abc import Callable

from tokswarm.measure.histogram import Buckets, bucket_of
from tokswarm.measure.record import Outcome, QueueWaitSource, RequestRecord, TokenSource
from tokswarm.measure.window import Window, WindowRow
from tokswarm.sink.record_log import RecordLog
from tokswarm.traffic.mix import Limit, Slo, TrafficClass
from tokswarm.traffic.ticket import Ticket
from tokswarm.wire.answer import Answer, LiveRow
from tokswarm.wire.exchange import Exchange

COALESCED_ARRIVALS = 8
LATE_NS = 10_000_000
"""A request sent later than this after it was due counts as late."""


class Sending:
    """A request on its way, with what the schedule said of it."""

    __slots__ = ("planned_ns", "row", "slot", "ticket")

    def __init__(self, ticket: Ticket, row: "Row", slot: int, planned_ns: int) -> None:
        self.ticket = ticket
        self.row = row
        self.slot = slot
        self.planned_ns = planned_ns


class Row:
    """The counters of one class in one stage: what stays, and what is handed over each second."""

    def __init__(self, class_name: str, stage: str) -> None:
        self.live = LiveRow()
        self.in_flight = 0
        self.counted = WindowRow(class_name=class_name, stage=stage)

    def take(self) -> WindowRow | None:
        """The second's counters; None when nothing happened and nothing is open."""
        row, live = self.counted, self.live
        row.output_tokens, live.output_tokens = live.output_tokens, 0
        row.itl = live.itl.take()
        row.in_flight = self.in_flight
        self.counted = WindowRow(class_name=row.class_name, stage=row.stage)
        quiet = not (row.offered or row.dropped or row.finished or row.output_tokens or row.itl or row.in_flight)
        return None if quiet else row


class Recorder:
    """Writes records to the log and keeps the rows of the second under way."""

    def __init__(
        self,
        *,
        worker: str,
        worker_index: int,
        classes: list[TrafficClass],
        target_name: str,
        log: RecordLog,
        wall_offset_ns: Callable[[], int],
    ) -> None:
        self._worker = worker
        self._next_id = worker_index << 40
        self._classes = classes
        self._target_name = target_name
        self._log = log
        self._wall_offset_ns = wall_offset_ns
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

    def finished(self, exchange: Exchange, sending: Sending) -> RequestRecord:
        """A request is over: log it, count it."""
        row = sending.row
        record = self._record(exchange, sending)
        self._log.append(record)
        self.records += 1
        self.output_tokens += record.output_tokens
        self.merged_arrivals += record.merged_arrivals
        self.unstamped_arrivals += record.unstamped_arrivals
        row.in_flight -= 1
        row.live.output_tokens += record.output_tokens - len(record.arrivals) // 8
        _count(row.counted, record)
        if self.on_record is not None:
            self.on_record(record)
        return record

    def take(self, second_unix: int) -> Window:
        """Close the second: its window."""
        rows = [taken for row in self._rows.values() if (taken := row.take()) is not None]
        window = Window(worker=self._worker, second_unix=second_unix, sequence=self._sequence, rows=rows)
        self._sequence += 1
        return window

    def _record(self, exchange: Exchange, sending: Sending) -> RequestRecord:
        ticket, answer = sending.ticket, exchange.answer
        traffic_class = self._classes[ticket.class_index]
        sent_ns = exchange.sent_ns
        stamps_ns = answer.stamps_ns
        usage = answer.usage
        outcome = exchange.outcome
        assert outcome is not None
        output_tokens, source = _output_tokens(answer)
        record_id = self._next_id
        self._next_id += 1
        return RequestRecord(
            request_id=record_id,
            slot=sending.slot,
            class_name=traffic_class.name,
            stage=sending.row.counted.stage,
            target=self._target_name,
            outcome=outcome,
            planned_ns=sending.planned_ns,
            sent_ns=sent_ns,
            sent_unix_ns=sent_ns + self._wall_offset_ns(),
            done_ns=exchange.done_ns,
            headers_ns=exchange.headers_ns,
            first_token_ns=answer.first_token_ns,
            first_output_ns=answer.first_output_ns,
            last_token_ns=answer.last_token_ns,
            connect_ms=None if exchange.connect_ns is None else exchange.connect_ns / 1e6,
            status=exchange.status,
            error=exchange.error,
            served_by=exchange.served_by,
            prompt_tokens_planned=ticket.prompt_tokens,
            prompt_tokens=None if usage is None else usage.prompt,
            max_tokens=ticket.max_tokens,
            output_tokens=output_tokens,
            output_tokens_source=source,
            reasoning_tokens=None if usage is None else usage.reasoning,
            cached_tokens=None if usage is None else usage.cached,
            ideal_cached_tokens=ticket.ideal_cached_tokens,
            queue_wait_ms=answer.queue_wait_ms,
            queue_wait_source=None if answer.queue_wait_ms is None else QueueWaitSource.SERVER,
            finish_reason=answer.finish_reason,
            slo_met=meets(traffic_class.slo, exchange, output_tokens),
            merged_arrivals=answer.merged_arrivals,
            unstamped_arrivals=answer.unstamped_arrivals,
            arrivals=array("q", [stamp - sent_ns for stamp in stamps_ns]).tobytes(),
            arrival_tokens=_arrival_tokens(answer, output_tokens),
            coalesced=is_coalesced(len(stamps_ns), answer.merged_arrivals),
        )


def _output_tokens(answer: Answer) -> tuple[int, TokenSource]:
    """Output tokens and where the count is from."""
    counts = answer.counts()
    stated = None if answer.usage is None else answer.usage.output
    if counts is not None and stated is not None and sum(counts) == stated:
        return stated, TokenSource.CONTINUOUS_USAGE
    if stated is not None:
        return stated, TokenSource.USAGE
    return len(answer.stamps_ns), TokenSource.CHUNKS


def _arrival_tokens(answer: Answer, output_tokens: int) -> bytes:
    counts = answer.counts()
    if counts is not None and sum(counts) == output_tokens:
        return b"" if set(counts) == {1} else counts.tobytes()
    return apportion(output_tokens, len(answer.stamps_ns))


def is_coalesced(arrivals: int, merged_arrivals: int) -> bool:
    """Whether a proxy delivered the answer in a few bursts: at least 8 arrivals in at most an eighth as many reads.

    The gaps between its tokens, and its first token, then say nothing of the server.
    """
    return arrivals >= COALESCED_ARRIVALS and (arrivals - merged_arrivals) * COALESCED_ARRIVALS <= arrivals


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


def apportion(tokens: int, arrivals: int) -> bytes:
    """Tokens of each arrival, uint32, when the server counted other than one each; else empty.

    The whole number is shared out evenly; what is left over falls to the last arrivals (an
    end-of-text token that shows no text is counted by servers and belongs to the last).
    """
    if tokens == arrivals or not arrivals:
        return b""
    each, rest = divmod(tokens, arrivals)
    return array("I", [each] * (arrivals - rest) + [each + 1] * rest).tobytes()


def meets(slo: Slo | None, exchange: Exchange, output_tokens: int) -> bool | None:
    """Whether a request met its class's limits, each the limit of the highest quantile named; None without limits.

    The limit on ITL holds for the request's mean (TPOT); one without a second token has none to miss.
    """
    if slo is None:
        return None
    if exchange.outcome is not Outcome.OK:
        return False
    answer = exchange.answer
    if slo.ttft is not None:
        limit_ns = _limit_ns(slo.ttft)
        if answer.first_token_ns is None or answer.first_token_ns - exchange.sent_ns > limit_ns:
            return False
    if slo.itl is not None and output_tokens > 1 and answer.first_token_ns is not None:
        assert answer.last_token_ns is not None
        if (answer.last_token_ns - answer.first_token_ns) / (output_tokens - 1) > _limit_ns(slo.itl):
            return False
    return slo.e2e is None or exchange.done_ns - exchange.sent_ns <= _limit_ns(slo.e2e)


def _limit_ns(limit: Limit) -> float:
    chosen = next(value for value in (limit.p99, limit.p95, limit.p90, limit.p50) if value is not None)
    return chosen.seconds * 1e9
