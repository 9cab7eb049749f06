"""One stage of a run, measured as a whole and class by class."""

from typing import NamedTuple

import msgspec

from tokswarm.insight.comparison import Comparison
from tokswarm.insight.failure import Failure
from tokswarm.insight.fallbacks import Fallbacks
from tokswarm.insight.measures import Measures
from tokswarm.insight.server_share import ServerShare
from tokswarm.insight.target_summary import TargetSummary


class StageSummary(Measures, frozen=True, kw_only=True):
    """A stage that began, as a whole and class by class."""

    name: str
    load: str
    """closed, open, or replay."""
    concurrency: int | None
    """Requests in flight over the fleet; None where the loop is open."""
    rate_per_s: float | None
    """The planned rate of an open loop; None in a closed loop and a replay, and where it changes within the stage."""
    warmup: bool
    """Kept out of totals, bend and verdict."""
    started_unix_ns: int
    planned_s: float
    settle_s: float
    """Ramp-up cut off before the measured window."""
    duration_s: float
    """Length of the measured window."""
    linear_ratio: float | None = None
    """Output tok/s against that of the lowest closed-loop stage, scaled by concurrency; 1 is linear."""
    dropped: int | None = None
    """Arrivals that were due and never sent; None: not known."""
    abandoned_turns: int | None = None
    """Turns that were never sent, because an earlier one of their session failed; None: not known."""
    failures: tuple[Failure, ...] = ()
    """The most frequent errors, most frequent first."""
    classes: dict[str, Measures]
    served_by: dict[str, ServerShare] = msgspec.field(default_factory=dict)
    """What each replica or provider served, where the responses name it."""
    fallbacks: Fallbacks | None = None
    """Answers from another provider or model than asked for; None: no answer says anything of it."""
    targets: dict[str, TargetSummary] = msgspec.field(default_factory=dict)
    """Target by target, where the mix has several."""
    comparisons: tuple[Comparison, ...] = ()
    """Of mirrored traffic each later target against the first."""

    @property
    def label(self) -> str:
        """What sets the stage apart, for tables: concurrency, rate, that it changes, or that it replays a trace."""
        if self.concurrency is not None:
            return str(self.concurrency)
        if self.rate_per_s is not None:
            return f"{self.rate_per_s:g}/s"
        return "trace" if self.load == "replay" else "changing rate"


class CurvePoint(NamedTuple):
    """One point of the curve: what a measured closed-loop stage gave."""

    concurrency: int
    tok_per_s: float
    stage: StageSummary


def closed_curve(stages: list[StageSummary]) -> list[CurvePoint]:
    """The curve by concurrency: closed-loop stages that are no warm-up and whose window has a length.

    A concurrency that was run twice counts once, as it was the last time.
    """
    points = {
        stage.concurrency: CurvePoint(stage.concurrency, stage.output_tok_per_s, stage)
        for stage in stages
        if stage.concurrency is not None and not stage.warmup and stage.output_tok_per_s is not None
    }
    return [points[concurrency] for concurrency in sorted(points)]
