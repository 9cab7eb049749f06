"""One run as this worker carries it out: open, answer the plan, run stages as they are ordered, last word.

One greenlet does all of it in order; messages only put orders in its queue, so the loop that receives
them is never held up.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import gevent
import msgspec
from gevent.queue import Queue

from tokswarm.errors import TokswarmError
from tokswarm.measure.record import RequestRecord
from tokswarm.worker.messages import (
    Ack,
    EndStage,
    Final,
    Message,
    PlanMessage,
    Reshare,
    Reshared,
    StageDone,
    StageGo,
    Stop,
)

_log = logging.getLogger(__name__)

END_TIMEOUT_S = 30.0
"""The last word may wait for the database."""


class Run(Protocol):
    """The part that does the work; `tokswarm.worker.session.WorkerRun` is the real one."""

    on_record: Callable[[RequestRecord], None] | None

    def open(self) -> None:
        """Build everything; nothing is sent yet. TokswarmError."""
        ...

    def run_stage(self, go: StageGo) -> StageDone:
        """Run one stage to the end of its drain."""
        ...

    def reshare(self, order: Reshare) -> Reshared:
        """Go by another share of the stage, from any greenlet."""
        ...

    def end_stage(self, order: EndStage) -> None:
        """Send nothing of the stage that is due later, from any greenlet."""
        ...

    def halt(self, reason: str, drain_s: float) -> None:
        """End the load, from any greenlet."""
        ...

    def finish(self) -> Final:
        """Close the log and give the last word."""
        ...


class MakeRun(Protocol):
    """Makes the run of a plan."""

    def __call__(self, message: PlanMessage, *, worker: str, log_dir: Path, send: Callable[[Message], None]) -> Run:
        """`send` never blocks; the log goes to `log_dir / f"{worker}.log"`."""
        ...


class Duty:
    """A run on this worker, from its plan to its last word."""

    def __init__(
        self,
        plan: PlanMessage,
        *,
        make_run: MakeRun,
        worker: str,
        log_dir: Path,
        send: Callable[[Message], None],
        on_record: Callable[[RequestRecord], None],
        before: "Duty | None" = None,
    ) -> None:
        """`before`: the run this worker was on; it is ended first."""
        self.run_id = plan.run_id
        self.over = False
        self._plan = plan
        self._make_run = make_run
        self._worker = plan.name or worker
        self._log_dir = log_dir
        self._send = send
        self._on_record = on_record
        self._before = before
        self._run: Run | None = None
        self._orders: Queue[StageGo | Stop] = Queue()
        self._halted = ""
        self._error = ""
        self._greenlets = [gevent.spawn(self._do)]

    def go(self, order: StageGo) -> None:
        """Run this stage next."""
        self._orders.put(order)

    def reshare(self, order: Reshare) -> None:
        """Go by another share, and say so. Before the run is open nothing was ordered that this could change."""
        if self._run is not None:
            self._send(self._run.reshare(order))

    def end_stage(self, order: EndStage) -> None:
        """End the sending of a stage early."""
        if self._run is not None:
            self._run.end_stage(order)

    def stop(self, order: Stop) -> None:
        """End the load now, then give the last word."""
        self.halt(order.reason, order.drain_s)
        self._orders.put(order)

    def abandon(self, reason: str, *, drain_s: float = 0.0) -> None:
        """Nobody will order anything any more: end the load, in so much time for what is open, and close the log."""
        self._error = self._error or reason
        self.stop(Stop(run_id=self.run_id, drain_s=drain_s, reason=reason))

    def halt(self, reason: str, drain_s: float) -> None:
        """End the load; no further stage begins."""
        self._halted = self._halted or reason
        if self._run is not None:
            self._greenlets.append(gevent.spawn(self._run.halt, reason, drain_s))

    def join(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Wait until it is over."""
        self._greenlets[0].join(timeout_s)

    def _do(self) -> None:
        try:
            if self._before is not None:
                self._before.abandon("another run was given to this worker")
                self._before.join()
                self._before = None
            run = self._opened()
            if run is not None:
                self._carry_out(run)
        except Exception:  # noqa: BLE001 -- root of the greenlet
            _log.exception("run %s: this worker's own error", self.run_id)
        finally:
            self.over = True

    def _opened(self) -> Run | None:
        error = ""
        run = self._make_run(self._plan, worker=self._worker, log_dir=self._log_dir, send=self._send)
        run.on_record = self._on_record
        try:
            run.open()
        except TokswarmError as failure:
            error = f"{failure} ({failure.hint})" if failure.hint else str(failure)
            _log.warning("run %s cannot be run here: %s", self.run_id, error)
        except Exception as failure:  # noqa: BLE001 -- whatever it is, the master must be told
            _log.exception("run %s cannot be run here", self.run_id)
            error = f"its own error: {failure!r}"
        self._send(Ack(run_id=self.run_id, worker=self._worker, wall_unix_ns=time.time_ns(), error=error))
        self._run = None if error else run
        return self._run

    def _carry_out(self, run: Run) -> None:
        try:
            while not self._halted:
                order = self._orders.get()
                if isinstance(order, Stop):
                    break
                self._send(run.run_stage(order))
        except Exception as failure:  # noqa: BLE001 -- whatever it is, the log must be closed
            _log.exception("run %s: a stage ended by this worker's own error", self.run_id)
            self._error = f"its own error: {failure!r}"
        final = run.finish()
        if self._error and not final.error:
            final = msgspec.structs.replace(final, error=self._error)
        self._send(final)
