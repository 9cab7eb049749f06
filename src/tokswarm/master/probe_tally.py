"""What one probe of a search achieved, second by second, once its load has settled. Pure."""

import math
from collections.abc import Iterable

from tokswarm.measure.record import Outcome
from tokswarm.measure.window import WindowRow
from tokswarm.traffic.plan import ClosedLoop, PlannedStage

SETTLE_RATIO = 0.25
"""Of a probe's length; its queues and batches fill meanwhile."""


class ProbeTally:
    """Takes the windows of a stage. In a closed loop the first wave of requests, sent all at once, is left out."""

    def __init__(self, stage: PlannedStage, *, goal: str, start_unix_ns: int) -> None:
        self._stage = stage.name
        self._goal = goal
        self._first_wave = stage.load.concurrency if isinstance(stage.load, ClosedLoop) else 0
        self._settled_unix = start_unix_ns / 1e9 + SETTLE_RATIO * stage.duration_s
        # Requests are judged when they end, in the drain too; how much is going on only while the load is sent.
        self._end_unix = start_unix_ns / 1e9 + stage.duration_s if goal == "knee" else math.inf
        self._counts: dict[int, tuple[int, int, int]] = {}
        self._newest: dict[str, int] = {}

    def take(self, worker: str, second_unix: int, rows: Iterable[WindowRow]) -> None:
        """One worker's second."""
        self._newest[worker] = max(second_unix, self._newest.get(worker, second_unix))
        for row in rows:
            if row.stage == self._stage:
                met, known, ended = self._counts.get(second_unix, (0, 0, 0))
                row_met, row_known = _counted(row, self._goal)
                self._counts[second_unix] = (met + row_met, known + row_known, ended + sum(row.finished.values()))

    def has_heard(self, workers: Iterable[str], second_unix: int) -> bool:
        """Whether each of the workers has delivered that second."""
        return all(self._newest.get(worker, -1) >= second_unix for worker in workers)

    def seconds(self) -> list[tuple[int, int]]:
        """(met, known) of each settled second, in order; with the goal `knee` (output tokens, in flight)."""
        taken, ended_before = [], 0
        for second_unix, (met, known, ended) in sorted(self._counts.items()):
            is_settled = self._settled_unix <= second_unix and second_unix + 1 <= self._end_unix
            if is_settled and ended_before >= self._first_wave:
                taken.append((met, known))
            ended_before += ended
        return taken


def _counted(row: WindowRow, goal: str) -> tuple[int, int]:
    if goal == "slo":
        return row.slo_met, row.slo_known
    if goal == "knee":
        return row.output_tokens, row.in_flight
    ended = sum(count for outcome, count in row.finished.items() if outcome != Outcome.CLIENT_LIMIT)
    return row.finished.get(Outcome.OK, 0), ended
