"""The live merge: windows of the workers become seconds of the fleet. Pure.

A second is closed once every worker that takes part has delivered it, or once it is `PATIENCE_S`
old. What comes after that is late: counted, still part of the totals, no longer on the live graphs;
the record logs have it for the report.
"""

from collections.abc import Collection, Iterable

from tokswarm.measure.histogram import Buckets, mean_ms, merge, quantile_ms
from tokswarm.measure.window import ALL_CLASSES, FleetSecond, Window, WindowRow

PATIENCE_S = 2.5
"""Age of a second, from its end, at which it is closed without the missing workers; also when one is given up."""


class WindowMerge:
    """Collects windows and gives back closed seconds, oldest first."""

    def __init__(self, *, limited_classes: Collection[str] = ()) -> None:
        """`limited_classes`: those with service-level objectives; the others have no goodput."""
        self._limited = frozenset(limited_classes)
        self._open: dict[int, list[Window]] = {}
        self._newest: dict[str, int] = {}
        self._next_sequence: dict[str, int] = {}
        self._closed_to: int | None = None
        self.missing = 0
        """Windows that never came, by the gaps in the workers' sequence numbers."""
        self.late = 0
        """Windows that came after their second was closed."""

    def add(self, window: Window) -> None:
        """Take in one worker's second."""
        expected = self._next_sequence.get(window.worker, 0)
        if window.sequence < expected:  # a window said to be missing has come after all
            self.missing -= 1
        else:
            self.missing += window.sequence - expected
            self._next_sequence[window.worker] = window.sequence + 1
        self._newest[window.worker] = max(window.second_unix, self._newest.get(window.worker, window.second_unix))
        if self._closed_to is not None and window.second_unix <= self._closed_to:
            self.late += 1
        else:
            self._open.setdefault(window.second_unix, []).append(window)

    def take(self, *, now_unix_s: float, workers: Collection[str]) -> list[FleetSecond]:
        """Close what is complete or overdue; `workers` are those still expected to deliver."""
        closed: list[FleetSecond] = []
        for second in sorted(self._open):
            complete = all(self._newest.get(worker, -1) >= second for worker in workers)
            overdue = now_unix_s >= second + 1 + PATIENCE_S
            if not (complete or overdue):
                break
            closed += fleet_seconds(second, self._open.pop(second), self._limited)
            self._closed_to = second
        return closed

    def take_rest(self) -> list[FleetSecond]:
        """Close everything: no worker will deliver any more."""
        closed: list[FleetSecond] = []
        for second in sorted(self._open):
            closed += fleet_seconds(second, self._open.pop(second), self._limited)
            self._closed_to = second
        return closed


def fleet_seconds(second_unix: int, windows: Iterable[Window], limited: Collection[str]) -> list[FleetSecond]:
    """One row per stage and class, and one per stage for all classes together."""
    cells: dict[tuple[str, str], list[tuple[str, WindowRow]]] = {}
    for window in windows:
        for row in window.rows:
            for class_name in (row.class_name, ALL_CLASSES):
                cells.setdefault((row.stage, class_name), []).append((window.worker, row))
    return [
        _fleet_second(
            second_unix,
            stage=stage,
            class_name=class_name,
            workers=len({worker for worker, _ in cell}),
            rows=[row for _, row in cell],
            limited=bool(limited) if class_name == ALL_CLASSES else class_name in limited,
        )
        for (stage, class_name), cell in sorted(cells.items())
    ]


def _fleet_second(
    second_unix: int, *, stage: str, class_name: str, workers: int, rows: list[WindowRow], limited: bool
) -> FleetSecond:
    finished: dict[str, int] = {}
    for row in rows:
        for outcome, count in row.finished.items():
            finished[outcome] = finished.get(outcome, 0) + count
    slo_met = sum(row.slo_met for row in rows)
    cache_known = sum(row.cache_known_prompt_tokens for row in rows)
    ttft = merge(row.ttft for row in rows)
    itl = merge(row.itl for row in rows)
    e2e = merge(row.e2e for row in rows)
    queue_wait = merge(row.queue_wait for row in rows)
    return FleetSecond(
        second_unix=second_unix,
        class_name=class_name,
        stage=stage,
        workers=workers,
        output_tok_per_s=sum(row.output_tokens for row in rows),
        prompt_tok_per_s=sum(row.prompt_tokens for row in rows),
        offered_per_s=sum(row.offered for row in rows),
        started_per_s=sum(row.started for row in rows),
        finished=finished,
        in_flight=sum(row.in_flight for row in rows),
        dropped=sum(row.dropped for row in rows),
        late=sum(row.late for row in rows),
        goodput_per_s=slo_met if limited else None,
        goodput_ratio=_share(slo_met, sum(row.slo_known for row in rows)),
        cached_ratio=_share(sum(row.cached_tokens for row in rows), cache_known),
        ideal_cached_ratio=_share(sum(row.ideal_cached_tokens for row in rows), cache_known),
        ttft_p50_ms=quantile_ms(ttft, 0.5),
        ttft_p90_ms=quantile_ms(ttft, 0.9),
        ttft_p99_ms=quantile_ms(ttft, 0.99),
        itl_p50_ms=quantile_ms(itl, 0.5),
        itl_p90_ms=quantile_ms(itl, 0.9),
        itl_p99_ms=quantile_ms(itl, 0.99),
        e2e_p50_ms=quantile_ms(e2e, 0.5),
        e2e_p90_ms=quantile_ms(e2e, 0.9),
        e2e_p99_ms=quantile_ms(e2e, 0.99),
        e2e_mean_ms=mean_ms(e2e),
        queue_wait_p50_ms=quantile_ms(queue_wait, 0.5),
        queue_wait_p90_ms=quantile_ms(queue_wait, 0.9),
        queue_wait_p99_ms=quantile_ms(queue_wait, 0.99),
        schedule_lag_p99_ms=_schedule_lag_p99_ms(rows),
    )


def _schedule_lag_p99_ms(rows: list[WindowRow]) -> float | None:
    lags: Buckets = merge(row.schedule_lag for row in rows)
    return quantile_ms(lags, 0.99)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
