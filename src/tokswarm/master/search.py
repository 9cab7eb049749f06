"""The search for the highest load that meets a goal: doubling until one misses it, then bisection. Pure.

A load is judged by the share of its requests that did as the goal asks, with Wilson's 95 % interval.
Requests of a queue are alike in clusters, so the interval is widened by how much more the shares of ten
parts of the probe differ than chance would make them. While the interval contains the share that is
needed, the load is tried again, `TRIES_MOST` times in all; then the share itself decides.
"""

import math
from collections.abc import Sequence

from tokswarm.insight.search_result import Probe, SearchResult
from tokswarm.traffic.plan import SearchPlan

TRIES_MOST = 3
Z = 1.96
"""Of a two-sided 95 % interval."""
PARTS = 10


class Search:
    """Asks for loads, takes what came of each. The loads depend on nothing but the verdicts."""

    def __init__(self, name: str, plan: SearchPlan) -> None:
        self._name = name
        self._plan = plan
        self._met: float | None = None
        self._missed: float | None = None
        self._load: float | None = plan.from_
        self._seconds: list[tuple[int, int]] = []
        self._tries = 0
        self._probes: list[Probe] = []

    @property
    def load(self) -> float | None:
        """The load to try now; None: the search is over."""
        return self._load

    def take(self, stage: str, seconds: Sequence[tuple[int, int]]) -> Probe | None:
        """What came of the load: (met, known) of each second. The verdict; None: it is to be tried again."""
        assert self._load is not None
        assert self._plan.share is not None, "a knee is searched by KneeSearch"
        self._seconds += seconds
        self._tries += 1
        met, known = sum(met for met, _ in self._seconds), sum(known for _, known in self._seconds)
        low, high = share_interval(self._seconds)
        is_sure = low is not None and high is not None and not low <= self._plan.share < high
        if not is_sure and self._tries < TRIES_MOST:
            return None
        probe = Probe(
            stage=stage,
            load=self._load,
            tries=self._tries,
            met=met,
            known=known,
            low=low,
            high=high,
            is_met=known > 0 and met / known >= self._plan.share,
            is_sure=is_sure,
        )
        self._probes.append(probe)
        if probe.is_met:
            self._met = probe.load
        else:
            self._missed = probe.load
        self._load, self._seconds, self._tries = self._next(), [], 0
        return probe

    def result(self) -> SearchResult:
        """What was found so far."""
        return SearchResult(
            name=self._name,
            goal=self._plan.goal,
            unit="concurrency" if self._plan.is_whole else "rate_per_s",
            share=self._plan.share,
            highest_met=self._met,
            lowest_missed=self._missed,
            is_complete=self._load is None,
            probes=list(self._probes),
        )

    def _next(self) -> float | None:
        plan = self._plan
        if self._met is None:
            return None
        if self._missed is None:
            return None if self._met >= plan.to else min(2 * self._met, plan.to)
        if self._missed - self._met <= plan.precision * self._missed:
            return None
        middle = (self._met + self._missed) / 2
        if not plan.is_whole:
            return float(f"{middle:.6g}")
        return None if self._missed - self._met <= 1 else math.floor(middle)


def share_interval(seconds: Sequence[tuple[int, int]]) -> tuple[float | None, float | None]:
    """The 95 % interval of met / known, from seconds in their order; None without a request."""
    met, known = sum(met for met, _ in seconds), sum(known for _, known in seconds)
    if not known:
        return None, None
    n = known / _clustering(seconds, met / known)
    share = met / known
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return max(centre - half, 0.0), min(centre + half, 1.0)


def _clustering(seconds: Sequence[tuple[int, int]], share: float) -> float:
    """How many times more the shares of PARTS parts vary than those of independent requests would; at least 1."""
    if not 0 < share < 1:
        return 1.0
    parts = [seconds[len(seconds) * at // PARTS : len(seconds) * (at + 1) // PARTS] for at in range(PARTS)]
    counts = [(sum(met for met, _ in part), sum(known for _, known in part)) for part in parts]
    counts = [(met, known) for met, known in counts if known]
    if len(counts) < 2:
        return 1.0
    squares = sum((met - known * share) ** 2 / (known * share * (1 - share)) for met, known in counts)
    return max(squares / (len(counts) - 1), 1.0)
