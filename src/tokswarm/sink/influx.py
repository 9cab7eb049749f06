"""The InfluxDB writer: a consumer of a record log that an outage only delays.

It reads the log from its committed offset, formats it in slices so short that the loop of the worker
stays true to the microsecond, packs blocks of lines off the loop, and commits the offset once a block
is in the database. What it cannot deliver stays in the log. It never raises into the load.
"""

import gzip
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, perf_counter, thread_time

import gevent
import msgspec
from gevent.event import Event as Signal

from tokswarm.errors import LogError, SinkError
from tokswarm.sink import committed_offset
from tokswarm.sink.influx_endpoint import InfluxEndpoint
from tokswarm.sink.line_protocol import PIECE_ARRIVALS, FormatCounts, LineFormatter
from tokswarm.sink.pace import LIVE_CORE_RATIO, Pace
from tokswarm.sink.record_log import LogReader, read_log
from tokswarm.sink.segments import Segments
from tokswarm.sink.settings import InfluxSettings
from tokswarm.sink.write_answer import Answer, Refused, Rejected, Retry, TooLarge, Written

logger = logging.getLogger(__name__)

BLOCK_LINES = 5_000
BLOCK_BYTES = 4 << 20
"""Before packing."""
SMALLEST_BLOCK_BYTES = 1 << 16
BLOCK_AGE_S = 1.0
"""A block that does not fill is sent after this, so that boards stay live."""
POLL_S = 0.2

SLICE_S = 0.0005
PAUSE_S = 0.0015
"""Formatting takes at most a quarter of the loop's time; a positive sleep lets the sockets in."""

SHORTEST_SLEEP_S = 1e-5

FIRST_RETRY_S = 0.5
LAST_RETRY_S = 10.0
REFUSED_RETRY_S = 15.0
LAST_RETRY_AT_END_S = 1.0
END_GRACE_S = 0.5
EXPORT_STALL_S = 60.0
"""An export gives up when no block was taken for this long."""
REASONS_KEPT = 20


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a log."""

    written_points: int
    dropped_points: int
    """Refused by the database for good, each for a reason that was logged."""
    backlog_bytes: int
    """Of the log, not in the database; the log keeps them."""
    error: str | None
    """Why there is a backlog or a drop, or that the log is damaged; None when all is well."""
    left_out: FormatCounts
    """Values of delivered points that no database takes, and texts cut short."""


class InfluxSink:
    """Delivers one record log to one database, in a greenlet of its own, from `start` to `stop`."""

    def __init__(
        self,
        log_path: Path,
        settings: InfluxSettings,
        run_id: str,
        worker: str,
        *,
        offset_path: Path | None = None,
        from_start: bool = False,
        pace: Pace | None = None,
    ) -> None:
        """`pace`: None is that of a run that goes on."""
        self._log_path = log_path
        self._run_id = run_id
        self._offset_path = offset_path or committed_offset.offset_path(log_path)
        self._database = settings.database
        self._offset = 0 if from_start else committed_offset.load_offset(self._offset_path, run_id, self._database)
        self._pace = pace or Pace(LIVE_CORE_RATIO)
        self._busy_s = 0.0
        """CPU time spent on the block under way."""
        self._formatter = LineFormatter(run_id=run_id, worker=worker, token_points=settings.token_points)
        self._endpoint = InfluxEndpoint(settings)
        self._reader: LogReader | None = None
        self._segments: Segments | None = None
        self._pieces: Iterator[list[bytes]] = iter(())
        self._entry_end = self._offset
        """Where the entry ends that `_pieces` is of."""
        self._read_to = self._offset
        """Where the last entry ends whose lines were all handed over."""
        self._torn_bytes = 0
        self._block_bytes = BLOCK_BYTES
        self._greenlet: gevent.Greenlet | None = None
        self._ending = Signal()
        self._give_up_at = float("inf")
        self._stall_s: float | None = None
        self._delivery: Delivery | None = None
        self._slice_began = 0.0
        self._random = random.Random()  # noqa: S311 - spreads retries, keeps no secret
        self._failing_since: float | None = None
        self._said: str | None = None
        self._drop_reasons: dict[str, int] = {}
        self._commit_failed = False
        self.written_points = 0
        """Points the database took since the sink was made."""
        self.dropped_points = 0
        """Points the database will never take."""
        self.error: str | None = None
        """Why the last write failed; None when it did not."""

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the log that are not in the database."""
        return max(self._log_end() - self._offset, 0)

    def delivered_offset(self) -> int:
        """Up to which offset of the log everything is in the database."""
        return self._offset

    def start(self) -> None:
        """Begin to deliver."""
        self._greenlet = gevent.spawn(self._run)
        self._greenlet.name = f"influx-sink {self._log_path.name}"

    def stop(self, deadline_s: float) -> Delivery:
        """Deliver what the log holds now, within the deadline, and end; asking again gives the same answer."""
        if self._delivery is None:
            self._give_up_at = min(self._give_up_at, monotonic() + deadline_s)
            self._ending.set()
            if self._greenlet is not None:
                self._greenlet.join(deadline_s + END_GRACE_S)
                self._greenlet.kill()
        if self._delivery is None:
            self._delivery = self._close()
        return self._delivery

    def drain(self, stall_s: float) -> Delivery:
        """Deliver the whole log however long it takes; ends when no point was taken for `stall_s`."""
        self._stall_s = stall_s
        self._give_up_at = monotonic() + stall_s
        self._ending.set()
        if self._greenlet is not None:
            self._greenlet.join()
        return self.stop(0.0)

    def _run(self) -> None:
        try:
            self._keep_offset()  # so that whoever finds the log knows that a database is waiting for it
            self._slice_began = perf_counter()
            while True:
                began, self._busy_s = monotonic(), 0.0
                lines = self._collect()
                collected_s = monotonic() - began
                if lines and not self._deliver(lines):
                    return
                self._commit()
                if lines and not self._hastens:
                    self._rest(collected_s)
                if self._ending.is_set() and not lines:
                    return
        except LogError as error:
            self._failed("log", str(error))
        except Exception:
            self.error = "the writer itself failed; the log of this process says how"
            logger.exception("the InfluxDB writer of %s ended; what is undelivered stays in the log", self._log_path)

    def _close(self) -> Delivery:
        left_out = self._formatter.counts
        if any(left_out):
            logger.warning(
                "of %s: %d values and %d packed gaps were left out of their points, %d texts shortened",
                self._log_path,
                left_out.values_dropped,
                left_out.packs_dropped,
                left_out.texts_shortened,
            )
        backlog_bytes = max(self.backlog_bytes - self._torn_bytes, 0)
        delivery = Delivery(
            written_points=self.written_points,
            dropped_points=self.dropped_points,
            backlog_bytes=backlog_bytes,
            error=self._trouble(backlog_bytes),
            left_out=left_out,
        )
        self._endpoint.close()
        if self._reader is not None:
            self._reader.close()
        if self._segments is not None:
            self._segments.close()
        return delivery

    def _trouble(self, backlog_bytes: int) -> str | None:
        parts = [] if self.error is None else [self.error]
        parts += [f"{count} points refused: {reason}" for reason, count in self._drop_reasons.items()]
        if self._reader is not None and self._reader.damaged_bytes:
            parts.append(f"{self._reader.damaged_bytes} bytes of the record log are damaged")
        if self._torn_bytes:
            parts.append(f"{self._torn_bytes} bytes at the end of the record log are torn")
        if not parts and backlog_bytes:
            parts.append("no more time")
        return "; ".join(parts) or None

    # --- from the log to lines

    def _collect(self) -> list[bytes]:
        """The next block of lines; empty when the log has no more and there is nothing to wait for."""
        lines: list[bytes] = []
        size = 0
        began = monotonic()
        while True:
            for piece in self._pieces:
                lines += piece
                size += sum(map(len, piece))
                self._breathe()
                if len(lines) > BLOCK_LINES - PIECE_ARRIVALS or size >= self._block_bytes:
                    return lines  # this entry may have more
            self._read_to = self._entry_end
            reader = self._open_reader()
            found = next(reader, None) if reader is not None else None
            if found is not None and not self._out_of_time():
                entry, self._entry_end = found
                self._pieces = self._formatter.pieces(entry)
            elif found is None and self._ending.is_set():
                self._torn_bytes = 0 if reader is None else reader.torn_bytes
                return lines
            elif self._ending.is_set() or (lines and monotonic() - began >= BLOCK_AGE_S):
                return lines
            else:
                if not lines:
                    self._commit()
                    began = monotonic()
                self._ending.wait(POLL_S)
                self._slice_began = perf_counter()

    def _open_reader(self) -> LogReader | None:
        if self._reader is None and self._log_path.exists():
            if self._offset > self._log_end():
                self._offset = 0  # another log took its place
            reader = read_log(self._log_path, self._offset)
            if reader.header is None:
                reader.close()
                return None
            self._reader = reader
            self._offset = self._read_to = self._entry_end = reader.offset
        return self._reader

    def _log_end(self) -> int:
        try:
            if self._segments is None:
                self._segments = Segments(self._log_path)
            return self._segments.end()
        except OSError:
            return 0

    @property
    def _hastens(self) -> bool:
        """Only the rest is to be delivered, and no load is in the way."""
        return self._ending.is_set() and not self._pace.to_the_end

    def _rest(self, collected_s: float) -> None:
        """After a block: leave the CPU to the load, as far as the backlog allows."""
        rest_s = self._pace.rest_s(busy_s=self._busy_s, took_s=collected_s, backlog_bytes=self.backlog_bytes)
        if rest_s > 0:
            if self._ending.is_set():
                gevent.sleep(rest_s)
            else:
                self._ending.wait(rest_s)
            self._slice_began = perf_counter()

    def _breathe(self) -> None:
        spent_s = perf_counter() - self._slice_began
        if spent_s >= SLICE_S:
            self._busy_s += spent_s
            gevent.sleep(SHORTEST_SLEEP_S if self._hastens else PAUSE_S)
            self._slice_began = perf_counter()

    # --- from lines to the database

    def _deliver(self, lines: list[bytes]) -> bool:
        """Bring every line into the database or count it as refused; False when time ran out."""
        parts = [lines]
        tries = 0
        while parts:
            if self._out_of_time():
                return False
            part = parts.pop()
            answer = self._send(part)
            match answer:
                case Written():
                    self._took(len(part))
                    tries = 0
                case Retry() | Refused():
                    parts.append(part)
                    tries += 1
                    self._failed(f"{type(answer).__name__} {answer.error[:3]}", answer.error)
                    if not self._wait(answer, tries):
                        return False
                case TooLarge(error) if len(part) == 1:
                    self._dropped(1, error)
                case TooLarge():
                    self._block_bytes = max(sum(map(len, part)) // 2, SMALLEST_BLOCK_BYTES)
                    parts += _halves(part)
                case Rejected(error, dropped) if dropped is not None or len(part) == 1:
                    refused = min(dropped or 1, len(part))
                    self._took(len(part) - refused)
                    self._dropped(refused, error)
                case Rejected():
                    parts += _halves(part)
        return True

    def _send(self, lines: list[bytes]) -> Answer:
        packed, busy_s = gevent.get_hub().threadpool.apply(_pack, (lines,))
        self._busy_s += busy_s
        answer = self._endpoint.write(packed)
        self._slice_began = perf_counter()
        return answer

    def _wait(self, answer: Retry | Refused, tries: int) -> bool:
        """Wait before the next try; False when the end of the sink leaves no sense in one."""
        if isinstance(answer, Retry) and answer.after_s is not None:
            until = monotonic() + answer.after_s * self._random.uniform(1.0, 1.1)
            self._ending.wait(until - monotonic())
            if self._ending.is_set() and until > self._give_up_at:
                return False
            gevent.sleep(max(until - monotonic(), SHORTEST_SLEEP_S))
            return True
        if isinstance(answer, Refused):
            if self._ending.is_set():
                return False
            delay_s = REFUSED_RETRY_S
        else:
            delay_s = min(FIRST_RETRY_S * 2 ** min(tries - 1, 10), LAST_RETRY_S)
        delay_s *= self._random.uniform(0.5, 1.0)
        if self._ending.is_set():
            gevent.sleep(max(min(delay_s, LAST_RETRY_AT_END_S, self._give_up_at - monotonic()), SHORTEST_SLEEP_S))
        else:
            self._ending.wait(delay_s)
        return True

    def _took(self, points: int) -> None:
        self.written_points += points
        if self._stall_s is not None:
            self._give_up_at = monotonic() + self._stall_s
        if self._failing_since is not None:
            logger.info("the database takes points again, after %.1f s", monotonic() - self._failing_since)
            self._failing_since = None
            self._said = None
        self.error = None

    def _failed(self, kind: str, error: str) -> None:
        self.error = error
        if self._failing_since is None:
            self._failing_since = monotonic()
        if kind != self._said:
            self._said = kind
            logger.warning("points wait in %s, the database does not take them: %s", self._log_path, error)

    def _dropped(self, points: int, reason: str) -> None:
        self.dropped_points += points
        if reason not in self._drop_reasons and len(self._drop_reasons) >= REASONS_KEPT:
            reason = "other reasons"
        if reason not in self._drop_reasons:
            logger.warning("the database refuses points of %s for good: %s", self._log_path, reason)
        self._drop_reasons[reason] = self._drop_reasons.get(reason, 0) + points

    def _commit(self) -> None:
        if self._read_to == self._offset:
            return
        self._offset = self._read_to
        self._keep_offset()

    def _keep_offset(self) -> None:
        try:
            committed_offset.commit_offset(self._offset_path, self._run_id, self._offset, self._database)
        except OSError as error:
            # A writer that starts again sends some points twice, and they replace themselves.
            if not self._commit_failed:
                logger.warning("%s: the offset cannot be kept: %s", self._offset_path, error)
            self._commit_failed = True

    def _out_of_time(self) -> bool:
        return monotonic() >= self._give_up_at


def _halves(lines: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """The second half and the first, as a stack takes them."""
    middle = len(lines) // 2
    return lines[middle:], lines[:middle]


def _pack(lines: list[bytes]) -> tuple[bytes, float]:
    """The block, and the CPU time it cost."""
    began = thread_time()
    return gzip.compress(b"\n".join(lines), 1), thread_time() - began


def probe(settings: InfluxSettings) -> str:
    """Say what kind of database is there, without looking for organisations or buckets. SinkError."""
    endpoint = InfluxEndpoint(settings)
    try:
        return endpoint.describe()
    finally:
        endpoint.close()


def export_run(run_dir: Path, settings: InfluxSettings, *, from_start: bool = False) -> Delivery:
    """Deliver every record log of a run: what is not in the database by its committed offset, or all of it.

    SinkError when the database cannot be reached or the run has no logs. What was sent before and is
    sent again replaces itself.
    """
    logs = sorted((run_dir / "logs").glob("*.log"))
    if not logs:
        raise SinkError(f"{run_dir / 'logs'}: there are no record logs", hint="name the folder of a run")
    probe(settings)
    deliveries = [_export_log(path, settings, from_start=from_start) for path in logs]
    errors = [f"{path.name}: {one.error}" for path, one in zip(logs, deliveries, strict=True) if one.error is not None]
    return Delivery(
        written_points=sum(one.written_points for one in deliveries),
        dropped_points=sum(one.dropped_points for one in deliveries),
        backlog_bytes=sum(one.backlog_bytes for one in deliveries),
        error="; ".join(errors) or None,
        left_out=FormatCounts(*(sum(counts) for counts in zip(*(one.left_out for one in deliveries), strict=True))),
    )


def _export_log(path: Path, settings: InfluxSettings, *, from_start: bool) -> Delivery:
    try:
        with read_log(path) as reader:
            header, torn_bytes = reader.header, reader.torn_bytes
    except LogError as error:
        return _undelivered(path.stat().st_size, str(error))
    if header is None:
        return _undelivered(0, f"{torn_bytes} bytes at the end of the record log are torn" if torn_bytes else None)
    sink = InfluxSink(path, settings, header.run_id, header.worker, from_start=from_start)
    sink.start()
    return sink.drain(EXPORT_STALL_S)


def _undelivered(backlog_bytes: int, error: str | None) -> Delivery:
    return Delivery(
        written_points=0, dropped_points=0, backlog_bytes=backlog_bytes, error=error, left_out=FormatCounts(0, 0, 0)
    )
