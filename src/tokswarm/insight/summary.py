"""The summary of a run: every number of its report, as written to `summary.json` (docs/summary.md)."""

from typing import Any

import msgspec
import polars as pl

from tokswarm.insight import tables
from tokswarm.insight.bend import GENERATOR_LIMITS, Bend, find_bend
from tokswarm.insight.cliff_list import CliffFound
from tokswarm.insight.comparison import Comparison, compare
from tokswarm.insight.cost import Cost, cost_of
from tokswarm.insight.failure import common_failures
from tokswarm.insight.fallbacks import Fallbacks, fallbacks, pooled
from tokswarm.insight.measured_window import MeasuredWindow, measured_window
from tokswarm.insight.measures import Measures, measure
from tokswarm.insight.percentiles import percentiles
from tokswarm.insight.queue_wait import UNLOADED_IN_FLIGHT_MAX, UnloadedTtft, estimated_wait_ms, fit_unloaded
from tokswarm.insight.run_file import LostWorker, RunFile, StageTimes
from tokswarm.insight.search_result import SearchResult
from tokswarm.insight.server_share import server_shares
from tokswarm.insight.server_stage import ServerStage
from tokswarm.insight.stage import StageSummary
from tokswarm.insight.target_summary import streams_of, target_summaries, usual_models
from tokswarm.insight.verdict import Cause, Evidence, State, Verdict, give_verdict
from tokswarm.measure.record import Outcome
from tokswarm.measure.window import ALL_CLASSES
from tokswarm.traffic.plan import ClosedLoop, Load, OpenLoop, PlannedStage, Replay
from tokswarm.traffic.routing import places_line
from tokswarm.traffic.units import enc_hook

Table = pl.DataFrame | pl.LazyFrame

SCHEMA_VERSION = 1
"""Goes up when a reader would misread the summary; keys are only ever added otherwise."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Whole requests, from first to last, of the stages they are of."""

    requests: dict[str, int]
    output_tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None
    """None: the server does not say."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a run says. Ratios are 0 to 1; None is absent, never 0."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    model: str
    base_url: str
    started_unix_ns: int
    ended_unix_ns: int
    stopped_by: str
    stop_reason: str = ""
    """Which rule of the mix ended the run; empty when none did."""
    error: str
    verdict: Verdict
    bend: Bend
    searches: list[SearchResult] = []
    """What the stages that search for a load have found."""
    stages: list[StageSummary]
    cliffs: list[CliffFound] = []
    """Falls of the tok/s that were marked while the run went on."""
    servers: list[ServerStage] = []
    """What each replica said of itself in each stage; empty: its metrics were not read."""
    totals: Totals
    """Of measured stages."""
    warmup_totals: Totals
    """Of warm-up stages, which are in no other result."""
    cost: Cost | None = None
    """Of all requests, warm-up included; None: the mix gives no price, or the endpoint does not count prompts."""
    token_sources: dict[str, float]
    """Share of all output tokens by where their count comes from."""
    merged_ratio: float | None
    unstamped_ratio: float | None
    lost_requests: int
    """In flight on workers that were lost, and lost for other reasons."""
    aborted_requests: int
    unloaded_ttft: UnloadedTtft | None
    """The line that queue waits are estimated from; None: not enough unloaded requests."""
    missing: list[str]
    """What a whole run has and this one has not."""
    notes: list[str]
    seed: int
    content_seed: int
    workers: list[str]
    versions: dict[str, str]
    mix: dict[str, Any]
    """The mix as it was run (docs/mix.md)."""


def summarise(run: RunFile, requests: Table, workers: Table, fleet: Table | None = None) -> Summary:
    """Sum up a run from its tables; `fleet` adds the arrivals that were dropped, which leave no record.

    Given lazy tables, the arrivals of only one stage at a time are in memory.
    """
    whole = tables.conform(requests, tables.REQUESTS, "requests")
    records = whole.with_columns(arrivals=pl.col("arrivals_ns").list.len()).drop("arrivals_ns", "arrival_tokens")
    requests = records.collect(engine="streaming")
    workers = tables.conform(workers, tables.WORKERS, "workers").collect()
    dropped = None if fleet is None else tables.conform(fleet, tables.FLEET, "fleet").collect()
    planned = {stage.name: stage for stage in run.stages}
    begun = [(planned[times.name], times) for times in run.stage_times]
    unloaded = _fit(requests, begun)
    wait = pl.lit(None, pl.Float64) if unloaded is None else estimated_wait_ms(unloaded)
    whole = whole.with_columns(estimated_wait_ms=wait)
    lost = _without_records(run.lost_workers, requests)
    asked = [run.model, *(endpoint.model for endpoint in run.further_endpoints)]
    usual = usual_models(requests, asked, run.mix)
    stages = _with_linear_ratio(
        [_stage(run, plan, times, requests=whole, fleet=dropped, lost=lost, usual=usual) for plan, times in begun]
    )
    warmups = {stage.name for stage in stages if stage.warmup}
    in_warmup = pl.col("stage").is_in(list(warmups))
    measured = requests.filter(~in_warmup)
    arrivals = int(measured["arrivals"].sum())
    evidence = Evidence(
        run=run,
        stages=stages,
        workers=workers,
        records_by_worker=dict(requests["worker"].value_counts().iter_rows()),
        merged_ratio=_share(int(measured["merged_arrivals"].sum()), arrivals),
        unstamped_ratio=_share(int(measured["unstamped_arrivals"].sum()), arrivals),
    )
    verdict = give_verdict(evidence)
    return Summary(
        run_id=run.run_id,
        model=", ".join(dict.fromkeys(asked)),
        base_url=places_line(run.mix.all_targets),
        started_unix_ns=run.started_unix_ns,
        ended_unix_ns=run.ended_unix_ns,
        stopped_by=run.stopped_by,
        stop_reason=run.stop_reason,
        error=run.error,
        verdict=verdict,
        bend=find_bend(stages, _spoiled_by_generator(verdict)),
        searches=run.searches,
        stages=stages,
        totals=_totals(measured, [stage for stage in stages if not stage.warmup]),
        warmup_totals=_totals(requests.filter(in_warmup), [stage for stage in stages if stage.warmup]),
        cost=cost_of(run.mix.budget, requests),
        token_sources=_token_sources(measured),
        merged_ratio=evidence.merged_ratio,
        unstamped_ratio=evidence.unstamped_ratio,
        lost_requests=len(requests.filter(pl.col("outcome") == Outcome.LOST.value))
        + sum(worker.in_flight for worker in lost),
        aborted_requests=len(requests.filter(pl.col("outcome") == Outcome.ABORTED.value)),
        unloaded_ttft=unloaded,
        missing=_missing(run, requests, workers),
        notes=_notes(run),
        seed=run.mix.seed,
        content_seed=run.content_seed,
        workers=list(run.workers),
        versions=dict(sorted(run.versions.items())),
        mix=msgspec.to_builtins(run.mix, enc_hook=enc_hook, str_keys=True),
    )


# --- stages -------------------------------------------------------------------------------------


def _window(rows: pl.DataFrame, times: StageTimes) -> MeasuredWindow:
    e2e_ms = percentiles(rows.filter(pl.col("outcome") == Outcome.OK.value)["e2e_ms"])
    return measured_window(times, None if e2e_ms is None else e2e_ms.p90)


def _stage(
    run: RunFile,
    plan: PlannedStage,
    times: StageTimes,
    *,
    requests: pl.LazyFrame,
    fleet: pl.DataFrame | None,
    lost: list[LostWorker],
    usual: dict[str, str],
) -> StageSummary:
    rows = requests.filter(pl.col("stage") == plan.name).collect()
    window = _window(rows, times)
    open_loop = not isinstance(plan.load, ClosedLoop)
    concurrency = plan.load.concurrency if isinstance(plan.load, ClosedLoop) else None
    whole = measure(
        rows,
        window,
        streams=streams_of(run.mix, plan),
        dropped=_dropped(fleet, plan.name, ALL_CLASSES, window),
        from_schedule=open_loop,
    )
    names = dict.fromkeys([*(c.name for c in run.mix.classes), *rows["class_name"].unique().sort()])
    classes = {
        name: measure(
            rows.filter(pl.col("class_name") == name),
            window,
            streams=None,
            dropped=_dropped(fleet, plan.name, name, window),
            from_schedule=open_loop,
        )
        for name in names
    }
    counts = _with_lost(lost, times, whole)
    return StageSummary(
        **{**msgspec.structs.asdict(whole), "requests": counts},
        name=plan.name,
        load=_load_name(plan.load),
        concurrency=concurrency,
        rate_per_s=plan.load.rate_per_s if isinstance(plan.load, OpenLoop) and plan.load.course is None else None,
        warmup=plan.warmup,
        started_unix_ns=times.start_unix_ns,
        settle_s=window.settle_s,
        duration_s=round(window.length_s, 3),
        planned_s=plan.duration_s,
        dropped=None if fleet is None else _dropped(fleet, plan.name, ALL_CLASSES, None),
        abandoned_turns=None if fleet is None else _unsent(fleet, plan.name, ALL_CLASSES, None, "abandoned_turns"),
        failures=common_failures(rows),
        classes=classes,
        served_by=server_shares(rows),
        fallbacks=_fallbacks(rows, usual),
        targets=target_summaries(rows, window, run.mix, plan, usual),
        comparisons=_comparisons(run, rows, window),
    )


def _comparisons(run: RunFile, rows: pl.DataFrame, window: MeasuredWindow) -> tuple[Comparison, ...]:
    if run.mix.split != "mirror":
        return ()
    return tuple(compare(rows, window, [target.name for target in run.mix.targets or ()]))


def _fallbacks(rows: pl.DataFrame, usual: dict[str, str]) -> Fallbacks | None:
    """Of all targets together."""
    return pooled(fallbacks(rows.filter(pl.col("target") == name), model) for name, model in usual.items())


def _load_name(load: Load) -> str:
    if isinstance(load, ClosedLoop):
        return "closed"
    return "open" if isinstance(load, OpenLoop) else "replay"


def _dropped(fleet: pl.DataFrame | None, stage: str, class_name: str, window: MeasuredWindow | None) -> int:
    """Arrivals dropped in a stage: all of them, or those of the seconds that begin in its window."""
    return 0 if fleet is None else _unsent(fleet, stage, class_name, window, "dropped")


def _unsent(fleet: pl.DataFrame, stage: str, class_name: str, window: MeasuredWindow | None, what: str) -> int:
    """The sum of a column of counts over a stage, or over the seconds that begin in its window."""
    rows = fleet.filter(pl.col("stage") == stage, pl.col("class_name") == class_name)
    if window is not None:
        begin_ns = pl.col("second_unix") * 1_000_000_000
        rows = rows.filter((begin_ns >= window.begin_unix_ns) & (begin_ns < window.end_unix_ns))
    return int(rows[what].sum())


def _without_records(lost: list[LostWorker], requests: pl.DataFrame) -> list[LostWorker]:
    """The lost workers that died with what they had in flight.

    One that was only silent ends its requests by itself, after it was given up, and each of them has its record.
    """
    ended = pl.col("sent_unix_ns") + pl.col("done_ns") - pl.col("sent_ns")
    last_ns: dict[str, int] = dict(requests.group_by("worker").agg(ended.max()).iter_rows())
    return [worker for worker in lost if last_ns.get(worker.worker, 0) <= worker.unix_ns]


def _with_lost(lost: list[LostWorker], times: StageTimes, measures: Measures) -> dict[str, int]:
    """The stage's outcomes with what was in flight on workers that died during it: those requests left no record."""
    in_flight = sum(each.in_flight for each in lost if times.start_unix_ns <= each.unix_ns <= times.end_unix_ns)
    counts = {**measures.requests}
    if in_flight:
        counts[Outcome.LOST.value] = counts.get(Outcome.LOST.value, 0) + in_flight
    return counts


def _with_linear_ratio(stages: list[StageSummary]) -> list[StageSummary]:
    """Each closed-loop stage's tok/s against the lowest one's, scaled by concurrency."""
    base = min(
        (stage for stage in stages if stage.concurrency is not None and not stage.warmup and stage.output_tok_per_s),
        key=lambda stage: stage.concurrency or 0,
        default=None,
    )
    if base is None or not base.output_tok_per_s or not base.concurrency:
        return stages
    one_stream = base.output_tok_per_s / base.concurrency
    return [
        msgspec.structs.replace(stage, linear_ratio=round(stage.output_tok_per_s / (one_stream * stage.concurrency), 4))
        if stage.concurrency is not None and not stage.warmup and stage.output_tok_per_s is not None
        else stage
        for stage in stages
    ]


def _fit(requests: pl.DataFrame, begun: list[tuple[PlannedStage, StageTimes]]) -> UnloadedTtft | None:
    """Fit unloaded TTFT on the least loaded stages, warm-ups among them, by mean requests in flight."""
    in_flight: dict[str, float] = {}
    for plan, times in begun:
        rows = requests.filter(pl.col("stage") == plan.name)
        sending_ns = times.stop_unix_ns - times.start_unix_ns
        if rows.is_empty() or sending_ns <= 0:
            continue
        in_flight[plan.name] = (
            float(plan.load.concurrency)
            if isinstance(plan.load, ClosedLoop)
            else float(rows["e2e_ms"].sum()) * 1e6 / sending_ns
        )
    if not in_flight or (least := min(in_flight.values())) > UNLOADED_IN_FLIGHT_MAX:
        return None
    names = [name for name, load in in_flight.items() if load <= least]
    return fit_unloaded(requests.filter(pl.col("stage").is_in(names)))


# --- the run ------------------------------------------------------------------------------------


def _totals(requests: pl.DataFrame, stages: list[StageSummary]) -> Totals:
    ok = requests.filter(pl.col("outcome") == Outcome.OK.value)
    counts: dict[str, int] = {}
    for outcome in Outcome:
        count = sum(stage.requests.get(outcome.value, 0) for stage in stages)
        if count:
            counts[outcome.value] = count
    return Totals(
        requests=counts,
        output_tokens=int(requests["output_tokens"].sum()),
        prompt_tokens=_known_sum(ok["prompt_tokens"]),
        cached_tokens=_known_sum(ok["cached_tokens"]),
    )


def _known_sum(values: pl.Series) -> int | None:
    return int(values.sum()) if values.is_not_null().any() else None


def _token_sources(requests: pl.DataFrame) -> dict[str, float]:
    total = int(requests["output_tokens"].sum())
    if not total:
        return {}
    by_source = requests.group_by("output_tokens_source").agg(pl.col("output_tokens").sum())
    return {source: round(tokens / total, 4) for source, tokens in sorted(by_source.iter_rows()) if tokens}


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _spoiled_by_generator(verdict: Verdict) -> dict[str, Cause]:
    """Stages whose numbers are the generator's own limit, by the worst reason."""
    spoiled: dict[str, Cause] = {}
    for reason in verdict.reasons:
        if reason.state is State.INVALID and reason.cause in GENERATOR_LIMITS:
            for stage in reason.stages:
                spoiled.setdefault(stage, reason.cause)
    return spoiled


def _notes(run: RunFile) -> list[str]:
    """What the run had to say, and what was cut of the traces it replayed."""
    cut = (stage.load.note for stage in run.stages if isinstance(stage.load, Replay))
    return list(dict.fromkeys([*run.notes, *(note for note in cut if note)]))


def _missing(run: RunFile, requests: pl.DataFrame, workers: pl.DataFrame) -> list[str]:
    begun = {times.name for times in run.stage_times}
    missing = [f"stage {stage.name} never began" for stage in run.stages if stage.name not in begun]
    seen = set(requests["stage"].unique())
    missing += [f"stage {name} has no finished request" for name in begun if name not in seen]
    if workers.is_empty():
        missing.append("no health of workers was kept, so the verdict rests on requests alone")
    return missing
