"""What workers of before left undelivered on this disk is sent by the worker that is here now.

A worker that was killed, or whose database was away until the end of the run, leaves a log that is not in
the database as a whole. Whoever works in the same data directory looks for such logs, and sends them slowly.
"""

import contextlib
import fcntl
import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import gevent

from tokswarm.errors import ConfigError, LogError, SinkError
from tokswarm.sink import committed_offset
from tokswarm.sink.influx import EXPORT_STALL_S, InfluxSink, probe
from tokswarm.sink.log_reader import read_log
from tokswarm.sink.pace import LEFT_OVER_CORE_RATIO, Pace
from tokswarm.sink.segments import Segments, segment_paths
from tokswarm.sink.settings import InfluxSettings

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 60.0
QUIET_S = 60.0
"""A log that was written to, or delivered from, less than this ago has somebody of its own."""
KEEP_DAYS = "TOKSWARM_KEEP_RECORDS_DAYS"


def keep_days(environ: Mapping[str, str]) -> float | None:
    """After how many days records are removed, by TOKSWARM_KEEP_RECORDS_DAYS; None: never. ConfigError."""
    written = environ.get(KEEP_DAYS, "").strip()
    if not written:
        return None
    try:
        days = float(written)
    except ValueError:
        days = 0.0
    if not 1.0 <= days < float("inf"):
        raise ConfigError(
            f"{KEEP_DAYS} is {written!r}, expected a number of days, at least 1",
            hint="leave it away to keep the records for good",
        )
    return days


class Leftovers:
    """Sends and clears away, in a greenlet of its own, what earlier processes left in a folder of records."""

    def __init__(
        self,
        records_dir: Path,
        settings: InfluxSettings | None,
        *,
        keep_days: float | None = None,
        quiet_s: float = QUIET_S,
        look_again_s: float = LOOK_AGAIN_S,
    ) -> None:
        """`settings` None: no database, nothing is sent. `keep_days` None: nothing is cleared away."""
        self._records_dir = records_dir
        self._settings = settings
        self._keep_days = keep_days
        self._quiet_s = quiet_s
        self._look_again_s = look_again_s
        self._greenlet: gevent.Greenlet | None = None

    def start(self) -> None:
        """Begin to look."""
        self._greenlet = gevent.spawn(self._run)
        self._greenlet.name = "leftovers"

    def stop(self) -> None:
        """End at once: what is not sent stays where it is."""
        if self._greenlet is not None:
            self._greenlet.kill()

    def _run(self) -> None:
        while True:
            try:
                self._clear()
                self._send()
            except Exception:
                logger.exception("what earlier runs left in %s could not be seen to", self._records_dir)
            gevent.sleep(self._look_again_s)

    def _send(self) -> None:
        settings = self._settings
        if settings is None:
            return
        paths = list(undelivered(self._records_dir, settings.database, quiet_s=self._quiet_s))
        if not paths:
            return
        try:
            probe(settings)
        except SinkError:
            return  # its own log waits, too
        for path in paths:
            with _claimed(path) as mine:
                if mine:
                    _send_log(path, settings)

    def _clear(self) -> None:
        if self._keep_days is None:
            return
        oldest_unix_s = time.time() - self._keep_days * 86_400
        for run_dir in _run_dirs(self._records_dir):
            files = [path for path in run_dir.iterdir() if path.is_file()]
            if any(path.stat().st_mtime > oldest_unix_s for path in [run_dir, *files]):
                continue
            if any(_is_written(path) for path in run_dir.glob("*.log")):
                continue
            logger.info("%s: records older than %g days are removed", run_dir, self._keep_days)
            shutil.rmtree(run_dir, ignore_errors=True)


def undelivered(records_dir: Path, database: str, *, quiet_s: float) -> Iterator[Path]:
    """Logs that a writer began to deliver to this database, that are not there as a whole, and that nobody sees to."""
    for run_dir in _run_dirs(records_dir):
        for path in sorted(run_dir.glob("*.log")):
            offset_path = committed_offset.offset_path(path)
            with contextlib.suppress(OSError, LogError):
                # Without that file the run had no database, and whoever set one up later did not mean that run.
                touched = [part.stat().st_mtime for part in (offset_path, *segment_paths(path))]
                if time.time() - max(touched) < quiet_s or _is_written(path):
                    continue
                with read_log(path) as reader:
                    header = reader.header
                if header is None:
                    continue
                found = committed_offset.load(offset_path, header.run_id)
                if found is not None and found.database == database and found.offset < _end(path):
                    yield path


def _run_dirs(records_dir: Path) -> list[Path]:
    return sorted(path for path in records_dir.iterdir() if path.is_dir()) if records_dir.is_dir() else []


def _end(path: Path) -> int:
    segments = Segments(path)
    try:
        return segments.end()
    finally:
        segments.close()


def _is_written(path: Path) -> bool:
    """Whether a process has the log open for writing: its lock says so."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextlib.contextmanager
def _claimed(path: Path) -> Iterator[bool]:
    """Whether this process is the one of those on the machine that sends a log."""
    with path.with_name(f"{path.name}.sending").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _send_log(path: Path, settings: InfluxSettings) -> None:
    with read_log(path) as reader:
        header = reader.header
    if header is None:
        return
    pace = Pace(LEFT_OVER_CORE_RATIO, behind_bytes=0, to_the_end=True)
    sink = InfluxSink(path, settings, header.run_id, header.worker, pace=pace)
    sink.start()
    delivery = sink.drain(EXPORT_STALL_S)
    left = f"; {delivery.backlog_bytes:,} bytes are left" if delivery.backlog_bytes else ""
    logger.info("%s, left by an earlier process: %d points sent%s", path, delivery.written_points, left)
