"""The live merge: windows of the workers become seconds of the fleet. Pure.

A second is closed once every worker that takes part has delivered it, or once it is `PATIENCE_S`
old. What comes after that is late: counted, still part of the totals, no longer on the live graphs;
the record logs have it for the report.
"""

from collections.abc import Collection, Iterable, Mapping

from tokswarm.measure.histogram import mean_ms, quantile_ms
from tokswarm.measure.window import ALL_CLASSES, FleetSecond, Window, WindowRow
from tokswarm.traffic.mix import Limit, Slo

PATIENCE_S = 2.5
"""Age of a second, from its end, at which it is closed without the missing workers; also when one is given up."""


class WindowMerge:
    """Collects windows and gives back closed seconds, oldest first."""

    def __init__(self, *, limits: Mapping[str, Slo] | None = None) -> None:
        """`limits`: of the classes that have some; the others have no goodput."""
        self._limits: Mapping[str, Slo] = limits or {}
        self._first_second: int | None = None
        self._open: dict[int, Cells] = {}
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
            # Added as it comes, not at the close: the master's loop is never held up by all windows at once.
            _add(self._open.setdefault(window.second_unix, {}), window)

    def take(self, *, now_unix_s: float, workers: Collection[str]) -> list[FleetSecond]:
        """Close what is complete or overdue; `workers` are those still expected to deliver."""
        closed: list[FleetSecond] = []
        for second in sorted(self._open):
            complete = all(self._newest.get(worker, -1) >= second for worker in workers)
            overdue = now_unix_s >= second + 1 + PATIENCE_S
            if not (complete or overdue):
                break
            closed += self._closed(second)
            self._closed_to = second
        return closed

    def take_rest(self) -> list[FleetSecond]:
        """Close everything: no worker will deliver any more."""
        closed: list[FleetSecond] = []
        for second in sorted(self._open):
            closed += self._closed(second)
            self._closed_to = second
        return closed

    def _closed(self, second: int) -> list[FleetSecond]:
        cells = self._open.pop(second)
        if cells and self._first_second is None:
            self._first_second = second
        return _close(second, cells, self._limits, self._first_second)


class _Cell:
    """The sum of the rows of one stage and class in one second, and whose they are."""

    __slots__ = ("sum", "workers")

    def __init__(self, stage: str, class_name: str) -> None:
        self.sum = WindowRow(class_name=class_name, stage=stage)
        self.workers: set[str] = set()

    def add(self, row: WindowRow) -> None:
        whole = self.sum
        for name in _COUNTS:
            setattr(whole, name, getattr(whole, name) + getattr(row, name))
        for name in _TALLIES:
            tally = getattr(whole, name)
            for key, count in getattr(row, name).items():
                tally[key] = tally.get(key, 0) + count


Cells = dict[tuple[str, str], _Cell]
"""By stage and class."""

_TALLIES = ("finished", "ttft", "itl", "e2e", "queue_wait", "schedule_lag")
_COUNTS = tuple(name for name in WindowRow.__struct_fields__ if name not in (*_TALLIES, "class_name", "stage"))


def fleet_seconds(second_unix: int, windows: Iterable[Window], limited: Collection[str]) -> list[FleetSecond]:
    """One row per stage and class, and one per stage for all classes together; `limited` have limits."""
    cells: Cells = {}
    for window in windows:
        _add(cells, window)
    return _close(second_unix, cells, dict.fromkeys(limited, Slo()), None)


def _add(cells: Cells, window: Window) -> None:
    for row in window.rows:
        place = (row.stage, row.class_name)
        cell = cells.get(place)
        if cell is None:
            cell = cells[place] = _Cell(*place)
        cell.add(row)
        cell.workers.add(window.worker)


def _close(second_unix: int, cells: Cells, limits: Mapping[str, Slo], first_second: int | None) -> list[FleetSecond]:
    whole: Cells = {}
    for (stage, _), cell in cells.items():
        place = (stage, ALL_CLASSES)
        if place not in whole:
            whole[place] = _Cell(*place)
        whole[place].add(cell.sum)
        whole[place].workers |= cell.workers
    return [
        _fleet_second(
            second_unix,
            cell,
            limited=bool(limits) if class_name == ALL_CLASSES else class_name in limits,
            slo=limits.get(class_name, _NO_LIMITS),
            run_second=None if first_second is None else second_unix - first_second,
        )
        for (_, class_name), cell in sorted((cells | whole).items())
    ]


_NO_LIMITS = Slo()


def _limit_ms(limit: Limit | None) -> float | None:
    """What a limit asks of each request: that of its highest quantile, as `slo_met` takes it."""
    if limit is None:
        return None
    chosen = next(value for value in (limit.p99, limit.p95, limit.p90, limit.p50) if value is not None)
    return chosen.seconds * 1e3


def _fleet_second(second_unix: int, cell: _Cell, *, limited: bool, slo: Slo, run_second: int | None) -> FleetSecond:
    row = cell.sum
    return FleetSecond(
        second_unix=second_unix,
        class_name=row.class_name,
        stage=row.stage,
        workers=len(cell.workers),
        output_tok_per_s=row.output_tokens,
        prompt_tok_per_s=row.prompt_tokens,
        offered_per_s=row.offered,
        started_per_s=row.started,
        finished=row.finished,
        in_flight=row.in_flight,
        dropped=row.dropped,
        late=row.late,
        abandoned_turns=row.abandoned_turns,
        goodput_per_s=row.slo_met if limited else None,
        goodput_ratio=_share(row.slo_met, row.slo_known),
        cached_ratio=_share(row.cached_tokens, row.cache_known_prompt_tokens),
        ideal_cached_ratio=_share(row.ideal_cached_tokens, row.cache_known_prompt_tokens),
        ttft_p50_ms=quantile_ms(row.ttft, 0.5),
        ttft_p90_ms=quantile_ms(row.ttft, 0.9),
        ttft_p99_ms=quantile_ms(row.ttft, 0.99),
        itl_p50_ms=quantile_ms(row.itl, 0.5),
        itl_p90_ms=quantile_ms(row.itl, 0.9),
        itl_p99_ms=quantile_ms(row.itl, 0.99),
        e2e_p50_ms=quantile_ms(row.e2e, 0.5),
        e2e_p90_ms=quantile_ms(row.e2e, 0.9),
        e2e_p99_ms=quantile_ms(row.e2e, 0.99),
        e2e_mean_ms=mean_ms(row.e2e),
        queue_wait_p50_ms=quantile_ms(row.queue_wait, 0.5),
        queue_wait_p90_ms=quantile_ms(row.queue_wait, 0.9),
        queue_wait_p99_ms=quantile_ms(row.queue_wait, 0.99),
        schedule_lag_p99_ms=quantile_ms(row.schedule_lag, 0.99),
        run_second=run_second,
        ttft_limit_ms=_limit_ms(slo.ttft),
        itl_limit_ms=_limit_ms(slo.itl),
        e2e_limit_ms=_limit_ms(slo.e2e),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
