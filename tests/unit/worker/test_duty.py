"""One run as a worker carries it out, with a scripted run in place of the engine."""

from collections.abc import Callable
from pathlib import Path

import gevent
import pytest
from gevent.event import Event
from virtual_fleet import plan, stage

from tokswarm.errors import ConfigError
from tokswarm.measure.record import RequestRecord
from tokswarm.traffic.plan import Shard
from tokswarm.worker.duty import Duty
from tokswarm.worker.messages import Ack, Final, Message, PlanMessage, StageDone, StageGo, Stop
from tokswarm.worker.node import STOP_DRAIN_S, Node, NodeSettings


class ScriptedRun:
    """A stage lasts until `end_stage` is set or the run is halted."""

    def __init__(self, message: PlanMessage, *, worker: str, log_dir: Path, send: Callable[[Message], None]) -> None:
        self.on_record: Callable[[RequestRecord], None] | None = None
        self.run_id = message.run_id
        self.worker = worker
        self.log_dir = log_dir
        self.calls: list[str] = []
        self.end_stage = Event()
        self.open_error: Exception | None = None
        self.stage_error: Exception | None = None

    def open(self) -> None:
        self.calls.append("open")
        if self.open_error is not None:
            raise self.open_error

    def run_stage(self, go: StageGo) -> StageDone:
        self.calls.append(f"stage {go.index}")
        if self.stage_error is not None:
            raise self.stage_error
        self.end_stage.wait(5)
        return StageDone(run_id=self.run_id, worker=self.worker, index=go.index, finished=1, aborted=0)

    def halt(self, reason: str, drain_s: float) -> None:
        self.calls.append(f"halt {drain_s:g}")
        self.end_stage.set()

    def finish(self) -> Final:
        self.calls.append("finish")
        return Final(
            run_id=self.run_id,
            worker=self.worker,
            records=1,
            output_tokens=1,
            log_bytes=1,
            log_lost=0,
            sink_written=0,
            sink_backlog_bytes=0,
        )


class Bench:
    """A duty and what it sent."""

    def __init__(self, tmp_path: Path, *, run_id: str = "r1", before: Duty | None = None) -> None:
        self.sent: list[Message] = []
        self.runs: list[ScriptedRun] = []
        self.prepare: Callable[[ScriptedRun], None] = lambda run: None
        self._run_id = run_id
        shard = Shard(plan=plan(stage("s1"), stage("s2"), run_id=run_id), worker_index=0, worker_count=1)
        self.duty = Duty(
            PlanMessage(run_id=run_id, shard=shard, deadline_s=60),
            make_run=self._make,
            worker="w",
            log_dir=tmp_path,
            send=self.sent.append,
            on_record=lambda record: None,
            before=before,
        )

    def _make(
        self, message: PlanMessage, *, worker: str, log_dir: Path, send: Callable[[Message], None]
    ) -> ScriptedRun:
        run = ScriptedRun(message, worker=worker, log_dir=log_dir, send=send)
        self.prepare(run)
        self.runs.append(run)
        return run

    def go(self, index: int) -> None:
        self.duty.go(StageGo(run_id=self._run_id, index=index, start_unix_ns=0))

    def stop(self, drain_s: float = 0.0) -> None:
        self.duty.stop(Stop(run_id=self._run_id, drain_s=drain_s, reason="plan"))

    def kinds(self) -> list[str]:
        return [type(message).__name__ for message in self.sent]

    def end(self) -> Message:
        self.duty.join(5)
        assert self.duty.over
        return self.sent[-1]


def settle() -> None:
    for _ in range(5):
        gevent.sleep(0)


def test_a_run_is_opened_acknowledged_run_stage_by_stage_and_closed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    settle()
    bench.runs[0].end_stage.set()
    bench.go(0)
    bench.go(1)
    settle()
    bench.stop()
    final = bench.end()
    assert bench.kinds() == ["Ack", "StageDone", "StageDone", "Final"]
    assert bench.runs[0].calls == ["open", "stage 0", "stage 1", "halt 0", "finish"]
    assert isinstance(final, Final)
    assert final.error == ""
    assert bench.runs[0].on_record is not None


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        pytest.param(ConfigError("KEY is not set", hint="set it"), "KEY is not set (set it)", id="expected"),
        pytest.param(ZeroDivisionError("x"), "its own error: ZeroDivisionError('x')", id="unexpected"),
    ],
)
def test_a_run_that_cannot_be_opened_says_why_and_is_over(tmp_path: Path, failure: Exception, error: str) -> None:
    bench = Bench(tmp_path)
    bench.prepare = lambda run: setattr(run, "open_error", failure)
    ack = bench.end()
    assert isinstance(ack, Ack)
    assert ack.error == error
    bench.stop()  # the master tells everyone; nothing is left to stop


def test_a_stop_in_the_middle_halts_the_stage_with_its_drain_and_skips_the_rest(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    settle()
    bench.go(0)
    bench.go(1)
    settle()
    bench.stop(3.0)
    bench.end()
    assert bench.kinds() == ["Ack", "StageDone", "Final"]
    assert bench.runs[0].calls == ["open", "stage 0", "halt 3", "finish"]


def test_an_engine_that_breaks_closes_its_log_and_says_so_in_the_last_word(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.prepare = lambda run: setattr(run, "stage_error", ZeroDivisionError("x"))
    settle()
    bench.go(0)
    final = bench.end()
    assert isinstance(final, Final)
    assert final.error == "its own error: ZeroDivisionError('x')"
    assert bench.runs[0].calls[-1] == "finish"


def test_an_abandoned_run_is_halted_and_closed_with_the_reason(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    settle()
    bench.go(0)
    settle()
    bench.duty.abandon("the master was silent for 12 s")
    final = bench.end()
    assert isinstance(final, Final)
    assert final.error == "the master was silent for 12 s"


def test_a_worker_that_is_told_to_end_lets_open_requests_drain(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    settle()
    bench.go(0)
    settle()
    node = Node(NodeSettings(data_dir=tmp_path, name="w"), make_run=ScriptedRun)
    node._duty = bench.duty
    node._end()
    assert bench.runs[0].calls == ["open", "stage 0", f"halt {STOP_DRAIN_S:g}", "finish"]
    final = bench.sent[-1]
    assert isinstance(final, Final)
    assert final.error == "the worker was told to end"


def test_a_run_stopped_before_it_was_open_runs_no_stage(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.go(0)
    bench.stop()
    bench.end()
    assert bench.kinds() == ["Ack", "Final"]
    assert bench.runs[0].calls == ["open", "finish"]


def test_a_new_run_ends_the_old_one_before_it_opens(tmp_path: Path) -> None:
    old = Bench(tmp_path, run_id="r1")
    settle()
    old.go(0)
    settle()
    new = Bench(tmp_path, run_id="r2", before=old.duty)
    settle()
    gevent.sleep(0.01)
    assert old.runs[0].calls[-1] == "finish"
    assert old.duty.over
    assert new.kinds() == ["Ack"]
    new.stop()
    new.end()
