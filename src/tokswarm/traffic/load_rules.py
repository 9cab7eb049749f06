"""What the stages of a mix must obey."""

from collections.abc import Iterator

from tokswarm.traffic.arrivals import LARGEST_CV, SMALLEST_CV
from tokswarm.traffic.mix import Arrivals, Bursts, Find, Stage, TraceSource
from tokswarm.traffic.planning import stage_names
from tokswarm.traffic.rates import Diurnal, RateCourse
from tokswarm.traffic.strict_yaml import Problem, suggestion

_ARRIVALS = ("poisson", "constant", "gamma", "weibull")
_LOADS = ("concurrency", "rate", "trace", "find")
_SHORTEST_STEP_NS = 4_000_000_000
_SHORTEST_KNEE_STEP_NS = 15_000_000_000


def broken_load_rules(stages: list[Stage], class_names: list[str]) -> Iterator[Problem]:
    """What is wrong with the stages."""
    seen: dict[str, int] = {}
    for index, stage in enumerate(stages):
        path = f"load[{index}]"
        problems = [*_stage(stage, path), *_stage_classes(stage, class_names, f"{path}.classes")]
        yield from problems
        if problems:
            continue
        for name in stage_names(stage):
            if name in seen:
                yield Problem(
                    f"{path}.name" if stage.name else path,
                    f"this becomes a stage {name!r}, and load[{seen[name]}] does too",
                    "give each stage a name of its own, and each sweep different values",
                )
                break
            seen[name] = index


def _stage(stage: Stage, path: str) -> Iterator[Problem]:
    kinds = [kind for kind in _LOADS if getattr(stage, kind) is not None]
    if len(kinds) != 1:
        came = " and ".join(kinds) or "none"
        yield Problem(path, f"expected exactly one of {', '.join(_LOADS)}, came {came}")
    if stage.concurrency == []:
        yield Problem(f"{path}.concurrency", "expected at least one value, came an empty list")
    if stage.find is not None:
        yield from _find(stage, stage.find, path)
    if stage.for_ is None and stage.trace is None and stage.find is None:
        yield Problem(path, "the key 'for' is missing", "say how long the stage sends, e.g. for: 30s")
    if stage.for_ is not None and stage.for_.nanoseconds == 0:
        yield Problem(f"{path}.for", "must be longer than 0s")
    if stage.trace is not None:
        yield from _trace(stage.trace, f"{path}.trace")
    if stage.rate is not None and stage.rate.course is not None:
        yield from _course(stage.rate.course, f"{path}.rate")
    if stage.arrivals is not None:
        yield from _arrivals(stage, stage.arrivals, f"{path}.arrivals")
    if stage.bursts is not None:
        yield from _bursts(stage, stage.bursts, f"{path}.bursts")


def _trace(source: TraceSource, path: str) -> Iterator[Problem]:
    if source.until is not None and source.until <= source.from_:
        yield Problem(f"{path}.until", f"is {source.until}, not after from, {source.from_}")
    if source.max_gap is not None and source.max_gap.nanoseconds == 0:
        yield Problem(f"{path}.max_gap", "must be longer than 0s")


def _find(stage: Stage, find: Find, path: str) -> Iterator[Problem]:
    if stage.for_ is not None:
        yield Problem(f"{path}.for", "goes with the other loads; a search has find.step_for")
    if (find.rate is None) == (find.concurrency is None):
        yield Problem(f"{path}.find", "expected exactly one of rate, concurrency")
    if find.step_for.nanoseconds < _SHORTEST_STEP_NS:
        yield Problem(f"{path}.find.step_for", f"is {find.step_for}; requests are counted each second, so at least 4s")
    elif find.goal == "knee" and find.step_for.nanoseconds < _SHORTEST_KNEE_STEP_NS:
        yield Problem(f"{path}.find.step_for", f"is {find.step_for}; a knee is judged by parts of it, so at least 15s")
    if find.goal == "knee" and find.share is not None:
        yield Problem(f"{path}.find.share", "does not go with goal: knee, which judges no requests")
    for name in ("rate", "concurrency"):
        searched = getattr(find, name)
        if searched is not None and searched.to < searched.from_:
            yield Problem(f"{path}.find.{name}.to", f"is {searched.to}, less than from, {searched.from_}")
    if stage.warmup:
        yield Problem(f"{path}.warmup", "does not go with find, which is there for its result")


def _arrivals(stage: Stage, arrivals: Arrivals, path: str) -> Iterator[Problem]:
    if stage.rate is None and (stage.find is None or stage.find.rate is None):
        yield Problem(path, "goes with a rate only")
    kinds = [kind for kind in _ARRIVALS if getattr(arrivals, kind) is not None]
    if len(kinds) != 1:
        came = " and ".join(kinds) or "none"
        yield Problem(path, f"expected exactly one of {', '.join(_ARRIVALS)}, came {came}")
    for kind in ("gamma", "weibull"):
        varied = getattr(arrivals, kind)
        if varied is not None and not SMALLEST_CV <= varied.cv <= LARGEST_CV:
            yield Problem(
                f"{path}.{kind}.cv",
                f"expected a number from {SMALLEST_CV:g} to {LARGEST_CV:g}, came {varied.cv:g}",
                "for equal gaps write constant: {}" if varied.cv < SMALLEST_CV else "",
            )


def _bursts(stage: Stage, bursts: Bursts, path: str) -> Iterator[Problem]:
    if stage.rate is None:
        yield Problem(path, "goes with a rate only")
    for name in ("on", "off"):
        if getattr(bursts, name).nanoseconds == 0:
            yield Problem(f"{path}.{name}", "must be longer than 0s")
    if bursts.factor is not None and bursts.on.nanoseconds:
        most = (bursts.on.nanoseconds + bursts.off.nanoseconds) / bursts.on.nanoseconds
        if bursts.factor > most:
            yield Problem(
                f"{path}.factor",
                f"expected at most (on + off) / on, which is {most:.6g}, came {bursts.factor:g}",
                "rate is the mean over on and off together",
            )


def _course(course: RateCourse, path: str) -> Iterator[Problem]:
    kinds = []
    if course.from_ is not None or course.to is not None:
        kinds.append("from and to")
        if course.from_ is None or course.to is None:
            yield Problem(path, "a ramp needs both from and to")
    kinds += [kind for kind in ("steps", "diurnal") if getattr(course, kind) is not None]
    if len(kinds) != 1:
        yield Problem(path, f"expected exactly one of from and to, steps, diurnal, came {', '.join(kinds) or 'none'}")
    if course.steps == []:
        yield Problem(f"{path}.steps", "expected at least one rate, came an empty list")
    if course.diurnal is not None:
        yield from _diurnal(course.diurnal, f"{path}.diurnal")


def _diurnal(diurnal: Diurnal, path: str) -> Iterator[Problem]:
    if len(diurnal.levels) < 2 or not any(level > 0 for level in diurnal.levels):
        yield Problem(f"{path}.levels", "expected at least two levels, one of them > 0")
    if (diurnal.peak is None) == (diurnal.mean is None):
        yield Problem(path, "expected exactly one of peak, mean", "the levels only say how the rates compare")
    if diurnal.period is not None and diurnal.period.nanoseconds == 0:
        yield Problem(f"{path}.period", "must be longer than 0s")


def _stage_classes(stage: Stage, class_names: list[str], path: str) -> Iterator[Problem]:
    if stage.classes is None:
        return
    if stage.trace is not None:
        yield Problem(path, "goes with concurrency or rate only; the requests of a trace are of the mix's first class")
    for name, weight in stage.classes.items():
        if name not in class_names:
            yield Problem(f"{path}.{name}", f"unknown class{suggestion(name, class_names)}")
        if weight < 0:
            yield Problem(f"{path}.{name}", f"expected a weight ≥ 0, came {weight:g}")
    if not any(weight > 0 for weight in stage.classes.values()):
        yield Problem(path, "expected at least one class with a weight > 0", "leave classes out to send all of them")
