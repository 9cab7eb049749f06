"""What a run measured, as far as a prediction is compared with it."""

from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median

import msgspec
import polars as pl

from tokswarm.errors import ReportError
from tokswarm.insight.report import REQUESTS_FILE, read_run_file, read_summary
from tokswarm.insight.run_file import RUN_FILE
from tokswarm.insight.stage import StageSummary
from tokswarm.measure.record import Outcome, QueueWaitSource
from tokswarm.traffic.mix import Mix
from tokswarm.traffic.plan import ClosedLoop, OpenLoop, Plan, PlannedStage, Replay, TokenFit
from tokswarm.traffic.units import dec_hook, enc_hook


class Figures(msgspec.Struct, frozen=True):
    """The figures of one stage that are predicted, measured or simulated. None: there was nothing to measure."""

    output_tok_per_s: float | None
    """In the stage's measured window."""
    ttft_p50_ms: float | None
    itl_p50_ms: float | None
    queue_wait_mean_ms: float | None
    """Mean over the requests; a median says nothing where only some wait."""

    @property
    def values(self) -> tuple[float | None, float | None, float | None, float | None]:
        """The figures in the order in which they are shown."""
        return self.output_tok_per_s, self.ttft_p50_ms, self.itl_p50_ms, self.queue_wait_mean_ms


def middle(repeats: Sequence[Figures]) -> Figures:
    """The median of each figure over stages that ran the same load."""
    columns = zip(*(each.values for each in repeats), strict=True)
    return Figures(*(None if None in column else round(median(column), 3) for column in columns))


class MeasuredStage(msgspec.Struct, frozen=True, kw_only=True):
    """A stage as it ran, with what was measured of it."""

    name: str
    sent_for_s: float
    """From its start until it sent no more."""
    settle_s: float
    """From its start to its measured window."""
    window_s: float
    figures: Figures


class MeasuredRun(msgspec.Struct, frozen=True, kw_only=True):
    """All that a fit needs of a run: what was asked for, exactly, and what came of it."""

    run_id: str
    mix: Mix
    planned: list[PlannedStage]
    fit: TokenFit
    content_seed: int
    stages: list[MeasuredStage]
    """Those that began and measured something, in the order in which they ran; warm-ups among them."""
    answer_tokens: dict[str, list[int]]
    """Class to the lengths of its answers, where they end by themselves."""

    @property
    def plan(self) -> Plan:
        """The plan that was run, to draw its requests again."""
        return Plan(
            run_id=self.run_id,
            mix=self.mix,
            model="",
            stages=list(self.planned),
            fit=self.fit,
            content_seed=self.content_seed,
        )

    @property
    def points(self) -> dict[str, list[MeasuredStage]]:
        """Load, in words, to the stages that ran it, warm-ups left out; the lowest load first.

        Stages are of one load when their plans differ in nothing but the name.
        """
        planned = {stage.name: stage for stage in self.planned if not stage.warmup}
        stages = sorted((each for each in self.stages if each.name in planned), key=lambda s: _size(planned[s.name]))
        found: dict[str, list[MeasuredStage]] = {}
        nameless = {name: msgspec.structs.replace(stage, name="") for name, stage in planned.items()}
        for stage in stages:
            same = (label for label, others in found.items() if nameless[others[0].name] == nameless[stage.name])
            found.setdefault(next(same, None) or _label(planned[stage.name], found), []).append(stage)
        return found


def _size(stage: PlannedStage) -> float:
    match stage.load:
        case ClosedLoop():
            return stage.load.concurrency
        case OpenLoop():
            return stage.load.rate_per_s
        case Replay():
            return 0.0


def _label(stage: PlannedStage, taken: Collection[str]) -> str:
    """The concurrency, where that alone tells the stage from others; else its name."""
    if isinstance(stage.load, ClosedLoop) and str(stage.load.concurrency) not in taken:
        return str(stage.load.concurrency)
    return stage.name


ANSWERS_KEPT = 2_000
"""Lengths of answers kept for each class: enough to draw from."""


def read_measured(run_dir: Path) -> MeasuredRun:
    """What the run in this folder measured. ReportError when its report or records cannot be read."""
    run = read_run_file(run_dir / RUN_FILE)
    summary = read_summary(run_dir)
    try:
        ok = pl.read_parquet(
            run_dir / REQUESTS_FILE,
            columns=["stage", "class_name", "outcome", "output_tokens", "queue_wait_ms", "queue_wait_source"],
        ).filter(pl.col("outcome") == Outcome.OK.value)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ReportError(
            f"{run_dir / REQUESTS_FILE}: {error}", hint="`tokswarm report RUN --again` makes it from the run's logs"
        ) from error
    waits = _queue_waits(ok)
    times = {each.name: each for each in run.stage_times}
    free = [each.name for each in run.mix.classes if not each.output.ignore_eos]
    return MeasuredRun(
        run_id=run.run_id,
        mix=run.mix,
        planned=run.stages,
        fit=run.fit,
        content_seed=run.content_seed,
        stages=[
            MeasuredStage(
                name=stage.name,
                sent_for_s=(times[stage.name].stop_unix_ns - times[stage.name].start_unix_ns) / 1e9,
                settle_s=stage.settle_s,
                window_s=stage.duration_s,
                figures=_figures(stage, waits.get(stage.name)),
            )
            for stage in summary.stages
            if stage.duration_s > 0
        ],
        answer_tokens={
            name: ok.filter(pl.col("class_name") == name)["output_tokens"].head(ANSWERS_KEPT).to_list() for name in free
        },
    )


def _queue_waits(ok: pl.DataFrame) -> dict[str, float]:
    said = ok.filter(pl.col("queue_wait_source") == QueueWaitSource.SERVER.value)
    return dict(said.group_by("stage").agg(pl.col("queue_wait_ms").mean()).iter_rows())


def _figures(stage: StageSummary, queue_wait_mean_ms: float | None) -> Figures:
    return Figures(
        output_tok_per_s=stage.output_tok_per_s,
        ttft_p50_ms=None if stage.ttft_ms is None else stage.ttft_ms.p50,
        itl_p50_ms=None if stage.itl_ms is None else stage.itl_ms.p50,
        queue_wait_mean_ms=None if queue_wait_mean_ms is None else round(queue_wait_mean_ms, 3),
    )


def encode_measured(run: MeasuredRun) -> bytes:
    """As JSON, to be kept without the run's records."""
    return msgspec.json.encode(run, enc_hook=enc_hook)


def decode_measured(content: bytes) -> MeasuredRun:
    """What `encode_measured` gave. msgspec.ValidationError when it is something else."""
    return msgspec.json.decode(content, type=MeasuredRun, dec_hook=dec_hook)
