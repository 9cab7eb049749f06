"""The course of a run, on a virtual fleet in virtual time."""

from pathlib import Path

import msgspec
import pytest
from virtual_fleet import EPOCH_UNIX_S, Stand, VirtualFleet, health, stage

from tokswarm.errors import FleetError, TokswarmError
from tokswarm.insight.run_file import RunFile
from tokswarm.master.log_fetch import PIECE_BYTES
from tokswarm.measure.window import Window, WindowRow
from tokswarm.traffic.units import dec_hook
from tokswarm.worker.messages import Fetch, PlanMessage, Second, StageGo, Stop


def run_file(stand: Stand) -> RunFile:
    return msgspec.json.decode((stand.run_dir / "run.json").read_bytes(), type=RunFile, dec_hook=dec_hook)


def test_a_run_goes_from_plan_to_report_and_keeps_everything(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b")
    stand = Stand(tmp_path, fleet, stage("s1"), stage("s2"))
    info = stand.run()
    assert stand.states == ["running", "reporting", "finished"]
    assert (info.stages_done, info.verdict, info.error) == (2, "valid", "")
    assert info.output_tokens == 200  # by the last words of both
    assert {
        w.name: (stand.run_dir / "logs" / f"{w.name}.log").read_bytes() == w.log for w in fleet.members.values()
    } == {
        "a": True,
        "b": True,
    }
    assert (stand.run_dir / "mix.yaml").read_text() == "name: chat\n"
    assert fleet.loads == 0
    kept = run_file(stand)
    assert (kept.stopped_by, kept.error, kept.workers, kept.lost_workers) == ("plan", "", ["a", "b"], [])
    assert kept.notes == ["found by the preflight"]
    assert [times.name for times in kept.stage_times] == ["s1", "s2"]
    for times in kept.stage_times:
        assert times.stop_unix_ns - times.start_unix_ns == 5_000_000_000
        assert times.end_unix_ns >= times.stop_unix_ns
    assert kept.stage_times[1].start_unix_ns >= kept.stage_times[0].end_unix_ns + 500_000_000


def test_every_worker_gets_its_own_shard_and_starts_at_the_same_instant_ahead(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b", "c")
    Stand(tmp_path, fleet, stage("s1")).run()
    plans = [next(m for m in w.received if isinstance(m, PlanMessage)) for w in fleet.members.values()]
    assert [(p.shard.worker_index, p.shard.worker_count) for p in plans] == [(0, 3), (1, 3), (2, 3)]
    starts = {m.start_unix_ns for w in fleet.members.values() for m in w.received if isinstance(m, StageGo)}
    assert len(starts) == 1
    assert starts.pop() - EPOCH_UNIX_S * 10**9 == pytest.approx(0.5e9, abs=0.1e9)


def test_the_fleets_seconds_reach_the_journal_merged(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b")
    stand = Stand(tmp_path, fleet, stage("s1"))
    stand.run()
    rates = [row.output_tok_per_s for row in stand.journal.rows if row.class_name == "_all" and row.stage == "s1"]
    assert len(rates) >= 4
    assert set(rates) == {20}
    assert stand.course.info.peak_tok_per_s == 20


def test_the_peak_leaves_warm_up_out(tmp_path: Path) -> None:
    stand = Stand(tmp_path, VirtualFleet("a"), stage("w", warmup=True))
    assert stand.run().peak_tok_per_s is None


def test_stages_and_the_run_are_events_with_their_ends(tmp_path: Path) -> None:
    stand = Stand(tmp_path, VirtualFleet("a"), stage("s1"))
    stand.run()
    begun, ended = [event for event in stand.journal.events if event.kind == "stage"]
    assert (begun.title, begun.unix_ns, begun.end_unix_ns) == ("s1", ended.unix_ns, None)
    assert ended.end_unix_ns is not None
    assert len(stand.journal.titles("run")) == 2
    assert stand.journal.titles("verdict") == ["the run is valid"]


def test_a_worker_that_cannot_run_its_shard_ends_the_run_before_it_began(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b")
    fleet.members["b"].ack_error = "KEY is not set"
    stand = Stand(tmp_path, fleet, stage("s1"))
    with pytest.raises(FleetError, match="worker b cannot run its shard: KEY is not set"):
        stand.course.gather()
    assert stand.states[-1] == "failed"
    assert any(isinstance(m, Stop) for m in fleet.members["a"].received)
    assert not any(isinstance(m, StageGo) for w in fleet.members.values() for m in w.received)
    assert run_file(stand).error == "worker b cannot run its shard: KEY is not set"


def test_a_worker_that_does_not_answer_is_named_after_ten_seconds(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b")
    fleet.members["b"].ack_error = None
    stand = Stand(tmp_path, fleet, stage("s1"))
    with pytest.raises(FleetError, match="no answer to the plan from b within 10 s"):
        stand.course.gather()
    assert fleet.clock.now_s == pytest.approx(1010, abs=0.5)


def test_a_killed_worker_is_lost_within_three_seconds_and_the_run_ends_with_the_rest(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b")
    stand = Stand(tmp_path, fleet, stage("s1", 10.0))
    fleet.clock.at(4.6, fleet.members["b"].die)
    info = stand.run()
    assert info.state == "finished"
    kept = run_file(stand)
    assert [(lost.worker, lost.in_flight) for lost in kept.lost_workers] == [("b", 3)]
    assert (kept.lost_workers[0].unix_ns / 1e9 - EPOCH_UNIX_S) == pytest.approx(7.1, abs=0.8)
    assert info.requests["lost"] == 3
    assert stand.journal.titles("worker") == ["worker b lost"]
    assert fleet.dropped == ["b_1"]
    assert (stand.run_dir / "logs" / "a.log").exists()
    assert any("log of worker b was not fetched" in note for note in kept.notes)
    assert stand.journal.rows[-1].workers == 1


def test_a_worker_that_pings_but_sends_no_windows_is_lost(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b")
    fleet.members["b"].windows = False
    stand = Stand(tmp_path, fleet, stage("s1", 10.0))
    stand.run()
    assert [lost.worker for lost in run_file(stand).lost_workers] == ["b"]
    assert any(isinstance(m, Stop) and m.reason == "lost" for m in fleet.members["b"].received)


def test_a_worker_that_never_drains_is_given_up_and_the_next_stage_goes_on_without_it(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b")
    fleet.members["b"].drains = False
    stand = Stand(tmp_path, fleet, stage("s1", 5.0, 3.0), stage("s2"))
    info = stand.run()
    assert (info.state, info.stages_done) == ("finished", 2)
    kept = run_file(stand)
    assert kept.stage_times[0].end_unix_ns - kept.stage_times[0].start_unix_ns == pytest.approx(13e9, abs=0.3e9)
    assert [m.index for m in fleet.members["b"].received if isinstance(m, StageGo)] == [0]


def test_when_every_worker_is_lost_the_run_cannot_go_on(tmp_path: Path) -> None:
    fleet = VirtualFleet("a")
    fleet.clock.at(3, fleet.members["a"].die)
    stand = Stand(tmp_path, fleet, stage("s1", 10.0), stage("s2"))
    stand.course.gather()
    with pytest.raises(FleetError, match="every worker was lost") as caught:
        stand.course.drive()
    stand.course.stop_by_error(str(caught.value))
    stand.course.wind_down()
    assert stand.states == ["running", "stopping", "reporting", "failed"]
    assert run_file(stand).stopped_by == "error"
    assert run_file(stand).stage_times[0].name == "s1"


def test_a_worker_whose_engine_broke_is_lost_at_once_with_its_reason(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b")
    broken = fleet.members["b"]
    broken.final_error = "its own error: boom"
    broken.drains = False
    stand = Stand(tmp_path, fleet, stage("s1", 10.0))
    fleet.clock.at(3, broken._finish)
    stand.run()
    kept = run_file(stand)
    assert [lost.worker for lost in kept.lost_workers] == ["b"]
    assert any("boom" in note for note in kept.notes)
    assert (stand.run_dir / "logs" / "b.log").read_bytes() == broken.log  # it still answers: nothing is missing


@pytest.mark.parametrize("when_s", [pytest.param(3.0, id="mid-stage"), pytest.param(0.2, id="before-the-start")])
def test_a_stop_ends_the_stage_and_the_run_with_a_report(tmp_path: Path, when_s: float) -> None:
    fleet = VirtualFleet("a", "b")
    stand = Stand(tmp_path, fleet, stage("s1", 60.0), stage("s2"))
    fleet.clock.at(when_s, lambda: stand.course.ask_stop("user"))
    info = stand.run()
    assert stand.states == ["running", "stopping", "reporting", "finished"]
    assert fleet.clock.now_s < 1000 + when_s + 3
    kept = run_file(stand)
    assert (kept.stopped_by, [times.name for times in kept.stage_times]) == ("user", ["s1"])
    assert info.error == ""
    stops = [m for m in fleet.members["a"].received if isinstance(m, Stop)]
    assert stops[0].drain_s == 3.0


def test_a_stop_while_workers_prepare_ends_the_run_without_a_stage(tmp_path: Path) -> None:
    fleet = VirtualFleet("a")
    fleet.members["a"].ack_error = None
    stand = Stand(tmp_path, fleet, stage("s1"))
    fleet.clock.at(1.0, lambda: stand.course.ask_stop("signal"))
    info = stand.run()
    assert info.state == "finished"
    assert run_file(stand).stage_times == []
    assert run_file(stand).stopped_by == "signal"


def test_stopping_twice_and_after_the_end_changes_nothing(tmp_path: Path) -> None:
    fleet = VirtualFleet("a")
    stand = Stand(tmp_path, fleet, stage("s1", 60.0))
    fleet.clock.at(3, lambda: stand.course.ask_stop("user"))
    fleet.clock.at(3.001, lambda: stand.course.ask_stop("signal"))
    stand.run()
    stand.course.ask_stop("user")
    assert run_file(stand).stopped_by == "user"
    assert stand.course.info.state == "finished"


def test_a_report_that_fails_fails_the_run_and_keeps_its_logs(tmp_path: Path) -> None:
    def report(run_dir: Path) -> dict[str, object]:
        raise TokswarmError("no space left")

    stand = Stand(tmp_path, VirtualFleet("a"), stage("s1"), report=report)
    info = stand.run()
    assert (info.state, info.error) == ("failed", "no report: no space left")
    assert (stand.run_dir / "logs" / "a.log").exists()


def test_verdict_and_bend_of_the_summary_are_kept_with_the_run(tmp_path: Path) -> None:
    summary = {"verdict": {"state": "suspect", "reasons": ["loop lag"]}, "bend": {"line": "bends at 16"}}
    stand = Stand(tmp_path, VirtualFleet("a"), stage("s1"), report=lambda run_dir: summary)
    info = stand.run()
    assert (info.verdict, info.bend) == ("suspect", "bends at 16")
    assert stand.journal.events[-1].text == "loop lag"


def test_an_unreachable_database_is_one_event_and_one_note_not_the_end(tmp_path: Path) -> None:
    stand = Stand(tmp_path, VirtualFleet("a"), stage("s1"))
    stand.journal.database_error = "connection refused"
    info = stand.run()
    assert info.state == "finished"
    assert stand.journal.titles("database") == ["the database does not take the data of the master"]
    assert sum("connection refused" in note for note in info.notes) == 1


def test_messages_of_another_run_and_of_strangers_are_dropped_and_counted(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b")
    stranger = fleet.members.pop("b")
    stand = Stand(tmp_path, fleet, stage("s1"))

    def disturb() -> None:
        stranger.plan = fleet.members["a"].plan
        stranger._end_stage(None)
        stranger._finish()
        foreign = fleet.members["a"].received[0]
        assert isinstance(foreign, PlanMessage)
        fleet.deliver(fleet.members["a"], msgspec.structs.replace(stop_of("another"), run_id="another"))

    fleet.clock.at(2, disturb)
    info = stand.run()
    assert info.state == "finished"
    assert "2 messages of other runs or of workers given up were dropped" in info.notes


def stop_of(run_id: str) -> Stop:
    return Stop(run_id=run_id, drain_s=0, reason="")


def test_a_lost_piece_of_a_log_is_asked_for_again(tmp_path: Path) -> None:
    fleet = VirtualFleet("a")
    worker = fleet.members["a"]
    answer = worker.get
    asked: list[int] = []

    def deaf_once(message: object) -> None:
        if isinstance(message, Fetch):
            asked.append(message.offset)
            if len(asked) == 2:
                return
        answer(message)  # type: ignore[arg-type]

    worker.get = deaf_once  # type: ignore[method-assign]
    stand = Stand(tmp_path, fleet, stage("s1"))
    stand.run()
    assert (stand.run_dir / "logs" / "a.log").read_bytes() == worker.log
    assert asked == [0, PIECE_BYTES, PIECE_BYTES, 2 * PIECE_BYTES, 3 * PIECE_BYTES, len(worker.log)]


def test_a_worker_that_answers_no_fetch_leaves_a_note_and_a_finished_run(tmp_path: Path) -> None:
    fleet = VirtualFleet("a")
    worker = fleet.members["a"]
    answer = worker.get
    worker.get = lambda message: None if isinstance(message, Fetch) else answer(message)  # type: ignore[method-assign]
    info = Stand(tmp_path, fleet, stage("s1")).run()
    assert info.state == "finished"
    assert any("not complete here (0 bytes): no answer" in note for note in info.notes)


def test_a_worker_lost_by_silence_that_speaks_again_is_told_to_stop_and_its_log_is_fetched(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b")
    paused = fleet.members["b"]
    stand = Stand(tmp_path, fleet, stage("s1", 12.0))

    def pause() -> None:
        paused.alive = False

    def resume() -> None:
        paused.alive = True
        paused._ping()

    fleet.clock.at(3, pause)
    fleet.clock.at(8, resume)
    stand.run()
    assert any(isinstance(m, Stop) and m.reason == "lost, then heard again" for m in paused.received)
    assert (stand.run_dir / "logs" / "b.log").read_bytes() == paused.log
    assert [lost.worker for lost in run_file(stand).lost_workers] == ["b"]


def test_a_window_that_the_last_word_overtook_is_waited_for(tmp_path: Path) -> None:
    fleet = VirtualFleet("a")
    worker = fleet.members["a"]
    stand = Stand(tmp_path, fleet, stage("s1"))
    finish = worker._finish

    def finish_ahead() -> None:
        last = worker._sequence
        overtaken, newest = (
            Second(
                run_id=worker.run_id,
                window=Window(
                    worker="a",
                    second_unix=EPOCH_UNIX_S + 100 + place,
                    sequence=last + place,
                    rows=[WindowRow(class_name="chat", stage="s1", output_tokens=1000 + place)],
                ),
                health=health("a", EPOCH_UNIX_S + 100 + place),
            )
            for place in (0, 1)
        )
        worker.say(newest)
        finish()
        fleet.clock.at(0.4, lambda: worker.say(overtaken))

    worker._finish = finish_ahead  # type: ignore[method-assign]
    info = stand.run()
    assert [row.output_tok_per_s for row in stand.journal.rows if row.class_name == "_all"][-2:] == [1000, 1001]
    assert info.notes == ("found by the preflight",)


def test_a_worker_that_leaves_after_cutting_its_stage_short_has_no_part_in_the_next(tmp_path: Path) -> None:
    fleet = VirtualFleet("a", "b")
    leaver = fleet.members["b"]
    leaver.final_error = "the worker was told to end"

    def leave() -> None:
        leaver._end_stage(0)
        leaver._finish()

    fleet.clock.at(3, leave)
    stand = Stand(tmp_path, fleet, stage("s1", 10.0), stage("s2"))
    info = stand.run()
    assert (info.state, info.stages_done) == ("finished", 2)
    assert [m.index for m in leaver.received if isinstance(m, StageGo)] == [0]
    assert [(lost.worker, lost.in_flight) for lost in run_file(stand).lost_workers] == [("b", 0)]
    assert stand.journal.titles("worker") == ["worker b lost"]
