"""The course of a run that a rule of its mix ends, on a virtual fleet in virtual time."""

from functools import partial
from pathlib import Path

import msgspec
import pytest
from virtual_fleet import EPOCH_UNIX_S, Stand, VirtualFleet, mix, stage

from tokswarm.insight.run_file import RunFile
from tokswarm.traffic.mix import Abort, AbortShare, Budget
from tokswarm.traffic.units import Duration, dec_hook
from tokswarm.worker.messages import Stop

ERRORS = msgspec.structs.replace(mix(), abort=Abort(error_share=AbortShare(over=0.2, for_=Duration.parse("5s"))))
TOKENS = msgspec.structs.replace(mix(), budget=Budget(output_tokens=500))


def run_file(stand: Stand) -> RunFile:
    return msgspec.json.decode((stand.run_dir / "run.json").read_bytes(), type=RunFile, dec_hook=dec_hook)


def test_a_run_whose_requests_keep_failing_is_given_up_and_its_results_are_kept(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b")
    stand = Stand(tmp_path, fleet, stage("s1", 60.0), stage("s2", 60.0), made_of=ERRORS)
    for worker in fleet.members.values():
        fleet.clock.at(10, partial(worker.finished.update, reset=9))
    info = stand.run()
    assert (info.state, info.error, info.verdict) == ("finished", "", "valid")
    kept = run_file(stand)
    assert kept.stopped_by == "abort"
    assert kept.stop_reason.startswith("abort.error_share: over 20% of requests failed (up to 90%) for 5 s")
    (times,) = kept.stage_times
    assert times.stop_unix_ns / 1e9 - EPOCH_UNIX_S == pytest.approx(14, abs=1.5)
    assert any("ended early by a rule of its mix: abort.error_share" in note for note in info.notes)
    assert stand.journal.titles("abort") == ["the run is ended by its abort rule"]
    assert {m.drain_s for w in fleet.members.values() for m in w.received if isinstance(m, Stop)} == {3.0, 0}
    assert (stand.run_dir / "logs" / "a.log").exists()


def test_a_run_without_failures_is_not_given_up(tmp_path: Path) -> None:
    stand = Stand(tmp_path, VirtualFleet("a"), stage("s1", 20.0), made_of=ERRORS)
    stand.run()
    assert (run_file(stand).stopped_by, run_file(stand).stop_reason) == ("plan", "")


def test_a_budget_ends_the_run_and_lets_what_is_open_end(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b")
    stand = Stand(tmp_path, fleet, stage("s1", 100.0, 20.0), made_of=TOKENS)
    stand.run()
    kept = run_file(stand)
    assert kept.stopped_by == "budget"
    assert kept.stop_reason.startswith("budget.output_tokens: 450 of 500 are spent and up to 60 more")
    assert max(m.drain_s for w in fleet.members.values() for m in w.received if isinstance(m, Stop)) == 20.0
