"""What `run.json` says of a run, kept while it goes on: its stages as decided and as they went, searches, losses."""

import logging
from importlib.metadata import version
from pathlib import Path
from platform import python_version

import msgspec

from tokswarm.insight.run_file import LostWorker, RunFile, StageTimes
from tokswarm.insight.search_result import SearchResult
from tokswarm.master.account import Account
from tokswarm.master.run_folder import keep_run_file
from tokswarm.traffic.plan import Plan, PlannedStage
from tokswarm.version import VERSION

_log = logging.getLogger(__name__)


class RunRecord:
    """The record of one run. Whoever runs a stage says so here; `write` puts it on the disk."""

    def __init__(self, plan: Plan, *, run_dir: Path) -> None:
        self._plan = plan
        self._run_dir = run_dir
        self._places: list[list[PlannedStage]] = [[stage] for stage in plan.stages]
        """For each stage of the mix the stages it became; those of a search are decided while it goes on."""
        self.times: list[StageTimes] = []
        self.searches: list[SearchResult] = []
        self.lost: list[LostWorker] = []

    @property
    def sent_s(self) -> float:
        """For how long the last stage that began has sent."""
        return (self.times[-1].stop_unix_ns - self.times[-1].start_unix_ns) / 1e9

    def add_unsent(self, worker: str, arrivals: int) -> None:
        """So many arrivals of a lost worker were not sent by anybody."""
        for place, lost in enumerate(self.lost):
            if lost.worker == worker:
                self.lost[place] = msgspec.structs.replace(lost, unsent=lost.unsent + arrivals)

    def begin_search(self, place: int) -> None:
        """The stage at this place of the plan was only a model of those that follow."""
        self._places[place].clear()

    def decide(self, place: int, stage: PlannedStage) -> int:
        """A stage that was decided after the plan, at this place of it; its index from now on."""
        self._places[place].append(stage)
        self._plan.stages.append(stage)
        return len(self._plan.stages) - 1

    def write(
        self,
        account: Account,
        *,
        workers: list[str],
        missing_windows: int,
        ended_unix_ns: int,
        stopped_by: str,
        stop_reason: str,
        error: str,
    ) -> None:
        """Write `run.json`; when that fails the run goes on, with a note."""
        run_file = RunFile(
            run_id=self._plan.run_id,
            mix=self._plan.mix,
            model=self._plan.model,
            stages=[stage for place in self._places for stage in place],
            searches=list(self.searches),
            stage_times=self.times,
            fit=self._plan.fit,
            further_endpoints=self._plan.further_endpoints,
            content_seed=self._plan.content_seed,
            workers=workers,
            lost_workers=self.lost,
            missing_windows=missing_windows,
            started_unix_ns=account.info.started_unix_ns,
            ended_unix_ns=ended_unix_ns,
            stopped_by=stopped_by,
            stop_reason=stop_reason,
            error=error,
            notes=list(account.info.notes),
            versions={"tokswarm": VERSION, "python": python_version(), "locust": version("locust")},
        )
        try:
            keep_run_file(self._run_dir, run_file)
        except OSError as failure:
            _log.warning("run %s: run.json cannot be written: %s", self._plan.run_id, failure)
            account.note(f"run.json could not be written: {failure.strerror}")
