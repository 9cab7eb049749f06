"""The course of one run: plan, acks, stages, last words, logs, report.

Written as the story it is: each step sends something and waits, in bounded time, for the whole crew.
Whatever comes from workers is put in an inbox and taken in by the one greenlet that waits; nothing
else changes a run.
"""

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokswarm.errors import BusyError, FleetError
from tokswarm.insight.run_file import LostWorker, StageTimes
from tokswarm.master.abort import AbortWatch
from tokswarm.master.account import Account, RunJournal
from tokswarm.master.clock import Clock
from tokswarm.master.crew import Crew, Member, member_of
from tokswarm.master.last_words import notes_on_finals, notes_on_messages
from tokswarm.master.link import FleetLink, FleetWorker, Received
from tokswarm.master.load_change import changed_stage, load_text, why_not
from tokswarm.master.log_collection import LogCollection
from tokswarm.master.merge import PATIENCE_S, WindowMerge
from tokswarm.master.muster import ACK_TIMEOUT_S, Muster
from tokswarm.master.probe_series import run_search
from tokswarm.master.probe_tally import ProbeTally
from tokswarm.master.run import RunInfo, RunState
from tokswarm.master.run_folder import make_run_folder
from tokswarm.master.run_record import RunRecord
from tokswarm.master.run_report import report_on
from tokswarm.master.search import TRIES_MOST
from tokswarm.master.server_look import ServerLook
from tokswarm.master.spending import Spending
from tokswarm.master.stage_shares import StageShares
from tokswarm.measure.window import WorkerSecond
from tokswarm.traffic.plan import ClosedLoop, OpenLoop, Plan, PlannedStage, SearchPlan
from tokswarm.traffic.routing import places_line
from tokswarm.worker.messages import (
    Ack,
    Chunk,
    Final,
    Message,
    Ping,
    Reshared,
    Second,
    StageDone,
    Stop,
)

_log = logging.getLogger(__name__)

LEAD_S = 0.5
"""From the go to the start of a stage: it reaches every worker before."""
STAGE_SLACK_S = 5.0
"""What a worker may take beyond a stage's length and drain before it is given up."""
STOP_DRAIN_S = 5.0
"""Whoever presses stop does not wait for a long answer to end."""
FINAL_TIMEOUT_S = 60.0
"""A worker delivers what is left to the database before its last word."""
STRAGGLERS_S = 1.0
"""Workers spread their windows over half a second, so a last word may overtake one."""
TURN_S = 0.25
"""How often silence and overdue seconds are looked for when no message comes."""
CHECK_S = 0.05
"""And at most so often when many come: looking costs the more the more workers there are."""

BY_PLAN, BY_USER, BY_SIGNAL, BY_ERROR = "plan", "user", "signal", "error"
BY_ABORT, BY_BUDGET = "abort", "budget"


class Course:
    """One run under way. `gather`, then `drive`, then `wind_down`, by one greenlet; the rest by any."""

    def __init__(
        self,
        *,
        plan: Plan,
        mix_yaml: str,
        run_dir: Path,
        workers: list[FleetWorker],
        notes: list[str],
        fleet: FleetLink,
        journal: RunJournal,
        servers: ServerLook,
        clock: Clock,
        report: Callable[[Path], dict[str, Any]],
        on_change: Callable[[RunInfo], None],
    ) -> None:
        """`report` makes the run's report and gives back its summary; `on_change` hears of each change of state."""
        self._plan = plan
        self._mix_yaml = mix_yaml
        self._run_dir = run_dir
        self._fleet = fleet
        self._clock = clock
        self._servers = servers
        self._report = report
        now_s = clock.monotonic_s()
        self._crew = Crew(member_of(worker, index, now_s=now_s) for index, worker in enumerate(workers))
        self._merge = WindowMerge(limits={c.name: c.slo for c in plan.mix.classes if c.slo is not None})
        self._inbox: deque[Received] = deque()
        self._logs = LogCollection(run_id=plan.run_id, run_dir=run_dir, fleet=fleet, clock=clock)
        self._checked_s = now_s
        self._stop_asked: str | None = None
        self._stop_reason = ""
        self._watch = AbortWatch(plan.mix.abort)
        self._spending = Spending(plan.mix.budget)
        self._watching = False
        self._windows_due = False
        self._ending = False
        self._new_load: ClosedLoop | OpenLoop | None = None
        """What a user wants instead of the load of the stage under way."""
        self._record = RunRecord(plan, run_dir=run_dir)
        self._tally: ProbeTally | None = None
        self._told_to_stop = False
        self._told_again: set[str] = set()
        self._strays = 0
        self._error = ""
        self._ended_unix_ns: int | None = None
        info = RunInfo(
            run_id=plan.run_id,
            state=RunState.PREPARING,
            mix_name=plan.mix.name,
            base_url=places_line(plan.mix.all_targets),
            model=", ".join(dict.fromkeys(endpoint.model for endpoint in plan.endpoints)),
            started_unix_ns=clock.unix_ns(),
            workers=len(self._crew),
            stages_total=len(plan.stages),
            planned_s=sum(stage.duration_s * _probes(stage) for stage in plan.stages),
            notes=tuple(notes),
            run_dir=str(run_dir),
        )
        self._account = Account(
            info,
            journal=journal,
            clock=clock,
            on_change=on_change,
            warmup_stages={stage.name for stage in plan.stages if stage.warmup},
        )
        self._muster = Muster(
            self._crew,
            plan=plan,
            deadline_s=self._deadline_s(),
            fleet=fleet,
            clock=clock,
            account=self._account,
            record=self._record,
        )

    @property
    def info(self) -> RunInfo:
        """The run in short, as it is now."""
        return self._account.info

    @property
    def is_stopped(self) -> bool:
        """Whether the run is to end."""
        return self._stop_asked is not None

    # --- by any greenlet ------------------------------------------------------------------------

    def receive(self, received: Received) -> None:
        """Put a worker's message in the inbox."""
        if isinstance(received.message, Ping) and not self._watching:
            return  # pings only tell who is alive; nobody asks now
        self._inbox.append(received)
        self._clock.wake()

    def ask_stop(self, stopped_by: str) -> None:
        """End the run early; asking again changes nothing."""
        if self._stop_asked is None and not self._error:
            self._stop_asked = stopped_by
        self._clock.wake()

    def change_load(self, load: ClosedLoop | OpenLoop) -> None:
        """Go on with another load for the rest of the stage under way. BusyError when there is nothing to change."""
        now = self._muster.now
        if now is None or self._stop_asked or self._error or self.info.state is not RunState.RUNNING:
            reason = "no stage is sending"
        elif self._new_load is not None:
            reason = "another change has just been asked for"
        else:
            left_s = (now.stop_unix_ns - self._clock.unix_ns()) / 1e9 - LEAD_S
            reason = why_not(now.stage, left_s=left_s, is_probe=self._tally is not None)
        if reason:
            raise BusyError(
                f"the load cannot be changed now: {reason}",
                hint="wait for another stage, or start a run with that load",
            )
        self._new_load = load
        self._clock.wake()

    def _end_early(self, stopped_by: str, reason: str) -> None:
        """A rule of the mix ends the run."""
        if not reason or self._stop_asked is not None or self._error or self._ending:
            return
        self._stop_reason = reason
        self._account.event("abort", f"the run is ended by its {stopped_by} rule", reason)
        self._account.note(f"the run was ended early by a rule of its mix: {reason}")
        _log.warning("run %s is ended early: %s", self._plan.run_id, reason)
        self.ask_stop(stopped_by)

    def health(self) -> dict[str, WorkerSecond]:
        """The newest health of each worker in the run, by process."""
        return {member.client: member.health for member in self._crew.all() if member.health is not None}

    # --- the story ------------------------------------------------------------------------------

    def gather(self) -> None:
        """Send every worker its shard and wait for all answers. FleetError, and the run is over, when one says no."""
        make_run_folder(self._run_dir, self._mix_yaml)
        self._write_run_file()
        for member in self._crew.present():
            self._muster.give_shard(member)
        self._wait(
            lambda: bool(self._stop_asked or self._refusals() or not self._crew.without_ack()), within_s=ACK_TIMEOUT_S
        )
        if self._stop_asked:
            return
        refusals, silent = self._refusals(), [member.worker for member in self._crew.without_ack()]
        if refusals or silent:
            refusal = FleetError(
                "; ".join(refusals)
                or f"no answer to the plan from {', '.join(silent)} within {ACK_TIMEOUT_S:g} s; the run did not begin",
                hint="look at the log of that worker; start again without it, or when it answers",
            )
            self._stop_all(drain_s=0, reason="the run did not begin")
            self.fail(str(refusal))
            raise refusal

    def drive(self) -> None:
        """Run the stages one by one, until the plan ends, a stop is asked for or nobody is left. FleetError."""
        if self._stop_asked:
            return
        self._account.enter(RunState.RUNNING)
        stages = len(self._plan.stages)
        self._account.event("run", f"run {self._plan.run_id} began", f"{len(self._crew)} workers, {stages} stages")
        self._fleet.begin_load()
        self._servers.start(self._account.server, self._account.server_trouble)
        self._watching = True
        for member in self._crew.all():
            member.heard_s = self._clock.monotonic_s()
        for index, stage in enumerate(tuple(self._plan.stages)):  # a search adds to them
            if self._stop_asked:
                break
            if stage.search is None:
                self._run_planned(index, stage)
            else:
                run_search(index, stage, stage.search, runner=self, account=self._account, record=self._record)
            self._account.change(stages_done=self.info.stages_done + 1)
            self._write_run_file()

    def stop_by_error(self, error: str) -> None:
        """The run cannot go on: it will be wound down and end as failed."""
        self._error = self._error or error

    def wind_down(self) -> None:
        """Whatever happened: end the load, hear the last words, fetch the logs, report."""
        stopped_by = self._stopped_by()
        if stopped_by != BY_PLAN and self.info.state is not RunState.STOPPING:
            self._account.enter(RunState.STOPPING)
        self._stop_all(drain_s=0, reason=stopped_by)
        self._ending = True
        self._wait(lambda: not self._crew.without_final(), within_s=FINAL_TIMEOUT_S)
        self._servers.stop()
        for member in self._crew.without_final():
            self._lose(member, f"sent no last word within {FINAL_TIMEOUT_S:g} s")
        self._wait(lambda: self._merge.missing == 0, within_s=STRAGGLERS_S)
        self._account.seconds(self._merge.take_rest())
        self._fleet.end_load()
        self._ended_unix_ns = self._clock.unix_ns()
        self._account.event(
            "run", end_title(self._plan.run_id), self._error or self._stop_reason or f"ended by {stopped_by}"
        )
        self._account.enter(RunState.REPORTING)
        self._fetch_logs()
        self._watching = False
        self._take_finals()
        self._write_run_file()
        self._write_report()
        for note in self._account.close():
            self._account.note(note)
        if self._error:
            self.fail(self._error)
        else:
            self._account.change(ended_unix_ns=self._ended_unix_ns)
            self._account.enter(RunState.FINISHED)

    def fail(self, error: str) -> None:
        """End the run as failed, here and now, with what there is."""
        self._watching = False
        self._servers.stop()
        self._error = error
        if self.info.state.is_over:
            return
        if self._ended_unix_ns is None:
            self._ended_unix_ns = self._clock.unix_ns()
        self._account.change(error=error, ended_unix_ns=self._ended_unix_ns)
        self._account.close()
        self._write_run_file()
        self._account.enter(RunState.FAILED)

    # --- stages -----------------------------------------------------------------------------------

    def run_probe(self, place: int, stage: PlannedStage, plan: SearchPlan) -> list[tuple[int, int]]:
        """Run one probe of a search, as a stage at this place of the plan: (met, known) of each settled second."""
        index = self._record.decide(place, stage)
        self._write_run_file()
        self._run_stage(index, stage, decided_for=plan, is_planned=False)
        tally, self._tally = self._tally, None
        return [] if tally is None else tally.seconds()

    def _run_planned(self, place: int, stage: PlannedStage) -> None:
        """A stage of the plan, and those that users make of it while it goes on."""
        index, is_planned, extends_s = place, True, 0.0
        while True:
            self._run_stage(index, stage, is_planned=is_planned, extends_s=extends_s)
            load, self._new_load = self._new_load, None
            left_s = stage.duration_s - self._record.sent_s
            if load is None or self._stop_asked is not None or left_s <= 0:
                return
            stage = changed_stage(stage, load, left_s=left_s)
            index, is_planned = self._record.decide(place, stage), False
            extends_s = LEAD_S + stage.drain_s + STAGE_SLACK_S
            self._account.change(stages_total=self.info.stages_total + 1, stages_done=self.info.stages_done + 1)
            self._write_run_file()

    def _run_stage(
        self,
        index: int,
        stage: PlannedStage,
        *,
        decided_for: SearchPlan | None = None,
        is_planned: bool = True,
        extends_s: float = 0.0,
    ) -> None:
        start_s = self._clock.monotonic_s() + LEAD_S
        start_unix_ns = self._clock.unix_ns() + round(LEAD_S * 1e9)
        now = StageShares(
            self._plan.run_id,
            index,
            stage,
            start_unix_ns=start_unix_ns,
            is_planned=is_planned,
            extends_s=extends_s,
        )
        self._muster.begin(now)
        if decided_for is not None:
            self._tally = ProbeTally(stage, goal=decided_for.goal, start_unix_ns=start_unix_ns)
        self._crew.expect_windows_from(start_s)
        self._windows_due = True
        self._account.stage(stage)
        text = f"{stage.duration_s:g} s, drain at most {stage.drain_s:g} s{', warm-up' if stage.warmup else ''}"
        self._account.event("stage", stage.name, text, unix_ns=start_unix_ns)
        self._record.times.append(
            StageTimes(
                name=stage.name, start_unix_ns=start_unix_ns, stop_unix_ns=start_unix_ns, end_unix_ns=start_unix_ns
            )
        )
        self._wait(
            lambda: bool(self._stop_asked or self._new_load or not self._crew.behind(index)),
            within_s=LEAD_S + stage.duration_s + stage.drain_s + STAGE_SLACK_S,
        )
        if self._new_load is not None and self._stop_asked is None:
            self._end_sending(now, self._new_load)
        stop_unix_ns = min(self._clock.unix_ns(), now.stop_unix_ns)
        if self._stop_asked and self._crew.behind(index):
            self._stop_stage(index, stage)
        if self._tally is not None:
            self._hear_out(self._tally)
        self._windows_due = False
        self._muster.now = None
        for member in self._crew.behind(index):
            self._lose(member, f"did not drain stage {stage.name} in time")
        end_unix_ns = max(self._clock.unix_ns(), start_unix_ns)
        self._record.times[-1] = StageTimes(
            name=stage.name,
            start_unix_ns=start_unix_ns,
            stop_unix_ns=max(stop_unix_ns, start_unix_ns),
            end_unix_ns=end_unix_ns,
        )
        self._account.event("stage", stage.name, text, unix_ns=start_unix_ns, end_unix_ns=end_unix_ns)
        self._account.change(stage="")
        if not self._crew.present():
            raise FleetError("every worker was lost", hint="look at the workers' logs; their records are kept there")

    def _end_sending(self, now: StageShares, load: ClosedLoop | OpenLoop) -> None:
        text = f"a user asked for {'concurrency' if isinstance(load, ClosedLoop) else 'rate'} {load_text(load)}"
        self._account.event("load", f"{now.stage.name}: the load is changed", text)
        self._muster.send_all(now.end(self._crew.present(), now_unix_ns=self._clock.unix_ns()))
        self._wait(
            lambda: bool(self._stop_asked or not self._crew.behind(now.index)),
            within_s=LEAD_S + now.stage.drain_s + STAGE_SLACK_S,
        )

    def _hear_out(self, tally: ProbeTally) -> None:
        """Wait for the windows that a drained stage ended in."""
        last_unix = self._clock.unix_ns() // 1_000_000_000
        self._wait(lambda: tally.has_heard(self._crew.present_names(), last_unix), within_s=PATIENCE_S)

    def _stop_stage(self, index: int, stage: PlannedStage) -> None:
        # What is in flight is part of the budget: it is let end.
        drain_s = stage.drain_s if self._stop_asked == BY_BUDGET else min(stage.drain_s, STOP_DRAIN_S)
        self._account.enter(RunState.STOPPING)
        self._stop_all(drain_s=drain_s, reason=self._stopped_by())
        self._wait(lambda: not self._crew.behind(index), within_s=drain_s + STAGE_SLACK_S)

    # --- what comes from the workers --------------------------------------------------------------

    def _wait(self, done: Callable[[], bool], *, within_s: float) -> bool:
        deadline_s = self._clock.monotonic_s() + within_s
        while True:
            self._take_in()
            if done():
                return True
            now_s = self._clock.monotonic_s()
            if now_s >= deadline_s:
                return False
            self._clock.wait(min(deadline_s - now_s, TURN_S, self._silence_due_s(now_s)))

    def _silence_due_s(self, now_s: float) -> float:
        """In how long somebody will have been silent for too long."""
        soonest_s = self._crew.soonest_silence_s(windows_due=self._windows_due) if self._watching else None
        return TURN_S if soonest_s is None else max(soonest_s - now_s, 0.0) + CHECK_S

    def _take_in(self) -> None:
        while self._inbox:
            self._take(self._inbox.popleft())
        now_s = self._clock.monotonic_s()
        if now_s - self._checked_s < CHECK_S:
            return
        self._checked_s = now_s
        if self._watching:
            for member in self._crew.silent(now_s=now_s, windows_due=self._windows_due):
                self._lose(member, f"nothing heard for {now_s - min(member.heard_s, member.window_s):.1f} s")
            if not (self._stop_asked or self._error or self._told_to_stop):
                self._muster.look_for_others(now_s)
        if not self._told_to_stop:
            self._muster.share_out()
        if not (self._ending and self._merge.missing):
            expected = [member.worker for member in self._crew.without_final()]
            seconds = self._merge.take(now_unix_s=self._clock.unix_ns() / 1e9, workers=expected)
            self._account.seconds(seconds)
            self._end_early(BY_ABORT, self._watch.take(seconds))
        self._account.own_database_trouble()
        self._logs.ask_again(now_s=now_s)

    def _take(self, received: Received) -> None:
        message, member = received.message, self._crew.member(received.client)
        if isinstance(message, Chunk):  # also from a new process that serves the log of a lost one
            if message.run_id == self._plan.run_id:
                self._logs.take(message, now_s=received.received_s)
            return
        if member is None or (message.run_id != self._plan.run_id and not isinstance(message, Ping)):
            self._strays += not isinstance(message, Ping)
            return
        member.heard_s = max(member.heard_s, received.received_s)
        if member.gone:
            self._take_from_gone(member, message)
            return
        match message:
            case Ack():
                self._muster.take_ack(member, message)
            case Reshared():
                self._muster.take_reshared(member, message)
            case Second():
                self._take_second(member, message, received.received_s)
            case StageDone():
                member.drained = message.index
            case Final():
                self._take_final(member, message)

    def _take_from_gone(self, member: Member, message: Message) -> None:
        """It was only silent: what it says now is no part of the run, but its log will be."""
        if isinstance(message, Final):
            member.final = message
        elif not isinstance(message, Ping):
            self._strays += 1
        if member.final is None and member.client not in self._told_again:
            self._told_again.add(member.client)
            self._muster.send(member, Stop(run_id=self._plan.run_id, drain_s=0, reason="lost, then heard again"))

    def _take_second(self, member: Member, second: Second, received_s: float) -> None:
        if second.window.worker != member.worker:
            self._strays += 1
            return
        self._crew.take_second(member, second, now_s=received_s)
        self._merge.add(second.window)
        self._account.window(second.window.rows)
        self._account.health(second.health)
        if self._tally is not None:
            self._tally.take(member.worker, second.window.second_unix, second.window.rows)
        self._end_early(BY_BUDGET, self._spending.take(member.worker, second.window.rows))
        self._account.database_trouble(member.worker, second.health.sink_error)

    def _take_final(self, member: Member, final: Final) -> None:
        member.final = final
        member.in_flight = 0  # whatever was open is in its log, as aborted
        if not self._told_to_stop:
            self._lose(member, final.error or "ended before the run did")
        elif final.error:
            self._account.note(f"worker {member.worker}: {final.error}")

    def _lose(self, member: Member, reason: str) -> None:
        member.gone = reason
        unix_ns = self._clock.unix_ns()
        self._record.lost.append(LostWorker(worker=member.worker, unix_ns=unix_ns, in_flight=member.in_flight))
        _log.warning("run %s: worker %s is lost: %s", self._plan.run_id, member.worker, reason)
        self._account.lost(member.worker, member.in_flight, reason)
        self._spending.lost(member.worker)
        self._muster.send(member, Stop(run_id=self._plan.run_id, drain_s=0, reason="lost"))
        self._fleet.drop(member.client)
        self._muster.lose(member)

    # --- logs and report ----------------------------------------------------------------------------

    def _fetch_logs(self) -> None:
        holders = {member.worker: member.fleet_name for member in self._crew.all() if self._can_fetch(member)}
        for note in self._logs.collect(holders, self._wait):
            self._account.note(note)

    def _can_fetch(self, member: Member) -> bool:
        if not member.gone:
            return True
        answers = any(w.worker == member.fleet_name and w.state != "silent" for w in self._fleet.workers())
        if not answers:
            self._account.note(
                f"the log of worker {member.worker} was not fetched: it does not answer; the log is on its disk"
            )
        return answers

    def _take_finals(self) -> None:
        finals = [member.final for member in self._crew.all() if member.final is not None]
        if (
            len(finals) == len(self._crew.all()) and not self._record.lost
        ):  # the exact count, whatever became of the windows
            self._account.change(output_tokens=sum(final.output_tokens for final in finals))
        notes = notes_on_messages(missing=self._merge.missing, late=self._merge.late, strays=self._strays)
        for note in (*notes_on_finals(finals), *notes):
            self._account.note(note)

    def _write_report(self) -> None:
        if error := report_on(self._run_dir, report=self._report, account=self._account):
            self.stop_by_error(error)

    def _write_run_file(self) -> None:
        self._record.write(
            self._account,
            workers=[member.worker for member in self._crew.all()],
            missing_windows=self._merge.missing,
            ended_unix_ns=self._ended_unix_ns or self._clock.unix_ns(),
            stopped_by=self._stopped_by(),
            stop_reason=self._stop_reason,
            error=self._error,
        )

    # --- small things ---------------------------------------------------------------------------------

    def _stopped_by(self) -> str:
        if self._error:
            return BY_ERROR
        return self._stop_asked or BY_PLAN

    def _deadline_s(self) -> float:
        each_s = LEAD_S + STAGE_SLACK_S
        return FINAL_TIMEOUT_S + sum(
            (stage.duration_s + stage.drain_s + each_s) * _probes(stage) for stage in self._plan.stages
        )

    def _refusals(self) -> list[str]:
        return [
            f"worker {member.worker} cannot run its shard: {member.ack.error}"
            for member in self._crew.all()
            if member.ack is not None and member.ack.error
        ]

    def _stop_all(self, *, drain_s: float, reason: str) -> None:
        self._told_to_stop = True
        for member in [*self._crew.present(), *self._crew.joining()]:
            self._muster.send(member, Stop(run_id=self._plan.run_id, drain_s=drain_s, reason=reason))


def end_title(run_id: str) -> str:
    """What the event is called that a run's own master writes at its end, whatever the end."""
    return f"run {run_id} ended"


def _probes(stage: PlannedStage) -> int:
    """How many stages it becomes, at most."""
    return 1 if stage.search is None else stage.search.most_probes * TRIES_MOST
