"""Finds the step times of a server: those with which the simulated one gives the figures that were measured.

Levenberg and Marquardt's method on relative errors, with derivatives by trial: a simulation has none, and a
few dozen runs in virtual time take seconds. What the server's settings say (its batch, its memory) is not
fitted but given.
"""

from collections.abc import Callable, Mapping, Sequence
from math import log

import msgspec

from tokswarm.insight.measured_window import SETTLE_RATIO_MAX
from tokswarm.predict.measured import Figures, MeasuredRun, MeasuredStage, middle
from tokswarm.predict.simulate import Simulation
from tokswarm.predict.workload import Workload
from tokswarm.simulator.profile import Profile
from tokswarm.traffic.plan import ClosedLoop, PlannedStage

STEP_TIMES = {
    "step_overhead_us": 50.0,
    "sequence_overhead_us": 5.0,
    "token_compute_us": 2.0,
    "kv_read_us": 0.02,
    "request_overhead_us": 100.0,
}
"""What is fitted, with the least by which each is moved to see what it does, µs. The rest of a profile is settings,
which are known; `weights_read_us` cannot be told from `step_overhead_us`, because every step has both."""

FURTHER = "at-"
FURTHER_S = 30.0
"""Stages that are only predicted: long enough for a median."""

WAIT_FLOOR_RATIO = 0.2
"""Queue waits below this share of the TTFT's median are compared against that share of it: a wait of
almost nothing has no relative error worth the name."""

_TRIAL_RATIO = 0.08
"""How far a parameter is moved for its derivative: far enough to be seen above the jumps of a schedule."""

_ROUNDS_MAX = 15
_GAIN_MIN = 0.01
"""Relative fall of the squared error below which the search ends: less is the schedule's jumps."""

_DAMPINGS = (0.0, 0.03, 0.3, 3.0, 30.0)
_RIDGE = 1e-6
"""Keeps a parameter where it is that changes nothing."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One load, measured and simulated; of a load that was run several times, the median."""

    load: str
    fitted: bool
    """Its figures were used for the fit; otherwise it was held out."""
    measured: Figures
    predicted: Figures
    repeats: int
    spread_ratios: tuple[float | None, ...]
    """How far the repeats themselves lie apart: half their range, over what errors are over. None: no repeats."""

    @property
    def errors(self) -> tuple[float | None, ...]:
        """Of tok/s, TTFT, ITL and queue wait, over the measured figure: 0.1 is a tenth too much."""
        return tuple(
            None if was is None or said is None or not size else (said - was) / size
            for was, said, size in zip(
                self.measured.values, self.predicted.values, error_sizes(self.measured), strict=True
            )
        )

    @property
    def worst_error(self) -> float:
        """The largest of them, without its sign."""
        return max((abs(error) for error in self.errors if error is not None), default=0.0)


def error_sizes(measured: Figures) -> tuple[float | None, ...]:
    """What errors are relative to: the figure, but of a short queue wait `WAIT_FLOOR_RATIO` of the median TTFT."""
    *sizes, wait = measured.values
    if wait is not None:
        wait = max(wait, WAIT_FLOOR_RATIO * (measured.ttft_p50_ms or 0.0))
    return (*sizes, wait)


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """A profile fitted to a run, and how well it does on every load of it."""

    profile: Profile
    loads: list[Compared]

    @property
    def held_out(self) -> list[Compared]:
        """What the profile had not seen."""
        return [load for load in self.loads if not load.fitted]


def alternate(run: MeasuredRun) -> list[str]:
    """Every other load of the run, the lowest among them: what a fit may see."""
    return list(run.points)[::2]


def fit_profile(
    run: MeasuredRun, start: Profile, *, seen: Sequence[str], name: str, parameters: Mapping[str, float] = STEP_TIMES
) -> Profile:
    """The profile whose simulation comes closest to the figures of the loads `seen`.

    `parameters` are the fields of the profile that may change, as `STEP_TIMES` has them; the search begins at `start`.
    """
    workload = Workload(run, block_tokens=start.block_tokens, max_model_len=start.max_model_len)
    points = {load: stages for load, stages in run.points.items() if load in seen}

    def profile(values: Sequence[float]) -> Profile:
        return msgspec.structs.replace(start, **dict(zip(parameters, values, strict=True)))

    def errors(values: Sequence[float]) -> list[float]:
        compared = _compare(run, points, profile(values), workload, seen)
        return [error for each in compared for error in _residuals(each)]

    found = _least_squares(errors, [getattr(start, name) for name in parameters], list(parameters.values()))
    rounded = [float(f"{value:.4g}") for value in found]
    return msgspec.structs.replace(
        profile(rounded), name=name, description=f"fitted to the loads {', '.join(seen)} of run {run.run_id}"
    )


def compare(run: MeasuredRun, profile: Profile, seen: Sequence[str]) -> list[Compared]:
    """Simulate the whole run and set each load beside its simulation."""
    workload = Workload(run, block_tokens=profile.block_tokens, max_model_len=profile.max_model_len)
    return _compare(run, run.points, profile, workload, seen)


def _compare(
    run: MeasuredRun,
    points: Mapping[str, Sequence[MeasuredStage]],
    profile: Profile,
    workload: Workload,
    seen: Sequence[str],
) -> list[Compared]:
    """The stages of these points in the order of the run, on one server, so that its cache is theirs."""
    simulation = Simulation(profile, workload)
    wanted = {stage.name for stages in points.values() for stage in stages}
    figures = {stage.name: simulation.run(stage) for stage in run.stages if stage.name in wanted}
    return [
        Compared(
            load=load,
            fitted=load in seen,
            measured=middle([stage.figures for stage in stages]),
            predicted=middle([figures[stage.name] for stage in stages]),
            repeats=len(stages),
            spread_ratios=_spread([stage.figures for stage in stages]),
        )
        for load, stages in points.items()
    ]


def _spread(repeats: Sequence[Figures]) -> tuple[float | None, ...]:
    columns = zip(*(each.values for each in repeats), strict=True)
    return tuple(
        (max(column) - min(column)) / 2 / size if size and len(column) > 1 else None
        for column, size in zip(columns, error_sizes(middle(repeats)), strict=True)
    )


def predict(run: MeasuredRun, profile: Profile, concurrencies: Sequence[int]) -> list[tuple[int, Figures]]:
    """What these numbers of requests in flight would have given, on a server that has seen the run."""
    names = [f"{FURTHER}{concurrency}" for concurrency in concurrencies]
    further = [
        PlannedStage(name=name, load=ClosedLoop(concurrency), duration_s=FURTHER_S, drain_s=0.0, warmup=False)
        for name, concurrency in zip(names, concurrencies, strict=True)
    ]
    extended = msgspec.structs.replace(run, planned=[*run.planned, *further])
    workload = Workload(extended, block_tokens=profile.block_tokens, max_model_len=profile.max_model_len)
    simulation = Simulation(profile, workload)
    settle_s = FURTHER_S * SETTLE_RATIO_MAX
    nothing = Figures(None, None, None, None)
    stages = [
        MeasuredStage(
            name=name, sent_for_s=FURTHER_S, settle_s=settle_s, window_s=FURTHER_S - settle_s, figures=nothing
        )
        for name in names
    ]
    figures = [simulation.run(stage) for stage in stages]
    return list(zip(concurrencies, figures, strict=True))


def _residuals(compared: Compared) -> list[float]:
    """Logarithms of ratios where a figure has one; the queue's error as it is, kept within reason."""
    *relative, wait = compared.errors
    ratios = [0.0 if error is None else log(max(1 + error, 0.05)) for error in relative]
    return [*ratios, 0.0 if wait is None else max(-1.0, min(1.0, wait))]


def _least_squares(
    errors: Callable[[Sequence[float]], list[float]], start: Sequence[float], least: Sequence[float]
) -> list[float]:
    """Values, none below 0, at which the sum of squared errors is small. Deterministic.

    `least` is the smallest change of each value that is tried to see what it does.
    """
    values = list(start)
    now = errors(values)
    for _ in range(_ROUNDS_MAX):
        moves = [max(value * _TRIAL_RATIO, by) for value, by in zip(values, least, strict=True)]
        columns = []
        for place, by in enumerate(moves):
            moved = errors([*values[:place], values[place] + by, *values[place + 1 :]])
            columns.append([after - before for before, after in zip(now, moved, strict=True)])
        best, best_errors = values, now
        for damping in _DAMPINGS:
            step = _damped_step(columns, now, [value <= 0 for value in values], damping)
            tried = [max(0.0, value + part * by) for value, part, by in zip(values, step, moves, strict=True)]
            tried_errors = errors(tried)
            if _squares(tried_errors) < _squares(now):
                best, best_errors = tried, tried_errors
                break
        gain = 1 - _squares(best_errors) / _squares(now) if _squares(now) > 0 else 0.0
        values, now = best, best_errors
        if gain < _GAIN_MIN:
            break
    return values


def _squares(errors: Sequence[float]) -> float:
    return sum(error * error for error in errors)


def _damped_step(
    columns: Sequence[Sequence[float]], errors: Sequence[float], bound: Sequence[bool], damping: float
) -> list[float]:
    """The step of Levenberg and Marquardt, in units of the moves that `columns` are the effects of.

    A value that is `bound` does not fall: it stays, and the rest is solved without it.
    """
    free = list(range(len(columns)))
    while free:
        matrix = [[_dot(columns[a], columns[b]) for b in free] for a in free]
        right = [-_dot(columns[a], errors) for a in free]
        for place in range(len(free)):
            matrix[place][place] = matrix[place][place] * (1 + damping) + _RIDGE
        solved = _solve(matrix, right)
        held = [a for a, change in zip(free, solved, strict=True) if bound[a] and change < 0]
        if not held:
            step = [0.0] * len(columns)
            for a, change in zip(free, solved, strict=True):
                step[a] = change
            return step
        free = [a for a in free if a not in held]
    return [0.0] * len(columns)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss's elimination with pivots; the matrix is symmetric and, damped or not, not singular."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(column + 1, size):
            factor = rows[row][column] / rows[column][column]
            rows[row] = [a - factor * b for a, b in zip(rows[row], rows[column], strict=True)]
    solved = [0.0] * size
    for row in reversed(range(size)):
        rest = sum(rows[row][column] * solved[column] for column in range(row + 1, size))
        solved[row] = (rows[row][size] - rest) / rows[row][row]
    return solved
