"""From a mix to its stages: sweeps spread out, names given, traces found, read and packed."""

from collections.abc import Iterator
from pathlib import Path

from tokswarm.errors import ConfigError, TokswarmError
from tokswarm.resources import resource_dir
from tokswarm.traffic.mix import Mix, Stage, TraceSource
from tokswarm.traffic.plan import ClosedLoop, Load, OpenLoop, PlannedStage, Replay
from tokswarm.traffic.replay import cut_replay
from tokswarm.traffic.trace import read_trace

_MS_NS = 1_000_000


def stage_names(stage: Stage) -> list[str]:
    """The names of the planned stages one stage of the mix becomes: more than one for a sweep."""
    return [name for name, _ in _named_loads(stage)] or [stage.name or "replay"]


def plan_stages(mix: Mix, mix_dir: Path) -> list[PlannedStage]:
    """All stages of a checked mix in order. ConfigError when a trace is missing or makes no sense."""
    planned = []
    for index, stage in enumerate(mix.load):
        if stage.trace is not None:
            planned.append(_planned_replay(stage, stage.trace, mix_dir, where=f"load[{index}].trace"))
            continue
        duration_s = stage.for_.seconds if stage.for_ is not None else 0.0
        weights = None if stage.classes is None else [stage.classes.get(one.name, 0.0) for one in mix.classes]
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
        is_constant = stage.arrivals is not None and stage.arrivals.constant is not None
        for rate in stage.rate.values:
            yield (
                _load_name(stage.name, "rate", f"{rate.per_s:.6g}", is_sweep=stage.rate.is_sweep),
                OpenLoop(rate_per_s=rate.per_s, arrivals="constant" if is_constant else "poisson"),
            )


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


def _planned_replay(stage: Stage, source: TraceSource, mix_dir: Path, *, where: str) -> PlannedStage:
    rows = read_trace(_find_trace(source.file, mix_dir, where=where), source.format)
    replay: Replay = cut_replay(rows, source, duration_ns=None if stage.for_ is None else stage.for_.nanoseconds)
    # The trace ends with its last request: one more millisecond, so that this one is still sent.
    end_ns = (replay.last_due_ns // _MS_NS + 1) * _MS_NS
    if stage.for_ is not None:
        end_ns = min(end_ns, stage.for_.nanoseconds)
    return _planned(stage, stage_names(stage)[0], replay, end_ns / 1e9)


def _find_trace(file: str, mix_dir: Path, *, where: str) -> Path:
    """Beside the mix, else among the traces that ship with tokswarm."""
    candidates = [mix_dir / file]
    try:
        shipped = resource_dir("locustfiles")
    except TokswarmError:
        pass  # an installation without them: the mix's own folder is all there is
    else:
        candidates += [shipped / file, shipped / "traces" / file]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    looked = ", ".join(dict.fromkeys(str(candidate) for candidate in candidates))
    raise ConfigError(
        f"{where}.file: there is no trace {file!r}; looked at {looked}",
        hint="give the path relative to the mix, or the name of a trace in locustfiles/traces",
    )
