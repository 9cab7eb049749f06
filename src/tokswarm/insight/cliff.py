"""Cliffs: tok/s that fall although the demand stays. Found second by second, while the run goes on. Pure.

Two ways down:

- **A fall.** At a steady demand (one rate, or one number in flight) the tok/s of the last two seconds lie a quarter
  or more, and by more than the noise, below what the seconds before gave, and the requests in flight are not fewer (of
  a rate: they pile up). That tells a fall from a lull: a healthy server gives less when it has less to do.
- **Refusals.** A fifth or more of the requests that end do so refused or failed, so what is asked for cannot come.

Each has a cause, by what else was seen in the same seconds, the surest first: the generator itself, rate limiting,
errors, a change of replicas, cache churn, queueing. A cliff ends when the tok/s are back (or the refusals gone), or
when the demand changes.
"""

import enum
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from statistics import median

import msgspec

WINDOW_S = 2
"""Seconds that must lie below together; with the time it takes to close a second, three are known of too late."""
BASELINE_LEAST_S = 5
BASELINE_MOST_S = 30
"""What the seconds before are: at least and at most so many at the same demand."""
FALL_RATIO = 0.75
NOISE_SIGMAS = 3.0
PILE_SIGMAS = 2.0
"""Of a rate's requests in flight, which vary like a Poisson count while the server keeps up."""
PILE_LEAST = 5
CLOSED_SLACK_RATIO = 0.1
"""A user between two requests is not in flight."""
BARELY_RATIO = 0.8
"""A fall that is no deeper by then is not told either."""
BACK_RATIO = 0.9
"""Of what it was: the cliff has ended."""
REFUSED_RATIO = 0.2
REFUSED_LEAST = 4
"""Requests; fewer are chance."""
REFUSED_GONE_RATIO = 0.05
CAUSE_RATIO = 0.1
"""Of the requests that ended, to be the cause of a fall."""
HIT_FALL = 0.15
"""Of the share of prompt tokens from the cache."""
CHURN_FACTOR = 3.0
LOOP_LAG_MS = 50.0
SCHEDULE_LAG_MS = 100.0
REPLICA_CHANGE_S = 10


class Cause(enum.StrEnum):
    """What a cliff comes from, the surest first."""

    GENERATOR = "the generator"
    RATE_LIMITING = "rate limiting"
    ERRORS = "errors"
    REPLICAS = "replica change"
    CACHE_CHURN = "cache churn"
    QUEUEING = "queueing"
    UNKNOWN = "no cause found"


PATIENCE_S = {Cause.QUEUEING: 2, Cause.UNKNOWN: 4}
"""How long a fall is held back whose cause is not sure: every fall makes requests wait, and what the answers say of the
cache comes with their ends. One that is over by then is not told."""


class Demand(msgspec.Struct, frozen=True):
    """What is asked of the endpoint while it does not change."""

    is_open: bool
    """A rate; else a number in flight."""
    level: float


class CliffSecond(msgspec.Struct, frozen=True, kw_only=True):
    """One second of a run as far as cliffs are concerned. None: not known."""

    second_unix: int
    demand: Demand | None
    """None: it is not steady, or nothing is sent any more."""
    output_tok_per_s: float
    in_flight: int
    """At its end."""
    ended: int
    """Requests, whatever the outcome."""
    refused: int
    """Of them by 429."""
    failed: int
    """Of them in any other way that says something of the endpoint."""
    workers: int
    loop_lag_ms: float | None = None
    """Of the worst worker."""
    schedule_lag_ms: float | None = None
    cached_ratio: float | None = None
    """As the answers say."""
    hit_ratio: float | None = None
    """As the servers' metrics say; so the others."""
    evictions_per_s: float | None = None
    preemptions_per_s: float | None = None
    recomputed_tok_per_s: float | None = None
    waiting: float | None = None
    queue_wait_ms: float | None = None
    replicas: frozenset[str] | None = None
    """Those that are up."""


class Cliff(msgspec.Struct, frozen=True, kw_only=True):
    """One cliff; given again when it has ended."""

    from_unix: int
    """The first second below."""
    cause: Cause
    text: str
    """The evidence."""
    to_unix: int | None = None
    """The second after its last."""


class CliffDetector:
    """Takes the seconds of a run in their order."""

    def __init__(self) -> None:
        self._baselines: dict[Demand, deque[CliffSecond]] = {}
        self._recent: deque[CliffSecond] = deque(maxlen=WINDOW_S)
        self._history: deque[CliffSecond] = deque(maxlen=REPLICA_CHANGE_S + WINDOW_S)
        self._fall: _Fall | None = None
        self._refusals: Cliff | None = None
        self._served = False

    def take(self, second: CliffSecond) -> list[Cliff]:
        """Cliffs that began or ended with this second."""
        if self._recent and second.second_unix != self._recent[-1].second_unix + 1:
            self._recent.clear()
        self._recent.append(second)
        self._history.append(second)
        return [*self._take_fall(second), *self._take_refusals()]

    def close(self) -> list[Cliff]:
        """The run is over, and every cliff with it."""
        last = self._history[-1].second_unix + 1 if self._history else 0
        if self._fall is not None and self._fall.cliff is None:
            self._announce(self._fall, at_once=True)
        open_now = [self._fall.cliff if self._fall is not None else None, self._refusals]
        self._fall = self._refusals = None
        return [msgspec.structs.replace(cliff, to_unix=last) for cliff in open_now if cliff is not None]

    # --- falls ----------------------------------------------------------------------------------

    def _take_fall(self, second: CliffSecond) -> list[Cliff]:
        if self._fall is not None:
            return self._follow_fall(second, self._fall)
        if second.demand is None or self._refusals is not None:
            return []
        baseline = self._baselines.setdefault(second.demand, deque(maxlen=BASELINE_MOST_S))
        window = self._window(second.demand)
        # The window is not part of what it is held against: it joins when it has proved harmless.
        before = [each for each in baseline if not window or each.second_unix < window[0].second_unix]
        usual = _usual(before)
        if window and usual is not None and _has_fallen(window, usual, is_open=second.demand.is_open):
            return self._begin_fall(_Fall(second.demand, usual, before, self._onset(second.demand, usual)))
        baseline.append(second)
        return []

    def _begin_fall(self, fall: "_Fall") -> list[Cliff]:
        baseline = self._baselines[fall.demand]
        while baseline and baseline[-1].second_unix >= fall.from_unix:
            baseline.pop()
        self._fall = fall
        return self._announce(fall, at_once=False)

    def _announce(self, fall: "_Fall", *, at_once: bool) -> list[Cliff]:
        window = list(self._recent)
        cause, evidence = cause_of(window, fall.before, self._history)
        if not at_once and fall.held_s < PATIENCE_S.get(cause, 0):
            fall.held_s += 1
            return []
        usual = fall.usual
        text = (
            f"{_mean(each.output_tok_per_s for each in window):,.0f} tok/s after {usual.tok_per_s:,.0f}, with "
            f"{window[-1].in_flight:,} in flight after {usual.in_flight:,.0f}; {evidence}"
        )
        fall.cliff = Cliff(from_unix=fall.from_unix, cause=cause, text=text)
        return [fall.cliff]

    def _follow_fall(self, second: CliffSecond, fall: "_Fall") -> list[Cliff]:
        if second.demand is None:  # a drain, or the pause between two stages
            return [] if fall.cliff is not None else self._announce(fall, at_once=True)
        if second.demand != fall.demand:
            return self._end_fall(fall, second.second_unix)
        window = self._window(fall.demand)
        if window and _mean(each.output_tok_per_s for each in window) >= BACK_RATIO * fall.usual.tok_per_s:
            return self._end_fall(fall, window[0].second_unix)
        if fall.cliff is not None:
            return []
        if _mean(each.output_tok_per_s for each in self._recent) > BARELY_RATIO * fall.usual.tok_per_s:
            self._fall = None  # it was a dip
            return []
        return self._announce(fall, at_once=False)

    def _end_fall(self, fall: "_Fall", to_unix: int) -> list[Cliff]:
        self._fall = None
        return [] if fall.cliff is None else [msgspec.structs.replace(fall.cliff, to_unix=to_unix)]

    def _onset(self, demand: Demand, usual: "_Usual") -> int:
        """The first of the last seconds that lie below."""
        onset = self._recent[-1].second_unix
        for each in reversed(self._history):
            below = each.output_tok_per_s < BACK_RATIO * usual.tok_per_s
            if each.second_unix < onset - 1 or each.demand != demand or not below:
                break
            onset = each.second_unix
        return onset

    def _window(self, demand: Demand) -> list[CliffSecond]:
        """The last seconds, when they are at this demand and without a gap; else none."""
        window = list(self._recent)
        whole = len(window) == WINDOW_S and all(each.demand == demand for each in window)
        return window if whole else []

    # --- refusals -------------------------------------------------------------------------------

    def _take_refusals(self) -> list[Cliff]:
        window = list(self._recent)
        if len(window) < WINDOW_S:
            return []
        ended = sum(each.ended for each in window)
        lost = sum(each.refused + each.failed for each in window)
        served = ended > 0 and lost <= REFUSED_GONE_RATIO * ended
        self._served = self._served or served
        if self._refusals is not None:
            if not served:
                return []
            cliff, self._refusals = self._refusals, None
            return [msgspec.structs.replace(cliff, to_unix=window[0].second_unix)]
        if not self._served or self._fall is not None or lost < REFUSED_LEAST or lost < REFUSED_RATIO * ended:
            return []  # what was never served has not fallen
        first = next(each for each in window if each.refused + each.failed)
        cause, evidence = _of_refusals(window)
        tok_per_s = _mean(each.output_tok_per_s for each in window)
        self._refusals = Cliff(from_unix=first.second_unix, cause=cause, text=f"{evidence}; {tok_per_s:,.0f} tok/s")
        return [self._refusals]


class _Usual(msgspec.Struct, frozen=True):
    """What the seconds before gave while they had something to do."""

    tok_per_s: float
    noise_tok_per_s: float
    in_flight: float


class _Fall:
    """A fall under way; `cliff` None: not told yet."""

    def __init__(self, demand: Demand, usual: _Usual, before: Sequence[CliffSecond], from_unix: int) -> None:
        self.demand = demand
        self.usual = usual
        self.before = before
        self.from_unix = from_unix
        self.held_s = 0
        self.cliff: Cliff | None = None


def _usual(before: Sequence[CliffSecond]) -> _Usual | None:
    """None: too few seconds, or nothing in them."""
    if len(before) < BASELINE_LEAST_S:
        return None
    in_flight = median(each.in_flight for each in before)
    busy = [each.output_tok_per_s for each in before if each.in_flight >= in_flight]
    tok_per_s = median(busy)
    if tok_per_s <= 0:
        return None
    noise = 1.4826 * median(abs(each - tok_per_s) for each in busy)
    return _Usual(tok_per_s, noise, in_flight)


def _has_fallen(window: Sequence[CliffSecond], usual: _Usual, *, is_open: bool) -> bool:
    tok_per_s = _mean(each.output_tok_per_s for each in window)
    highest = max(each.output_tok_per_s for each in window)
    if tok_per_s > FALL_RATIO * usual.tok_per_s or highest > BACK_RATIO * usual.tok_per_s:
        return False
    if tok_per_s > usual.tok_per_s - NOISE_SIGMAS * usual.noise_tok_per_s / WINDOW_S**0.5:
        return False
    if is_open:
        least = usual.in_flight + max(PILE_LEAST, PILE_SIGMAS * usual.in_flight**0.5)
    else:
        least = (1 - CLOSED_SLACK_RATIO) * usual.in_flight
    as_busy = all(each.in_flight >= least for each in window)
    ended = sum(each.ended for each in window)
    unserved = sum(each.refused + each.failed for each in window)
    return as_busy or (ended > 0 and unserved >= REFUSED_RATIO * ended)


# --- causes -------------------------------------------------------------------------------------


def cause_of(
    window: Sequence[CliffSecond], before: Sequence[CliffSecond], history: Iterable[CliffSecond]
) -> tuple[Cause, str]:
    """Why the tok/s of these seconds are below those before, and the evidence."""
    findings = (
        _generator(window, before),
        _refusals_cause(window),
        _replica_change(history),
        _churn(window, before),
        _queueing(window, before),
    )
    found = [finding for finding in findings if finding is not None]
    if not found:
        return Cause.UNKNOWN, "nothing else has changed that is measured"
    cause = found[0][0]
    return cause, "; ".join(text for _, text in found)


def _generator(window: Sequence[CliffSecond], before: Sequence[CliffSecond]) -> tuple[Cause, str] | None:
    workers, workers_before = min(each.workers for each in window), median(each.workers for each in before)
    if workers < workers_before:
        return Cause.GENERATOR, f"{workers} workers send, {workers_before:g} did"
    lag_ms = _most(each.loop_lag_ms for each in window)
    if lag_ms is not None and lag_ms > LOOP_LAG_MS:
        return Cause.GENERATOR, f"a worker's loop was {lag_ms:,.0f} ms late"
    lag_ms = _most(each.schedule_lag_ms for each in window)
    if lag_ms is not None and lag_ms > SCHEDULE_LAG_MS:
        return Cause.GENERATOR, f"requests were sent {lag_ms:,.0f} ms late (p99)"
    return None


def _refusals_cause(window: Sequence[CliffSecond]) -> tuple[Cause, str] | None:
    ended = sum(each.ended for each in window)
    lost = sum(each.refused + each.failed for each in window)
    return _of_refusals(window) if lost >= max(REFUSED_LEAST, CAUSE_RATIO * ended) else None


def _of_refusals(window: Sequence[CliffSecond]) -> tuple[Cause, str]:
    ended, refused, failed = (
        sum(counts) for counts in zip(*((each.ended, each.refused, each.failed) for each in window), strict=True)
    )
    if refused >= failed:
        return Cause.RATE_LIMITING, f"{refused:,} of {ended:,} requests that ended were refused with 429"
    return Cause.ERRORS, f"{failed:,} of {ended:,} requests that ended failed"


def _replica_change(history: Iterable[CliffSecond]) -> tuple[Cause, str] | None:
    known = [each.replicas for each in history if each.replicas is not None]
    if len(known) < 2 or known[0] == known[-1]:
        return None
    gone, new = sorted(known[0] - known[-1]), sorted(known[-1] - known[0])
    changes = [*([f"gone: {', '.join(gone)}"] if gone else []), *([f"new: {', '.join(new)}"] if new else [])]
    return Cause.REPLICAS, f"replicas {'; '.join(changes)}"


def _churn(window: Sequence[CliffSecond], before: Sequence[CliffSecond]) -> tuple[Cause, str] | None:
    said: list[str] = []
    for name, what in (("hit_ratio", "hit share of the servers"), ("cached_ratio", "cached share of the answers")):
        was, now = _medians(name, before, window)
        if was is not None and now is not None and now < was - HIT_FALL:
            said.append(f"{what} {now:.0%} after {was:.0%}")
            break
    for name, what in (
        ("evictions_per_s", "evictions/s"),
        ("preemptions_per_s", "preemptions/s"),
        ("recomputed_tok_per_s", "recomputed tok/s"),
    ):
        was, now = _medians(name, before, window)
        if now is not None and now >= 1 and now > CHURN_FACTOR * (was or 0.0):
            said.append(f"{now:,.0f} {what} after {was or 0.0:,.0f}")
    return (Cause.CACHE_CHURN, ", ".join(said)) if said else None


def _queueing(window: Sequence[CliffSecond], before: Sequence[CliffSecond]) -> tuple[Cause, str] | None:
    was, now = _medians("waiting", before, window)
    if now is not None and now >= 2 and now > CHURN_FACTOR * (was or 0.0):
        return Cause.QUEUEING, f"{now:,.0f} requests wait in the servers' queues after {was or 0.0:,.0f}"
    was, now = _medians("queue_wait_ms", before, window)
    if was is not None and now is not None and now > CHURN_FACTOR * was and now - was > 50:
        return Cause.QUEUEING, f"queue wait {now:,.0f} ms after {was:,.0f}"
    return None


def _medians(
    name: str, before: Sequence[CliffSecond], window: Sequence[CliffSecond]
) -> tuple[float | None, float | None]:
    """Median before, and the newest known value of the window."""
    was = [value for each in before if (value := getattr(each, name)) is not None]
    now = [value for each in reversed(window) if (value := getattr(each, name)) is not None]
    return (median(was) if was else None), next(islice(now, 1), None)


def _mean(values: Iterable[float]) -> float:
    given = list(values)
    return sum(given) / len(given)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
