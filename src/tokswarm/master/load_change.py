"""A load that a user changes while its stage goes on: the stage ends, another takes the rest of its time. Pure."""

import re

import msgspec

from tokswarm.errors import ConfigError
from tokswarm.master.run import LoadRequest
from tokswarm.traffic.plan import ClosedLoop, Load, OpenLoop, PlannedStage, Replay
from tokswarm.traffic.units import Rate

SHORTEST_S = 1.0
"""What is left of a stage is at least so long, or it is not worth a stage of its own."""

_CHANGED = re.compile(r"-changed-(\d+)-to-[^-]+$")


def load_asked_for(request: LoadRequest) -> ClosedLoop | OpenLoop:
    """The load, to be fitted to a stage. ConfigError when the request makes none."""
    if request.concurrency is not None and request.rate is None:
        if request.concurrency < 1:
            raise ConfigError(
                f"concurrency is {request.concurrency}, expected at least 1", hint="to end the load, stop the run"
            )
        return ClosedLoop(concurrency=request.concurrency)
    if request.rate is not None and request.concurrency is None:
        try:
            rate = Rate.parse(request.rate)
        except ValueError as error:
            raise ConfigError(f"rate: {error}") from error
        return OpenLoop(rate_per_s=rate.per_s, arrivals="poisson")
    raise ConfigError(
        "a change of load needs exactly one of concurrency and rate",
        hint='as {"concurrency": 64} or {"rate": "12/s"}',
    )


def why_not(stage: PlannedStage, *, left_s: float, is_probe: bool) -> str:
    """Why the load of this stage cannot be changed now; empty when it can."""
    if is_probe:
        return "a search chooses its loads itself"
    if isinstance(stage.load, Replay):
        return "a replay sends what its trace says"
    if left_s < SHORTEST_S:
        return f"less than {SHORTEST_S:g} s of the stage is left"
    return ""


def changed_stage(stage: PlannedStage, load: ClosedLoop | OpenLoop, *, left_s: float) -> PlannedStage:
    """The stage that goes on with this load for the rest of the time."""
    before = _CHANGED.search(stage.name)
    number = 1 if before is None else int(before[1]) + 1
    name = f"{_CHANGED.sub('', stage.name)}-changed-{number}-to-{load_text(load)}"
    return msgspec.structs.replace(stage, name=name, load=_fitted(stage.load, load), duration_s=left_s)


def load_text(load: ClosedLoop | OpenLoop) -> str:
    """Short, for a name."""
    return str(load.concurrency) if isinstance(load, ClosedLoop) else f"{load.rate_per_s:g}"


def _fitted(before: Load, load: ClosedLoop | OpenLoop) -> ClosedLoop | OpenLoop:
    """Arrivals keep their kind and their bursts; a ramp ends, for the new rate is asked for now."""
    if isinstance(load, OpenLoop) and isinstance(before, OpenLoop):
        return msgspec.structs.replace(before, rate_per_s=load.rate_per_s, course=None)
    return load
