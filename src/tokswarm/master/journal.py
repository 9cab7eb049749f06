"""The master's own account of a run: its record log first, from there the database; the store; the live page.

`llm_fleet`, `llm_server` and `llm_event` reach the database the way the workers' records do: out of a log on the
disk, so that an outage only delays them.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from tokswarm.master.store import Store
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond
from tokswarm.sink.influx import InfluxSink
from tokswarm.sink.record_log import RecordLog
from tokswarm.sink.settings import InfluxSettings

_log = logging.getLogger(__name__)

MASTER = "master"
"""The master's name in its log; no worker may have it."""
CLOSE_DEADLINE_S = 5.0


class Journal:
    """Takes seconds and events and hands them on to all who keep or show them. Close it once the run is over."""

    def __init__(
        self,
        *,
        run_id: str,
        run_dir: Path,
        store: Store,
        influx: InfluxSettings | None,
        show: Callable[[Sequence[FleetSecond | ServerSecond | Event]], None],
    ) -> None:
        """`influx` None: no database. `show` is told of everything new. LogError when the log cannot be made."""
        self._run_id = run_id
        self._store = store
        self._show = show
        self._record_log = RecordLog(run_dir / "logs" / f"{MASTER}.log", run_id=run_id, worker=MASTER)
        self._sink: InfluxSink | None = None
        if influx is not None:
            self._sink = InfluxSink(self._record_log.path, influx, run_id=run_id, worker=MASTER)
            self._sink.start()
        self._closed = False

    def seconds(self, rows: list[FleetSecond]) -> None:
        """Closed seconds of the fleet."""
        for row in rows:
            self._record_log.append(row)
        self._store.add(self._run_id, rows)
        self._show(rows)

    def server(self, rows: list[ServerSecond]) -> None:
        """What the servers behind the run's targets said of themselves."""
        for row in rows:
            self._record_log.append(row)
        self._store.add(self._run_id, rows)
        self._show(rows)

    def event(self, event: Event) -> None:
        """Something that belongs on every graph; given again with an end, it replaces the first."""
        self._record_log.append(event)
        self._store.add(self._run_id, [event])
        self._show([event])

    @property
    def database_error(self) -> str:
        """Why the last write to the database failed; empty when it did not, or there is none."""
        return self._sink.error or "" if self._sink is not None else ""

    def close(self) -> list[str]:
        """Write the rest, in bounded time; notes on what was not delivered. Closing again does nothing."""
        if self._closed:
            return []
        self._closed = True
        notes: list[str] = []
        if self._record_log.lost:
            notes.append(f"{self._record_log.lost} seconds and events could not be written to the master's log")
        if self._sink is not None:
            delivery = self._sink.stop(CLOSE_DEADLINE_S)
            if delivery.backlog_bytes or delivery.dropped_points:
                notes.append(
                    f"the master's log: {delivery.backlog_bytes} bytes are not in the database yet, "
                    f"{delivery.dropped_points} points were refused ({delivery.error or 'no more time'}); "
                    "send them with `tokswarm export`"
                )
        self._record_log.close()
        self._store.flush()
        return notes
