"""The search for the knee: the load with the most power, tok/s times the tok/s of each request in flight. Pure.

By Little's law that is throughput over latency: below the knee another user brings more than it costs the others,
beyond it less. Loads are doubled until one surely has less power than the best so far; then the widest gap around
the best is halved. Whether one has less is judged by the 95 % interval of the ratio, from ten parts of each probe.
While a load cannot be told from the best it is tried again, `TRIES_MOST` times in all. The search ends when the gaps
are narrow, or when three loads cannot be told apart: then the knee is at the top of a parabola through the probes.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from tokswarm.insight.search_result import Probe, SearchResult
from tokswarm.master.search import PARTS, TRIES_MOST
from tokswarm.traffic.plan import SearchPlan

T = 2.26
"""Of a two-sided 95 % interval with as many parts."""
FLAT_LOADS = 3
"""So many loads that cannot be told apart are the top of the curve."""


class Power(NamedTuple):
    """What a load achieved; `log` is that of its power, `error` the standard error of that."""

    tok_per_s: float
    in_flight: float
    log: float
    error: float

    def is_less_than(self, other: "Power") -> bool:
        """Whether it is less beyond chance."""
        return other.log - self.log > T * math.hypot(self.error, other.error)


class KneeSearch:
    """Asks for loads, takes what came of each, as `Search` does."""

    def __init__(self, name: str, plan: SearchPlan) -> None:
        self._name = name
        self._plan = plan
        self._load: float | None = plan.from_
        self._seconds: list[tuple[int, int]] = []
        self._tries = 0
        self._powers: dict[float, Power] = {}
        self._probes: list[Probe] = []

    @property
    def load(self) -> float | None:
        """The load to try now; None: the search is over."""
        return self._load

    def take(self, stage: str, seconds: Sequence[tuple[int, int]]) -> Probe | None:
        """What came of the load: (output tokens, in flight) of each second. None: it is to be tried again."""
        assert self._load is not None
        self._seconds += seconds
        self._tries += 1
        power = power_of(self._seconds)
        best = max(self._powers.values(), key=lambda other: other.log, default=None)
        is_sure = power is not None and (best is None or power.is_less_than(best) or best.is_less_than(power))
        if not is_sure and self._tries < TRIES_MOST:
            return None
        probe = Probe(
            stage=stage,
            load=self._load,
            tries=self._tries,
            met=0,
            known=0,
            low=None,
            high=None,
            is_met=power is not None and (best is None or not power.is_less_than(best)),
            is_sure=is_sure,
            tok_per_s=0.0 if power is None else power.tok_per_s,
            in_flight=0.0 if power is None else power.in_flight,
        )
        self._probes.append(probe)
        if power is not None:
            self._powers[self._load] = power
        # A load without a token says nothing of those around it.
        self._load = None if power is None else self._next()
        self._seconds, self._tries = [], 0
        return probe

    def result(self) -> SearchResult:
        """What was found so far."""
        loads = sorted(self._powers)
        below, flat, above = self._top()
        return SearchResult(
            name=self._name,
            goal=self._plan.goal,
            unit="concurrency" if self._plan.is_whole else "rate_per_s",
            share=None,
            highest_met=self._knee(below, flat, above) if loads else None,
            highest_below=below,
            lowest_missed=above,
            is_complete=self._load is None,
            probes=list(self._probes),
        )

    def _top(self) -> tuple[float | None, list[float], float | None]:
        """The loads that cannot be told from the best, and the nearest below and above that surely have less power."""
        if not self._powers:
            return None, [], None
        loads = sorted(self._powers)
        at = max(loads, key=lambda load: self._powers[load].log)
        best = self._powers[at]
        less = [load for load in loads if self._powers[load].is_less_than(best)]
        below = max((load for load in less if load < at), default=None)
        above = min((load for load in less if load > at), default=None)
        flat = [load for load in loads if (below is None or load > below) and (above is None or load < above)]
        return below, flat, above

    def _next(self) -> float | None:
        plan = self._plan
        below, flat, above = self._top()
        if above is None and max(self._powers) < plan.to:
            return min(2 * max(self._powers), plan.to)
        if above is None or len(flat) >= FLAT_LOADS or len(self._probes) >= plan.most_probes:
            return None
        loads = [*([] if below is None else [below]), *flat, above]
        gaps = [(high / low, low, high) for low, high in pairwise(loads)]
        for ratio, low, high in sorted(gaps, reverse=True):
            if ratio > 1 + plan.precision and (not plan.is_whole or high - low > 1):
                middle = math.sqrt(low * high)
                return float(min(max(round(middle), low + 1), high - 1)) if plan.is_whole else float(f"{middle:.6g}")
        return None

    def _knee(self, below: float | None, flat: list[float], above: float | None) -> float:
        """The best load; of several that are alike, the top of a parabola through them and those beside them."""
        best = max(flat, key=lambda load: self._powers[load].log)
        around = [load for load in (below, *flat, above) if load is not None]
        if len(flat) < FLAT_LOADS:
            return best
        top = _top_of_parabola([math.log(load) for load in around], [self._powers[load].log for load in around])
        if top is None or not math.log(around[0]) <= top <= math.log(around[-1]):
            return best
        return float(round(math.exp(top))) if self._plan.is_whole else float(f"{math.exp(top):.4g}")


def power_of(seconds: Sequence[tuple[int, int]]) -> Power | None:
    """From (output tokens, in flight) of the seconds of a probe, in order; None where no token came."""
    parts = [seconds[len(seconds) * at // PARTS : len(seconds) * (at + 1) // PARTS] for at in range(PARTS)]
    parts = [part for part in parts if part]
    if len(parts) < PARTS:
        return None
    tokens, in_flight = _means(seconds)
    without = [_log_power(*_means([each for other in parts if other is not part for each in other])) for part in parts]
    log = _log_power(tokens, in_flight)
    if log is None or None in without:
        return None
    logs = [each for each in without if each is not None]
    mean = sum(logs) / len(logs)
    error = math.sqrt((len(logs) - 1) / len(logs) * sum((each - mean) ** 2 for each in logs))  # the jackknife's
    return Power(tokens, in_flight, log, error)


def _means(seconds: Sequence[tuple[int, int]]) -> tuple[float, float]:
    return sum(tokens for tokens, _ in seconds) / len(seconds), sum(open_ for _, open_ in seconds) / len(seconds)


def _log_power(tok_per_s: float, in_flight: float) -> float | None:
    return 2 * math.log(tok_per_s) - math.log(in_flight) if tok_per_s > 0 and in_flight > 0 else None


def _top_of_parabola(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Where the parabola of least squares is highest; None when it has no top."""
    n, centre = len(xs), sum(xs) / len(xs)
    us = [x - centre for x in xs]
    s2, s3, s4 = (sum(u**power for u in us) for power in (2, 3, 4))
    y0, y1, y2 = (sum(y * u**power for u, y in zip(us, ys, strict=True)) for power in (0, 1, 2))
    # Normal equations of y = a + b u + c u²; the sum of u is 0.
    det = n * (s2 * s4 - s3 * s3) - s2**3
    if abs(det) < 1e-15:
        return None
    b = (n * (y1 * s4 - y2 * s3) - s2 * (y1 * s2 - y0 * s3)) / det
    c = (n * (s2 * y2 - s3 * y1) - y0 * s2 * s2) / det
    return None if c >= 0 else centre - b / (2 * c)
