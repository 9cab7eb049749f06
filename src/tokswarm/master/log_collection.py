"""The logs of a run on their way to its master: some workers at a time, a note on each that does not come whole."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from tokswarm.master.clock import Clock
from tokswarm.master.link import FleetLink
from tokswarm.master.log_fetch import LogFetches
from tokswarm.worker.messages import Chunk, Fetch

FETCH_TIMEOUT_S = 600.0
FETCHES_AT_ONCE = 8


class Wait(Protocol):
    """Takes in what comes until something is done, or the time is up."""

    def __call__(self, done: Callable[[], bool], *, within_s: float) -> bool:
        """Whether it was done in time."""
        ...


class LogCollection:
    """Asks the workers of one run for their logs. `collect` waits; `take` and `ask_again` are for whoever takes in."""

    def __init__(self, *, run_id: str, run_dir: Path, fleet: FleetLink, clock: Clock) -> None:
        self._run_id = run_id
        self._logs_dir = run_dir / "logs"
        self._fleet = fleet
        self._clock = clock
        self._fetches: LogFetches | None = None
        self._holders: Mapping[str, str] = {}

    def collect(self, holders: Mapping[str, str], wait: Wait) -> list[str]:
        """Fetch the logs of these workers, each from the worker of the fleet that has it; notes on incomplete ones."""
        notes: list[str] = []
        self._holders = holders
        workers = list(holders)
        for first in range(0, len(workers), FETCHES_AT_ONCE):
            fetches = LogFetches(
                workers[first : first + FETCHES_AT_ONCE],
                run_id=self._run_id,
                logs_dir=self._logs_dir,
                now_s=self._clock.monotonic_s(),
            )
            self._fetches = fetches
            self._ask(fetches.questions())
            wait(lambda: self._fetches is None or self._fetches.done, within_s=FETCH_TIMEOUT_S)
            notes += fetches.close(f"not done within {FETCH_TIMEOUT_S:g} s")
        self._fetches = None
        return notes

    def take(self, chunk: Chunk, *, now_s: float) -> None:
        """Keep a piece and ask for the next; nothing when no log is being fetched."""
        if self._fetches is not None:
            self._ask(self._fetches.take(chunk.worker, chunk, now_s=now_s))

    def ask_again(self, *, now_s: float) -> None:
        """Ask once more for what is overdue."""
        if self._fetches is not None:
            self._ask(self._fetches.overdue(now_s=now_s))

    def _ask(self, questions: list[tuple[str, Fetch]]) -> None:
        for worker, question in questions:
            self._fleet.send(self._holders[worker], question)
