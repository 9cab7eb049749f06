"""The probes of a search within a run: each load that is tried is a stage of its own, decided while the run goes on."""

from typing import Protocol

import msgspec

from tokswarm.master.account import Account
from tokswarm.master.knee_search import KneeSearch
from tokswarm.master.run_record import RunRecord
from tokswarm.master.search import Search
from tokswarm.traffic.plan import PlannedStage, SearchPlan


class ProbeRunner(Protocol):
    """Who runs the probes: the course of the run."""

    @property
    def is_stopped(self) -> bool:
        """Whether the run is to end."""
        ...

    def run_probe(self, place: int, stage: PlannedStage, plan: SearchPlan) -> list[tuple[int, int]]:
        """Run one, as a stage at this place of the plan: what its tally says of each settled second."""
        ...


def run_search(
    place: int, template: PlannedStage, plan: SearchPlan, *, runner: ProbeRunner, account: Account, record: RunRecord
) -> None:
    """Try loads until the search knows the highest that meets its goal, or the run is to end."""
    search = (KneeSearch if plan.goal == "knee" else Search)(template.name, plan)
    record.begin_search(place)
    found = len(record.searches)
    record.searches.append(search.result())
    probes = 0
    while (load := search.load) is not None and not runner.is_stopped:
        probes += 1
        name = f"{template.name}-{probes}-at-{load:.6g}"
        stage = msgspec.structs.replace(template, name=name, load=plan.load_of(template.load, load), search=None)
        seconds = runner.run_probe(place, stage, plan)
        if not runner.is_stopped:
            _take_probe(search, stage, seconds, account)
        record.searches[found] = search.result()
    account.event("find", template.name, search.result().line)
    account.note(search.result().line)


def _take_probe(
    search: Search | KneeSearch, stage: PlannedStage, seconds: list[tuple[int, int]], account: Account
) -> None:
    probe = search.take(stage.name, seconds)
    if probe is None:
        account.event("find", f"{stage.name}: undecided", "this load is tried again")
    else:
        account.event("find", f"{stage.name}: {probe.verdict}", probe.line)
