"""Watches a run for cliffs while it goes on: puts together what the master knows of each second. Pure.

The fleet's seconds say what falls; the servers' metrics, the answers and the workers' health of the same
seconds say why. What is found becomes events of kind `cliff`.
"""

from collections.abc import Iterable

import msgspec

from tokswarm.insight.cliff import Cliff, CliffDetector, CliffSecond, Demand
from tokswarm.measure.record import Outcome
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import ALL_CLASSES, Event, FleetSecond, WorkerSecond
from tokswarm.traffic.plan import ClosedLoop, Load, OpenLoop, PlannedStage

KIND = "cliff"
STALE_S = 5
"""An older reading of a server says nothing of now."""
KEPT_S = 10
"""Health of workers that is kept for seconds that are not closed yet."""
NOT_OF_THE_ENDPOINT = frozenset(
    {Outcome.OK, Outcome.RATE_LIMITED, Outcome.CONTEXT_LENGTH, Outcome.CLIENT_LIMIT, Outcome.ABORTED, Outcome.LOST}
)
"""Outcomes that are no failure of the endpoint: a prompt too long is the mix's own."""


def demand_of(load: Load) -> Demand | None:
    """What a stage asks for; None: it is not steady."""
    match load:
        case ClosedLoop():
            return Demand(is_open=False, level=load.concurrency)
        case OpenLoop(course=None, bursts=None):
            return Demand(is_open=True, level=load.rate_per_s)
    return None


class CliffWatch:
    """Takes what a master hears, and gives events."""

    def __init__(self) -> None:
        self._detector = CliffDetector()
        self._demands: dict[str, Demand | None] = {}
        self._servers: dict[tuple[str, str], ServerSecond] = {}
        self._health: dict[int, list[WorkerSecond]] = {}

    def stage(self, stage: PlannedStage) -> None:
        """A stage begins."""
        self._demands[stage.name] = demand_of(stage.load)

    def health(self, second: WorkerSecond) -> None:
        """How a worker did in one second."""
        self._health.setdefault(second.second_unix, []).append(second)
        for old in [each for each in self._health if each < second.second_unix - KEPT_S]:
            del self._health[old]

    def server(self, rows: Iterable[ServerSecond]) -> None:
        """What the servers said just now."""
        self._servers.update({(row.target, row.replica): row for row in rows})

    def take(self, rows: Iterable[FleetSecond]) -> list[Event]:
        """Closed seconds of the fleet; events of the cliffs that began or ended with them."""
        by_second: dict[int, list[FleetSecond]] = {}
        for row in rows:
            if row.class_name == ALL_CLASSES:
                by_second.setdefault(row.second_unix, []).append(row)
        return [
            event_of(cliff)
            for second in sorted(by_second)
            for cliff in self._detector.take(self._second(second, by_second[second]))
        ]

    def close(self) -> list[Event]:
        """The run sends no more: every cliff has ended."""
        return [event_of(cliff) for cliff in self._detector.close()]

    def _second(self, second_unix: int, rows: list[FleetSecond]) -> CliffSecond:
        finished: dict[str, int] = {}
        for row in rows:
            for outcome, count in row.finished.items():
                finished[outcome] = finished.get(outcome, 0) + count
        last = rows[-1] if len(rows) == 1 else max(rows, key=lambda row: row.started_per_s)
        bare = CliffSecond(
            second_unix=second_unix,
            demand=self._demand(last) if len(rows) == 1 else None,
            output_tok_per_s=sum(row.output_tok_per_s for row in rows),
            in_flight=sum(row.in_flight for row in rows),
            ended=sum(finished.values()),
            refused=finished.get(Outcome.RATE_LIMITED, 0),
            failed=sum(count for outcome, count in finished.items() if outcome not in NOT_OF_THE_ENDPOINT),
            workers=max(row.workers for row in rows),
            cached_ratio=last.cached_ratio,
        )
        return self._with_health(self._with_servers(bare, last))

    def _demand(self, row: FleetSecond) -> Demand | None:
        demand = self._demands.get(row.stage)
        # A rate that offers nothing any more has ended; what is in flight drains.
        return None if demand is not None and demand.is_open and row.offered_per_s == 0 else demand

    def _with_health(self, second: CliffSecond) -> CliffSecond:
        seen = self._health.pop(second.second_unix, [])
        if not seen:
            return second
        lags = [each.schedule_lag_p99_ms for each in seen if each.schedule_lag_p99_ms is not None]
        return msgspec.structs.replace(
            second,
            loop_lag_ms=max(each.loop_lag_p99_ms for each in seen),
            schedule_lag_ms=max(lags, default=None),
        )

    def _with_servers(self, second: CliffSecond, row: FleetSecond) -> CliffSecond:
        waits_ms = row.queue_wait_p50_ms
        oldest_ns = (second.second_unix - STALE_S) * 1_000_000_000
        fresh = [each for each in self._servers.values() if each.unix_ns >= oldest_ns]
        up = [each for each in fresh if each.up]
        if not up:
            return msgspec.structs.replace(second, queue_wait_ms=waits_ms)
        server_wait_ms = _mean(each.queue_wait_mean_ms for each in up)
        return msgspec.structs.replace(
            second,
            hit_ratio=_hit_ratio(up),
            evictions_per_s=_sum(each.evictions_per_s for each in up),
            preemptions_per_s=_sum(each.preemptions_per_s for each in up),
            recomputed_tok_per_s=_sum(each.recomputed_tok_per_s for each in up),
            waiting=_sum(each.waiting for each in up),
            queue_wait_ms=server_wait_ms if waits_ms is None else waits_ms,
            replicas=frozenset(_replica(each) for each in up),
        )


def event_of(cliff: Cliff) -> Event:
    """The event of a cliff; the same moment and title once it has ended."""
    return Event(
        unix_ns=cliff.from_unix * 1_000_000_000,
        kind=KIND,
        title=f"cliff: {cliff.cause}",
        text=cliff.text,
        end_unix_ns=None if cliff.to_unix is None else cliff.to_unix * 1_000_000_000,
    )


def _replica(row: ServerSecond) -> str:
    return row.replica if row.replicas_ready is None else f"{row.replica} ({row.replicas_ready} ready)"


def _hit_ratio(rows: list[ServerSecond]) -> float | None:
    """Of all replicas, each by the prompt tokens it took up where they are counted."""
    known = [(row.hit_ratio, row.prompt_tok_per_s) for row in rows if row.hit_ratio is not None]
    tokens = sum(weight or 0.0 for _, weight in known)
    if tokens > 0:
        return sum(ratio * (weight or 0.0) for ratio, weight in known) / tokens
    return _mean(ratio for ratio, _ in known)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
