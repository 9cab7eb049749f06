"""What a run tells of itself while it goes on: its state in short, notes, events, closed seconds.

The course of the run decides; the account passes on: to the store, the run's journal, the live page.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

import msgspec

from tokswarm.master.cliff_watch import CliffWatch
from tokswarm.master.clock import Clock
from tokswarm.master.run import NEXT_STATES, RunInfo, RunState
from tokswarm.measure.record import Outcome
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import ALL_CLASSES, Event, FleetSecond, WindowRow, WorkerSecond
from tokswarm.traffic.plan import PlannedStage


class RunJournal(Protocol):
    """Where the master's own account of a run goes: its log, the database, the store, the live page."""

    def seconds(self, rows: list[FleetSecond]) -> None:
        """Closed seconds of the fleet."""
        ...

    def server(self, rows: list[ServerSecond]) -> None:
        """What the servers behind the run's targets said of themselves."""
        ...

    def event(self, event: Event) -> None:
        """Something that belongs on every graph; given again with an end, it replaces the first."""
        ...

    @property
    def database_error(self) -> str:
        """Why the master's last write to the database failed; empty when it did not, or there is none."""
        ...

    def close(self) -> list[str]:
        """Write the rest, in bounded time; notes on what was not delivered."""
        ...


class Account:
    """The account of one run. `info` is the run in short, as it is now."""

    def __init__(
        self,
        info: RunInfo,
        *,
        journal: RunJournal,
        clock: Clock,
        on_change: Callable[[RunInfo], None],
        warmup_stages: Collection[str],
    ) -> None:
        """`on_change` hears of each change of state; `warmup_stages` set no peak."""
        self.info = info
        self._journal = journal
        self._clock = clock
        self._on_change = on_change
        self._warmup_stages = warmup_stages
        self._cliffs = CliffWatch()
        self._database_troubles: set[str] = set()

    def enter(self, state: RunState) -> None:
        """Go on to a state that may follow."""
        if state not in NEXT_STATES[self.info.state]:
            raise AssertionError(f"a run cannot go from {self.info.state} to {state}")
        self.change(state=state)

    def change(self, **changes: Any) -> None:
        """Change what the run is in short, and say so."""
        self.info = msgspec.structs.replace(self.info, **changes)
        self._on_change(self.info)

    def note(self, note: str) -> None:
        """Something a reader of the run should know; once."""
        if note not in self.info.notes:
            self.info = msgspec.structs.replace(self.info, notes=(*self.info.notes, note))

    def event(
        self, kind: str, title: str, text: str, *, unix_ns: int | None = None, end_unix_ns: int | None = None
    ) -> None:
        """Something that belongs on every graph; `unix_ns` None: now."""
        if unix_ns is None:
            unix_ns = self._clock.unix_ns()
        self._journal.event(Event(unix_ns=unix_ns, kind=kind, title=title, text=text, end_unix_ns=end_unix_ns))

    def seconds(self, rows: list[FleetSecond]) -> None:
        """Closed seconds of the fleet."""
        if not rows:
            return
        self._journal.seconds(rows)
        for cliff in self._cliffs.take(rows):
            self._journal.event(cliff)
        rates = [r.output_tok_per_s for r in rows if r.class_name == ALL_CLASSES and r.stage not in self._warmup_stages]
        if rates:
            peak_tok_per_s = max(float(max(rates)), self.info.peak_tok_per_s or 0.0)
            self.info = msgspec.structs.replace(self.info, peak_tok_per_s=peak_tok_per_s)

    def server(self, rows: list[ServerSecond]) -> None:
        """What the servers behind the targets said of themselves."""
        self._journal.server(rows)
        self._cliffs.server(rows)

    def stage(self, stage: PlannedStage) -> None:
        """A stage begins."""
        self._cliffs.stage(stage)
        self.change(stage=stage.name)

    def health(self, second: WorkerSecond) -> None:
        """How a worker did in one second."""
        self._cliffs.health(second)

    def server_trouble(self, title: str, text: str) -> None:
        """That the servers' own metrics cannot be read; the run goes on without them."""
        self.event("server-metrics", title, text)
        self.note(f"{title}: {text}")

    def window(self, rows: Iterable[WindowRow]) -> None:
        """Add what a worker saw in one second to the totals."""
        requests = dict(self.info.requests)
        output_tokens = self.info.output_tokens
        for row in rows:
            output_tokens += row.output_tokens
            for outcome, count in row.finished.items():
                requests[outcome] = requests.get(outcome, 0) + count
        self.info = msgspec.structs.replace(self.info, requests=requests, output_tokens=output_tokens)

    def lost(self, worker: str, in_flight: int, reason: str) -> None:
        """A worker was given up, with what it had open."""
        if in_flight:
            requests = dict(self.info.requests)
            requests[Outcome.LOST] = requests.get(Outcome.LOST, 0) + in_flight
            self.info = msgspec.structs.replace(self.info, requests=requests)
        text = f"{reason}; {in_flight} requests were in flight and count as lost"
        self.event("worker", f"worker {worker} lost", text)
        self.note(f"worker {worker} was lost: {text}")

    def database_trouble(self, who: str, error: str) -> None:
        """That somebody's data do not go into the database, once for each; an empty `error`: they do."""
        if not error or who in self._database_troubles:
            return
        self._database_troubles.add(who)
        self.event("database", f"the database does not take the data of {who}", error)
        self.note(f"the database did not take data of {who} at first try: {error}; nothing is lost, the log has it")

    def own_database_trouble(self) -> None:
        """The same of the master's own data."""
        self.database_trouble("the master", self._journal.database_error)

    def close(self) -> list[str]:
        """Write the rest, in bounded time; notes on what was not delivered."""
        for cliff in self._cliffs.close():
            self._journal.event(cliff)
        return self._journal.close()
