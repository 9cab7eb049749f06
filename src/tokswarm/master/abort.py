"""Whether a run is to be given up: the mix's `abort` rules over the seconds of the fleet. Pure.

A rule is broken once it was bad for as long as it says. A second in which nothing says whether it is
bad (no request ended, no token came) neither begins nor ends a bad time.
"""

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from tokswarm.measure.record import Outcome
from tokswarm.measure.window import ALL_CLASSES, FleetSecond
from tokswarm.traffic.mix import Abort, AbortLatency

NOT_THE_ENDPOINTS = (Outcome.OK, Outcome.ABORTED, Outcome.CLIENT_LIMIT)
"""Outcomes that are no errors here: what tokswarm gave up or could not send says nothing of the endpoint."""
_LATENCIES = {"ttft_p99": "ttft_p99_ms", "itl_p99": "itl_p99_ms", "e2e_p99": "e2e_p99_ms"}


class _Streak(msgspec.Struct):
    """How long a rule has been bad."""

    what: str
    over: float
    for_s: float
    begun_unix: int | None = None
    worst: float = 0.0

    def take(self, second_unix: int, value: float | None) -> bool:
        """Whether the rule is broken with this second; None: the second does not say."""
        if value is None:
            return False
        if value <= self.over:
            self.begun_unix = None
            return False
        if self.begun_unix is None:
            self.begun_unix, self.worst = second_unix, value
        self.worst = max(self.worst, value)
        return second_unix + 1 - self.begun_unix >= self.for_s


class AbortWatch:
    """Looks at each closed second of the fleet once, in order."""

    def __init__(self, rules: Abort | None) -> None:
        self._streaks: dict[str, _Streak] = {}
        if rules is None:
            return
        if rules.error_share is not None:
            share = rules.error_share
            self._streaks["error_share"] = _Streak("error_share", share.over, share.for_.seconds)
        for name in _LATENCIES:
            rule: AbortLatency | None = getattr(rules, name)
            if rule is not None:
                self._streaks[name] = _Streak(name, rule.over.nanoseconds / 1e6, rule.for_.seconds)

    def take(self, rows: Iterable[FleetSecond]) -> str:
        """Why the run is to be given up; empty: it is not."""
        if not self._streaks:
            return ""
        seconds: dict[int, list[FleetSecond]] = defaultdict(list)
        for row in rows:
            if row.class_name == ALL_CLASSES:
                seconds[row.second_unix].append(row)  # more than one where a stage ends and the next begins
        for second_unix, of_second in sorted(seconds.items()):
            for name, streak in self._streaks.items():
                value = _error_share(of_second) if name == "error_share" else _largest(of_second, _LATENCIES[name])
                if streak.take(second_unix, value):
                    return _reason(streak, second_unix)
        return ""


def _error_share(rows: list[FleetSecond]) -> float | None:
    ended = failed = 0
    for row in rows:
        for outcome, count in row.finished.items():
            if outcome == Outcome.OK or outcome not in NOT_THE_ENDPOINTS:
                ended += count
                failed += count if outcome != Outcome.OK else 0
    return failed / ended if ended else None


def _largest(rows: list[FleetSecond], name: str) -> float | None:
    return max((value for row in rows if (value := getattr(row, name)) is not None), default=None)


def _reason(streak: _Streak, second_unix: int) -> str:
    assert streak.begun_unix is not None
    bad_s = second_unix + 1 - streak.begun_unix
    if streak.what == "error_share":
        said = f"over {streak.over:.0%} of requests failed (up to {streak.worst:.0%})"
    else:
        said = f"{streak.what} was over {streak.over:,.0f} ms (up to {streak.worst:,.0f} ms)"
    return f"abort.{streak.what}: {said} for {bad_s} s, from Unix second {streak.begun_unix} to {second_unix}"
