"""Whether a run's numbers can be believed: valid, suspect or invalid, with reasons and the seconds they concern.

Each threshold is a constant with its reason. Rules look at measured stages only: what happens in
a warm-up or between stages falsifies nothing.
"""

import enum
from collections.abc import Callable, Container, Iterable, Sequence

import msgspec
import polars as pl

from tokswarm.insight.figures import counted, number, percent, shortened
from tokswarm.insight.run_file import RunFile
from tokswarm.insight.stage import StageSummary
from tokswarm.measure.record import Outcome

LOOP_LAG_P99_SUSPECT_MS = 10.0
"""The token interval of a stream of 100 tok/s: a loop later than this merges tokens into one read."""
LOOP_LAG_P99_INVALID_MS = 100.0
"""As long as a good TTFT: the generator's own delay is as large as what it measures."""
LOOP_STALL_SUSPECT_MS = 250.0
"""One stall that delays sends by more than a time to first token that people notice."""
LOOP_STALL_INVALID_MS = 2000.0
"""Two whole seconds in which nothing was sent or read."""
CPU_SUSPECT_RATIO = 0.85
"""A worker is one core; above this, waiting for it grows steeply."""
CPU_INVALID_RATIO = 0.97
"""The core is full: what the curve shows is the generator's own limit."""
BAD_SECONDS_RATIO = 0.1
"""A tenth of a stage's worker-seconds can move its p90; fewer bad seconds are an incident, not a result."""
SCHEDULE_LAG_SUSPECT_MS = 10.0
"""From here on a request counts as late (measure/window.py)."""
SCHEDULE_LAG_INVALID_MS = 100.0
"""Arrivals this late have another pattern than the one asked for."""
DROPPED_SUSPECT_RATIO = 0.001
DROPPED_INVALID_RATIO = 0.01
"""An open loop that leaves one arrival in a hundred out has begun to wait for the server."""
LOG_LOST_INVALID_RATIO = 0.01
"""One record in a hundred is what a p99 rests on."""
LOST_WORKER_INVALID_RATIO = 0.1
"""With more than a tenth of the fleet gone, a stage's load is not what its name says."""
UNSTAMPED_SUSPECT_RATIO = 0.01
"""Beyond one arrival in a hundred, the p99 of ITL is of the user clock, milliseconds off."""
MERGED_SUSPECT_RATIO = 0.1
"""With a tenth of the arrivals in one read with another, ITL describes packets, not tokens."""
COALESCED_SUSPECT_RATIO = 0.1
"""With a tenth of the answers held back and let go in bursts, TTFT and ITL are of the other answers."""
CLIENT_LIMIT_INVALID_RATIO = 0.01
"""The generator ran out of ports or descriptors: that load never reached the server."""
FAILED_SUSPECT_RATIO = 0.1
"""Latencies are of requests that ended ok; with a tenth failing they describe survivors."""
ABORTED_SUSPECT_RATIO = 0.05
"""Requests cut off at the end of the drain are the slowest: without them p95 and above are too low."""
SHORT_STAGE_RATIO = 0.5
"""A stage stopped before half of its planned time was not the stage that was asked for."""


class State(enum.StrEnum):
    """From good to bad."""

    VALID = "valid"
    SUSPECT = "suspect"
    INVALID = "invalid"


class Cause(enum.StrEnum):
    """The rule a reason comes from."""

    NOTHING_MEASURED = "nothing_measured"
    RUN_ERROR = "run_error"
    SHORT_STAGE = "short_stage"
    LOST_WORKER = "lost_worker"
    NO_RECORDS = "no_records"
    RECORDS_LOST = "records_lost"
    RECORDS_REMOVED = "records_removed"
    MISSING_WINDOWS = "missing_windows"
    LOOP_LAG = "loop_lag"
    LOOP_STALL = "loop_stall"
    CPU = "cpu"
    SCHEDULE_LAG = "schedule_lag"
    DROPPED = "dropped"
    CLIENT_LIMIT = "client_limit"
    UNSTAMPED = "unstamped"
    MERGED = "merged"
    COALESCED = "coalesced"
    FAILED = "failed"
    ABORTED = "aborted"


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, in a sentence, and where it was."""

    state: State
    cause: Cause
    text: str
    stages: list[str] = []
    """Empty: the whole run."""
    seconds: list[tuple[int, int]] = []
    """Spans of Unix seconds, both ends in them; empty: not bound to seconds."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The worst state of all reasons; valid without any."""

    state: State
    reasons: list[Reason]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a verdict is given on."""

    run: RunFile
    stages: list[StageSummary]
    """All that began."""
    workers: pl.DataFrame
    records_by_worker: dict[str, int]
    merged_ratio: float | None
    unstamped_ratio: float | None

    @property
    def measured(self) -> list[StageSummary]:
        """Stages that are no warm-up."""
        return [stage for stage in self.stages if not stage.warmup]


def give_verdict(evidence: Evidence) -> Verdict:
    """Apply every rule; worst reasons first."""
    reasons = [reason for rule in RULES for reason in rule(evidence)]
    order = list(State)
    reasons.sort(key=lambda reason: -order.index(reason.state))
    return Verdict(state=reasons[0].state if reasons else State.VALID, reasons=reasons)


def second_spans(seconds: Iterable[int]) -> list[tuple[int, int]]:
    """Seconds as spans without gaps, both ends included."""
    spans: list[tuple[int, int]] = []
    for second in sorted(set(seconds)):
        if spans and second == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], second)
        else:
            spans.append((second, second))
    return spans


def _grade(value: float, suspect: float, invalid: float) -> State:
    """The state a value over its limits stands for; `valid` when it is over none."""
    if value > invalid:
        return State.INVALID
    return State.SUSPECT if value > suspect else State.VALID


def _share(count: int, of: int) -> float:
    return count / of if of else 0.0


def _requests(stage: StageSummary) -> int:
    return sum(stage.requests.values())


# --- the run as a whole -------------------------------------------------------------------------


def _nothing_measured(evidence: Evidence) -> list[Reason]:
    if any(stage.requests.get(Outcome.OK.value) for stage in evidence.measured):
        return []
    text = "no request of a measured stage ended ok, so there is nothing to conclude from"
    return [Reason(state=State.INVALID, cause=Cause.NOTHING_MEASURED, text=text)]


def _run_error(evidence: Evidence) -> list[Reason]:
    if evidence.run.stopped_by != "error":
        return []
    text = f"the run ended by an error: {evidence.run.error}"
    return [Reason(state=State.SUSPECT, cause=Cause.RUN_ERROR, text=text)]


def _short_stages(evidence: Evidence) -> list[Reason]:
    short = [
        stage
        for stage in evidence.measured
        if stage.load != "replay" and stage.duration_s + stage.settle_s < SHORT_STAGE_RATIO * stage.planned_s
    ]
    return [
        Reason(
            state=State.SUSPECT,
            cause=Cause.SHORT_STAGE,
            text=f"{stage.name} was cut short: {number(stage.duration_s + stage.settle_s)} s of {stage.planned_s:g} s",
            stages=[stage.name],
        )
        for stage in short
    ]


def _lost_workers(evidence: Evidence) -> list[Reason]:
    lost = evidence.run.lost_workers
    if not lost:
        return []
    share = _share(len(lost), len(evidence.run.workers))
    first_ns = min(worker.unix_ns for worker in lost)
    ends_ns = {times.name: times.stop_unix_ns for times in evidence.run.stage_times}
    hit = [stage.name for stage in evidence.measured if ends_ns[stage.name] > first_ns]
    state = State.INVALID if hit and share > LOST_WORKER_INVALID_RATIO else State.SUSPECT
    names = ", ".join(worker.worker for worker in lost)
    in_flight = counted(sum(worker.in_flight for worker in lost), "request")
    text = f"{len(lost)} of {len(evidence.run.workers)} workers were lost ({names}) with {in_flight} in flight"
    text += f"; from then on {', '.join(hit)} had less load than asked" if hit else "; no measured stage was sending"
    return [
        Reason(
            state=state,
            cause=Cause.LOST_WORKER,
            text=text,
            stages=hit,
            seconds=second_spans(worker.unix_ns // 1_000_000_000 for worker in lost),
        )
    ]


def _no_records(evidence: Evidence) -> list[Reason]:
    fleet = len(evidence.run.workers)
    silent = [worker for worker in evidence.run.workers if not evidence.records_by_worker.get(worker)]
    if not silent or not evidence.records_by_worker:
        return []
    if not any(_requests(s) >= fleet and (s.concurrency is None or s.concurrency >= fleet) for s in evidence.stages):
        return []  # never enough load for every worker to have some
    state = State.INVALID if _share(len(silent), fleet) > LOST_WORKER_INVALID_RATIO else State.SUSPECT
    text = f"no records of {', '.join(silent)}: what they sent is missing from every number here"
    return [Reason(state=state, cause=Cause.NO_RECORDS, text=text)]


def _records_lost(evidence: Evidence) -> list[Reason]:
    if evidence.workers.is_empty():
        return []
    lost = int(evidence.workers.group_by("worker").agg(pl.col("log_lost").max())["log_lost"].sum())
    if not lost:
        return []
    share = lost / (lost + sum(evidence.records_by_worker.values()))
    text = f"{counted(lost, 'record')} ({percent(share)}) could not be written to a worker's log (is its disk full?)"
    return [Reason(state=_grade(share, 0, LOG_LOST_INVALID_RATIO), cause=Cause.RECORDS_LOST, text=text)]


def _records_removed(evidence: Evidence) -> list[Reason]:
    if evidence.workers.is_empty():
        return []
    removed = int(evidence.workers.group_by("worker").agg(pl.col("log_removed").max())["log_removed"].sum())
    if not removed:
        return []
    share = percent(removed / (removed + sum(evidence.records_by_worker.values())))
    text = f"{counted(removed, 'request')} ({share}) had to leave full logs: the database has them, this report not"
    return [Reason(state=State.SUSPECT, cause=Cause.RECORDS_REMOVED, text=text)]


def _missing_windows(evidence: Evidence) -> list[Reason]:
    missing = evidence.run.missing_windows
    if not missing:
        return []
    text = f"{counted(missing, 'second')} of workers never reached the master: the live graphs have holes"
    return [Reason(state=State.SUSPECT, cause=Cause.MISSING_WINDOWS, text=text)]


def _stamps(evidence: Evidence) -> list[Reason]:
    reasons = []
    if evidence.unstamped_ratio is not None and evidence.unstamped_ratio > UNSTAMPED_SUSPECT_RATIO:
        text = f"{percent(evidence.unstamped_ratio)} of the token arrivals are stamped by the process, not the kernel"
        reasons.append(Reason(state=State.SUSPECT, cause=Cause.UNSTAMPED, text=text))
    if evidence.merged_ratio is not None and evidence.merged_ratio > MERGED_SUSPECT_RATIO:
        share = percent(evidence.merged_ratio)
        text = f"{share} of the token arrivals share a read with the one before: ITL is of packets"
        reasons.append(Reason(state=State.SUSPECT, cause=Cause.MERGED, text=text))
    return reasons


# --- workers, second by second ------------------------------------------------------------------


def _seconds_of(evidence: Evidence, stage: StageSummary) -> pl.DataFrame:
    """Health of all workers in the seconds that lie wholly within a stage's sending time."""
    times = next(times for times in evidence.run.stage_times if times.name == stage.name)
    first, last = -(-times.start_unix_ns // 1_000_000_000), times.stop_unix_ns // 1_000_000_000 - 1
    return evidence.workers.filter(pl.col("second_unix").is_between(first, last))


def _worker_rule(
    column: str, suspect: float, invalid: float, *, bad_ratio: float, cause: Cause, text: Callable[[str, float], str]
) -> Callable[[Evidence], list[Reason]]:
    """A rule that holds when the column is over its limit in more than `bad_ratio` of a stage's worker-seconds."""

    def rule(evidence: Evidence) -> list[Reason]:
        found: dict[State, list[tuple[str, pl.DataFrame]]] = {}
        for stage in evidence.measured:
            health = _seconds_of(evidence, stage)
            for state, limit in ((State.INVALID, invalid), (State.SUSPECT, suspect)):
                bad = health.filter(pl.col(column) > limit)
                if len(bad) > bad_ratio * len(health):
                    found.setdefault(state, []).append((stage.name, bad))
                    break
        return [_worker_reason(state, cause, column, hits, text) for state, hits in found.items()]

    return rule


def _worker_reason(
    state: State,
    cause: Cause,
    column: str,
    hits: list[tuple[str, pl.DataFrame]],
    text: Callable[[str, float], str],
) -> Reason:
    bad = pl.concat([table for _, table in hits]).sort(column, descending=True)
    worst = bad.row(0, named=True)
    stages = [name for name, _ in hits]
    where = f" ({counted(len(bad), 'worker-second')} in {', '.join(stages)})"
    return Reason(
        state=state,
        cause=cause,
        text=text(worst["worker"], worst[column]) + where,
        stages=stages,
        seconds=second_spans(bad["second_unix"]),
    )


_loop_lag = _worker_rule(
    "loop_lag_p99_ms",
    LOOP_LAG_P99_SUSPECT_MS,
    LOOP_LAG_P99_INVALID_MS,
    bad_ratio=BAD_SECONDS_RATIO,
    cause=Cause.LOOP_LAG,
    text=lambda worker, value: f"workers' loops ran late, {worker} by {number(value)} ms at p99",
)
_loop_stall = _worker_rule(
    "loop_lag_max_ms",
    LOOP_STALL_SUSPECT_MS,
    LOOP_STALL_INVALID_MS,
    bad_ratio=0.0,
    cause=Cause.LOOP_STALL,
    text=lambda worker, value: f"workers stood still, {worker} for {number(value)} ms",
)
_cpu = _worker_rule(
    "cpu_ratio",
    CPU_SUSPECT_RATIO,
    CPU_INVALID_RATIO,
    bad_ratio=BAD_SECONDS_RATIO,
    cause=Cause.CPU,
    text=lambda worker, value: f"workers were short of CPU, {worker} at {percent(value)} of a core; add workers",
)


# --- stages -------------------------------------------------------------------------------------


def _schedule_lag(evidence: Evidence) -> list[Reason]:
    reasons = []
    for stage in evidence.measured:
        if stage.concurrency is not None or stage.schedule_lag_ms is None:
            continue
        lag_ms = stage.schedule_lag_ms.p99
        state = _grade(lag_ms, SCHEDULE_LAG_SUSPECT_MS, SCHEDULE_LAG_INVALID_MS)
        if state is not State.VALID:
            text = f"{stage.name}: requests were sent up to {number(lag_ms)} ms late (p99)"
            reasons.append(Reason(state=state, cause=Cause.SCHEDULE_LAG, text=text, stages=[stage.name]))
    return reasons


def _dropped(evidence: Evidence) -> list[Reason]:
    reasons = []
    for stage in evidence.measured:
        if not stage.dropped:
            continue
        share = _share(stage.dropped, stage.dropped + _requests(stage))
        state = _grade(share, DROPPED_SUSPECT_RATIO, DROPPED_INVALID_RATIO)
        if state is not State.VALID:
            text = f"{stage.name}: {counted(stage.dropped, 'arrival')} of those due ({percent(share)}) never sent"
            reasons.append(Reason(state=state, cause=Cause.DROPPED, text=text, stages=[stage.name]))
    return reasons


def _coalesced(evidence: Evidence) -> list[Reason]:
    reasons = []
    for stage in evidence.measured:
        if stage.coalesced_ratio is not None and stage.coalesced_ratio > COALESCED_SUSPECT_RATIO:
            share = percent(stage.coalesced_ratio)
            text = (
                f"{stage.name}: {share} of the answers came in a few bursts (a buffering proxy?), without TTFT and ITL"
            )
            reasons.append(Reason(state=State.SUSPECT, cause=Cause.COALESCED, text=text, stages=[stage.name]))
    return reasons


def _client_limit(evidence: Evidence) -> list[Reason]:
    return _outcome_rule(
        evidence,
        (Outcome.CLIENT_LIMIT,),
        suspect=0.0,
        invalid=CLIENT_LIMIT_INVALID_RATIO,
        cause=Cause.CLIENT_LIMIT,
        said="never left the worker (ports, descriptors)",
    )


def _failed(evidence: Evidence) -> list[Reason]:
    failures = tuple(o for o in Outcome if o not in (Outcome.OK, Outcome.ABORTED, Outcome.LOST, Outcome.CLIENT_LIMIT))
    return _outcome_rule(
        evidence,
        failures,
        suspect=FAILED_SUSPECT_RATIO,
        invalid=1.0,
        cause=Cause.FAILED,
        said="failed: latencies describe those that did not",
    )


def _aborted(evidence: Evidence) -> list[Reason]:
    return _outcome_rule(
        evidence,
        (Outcome.ABORTED,),
        suspect=ABORTED_SUSPECT_RATIO,
        invalid=1.0,
        cause=Cause.ABORTED,
        said="were given up before they ended: the slowest are missing from the latencies",
    )


def _outcome_rule(
    evidence: Evidence, outcomes: Sequence[Outcome], *, suspect: float, invalid: float, cause: Cause, said: str
) -> list[Reason]:
    """A rule on the share of a stage's requests that ended in one of these ways; names those that occurred."""
    reasons = []
    for stage in evidence.measured:
        counts = {o.value: stage.requests[o.value] for o in outcomes if o.value in stage.requests}
        count = sum(counts.values())
        share = _share(count, _requests(stage))
        state = _grade(share, suspect, invalid)
        if state is not State.VALID:
            kinds = ", ".join(f"{n:,} {name}" for name, n in counts.items())
            text = f"{stage.name}: {percent(share)} of the requests {said} ({kinds}){_most_often(stage, counts)}"
            reasons.append(Reason(state=state, cause=cause, text=text, stages=[stage.name]))
    return reasons


def _most_often(stage: StageSummary, outcomes: Container[str]) -> str:
    """The most frequent error with one of these outcomes, short; empty when none left a text."""
    error = next((failure.error for failure in stage.failures if failure.outcome in outcomes), None)
    return "" if error is None else f"; most often: {shortened(error)}"


RULES: tuple[Callable[[Evidence], list[Reason]], ...] = (
    _nothing_measured,
    _run_error,
    _short_stages,
    _lost_workers,
    _no_records,
    _records_lost,
    _records_removed,
    _missing_windows,
    _loop_lag,
    _loop_stall,
    _cpu,
    _schedule_lag,
    _dropped,
    _client_limit,
    _stamps,
    _coalesced,
    _failed,
    _aborted,
)
