"""Where the tok/s curve bends, and the most visible reason why.

With c_1 < c_2 < … the concurrencies of the measured closed-loop stages and x_i their output tok/s,
a stage's marginal gain is what each stream added since the stage before brought:

    gain_i = (x_i - x_(i-1)) / (c_i - c_(i-1))        to be compared with x_1 / c_1

The knee is the largest c_i whose gain is at least half of x_1 / c_1 (c_1 itself when none is); the
peak is the stage with the most tok/s. In a closed loop tok/s per stream falls exactly as requests
take longer, so the reasons are the parts of E2E p50 that grew between the first stage and the one
after the knee, each as a share of the growth; failures and the generator are looked at first.
"""

import enum
import itertools

import msgspec

from tokswarm.insight.figures import counted, number, percent
from tokswarm.insight.percentiles import Percentiles
from tokswarm.insight.stage import CurvePoint, StageSummary, closed_curve
from tokswarm.insight.verdict import Cause
from tokswarm.measure.record import Outcome, QueueWaitSource

GAIN_RATIO_MIN = 0.5
"""Half of the first stream's rate: beyond it, adding streams costs the others more than it brings."""

POINTS_MIN = 3
"""Two points are a line: they cannot show a bend."""

CACHE_FALL_MIN = 0.1
"""A cached share that fell by less is within what a mix's randomness does."""

FAILED_SHARE_MIN = 0.1
"""One request in ten failing outweighs what latencies say, as those are of the other nine."""

ALSO_SHARE_MIN = 0.25
"""A lesser reason is named in the sentence from a quarter of the growth on; a fallen cache share always is,
because recompute also fills the steps that others queue and decode in."""


GENERATOR_LIMITS = {
    Cause.LOST_WORKER: "workers were lost",
    Cause.LOOP_LAG: "its loops ran late",
    Cause.LOOP_STALL: "it stood still",
    Cause.CPU: "it was out of CPU",
    Cause.DROPPED: "it left arrivals out",
    Cause.CLIENT_LIMIT: "it was out of ports or descriptors",
}
"""Verdict rules by which the generator can bend the curve, in words."""


class BendCause(enum.StrEnum):
    """What can be seen to bend the curve."""

    GENERATOR = "generator"
    RATE_LIMITING = "rate_limiting"
    ERRORS = "errors"
    QUEUE_WAIT = "queue_wait"
    CACHE = "cache"
    FIRST_TOKEN = "first_token"  # noqa: S105 - a name, no password
    BATCHING = "batching"


class Visible(msgspec.Struct, frozen=True, kw_only=True):
    """One visible reason with its numbers."""

    cause: BendCause
    share: float
    """Of the growth of E2E p50; of the requests for errors and rate limiting; 1 for the generator."""
    evidence: str


class BendPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A stage on the curve."""

    stage: str
    concurrency: int
    output_tok_per_s: float
    linear_ratio: float


class Bend(msgspec.Struct, frozen=True, kw_only=True):
    """What the sweep says about the curve; `line` says it in one sentence, found or not."""

    found: bool
    line: str
    knee: BendPoint | None = None
    peak: BendPoint | None = None
    cause: BendCause | None = None
    """The dominant reason; None: no bend, or nothing visible explains it."""
    causes: list[Visible] = []
    """Dominant first."""


def find_bend(stages: list[StageSummary], short_of: dict[str, Cause]) -> Bend:
    """Find the bend; `short_of` names the stages that the generator itself spoiled, and how."""
    curve = closed_curve(stages)
    if len(curve) < POINTS_MIN:
        have = counted(len(curve), "concurrency", "concurrencies")
        return Bend(found=False, line=f"no bend to look for: {have} measured, it takes {POINTS_MIN}")
    first = curve[0]
    if first.tok_per_s <= 0:
        return Bend(found=False, line=f"no bend to look for: no token arrived at concurrency {first.concurrency}")
    knee_at = _knee(curve)
    knee, peak = _point(curve[knee_at], first), _point(max(curve, key=lambda point: point.tok_per_s), first)
    if knee_at == len(curve) - 1:
        line = (
            f"no bend up to concurrency {knee.concurrency}: {number(knee.output_tok_per_s)} tok/s, "
            f"{percent(knee.linear_ratio)} of linear, and still rising; sweep further"
        )
        return Bend(found=False, line=line, knee=knee, peak=peak)
    after = curve[knee_at + 1]
    causes = _causes(first.stage, after.stage, short_of)
    return Bend(
        found=True,
        line=_sentence(first, curve[knee_at], after, causes),
        knee=knee,
        peak=peak,
        cause=causes[0].cause if causes else None,
        causes=causes,
    )


def _knee(curve: list[CurvePoint]) -> int:
    """Place of the knee on the curve."""
    enough = GAIN_RATIO_MIN * curve[0].tok_per_s / curve[0].concurrency
    gains = [
        (point.tok_per_s - before.tok_per_s) / (point.concurrency - before.concurrency)
        for before, point in itertools.pairwise(curve)
    ]
    return max((place for place, gain in enumerate(gains, start=1) if gain >= enough), default=0)


def _times(point: CurvePoint, first: CurvePoint) -> tuple[float, float]:
    """How many times the first stage's tok/s a point has, and how many times its concurrency."""
    return point.tok_per_s / first.tok_per_s, point.concurrency / first.concurrency


def _point(point: CurvePoint, first: CurvePoint) -> BendPoint:
    times, linear = _times(point, first)
    return BendPoint(
        stage=point.stage.name,
        concurrency=point.concurrency,
        output_tok_per_s=point.tok_per_s,
        linear_ratio=round(times / linear, 4),
    )


def _sentence(first: CurvePoint, knee: CurvePoint, after: CurvePoint, causes: list[Visible]) -> str:
    times, linear = _times(knee, first)
    after_times, after_linear = _times(after, first)
    where = (
        f"tok/s bends at concurrency {knee.concurrency}: {number(knee.tok_per_s)} tok/s, {times:.1f}× of linear "
        f"{linear:g}×; at {after.concurrency} it is {after_times:.1f}× of linear {after_linear:g}×"
    )
    if not causes:
        return f"{where}; nothing visible explains it"
    also = (c for c in causes[1:] if c.share >= ALSO_SHARE_MIN or c.cause is BendCause.CACHE)
    named = [causes[0], *also]
    return f"{where}; {'; also '.join(cause.evidence for cause in named)}"


# --- reasons ------------------------------------------------------------------------------------


def _causes(first: StageSummary, after: StageSummary, short_of: dict[str, Cause]) -> list[Visible]:
    """All visible reasons: the generator, failures, then the parts of the growth of E2E by size."""
    certain = []
    if after.name in short_of:
        text = f"the generator itself was the limit at {after.label}: {GENERATOR_LIMITS[short_of[after.name]]}"
        certain.append(Visible(cause=BendCause.GENERATOR, share=1.0, evidence=text))
    return [*certain, *_failures(first, after), *_growth(first, after)]


def _failures(first: StageSummary, after: StageSummary) -> list[Visible]:
    limited = (Outcome.RATE_LIMITED.value,)
    excluded = {*limited, Outcome.OK.value, Outcome.ABORTED.value}
    errors = tuple(outcome.value for outcome in Outcome if outcome.value not in excluded)
    found = []
    for cause, outcomes, what in (
        (BendCause.RATE_LIMITING, limited, "refused with 429"),
        (BendCause.ERRORS, errors, "failing"),
    ):
        before, now = _share(first, outcomes), _share(after, outcomes)
        if now - before >= FAILED_SHARE_MIN:
            text = f"requests {what} rose from {percent(before)} to {percent(now)}"
            found.append(Visible(cause=cause, share=round(now - before, 4), evidence=text))
    return sorted(found, key=lambda visible: -visible.share)


def _share(stage: StageSummary, outcomes: tuple[str, ...]) -> float:
    total = sum(stage.requests.values())
    return sum(stage.requests.get(outcome, 0) for outcome in outcomes) / total if total else 0.0


def _growth(first: StageSummary, after: StageSummary) -> list[Visible]:
    """E2E p50 = queue wait + rest up to the first token + decode: who grew by how much."""
    if not (first.e2e_ms and after.e2e_ms and first.ttft_ms and after.ttft_ms):
        return []
    grown_ms = after.e2e_ms.p50 - first.e2e_ms.p50
    if grown_ms <= 0:
        return []
    ttft_ms = after.ttft_ms.p50 - first.ttft_ms.p50
    waited_ms = 0.0
    parts = [(BendCause.BATCHING, grown_ms - ttft_ms, _decode_text(first, after))]
    if first.queue_wait_ms is not None and after.queue_wait_ms is not None:
        waited_ms = after.queue_wait_ms.p50 - first.queue_wait_ms.p50
        what = "queue wait" if after.queue_wait_source == QueueWaitSource.SERVER.value else "queue wait (estimated)"
        parts.append((BendCause.QUEUE_WAIT, waited_ms, _rose(what, first.queue_wait_ms, after.queue_wait_ms)))
        ttft_text = "prompts take longer to the first token, beyond the queue wait"
    else:
        ttft_text = f"{_rose('TTFT', first.ttft_ms, after.ttft_ms)} (the queue wait in it is not known)"
    if (fall := _cache_fall(first, after)) is not None:
        parts.append((BendCause.CACHE, max(ttft_ms - waited_ms, 0.0), fall))
    else:
        parts.append((BendCause.FIRST_TOKEN, ttft_ms - waited_ms, ttft_text))
    visible = [
        Visible(cause=cause, share=round(min(part_ms / grown_ms, 1.0), 4), evidence=text)
        for cause, part_ms, text in parts
        if part_ms > 0 or cause is BendCause.CACHE
    ]
    return sorted(visible, key=lambda part: -part.share)


def _decode_text(first: StageSummary, after: StageSummary) -> str:
    text = "each stream decodes more slowly in the larger batch"
    if first.tpot_ms is not None and after.tpot_ms is not None:
        text += f" ({_rose('TPOT', first.tpot_ms, after.tpot_ms)})"
    return text


def _cache_fall(first: StageSummary, after: StageSummary) -> str | None:
    """What the cached share fell by, when it fell; what TTFT grew beyond the queue is then put down to recompute."""
    before, now = first.cached_ratio, after.cached_ratio
    if before is None or now is None or before - now < CACHE_FALL_MIN:
        return None
    return f"the cached share of prompts fell from {percent(before)} to {percent(now)}"


def _rose(what: str, before: Percentiles, after: Percentiles) -> str:
    return f"{what} p50 rose from {number(before.p50)} to {number(after.p50)} ms"
