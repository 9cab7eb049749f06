"""`run.json`: what the master knows of a run, beside the record logs; the input of every report."""

import msgspec

from tokswarm.insight.search_result import SearchResult
from tokswarm.traffic.mix import Mix
from tokswarm.traffic.plan import Endpoint, PlannedStage, TokenFit
from tokswarm.traffic.units import enc_hook

RUN_FILE = "run.json"


class StageTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When a stage really began, stopped sending and was drained (wall clock of the master)."""

    name: str
    start_unix_ns: int
    stop_unix_ns: int
    end_unix_ns: int


class LostWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that went silent during the run, with what it had in flight when last heard."""

    worker: str
    unix_ns: int
    in_flight: int
    unsent: int = 0
    """Arrivals that it should have sent before the others took over, and was not heard to send."""


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """The run as planned and as it went. `schema` goes up when a reader would misread it."""

    schema: int = 1
    run_id: str
    mix: Mix
    model: str
    """Of the mix's target, or of the first of them; so is `fit`."""
    stages: list[PlannedStage]
    stage_times: list[StageTimes]
    """Only of stages that began."""
    fit: TokenFit
    content_seed: int
    workers: list[str]
    lost_workers: list[LostWorker]
    missing_windows: int
    started_unix_ns: int
    ended_unix_ns: int
    stopped_by: str
    """plan (it ran to its end), user, signal, abort or budget (rules of the mix), or error."""
    stop_reason: str = ""
    """Which rule of the mix ended the run, and its numbers; empty when none did."""
    error: str
    notes: list[str]
    """What the preflight found and what the run had to say about itself."""
    versions: dict[str, str]
    searches: list[SearchResult] = []
    """What the stages that search for a load have found."""
    further_endpoints: list[Endpoint] = []
    """Of the mix's second and later targets."""


def encode_run_file(run: RunFile) -> bytes:
    """A `run.json`: indented, as people may read it."""
    return msgspec.json.format(msgspec.json.encode(run, enc_hook=enc_hook), indent=2) + b"\n"
