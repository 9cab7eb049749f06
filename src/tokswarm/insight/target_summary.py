"""One target's part of a stage of a run with several targets."""

import msgspec
import polars as pl

from tokswarm.insight.failure import Failure, common_failures
from tokswarm.insight.fallbacks import Fallbacks, fallbacks, usual_model
from tokswarm.insight.measured_window import MeasuredWindow
from tokswarm.insight.measures import Measures, measure
from tokswarm.insight.server_share import ServerShare, server_shares
from tokswarm.traffic.mix import Mix
from tokswarm.traffic.plan import ClosedLoop, PlannedStage
from tokswarm.traffic.routing import targets_reached
from tokswarm.traffic.schedule import stage_class_weights


class TargetSummary(Measures, frozen=True, kw_only=True):
    """What one target gave. Dropped arrivals, which have no record, are in no target's offered rate."""

    failures: tuple[Failure, ...] = ()
    """The most frequent errors, most frequent first."""
    served_by: dict[str, ServerShare] = msgspec.field(default_factory=dict)
    """What each replica or provider behind it served, where the responses name it."""
    fallbacks: Fallbacks | None = None
    """Answers from another provider or model than asked for; None: no answer says anything of it."""


def target_summaries(
    rows: pl.DataFrame, window: MeasuredWindow, mix: Mix, stage: PlannedStage, usual: dict[str, str]
) -> dict[str, TargetSummary]:
    """Each target that a stage had requests for, in the order of the mix; empty of a mix with one target.

    `usual`: by target the model that usually answers.
    """
    names = [target.name for target in mix.targets or ()]
    streams = stage.load.concurrency if isinstance(stage.load, ClosedLoop) and mix.split == "mirror" else None
    summaries = {}
    for name in names:
        part = rows.filter(pl.col("target") == name)
        if part.is_empty():
            continue
        open_loop = not isinstance(stage.load, ClosedLoop)
        measures = measure(part, window, streams=streams, dropped=0, from_schedule=open_loop)
        summaries[name] = TargetSummary(
            **msgspec.structs.asdict(measures),
            failures=common_failures(part),
            served_by=server_shares(part),
            fallbacks=fallbacks(part, usual[name]),
        )
    return summaries


def usual_models(rows: pl.DataFrame, asked: list[str], mix: Mix) -> dict[str, str]:
    """By target the model that usually answers; `asked`: by place of the target the one that was asked for."""
    if mix.targets is None:
        names = rows["target"].drop_nulls().unique().to_list()
        return {str(name): usual_model(rows, asked[0]) for name in names}
    return {
        target.name: usual_model(rows.filter(pl.col("target") == target.name), model)
        for target, model in zip(mix.targets, asked, strict=True)
    }


def streams_of(mix: Mix, stage: PlannedStage) -> int | None:
    """Requests in flight that a stage asks for; of mirrored traffic on each of its targets. None: its loop is open."""
    if not isinstance(stage.load, ClosedLoop):
        return None
    if mix.split != "mirror":
        return stage.load.concurrency
    return stage.load.concurrency * len(targets_reached(mix, stage_class_weights(mix, stage)))
