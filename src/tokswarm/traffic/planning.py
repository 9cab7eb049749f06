"""From a mix to its stages: sweeps spread out, names given, traces found, read and packed."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from tokswarm.errors import ConfigError
from tokswarm.traffic.arrivals import mean_rate_per_s
from tokswarm.traffic.beside import find_beside
from tokswarm.traffic.mix import Arrivals, Bursts, Constant, Find, Mix, Stage, TraceSource, Varied
from tokswarm.traffic.plan import BurstCycle, ClosedLoop, Load, OpenLoop, PlannedStage, RateSegment, Replay, SearchPlan
from tokswarm.traffic.rates import Diurnal, RateCourse
from tokswarm.traffic.replay import cut_replay, part_of_trace
from tokswarm.traffic.servegen import is_servegen, read_servegen
from tokswarm.traffic.trace import BLOCK_TOKENS, Trace, read_whole_trace
from tokswarm.traffic.units import Duration, Rate

_MS_NS = 1_000_000
ERRORS_SHARE = 0.99
"""Of the requests that must end ok, where a search for errors does not say."""
_QUANTILES = {0.5: "p50", 0.9: "p90", 0.95: "p95", 0.99: "p99"}


def stage_names(stage: Stage) -> list[str]:
    """The names of the planned stages one stage of the mix becomes: more than one for a sweep."""
    if stage.find is not None:
        return [stage.name or "find"]
    return [name for name, _ in _named_loads(stage)] or [stage.name or "replay"]


def plan_stages(mix: Mix, mix_dir: Path) -> list[PlannedStage]:
    """All stages of a checked mix in order. ConfigError when a trace is missing or makes no sense."""
    planned = []
    for index, stage in enumerate(mix.load):
        if stage.trace is not None:
            planned.append(_planned_replay(stage, stage.trace, mix_dir, seed=mix.seed, where=f"load[{index}].trace"))
            continue
        weights = None if stage.classes is None else [stage.classes.get(one.name, 0.0) for one in mix.classes]
        if stage.find is not None:
            planned.append(_planned_search(mix, stage, stage.find, weights))
            continue
        duration_s = stage.for_.seconds if stage.for_ is not None else 0.0
        planned.extend(_planned(stage, name, load, duration_s, weights) for name, load in _named_loads(stage))
    return planned


def _named_loads(stage: Stage) -> Iterator[tuple[str, Load]]:
    """Each closed or open load of a stage with its name; none for a trace."""
    if stage.concurrency is not None:
        is_sweep = isinstance(stage.concurrency, list)
        values = stage.concurrency if isinstance(stage.concurrency, list) else [stage.concurrency]
        for value in values:
            yield _load_name(stage.name, "concurrency", str(value), is_sweep=is_sweep), ClosedLoop(concurrency=value)
    if stage.rate is not None:
        for rate in stage.rate.values:
            name = _load_name(stage.name, "rate", f"{rate.per_s:.6g}", is_sweep=stage.rate.is_sweep)
            yield name, _open_loop(stage, rate_per_s=rate.per_s)
        if stage.rate.course is not None:
            yield _course_load(stage, stage.rate.course)


def _course_load(stage: Stage, course: RateCourse) -> tuple[str, OpenLoop]:
    duration_s = stage.for_.seconds if stage.for_ is not None else 0.0
    match course:
        case RateCourse(from_=Rate() as start, to=Rate() as end):
            value = f"{start.per_s:.6g}-to-{end.per_s:.6g}"
            segments = [RateSegment(duration_s, start.per_s, end.per_s)]
        case RateCourse(steps=list() as steps):
            value = "steps"
            segments = [RateSegment(duration_s / len(steps), step.per_s, step.per_s) for step in steps]
        case RateCourse(diurnal=Diurnal() as diurnal):
            value = "diurnal"
            segments = _diurnal(diurnal, duration_s)
        case _:
            raise ValueError("a course needs exactly one kind")
    load = _open_loop(stage, rate_per_s=0.0, course=segments)
    load = msgspec.structs.replace(load, rate_per_s=mean_rate_per_s(load, duration_s))
    return _load_name(stage.name, "rate", value, is_sweep=False), load


def _diurnal(diurnal: Diurnal, duration_s: float) -> list[RateSegment]:
    levels = diurnal.levels
    scale = 1.0
    if diurnal.peak is not None:
        scale = diurnal.peak.per_s / max(levels)
    elif diurnal.mean is not None:
        scale = diurnal.mean.per_s * len(levels) / sum(levels)
    each_s = (diurnal.period.seconds if diurnal.period is not None else duration_s) / len(levels)
    return [
        RateSegment(each_s, level * scale, following * scale)
        for level, following in zip(levels, [*levels[1:], levels[0]], strict=True)
    ]


def _open_loop(stage: Stage, *, rate_per_s: float, course: list[RateSegment] | None = None) -> OpenLoop:
    arrivals, cv = _kind_and_cv(stage.arrivals)
    bursts = None if stage.bursts is None else _burst_cycle(stage.bursts)
    return OpenLoop(rate_per_s=rate_per_s, arrivals=arrivals, cv=cv, course=course, bursts=bursts)


def _kind_and_cv(arrivals: Arrivals | None) -> tuple[str, float | None]:
    match arrivals:
        case Arrivals(constant=Constant()):
            return "constant", None
        case Arrivals(gamma=Varied() as varied):
            return "gamma", varied.cv
        case Arrivals(weibull=Varied() as varied):
            return "weibull", varied.cv
    return "poisson", None


def _burst_cycle(bursts: Bursts) -> BurstCycle:
    on_s, off_s = bursts.on.seconds, bursts.off.seconds
    most = (on_s + off_s) / on_s
    factor = most if bursts.factor is None else bursts.factor
    return BurstCycle(on_s, off_s, factor, max(0.0, (on_s + off_s - factor * on_s) / off_s))


def _load_name(given: str | None, kind: str, value: str, *, is_sweep: bool) -> str:
    if given is not None and not is_sweep:
        return given
    return f"{given or kind}-{value}"


def _planned(
    stage: Stage, name: str, load: Load, duration_s: float, class_weights: list[float] | None = None
) -> PlannedStage:
    return PlannedStage(
        name=name,
        load=load,
        duration_s=duration_s,
        drain_s=stage.drain.seconds,
        warmup=stage.warmup,
        class_weights=class_weights,
    )


def _planned_search(mix: Mix, stage: Stage, find: Find, class_weights: list[float] | None) -> PlannedStage:
    if find.rate is not None:
        lowest, highest = find.rate.from_.per_s, find.rate.to.per_s
        load: Load = _open_loop(stage, rate_per_s=lowest)
    elif find.concurrency is not None:
        lowest, highest = float(find.concurrency.from_), float(find.concurrency.to)
        load = ClosedLoop(concurrency=find.concurrency.from_)
    else:
        raise ValueError("a search needs a rate or a concurrency")
    share = find.share
    if share is None and find.goal != "knee":
        share = _share_of_limits(mix) if find.goal == "slo" else ERRORS_SHARE
    search = SearchPlan(
        goal=find.goal,
        from_=lowest,
        to=highest,
        is_whole=find.rate is None,
        precision=find.precision,
        share=share,
    )
    planned = _planned(stage, stage_names(stage)[0], load, find.step_for.seconds, class_weights)
    return msgspec.structs.replace(planned, search=search)


def _share_of_limits(mix: Mix) -> float:
    """The lowest of the quantiles that the classes' limits stand for; each limit is that of its highest quantile."""
    highest = [
        max(q for q, name in _QUANTILES.items() if getattr(limit, name) is not None)
        for one in mix.classes
        if one.slo is not None
        for limit in (one.slo.ttft, one.slo.itl, one.slo.e2e)
        if limit is not None
    ]
    return min(highest)


def read_source(path: Path, source: TraceSource, *, seed: int) -> Trace:
    """The part of a trace that a source asks for, times as in the trace from the first request on."""
    if source.format == "servegen" or (source.format == "auto" and is_servegen(path)):
        until_ns = None if source.until is None else source.until.nanoseconds
        rows = read_servegen(path, from_ns=source.from_.nanoseconds, until_ns=until_ns, seed=seed)
        source = msgspec.structs.replace(source, from_=Duration(0), until=None)
        return Trace(part_of_trace(rows, source, seed=seed), BLOCK_TOKENS)
    trace = read_whole_trace(path, source.format)
    return trace._replace(rows=part_of_trace(trace.rows, source, seed=seed))


def _planned_replay(stage: Stage, source: TraceSource, mix_dir: Path, *, seed: int, where: str) -> PlannedStage:
    trace = read_source(_find_trace(source.file, mix_dir, where=where), source, seed=seed)
    if not trace.rows:
        raise ConfigError(f"{where}: no request of {source.file} is between from and until and kept")
    replay: Replay = cut_replay(
        trace.rows,
        source,
        duration_ns=None if stage.for_ is None else stage.for_.nanoseconds,
        block_tokens=trace.block_tokens,
    )
    # The trace ends with its last request: one more millisecond, so that this one is still sent.
    end_ns = (replay.last_due_ns // _MS_NS + 1) * _MS_NS
    if stage.for_ is not None:
        end_ns = min(end_ns, stage.for_.nanoseconds)
    return _planned(stage, stage_names(stage)[0], replay, end_ns / 1e9)


def _find_trace(file: str, mix_dir: Path, *, where: str) -> Path:
    try:
        return find_beside(file, mix_dir, what="trace")
    except ConfigError as error:
        raise ConfigError(f"{where}.file: {error}", hint=error.hint) from error
