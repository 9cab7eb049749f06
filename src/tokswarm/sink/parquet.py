"""A run's record logs as Parquet tables: made after the run, in a process of its own, in bounded memory.

requests.parquet  one row per request: the fields of RequestRecord, worker, and what follows from them
workers.parquet   one row per worker and second: the fields of WorkerSecond
fleet.parquet     one row per class, stage and second: the fields of FleetSecond
server.parquet    one row per replica of the target and scrape of its metrics: the fields of ServerSecond
events.json       a list of the run's events
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import polars as pl
from polars.io.plugins import register_io_source

from tokswarm.errors import LogError
from tokswarm.measure.record import Outcome, RequestRecord
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond, Window, WorkerSecond
from tokswarm.sink.record_log import LogReader, read_log

BATCH_ROWS = 10_000
"""Rows of a row group."""
BATCH_ARRIVALS_BYTES = 16 << 20
"""A batch of long answers ends earlier than its rows."""


class LogCounts(msgspec.Struct, kw_only=True):
    """What the logs of a run held."""

    requests: int = 0
    output_tokens: int = 0
    windows: int = 0
    worker_seconds: int = 0
    fleet_seconds: int = 0
    server_seconds: int = 0
    events: int = 0
    torn_bytes: int = 0
    """At the ends of logs, of entries a crash broke off."""
    damaged_bytes: int = 0
    """In the middle of logs, stepped over."""
    unreadable: list[str] = msgspec.field(default_factory=list)
    """Logs of which nothing could be read, and why."""


class _Column:
    """One column: its name, type, and how it is read from an entry."""

    def __init__(self, name: str, dtype: pl.DataType, read: Callable[[Any], Any] | None = None) -> None:
        self.name = name
        self.dtype = dtype
        self.read = read or attrgetter(name)


_DTYPES: dict[type, pl.DataType] = {bool: pl.Boolean(), int: pl.Int64(), float: pl.Float64(), str: pl.String()}


def _dtype(annotation: Any) -> pl.DataType:
    if type(None) in get_args(annotation):
        [annotation] = [kind for kind in get_args(annotation) if kind is not type(None)]
    return next(dtype for kind, dtype in _DTYPES.items() if issubclass(annotation, kind))


def _field_columns(struct: type[msgspec.Struct], *, without: Sequence[str] = ()) -> list[_Column]:
    hints = get_type_hints(struct)
    return [_Column(name, _dtype(hints[name])) for name in struct.__struct_fields__ if name not in without]


_REQUEST_COLUMNS = [
    *_field_columns(RequestRecord, without=("arrivals", "arrival_tokens")),
    *(_Column(name, pl.Float64()) for name in ("ttft_ms", "ttfo_ms", "tpot_ms", "e2e_ms", "schedule_lag_ms")),
    _Column("arrivals_ns", pl.List(pl.Int64()), RequestRecord.arrival_offsets_ns),
    _Column("arrival_tokens", pl.List(pl.UInt32()), RequestRecord.token_counts),
]
_WORKER_COLUMNS = _field_columns(WorkerSecond)
_SERVER_COLUMNS = _field_columns(ServerSecond)
_FLEET_COLUMNS = [
    *_field_columns(FleetSecond, without=("finished",)),
    _Column("finished_total", pl.Int64(), lambda second: sum(second.finished.values())),
    _Column("finished_ok", pl.Int64(), lambda second: second.finished.get(Outcome.OK, 0)),
    _Column("rate_limited", pl.Int64(), lambda second: second.finished.get(Outcome.RATE_LIMITED, 0)),
    _Column("finished_json", pl.String(), lambda second: msgspec.json.encode(second.finished).decode()),
]


def _frame(columns: Iterable[_Column], entries: Sequence[object]) -> pl.DataFrame:
    # Not strict: a server may claim counts beyond 64 bits, which become absent.
    return pl.DataFrame(
        [
            pl.Series(column.name, [column.read(entry) for entry in entries], dtype=column.dtype, strict=False)
            for column in columns
        ]
    )


class _Table:
    """A small table that grows: rows are packed into frames as they come."""

    def __init__(self, columns: list[_Column]) -> None:
        self._columns = columns
        self._rows: list[object] = []
        self._frames: list[pl.DataFrame] = []

    def add(self, row: object) -> None:
        """One row more."""
        self._rows.append(row)
        if len(self._rows) == BATCH_ROWS:
            self._frames.append(_frame(self._columns, self._rows))
            self._rows = []

    def frame(self) -> pl.DataFrame:
        """All rows."""
        return pl.concat([*self._frames, _frame(self._columns, self._rows)])


class _Requests:
    """The requests of all logs as a stream of frames; what else the logs hold is put aside on the way."""

    def __init__(self, log_paths: Iterable[Path]) -> None:
        self.counts = LogCounts()
        self.worker_seconds = _Table(_WORKER_COLUMNS)
        self.fleet_seconds = _Table(_FLEET_COLUMNS)
        self.server_seconds = _Table(_SERVER_COLUMNS)
        self.events: list[Event] = []
        self._log_paths = list(log_paths)

    def frames(self) -> Iterator[pl.DataFrame]:
        """Frames of requests, log by log; at least one, which may be empty."""
        yield self._requests_frame([], "")
        for path in self._log_paths:
            try:
                reader = read_log(path)
            except LogError as error:
                self.counts.unreadable.append(str(error))
                continue
            with reader:
                yield from self._frames_of(reader)
            self.counts.torn_bytes += reader.torn_bytes
            self.counts.damaged_bytes += reader.damaged_bytes

    def _frames_of(self, reader: LogReader) -> Iterator[pl.DataFrame]:
        worker = reader.header.worker if reader.header is not None else ""
        batch: list[RequestRecord] = []
        arrivals_bytes = 0
        for entry, _ in reader:
            if isinstance(entry, RequestRecord):
                batch.append(entry)
                arrivals_bytes += len(entry.arrivals)
                if len(batch) >= BATCH_ROWS or arrivals_bytes >= BATCH_ARRIVALS_BYTES:
                    yield self._requests_frame(batch, worker)
                    batch, arrivals_bytes = [], 0
            else:
                self._put_aside(entry)
        if batch:
            yield self._requests_frame(batch, worker)

    def _requests_frame(self, batch: list[RequestRecord], worker: str) -> pl.DataFrame:
        self.counts.requests += len(batch)
        self.counts.output_tokens += sum(record.output_tokens for record in batch)
        frame = _frame(_REQUEST_COLUMNS, batch)
        return frame.insert_column(0, pl.Series("worker", [worker] * len(batch), dtype=pl.String()))

    def _put_aside(self, entry: Window | WorkerSecond | FleetSecond | ServerSecond | Event) -> None:
        match entry:
            case Window():
                self.counts.windows += 1
            case WorkerSecond():
                self.counts.worker_seconds += 1
                self.worker_seconds.add(entry)
            case FleetSecond():
                self.counts.fleet_seconds += 1
                self.fleet_seconds.add(entry)
            case ServerSecond():
                self.counts.server_seconds += 1
                self.server_seconds.add(entry)
            case Event():
                self.counts.events += 1
                self.events.append(entry)


def write_parquet(log_paths: Iterable[Path], out_dir: Path) -> LogCounts:
    """Write the tables of these logs into a folder and say what the logs held.

    A log that cannot be read at all is named in the counts and leaves out its rows alone. Each file
    appears whole or not at all.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    requests = _Requests(log_paths)
    frames = requests.frames()
    first = next(frames)

    def source(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        del with_columns, predicate, n_rows, batch_size  # everything is asked for: the plan is one sink
        yield first
        yield from frames

    lazy = register_io_source(source, schema=first.schema)
    _replace(out_dir / "requests.parquet", lambda path: lazy.sink_parquet(path, **_PARQUET))
    for name, table in (
        ("workers", requests.worker_seconds),
        ("fleet", requests.fleet_seconds),
        ("server", requests.server_seconds),
    ):
        _replace(out_dir / f"{name}.parquet", partial(table.frame().write_parquet, **_PARQUET))
    newest = {
        (event.unix_ns, event.kind, event.title): event for event in requests.events
    }  # with its end, if it has one
    events = sorted(newest.values(), key=lambda event: event.unix_ns)
    encoded = msgspec.json.format(msgspec.json.encode([msgspec.structs.asdict(event) for event in events]))
    _replace(out_dir / "events.json", lambda path: path.write_bytes(encoded))
    return requests.counts


_PARQUET: dict[str, Any] = {"compression": "zstd", "row_group_size": BATCH_ROWS}


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    new = path.with_name(f"{path.name}.new")
    try:
        write(new)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
