"""The crew of a run changes while it goes on: shares are dealt out anew, late workers take part, losses are counted."""

from pathlib import Path

import msgspec
import pytest
from virtual_fleet import Stand, VirtualFleet, VirtualWorker, stage

from tokswarm.errors import BusyError
from tokswarm.insight.run_file import RunFile
from tokswarm.traffic.plan import ClosedLoop, OpenLoop, PlannedStage, Replay
from tokswarm.traffic.share import Share
from tokswarm.traffic.units import dec_hook
from tokswarm.worker.messages import Message, PlanMessage, Reshare, StageGo, Stop

RATE = OpenLoop(rate_per_s=100, arrivals="poisson")


def run_file(stand: Stand) -> RunFile:
    return msgspec.json.decode((stand.run_dir / "run.json").read_bytes(), type=RunFile, dec_hook=dec_hook)


def shares(worker: VirtualWorker) -> list[Share]:
    found = [m.share for m in worker.received if isinstance(m, StageGo | Reshare)]
    return [share for share in found if share is not None]


def kinds(worker: VirtualWorker) -> list[type[Message]]:
    return [type(message) for message in worker.received]


def unix_s(stand: Stand) -> float:
    return stand.fleet.clock.unix_ns() / 1e9


def open_stage(duration_s: float = 20) -> PlannedStage:
    return msgspec.structs.replace(stage("open", duration_s), load=RATE)


def test_the_rest_share_out_anew_within_three_seconds_of_a_loss(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b", "c")
    stand = Stand(tmp_path, fleet, open_stage(), stage("after"))
    told_s: dict[str, float] = {}
    died_s: list[float] = []

    def hear(name: str, get: object) -> None:
        def got(message: Message) -> None:
            if isinstance(message, Reshare):
                told_s[name] = unix_s(stand)
            get(message)  # type: ignore[operator]

        fleet.members[name].get = got  # type: ignore[method-assign]

    def die() -> None:
        died_s.append(unix_s(stand))
        fleet.members["b"].die()

    for name in "ac":
        hear(name, fleet.members[name].get)
    fleet.clock.at(6.0, die)
    info = stand.run()
    start_s = next(m for m in fleet.members["a"].received if isinstance(m, StageGo)).start_unix_ns / 1e9
    first, second, later = shares(fleet.members["a"])
    other = shares(fleet.members["c"])[1]
    assert (first.worker_index, first.worker_count, first.part) == (0, 3, 0)
    assert (second.worker_index, second.worker_count, second.part) == (0, 2, 1)
    assert (other.worker_index, other.worker_count, other.from_ns) == (1, 2, second.from_ns)
    assert start_s + second.from_ns / 1e9 - died_s[0] <= 3.0
    assert told_s["a"] < start_s + second.from_ns / 1e9
    assert (later.worker_index, later.worker_count, later.from_ns, later.part) == (0, 2, 0, 0)  # the next stage
    assert info.requests["lost"] == 3


def test_what_a_lost_worker_left_is_counted_by_one_of_the_rest_and_told(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b", "c")
    stand = Stand(tmp_path, fleet, open_stage())
    fleet.clock.at(6.0, fleet.members["b"].die)
    info = stand.run()
    asked = [m.unsent for w in fleet.members.values() for m in w.received if isinstance(m, Reshare)]
    (unsent,) = [each for each in asked if each]
    assert [(each.worker_index, each.worker_count) for each in unsent] == [(1, 3)]
    assert 2.0 < (unsent[0].to_ns - unsent[0].from_ns) / 1e9 < 4.0  # from its last window to the others' new share
    assert run_file(stand).lost_workers[0].unsent == 7
    assert any("7 arrivals that were due before the others took over" in note for note in info.notes)


def test_in_a_closed_loop_nothing_is_due_and_nothing_unsent(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b")
    stand = Stand(tmp_path, fleet, stage("closed", 20))
    fleet.clock.at(6.0, fleet.members["b"].die)
    stand.run()
    (order,) = [m for m in fleet.members["a"].received if isinstance(m, Reshare)]
    assert order.unsent == []
    assert run_file(stand).lost_workers[0].unsent == 0


def test_a_late_worker_takes_its_share_of_the_stage_under_way_and_of_those_after(tmp_path: Path) -> None:
    fleet = VirtualFleet("a")
    stand = Stand(tmp_path, fleet, open_stage(), stage("after"))

    def come() -> None:
        fleet.members["late"] = VirtualWorker("late", fleet)

    fleet.clock.at(5.0, come)
    info = stand.run()
    late = fleet.members["late"]
    (given,) = [m for m in late.received if isinstance(m, PlanMessage)]
    assert (given.shard.joins_late, given.shard.worker_index) == (True, 1)
    begun, after = shares(late)
    assert (begun.worker_index, begun.worker_count, begun.part) == (1, 2, 1)
    assert begun.from_ns == shares(fleet.members["a"])[1].from_ns > 4e9
    assert (after.worker_index, after.worker_count, after.from_ns, after.part) == (1, 2, 0, 0)
    assert info.state == "finished"
    assert info.workers == 2
    assert run_file(stand).workers == ["a", "late"]
    assert stand.journal.titles("worker") == ["worker late joined"]
    assert (stand.run_dir / "logs" / "late.log").read_bytes() == late.log


def test_a_process_that_replaces_a_lost_one_has_a_name_of_its_own_in_the_run(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b")
    stand = Stand(tmp_path, fleet, open_stage(), stage("after"))
    old = fleet.members["b"]

    def come_again() -> None:
        new = VirtualWorker("b", fleet)
        new.client = "b_2nd_process"
        new.log = b"log of the new process"
        fleet.members["b"] = new

    fleet.clock.at(5.0, old.die)
    fleet.clock.at(5.7, come_again)  # before the old one is missed
    info = stand.run()
    new = fleet.members["b"]
    assert info.state == "finished"
    assert run_file(stand).workers == ["a", "b", "b_2"]
    assert [lost.worker for lost in run_file(stand).lost_workers] == ["b"]
    assert new.in_run == "b_2"
    assert [m.reason for m in new.received if isinstance(m, Stop)] == ["plan"]  # not that of the lost one
    assert {path.name for path in (stand.run_dir / "logs").iterdir()} >= {"a.log", "b.log", "b_2.log"}
    assert shares(new)[-1].worker_count == 2
    assert not any("sent twice" in note for note in info.notes)


def test_a_late_worker_that_cannot_take_part_disturbs_nobody(tmp_path: Path) -> None:
    fleet = VirtualFleet("a")
    stand = Stand(tmp_path, fleet, open_stage())

    def come() -> None:
        fleet.members["late"] = VirtualWorker("late", fleet)
        fleet.members["late"].ack_error = "no key here"

    fleet.clock.at(5.0, come)
    info = stand.run()
    assert (info.state, info.workers) == ("finished", 1)
    assert Reshare not in kinds(fleet.members["a"])
    assert run_file(stand).lost_workers == []
    assert any("late came during the run and cannot take part: no key here" in note for note in info.notes)


def test_a_worker_that_comes_at_the_end_of_a_stage_waits_for_the_next(tmp_path: Path) -> None:
    fleet = VirtualFleet("a")
    stand = Stand(tmp_path, fleet, stage("one", 5), stage("two", 5))

    def come() -> None:
        fleet.members["late"] = VirtualWorker("late", fleet)

    fleet.clock.at(5.3, come)
    info = stand.run()
    assert info.state == "finished"
    assert [m.index for m in fleet.members["late"].received if isinstance(m, StageGo)] == [1]


# --- the load is changed ----------------------------------------------------------------------------


def test_a_changed_load_is_a_stage_of_its_own_for_the_rest_of_the_time(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b")
    stand = Stand(tmp_path, fleet, stage("sweep", 20), stage("after"))
    fleet.clock.at(6.0, lambda: stand.course.change_load(ClosedLoop(concurrency=64)))
    info = stand.run()
    kept = run_file(stand)
    assert [each.name for each in kept.stages] == ["sweep", "sweep-changed-1-to-64", "after"]
    assert [times.name for times in kept.stage_times] == ["sweep", "sweep-changed-1-to-64", "after"]
    assert kept.stages[1].load == ClosedLoop(concurrency=64)
    first, changed, _ = kept.stage_times
    sent_s = [(times.stop_unix_ns - times.start_unix_ns) / 1e9 for times in (first, changed)]
    assert sum(sent_s) == pytest.approx(20, abs=0.1)
    assert 5 < sent_s[0] < 6.5
    assert changed.start_unix_ns >= first.end_unix_ns
    assert (info.stages_total, info.stages_done, info.state) == (3, 3, "finished")
    told = [m for m in fleet.members["b"].received if isinstance(m, StageGo)]
    assert [m.index for m in told] == [0, 2, 1]
    assert told[1].stage is not None
    assert told[1].stage.name == "sweep-changed-1-to-64"
    assert told[1].extends_s > 3
    assert stand.journal.titles("load") == ["sweep: the load is changed"]


def test_a_load_can_be_changed_again_and_to_a_rate(tmp_path: Path) -> None:
    fleet = VirtualFleet("a")
    stand = Stand(tmp_path, fleet, stage("sweep", 30))
    fleet.clock.at(6.0, lambda: stand.course.change_load(ClosedLoop(concurrency=64)))
    fleet.clock.at(14.0, lambda: stand.course.change_load(RATE))
    stand.run()
    kept = run_file(stand)
    names = ["sweep", "sweep-changed-1-to-64", "sweep-changed-2-to-100"]
    assert [each.name for each in kept.stages] == names
    assert kept.stages[2].load == RATE
    sent_s = sum((times.stop_unix_ns - times.start_unix_ns) / 1e9 for times in kept.stage_times)
    assert sent_s == pytest.approx(30, abs=0.2)


def refusal(stand: Stand, at_s: float) -> str:
    said: list[str] = []

    def ask() -> None:
        try:
            stand.course.change_load(ClosedLoop(concurrency=2))
        except BusyError as error:
            said.append(str(error))

    stand.fleet.clock.at(at_s, ask)
    stand.run()
    return said[0]


def test_nothing_can_be_changed_before_the_load_begins_or_at_its_end(tmp_path: Path) -> None:
    assert "less than 1 s" in refusal(Stand(tmp_path, VirtualFleet("a"), stage("one", 5)), 5.2)
    stand = Stand(tmp_path, VirtualFleet("a"), stage("one", 5))
    with pytest.raises(BusyError, match="no stage is sending"):
        stand.course.change_load(ClosedLoop(concurrency=2))


def test_a_replay_keeps_to_its_trace(tmp_path: Path) -> None:
    replay = Replay(trace="t", rows=0, last_due_ns=0, block_tokens=512, columns=b"", prompts_cut=0, outputs_cut=0)
    replayed = msgspec.structs.replace(stage("replay", 9), load=replay)
    assert "a replay sends what its trace says" in refusal(Stand(tmp_path, VirtualFleet("a"), replayed), 3.0)
