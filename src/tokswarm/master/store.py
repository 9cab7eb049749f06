"""The run store: runs, their seconds and events in one SQLite file on the master.

Writes go through one native thread, reads through another, so that a slow disk never holds up the
master's loop. Seconds and events are collected and written in one transaction a second.
"""

import logging
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import gevent
import msgspec
from gevent.threadpool import ThreadPool

from tokswarm.errors import TokswarmError, UnknownRunError
from tokswarm.master.run import MASTER_ENDED, RunInfo, RunState
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

FLUSH_INTERVAL_S = 1.0
SCHEMA_VERSION = 3

_TEXT_COLUMNS = ("class_name", "stage", "finished")
_REAL_ENDINGS = ("_ms", "_ratio")
SECOND_COLUMNS = FleetSecond.__struct_fields__
"""The columns of `seconds` after `run_id`: the fields of FleetSecond; `finished` is JSON text."""


SERVER_COLUMNS = ServerSecond.__struct_fields__
"""The columns of `server_seconds` after `run_id`: the fields of ServerSecond."""

Entry = FleetSecond | ServerSecond | Event
"""What a run adds while it goes on."""


def _column(name: str) -> str:
    if name in _TEXT_COLUMNS:
        return f"{name} TEXT NOT NULL"
    return f"{name} {'REAL' if name.endswith(_REAL_ENDINGS) else 'INTEGER'}"


_SERVER_TYPES = {str: "TEXT NOT NULL", str | None: "TEXT", int: "INTEGER NOT NULL", int | None: "INTEGER"}
_SERVER_SCHEMA = f"""
CREATE TABLE server_seconds (
    run_id TEXT NOT NULL,
    {", ".join(f"{name} {_SERVER_TYPES.get(kind, 'REAL')}" for name, kind in get_type_hints(ServerSecond).items())},
    PRIMARY KEY (run_id, unix_ns, target, replica)
) WITHOUT ROWID;
"""
_COLUMNS_SINCE_1 = ("run_second", "ttft_limit_ms", "itl_limit_ms", "e2e_limit_ms")
_FROM_1 = " ".join(f"ALTER TABLE seconds ADD COLUMN {_column(name)};" for name in _COLUMNS_SINCE_1)
_MISSING = {1: _FROM_1 + _SERVER_SCHEMA, 2: _SERVER_SCHEMA}
"""What a store of an older schema lacks."""
_SCHEMA = f"""
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    started_unix_ns INTEGER NOT NULL,
    state TEXT NOT NULL,
    info TEXT NOT NULL,
    mix_yaml TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE seconds (
    run_id TEXT NOT NULL,
    {", ".join(_column(name) for name in SECOND_COLUMNS)},
    PRIMARY KEY (run_id, second_unix, stage, class_name)
) WITHOUT ROWID;
CREATE TABLE events (
    run_id TEXT NOT NULL,
    unix_ns INTEGER NOT NULL,
    kind TEXT NOT NULL,
    title TEXT NOT NULL,
    text TEXT NOT NULL,
    end_unix_ns INTEGER,
    PRIMARY KEY (run_id, unix_ns, kind, title)
) WITHOUT ROWID;
{_SERVER_SCHEMA}
PRAGMA user_version = {SCHEMA_VERSION};
"""


def _insertion(table: str, columns: tuple[str, ...]) -> str:
    values = ", ".join("?" * (len(columns) + 1))
    return f"INSERT OR REPLACE INTO {table} (run_id, {', '.join(columns)}) VALUES ({values})"  # noqa: S608 -- names of our own


_INSERT_SECOND = _insertion("seconds", SECOND_COLUMNS)
_INSERT_SERVER = _insertion("server_seconds", SERVER_COLUMNS)


class Store:
    """All runs this master drove. Open it once per process; `close` may be called twice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = 0
        """Seconds and events that could not be written; they are in the run's own log."""
        self._writes = ThreadPool(1)
        self._reads = ThreadPool(1)
        self._pending: list[tuple[str, Entry]] = []
        self._writer: gevent.Greenlet | None = None
        self._warned = False
        self._closed = False

    def open(self) -> None:
        """Create or open the file. TokswarmError when it cannot be used or a newer tokswarm wrote it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write_to = self._writes.apply(self._connect)
            self._writes.apply(self._prepare)
            self._read_from = self._reads.apply(self._connect)
        except (OSError, sqlite3.Error) as error:
            raise TokswarmError(
                f"the run store {self.path} cannot be opened: {error}",
                hint="check that the data directory is writable and on a local disk, or choose another with --data-dir",
            ) from error
        self._writer = gevent.spawn(self._flush_each_second)

    def close(self) -> None:
        """Write what is pending and close."""
        if self._closed:
            return
        self._closed = True
        if self._writer is not None:
            self._writer.kill()
            self.flush()
            self._writes.apply(self._write_to.close)
            self._reads.apply(self._read_from.close)
        self._writes.kill()
        self._reads.kill()

    # --- writing ------------------------------------------------------------------------------

    def add_run(self, info: RunInfo, mix_yaml: str) -> None:
        """A run begins; on the disk when this returns."""
        self._in_transaction(
            lambda db: db.execute(
                "INSERT INTO runs (run_id, started_unix_ns, state, info, mix_yaml) VALUES (?, ?, ?, ?, ?)",
                (info.run_id, info.started_unix_ns, info.state, msgspec.json.encode(info).decode(), mix_yaml),
            )
        )

    def update_run(self, info: RunInfo) -> None:
        """A run went on; on the disk when this returns."""
        self._in_transaction(
            lambda db: db.execute(
                "UPDATE runs SET state = ?, info = ? WHERE run_id = ?",
                (info.state, msgspec.json.encode(info).decode(), info.run_id),
            )
        )

    def add(self, run_id: str, entries: Iterable[Entry]) -> None:
        """Seconds and events of a run; written within the second, or by `flush`. One given again replaces the first."""
        self._pending += [(run_id, entry) for entry in entries]

    def flush(self) -> None:
        """Write what is pending. A failure is counted and logged once: the run's own log has the data."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        try:
            self._in_transaction(lambda db: _insert(db, pending))
        except TokswarmError as error:
            self.lost += len(pending)
            if not self._warned:
                self._warned = True
                _log.warning("%s; the seconds are kept in the run's log", error)

    # --- reading ------------------------------------------------------------------------------

    def runs(self) -> list[RunInfo]:
        """All runs, newest first."""
        rows = self._read("SELECT info FROM runs ORDER BY started_unix_ns DESC, run_id DESC", ())
        return [msgspec.json.decode(row[0], type=RunInfo) for row in rows]

    def run(self, run_id: str) -> tuple[RunInfo, str]:
        """One run and its mix. UnknownRunError."""
        rows = self._read("SELECT info, mix_yaml FROM runs WHERE run_id = ?", (run_id,))
        if not rows:
            raise UnknownRunError(f"no run has the id {run_id!r}", hint="list the runs to see their ids")
        return msgspec.json.decode(rows[0][0], type=RunInfo), rows[0][1]

    def seconds(self, run_id: str) -> list[FleetSecond]:
        """All seconds of a run, oldest first. UnknownRunError."""
        self.run(run_id)
        rows = self._read(
            f"SELECT {', '.join(SECOND_COLUMNS)} FROM seconds WHERE run_id = ? ORDER BY second_unix, stage, class_name",  # noqa: S608 -- column names of our own struct
            (run_id,),
        )
        return [_second(row) for row in rows]

    def server_seconds(self, run_id: str) -> list[ServerSecond]:
        """What the servers of a run said of themselves, oldest first. UnknownRunError."""
        self.run(run_id)
        rows = self._read(
            f"SELECT {', '.join(SERVER_COLUMNS)} FROM server_seconds WHERE run_id = ? ORDER BY unix_ns, replica",  # noqa: S608 -- column names of our own struct
            (run_id,),
        )
        return [ServerSecond(**dict(zip(SERVER_COLUMNS, row, strict=True))) for row in rows]

    def events(self, run_id: str) -> list[Event]:
        """All events of a run, oldest first. UnknownRunError."""
        self.run(run_id)
        rows = self._read(
            "SELECT unix_ns, kind, title, text, end_unix_ns FROM events WHERE run_id = ? ORDER BY unix_ns", (run_id,)
        )
        return [
            Event(unix_ns=unix_ns, kind=kind, title=title, text=text, end_unix_ns=end_unix_ns)
            for unix_ns, kind, title, text, end_unix_ns in rows
        ]

    def end_interrupted_runs(self) -> list[RunInfo]:
        """Mark runs that were under way when the last master ended as failed; gives them back."""
        ended: list[RunInfo] = []
        for info in self.runs():
            if info.state.is_over:
                continue
            last = self._read("SELECT max(second_unix) FROM seconds WHERE run_id = ?", (info.run_id,))[0][0]
            failed = msgspec.structs.replace(
                info,
                state=RunState.FAILED,
                error=MASTER_ENDED,
                ended_unix_ns=info.started_unix_ns if last is None else (last + 1) * 1_000_000_000,
            )
            self.update_run(failed)
            ended.append(failed)
        return ended

    # --- the two threads ------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None, timeout=5)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        return db

    def _prepare(self) -> None:
        version = self._write_to.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            self._write_to.executescript(_SCHEMA)
        elif version in _MISSING:
            self._write_to.executescript(f"BEGIN; {_MISSING[version]} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        elif version != SCHEMA_VERSION:
            raise TokswarmError(
                f"the run store {self.path} has schema {version}, this tokswarm reads {SCHEMA_VERSION}",
                hint="use the tokswarm that wrote it, or another --data-dir",
            )

    def _in_transaction(self, work: Callable[[sqlite3.Connection], Any]) -> None:
        def whole() -> None:
            db = self._write_to
            db.execute("BEGIN IMMEDIATE")
            try:
                work(db)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # some failures, such as a full disk, have rolled back already
                    db.execute("ROLLBACK")
                raise

        try:
            self._writes.apply(whole)
        except sqlite3.Error as error:
            raise TokswarmError(
                f"the run store {self.path} cannot be written: {error}", hint="check the disk of the data directory"
            ) from error

    def _read(self, query: str, values: tuple[Any, ...]) -> list[Any]:
        try:
            return self._apply_read(lambda: self._read_from.execute(query, values).fetchall())
        except sqlite3.Error as error:
            raise TokswarmError(
                f"the run store {self.path} cannot be read: {error}", hint="check the disk of the data directory"
            ) from error

    def _apply_read(self, work: Callable[[], _T]) -> _T:
        result: _T = self._reads.apply(work)
        return result

    def _flush_each_second(self) -> None:
        while True:
            gevent.sleep(FLUSH_INTERVAL_S)
            self.flush()


def _insert(db: sqlite3.Connection, entries: list[tuple[str, Entry]]) -> None:
    seconds = [(run_id, *_values(entry)) for run_id, entry in entries if isinstance(entry, FleetSecond)]
    db.executemany(_INSERT_SECOND, seconds)
    servers = [
        (run_id, *msgspec.structs.astuple(entry)) for run_id, entry in entries if isinstance(entry, ServerSecond)
    ]
    db.executemany(_INSERT_SERVER, servers)
    db.executemany(
        "INSERT OR REPLACE INTO events (run_id, unix_ns, kind, title, text, end_unix_ns) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (run_id, entry.unix_ns, entry.kind, entry.title, entry.text, entry.end_unix_ns)
            for run_id, entry in entries
            if isinstance(entry, Event)
        ],
    )


def _values(second: FleetSecond) -> list[Any]:
    return [
        msgspec.json.encode(second.finished).decode() if name == "finished" else getattr(second, name)
        for name in SECOND_COLUMNS
    ]


def _second(row: tuple[Any, ...]) -> FleetSecond:
    values = dict(zip(SECOND_COLUMNS, row, strict=True))
    values["finished"] = msgspec.json.decode(values["finished"], type=dict[str, int])
    return FleetSecond(**values)
