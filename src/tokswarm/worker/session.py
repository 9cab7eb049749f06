"""One run as one worker lives it: client, log, recorder, engine and sink, opened and closed together.

Each second it hands the window and the worker's own health to `send` and to the log.
"""

import contextlib
import gc
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import gevent

from tokswarm.measure.histogram import quantile_ms
from tokswarm.measure.record import RequestRecord
from tokswarm.measure.window import WorkerSecond
from tokswarm.sink.influx import InfluxSink
from tokswarm.sink.record_log import RecordLog
from tokswarm.sink.settings import InfluxSettings, log_limit_bytes
from tokswarm.sink.token_budget import TokenBudget
from tokswarm.wire.api import RequestWriter
from tokswarm.wire.client import LoadClient
from tokswarm.wire.sdk_client import SdkClient
from tokswarm.wire.target import ResolvedTarget
from tokswarm.worker.engine import Engine
from tokswarm.worker.health import CpuMeter, LoopProbe, rss_bytes
from tokswarm.worker.messages import (
    EndStage,
    Final,
    Message,
    PlanMessage,
    Reshare,
    Reshared,
    Second,
    StageDone,
    StageGo,
)
from tokswarm.worker.recorder import Recorder

log = logging.getLogger(__name__)

SPREAD_S = 0.5
"""Workers send their seconds spread over this, so that the master does not get all at one instant."""

FULL_COLLECTION_EVERY = 1000
"""Collections of the middle generation between two full ones (Python's own 10). The paths of a request leave no
cycles behind, and a full collection over ten thousand open streams stalls the loop for 40 ms and more."""

SINK_DEADLINE_S = 20.0
"""How long the end of a run waits for the database; what is left stays in the log."""


class WorkerRun:
    """Everything one worker needs for one run. `send` must not block: it is called from the ticker."""

    def __init__(
        self,
        message: PlanMessage,
        *,
        worker: str,
        log_dir: Path,
        send: Callable[[Message], None],
    ) -> None:
        self._run_id = message.run_id
        self._shard = message.shard
        self._deadline_s = message.deadline_s
        self._worker = worker
        self._log_path = log_dir / f"{worker}.log"
        self._send = send
        self._guard: gevent.Greenlet | None = None
        self._deadline_at_s = 0.0
        self._ticker: gevent.Greenlet | None = None
        self._held: deque[Second] = deque()
        """Closed seconds that wait for this worker's place in the second."""
        self._final: Final | None = None
        self._error = ""
        self.on_record: Callable[[RequestRecord], None] | None = None
        """Told of each finished request, after it was logged."""

    def open(self) -> None:
        """Build all parts; nothing is sent yet. TokswarmError when one cannot be; those built are closed again."""
        with contextlib.ExitStack() as built:
            self._open(built)
            built.pop_all()
        # A full collection over what stays for the whole run would stall the loop for many milliseconds.
        gc.collect()
        gc.freeze()
        self._gc_thresholds = gc.get_threshold()
        gc.set_threshold(*self._gc_thresholds[:2], FULL_COLLECTION_EVERY)

    def _open(self, built: contextlib.ExitStack) -> None:
        plan = self._shard.plan
        targets = [ResolvedTarget(each) for each in plan.mix.all_targets]
        for target in targets:
            target.resolve()
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log = RecordLog(
            self._log_path, run_id=self._run_id, worker=self._worker, limit_bytes=log_limit_bytes(os.environ)
        )
        built.callback(self._log.close)
        self._clients = []
        for target in targets:
            client = LoadClient(target) if target.spec.client == "native" else SdkClient(target)
            self._clients.append(client)
            built.callback(client.close)
        clock = self._clients[0].clock
        settings = InfluxSettings.from_environ(os.environ)
        budget_per_s = None if settings is None else settings.token_points_per_s
        self._recorder = Recorder(
            worker=self._worker,
            worker_index=self._shard.worker_index,
            classes=list(plan.mix.classes),
            target_names=[target.name for target in targets],
            log=self._log,
            wall_offset_ns=lambda: clock.offset_ns,
            token_budget=None if budget_per_s is None else TokenBudget(budget_per_s),
        )
        self._recorder.on_record = self._told
        writers = [
            RequestWriter(target, endpoint.model, endpoint.dropped_fields)
            for target, endpoint in zip(targets, plan.endpoints, strict=True)
        ]
        self._engine = Engine(self._shard, list(zip(self._clients, writers, strict=True)), self._recorder)
        self._sink = (
            None if settings is None else InfluxSink(self._log_path, settings, run_id=self._run_id, worker=self._worker)
        )
        if self._sink is not None:
            self._sink.start()
            self._log.delivered = self._sink.delivered_offset
            built.callback(self._sink.stop, 0.0)
        self._probe = LoopProbe()
        self._cpu = CpuMeter()
        self._second = int(time.time())
        self._last_reads = self._last_merged = self._last_unstamped = 0
        self._ticker = gevent.spawn(self._tick)

    def run_stage(self, go: StageGo) -> StageDone:
        """Run one stage to the end of its drain; blocks this greenlet."""
        self._guard_for(go.extends_s)
        if go.stage is not None:
            self._shard.plan.stages[go.index :] = [go.stage]
        count = self._engine.run_stage(go.index, go.start_unix_ns, go.share)
        return StageDone(
            run_id=self._run_id,
            worker=self._worker,
            index=go.index,
            finished=count.finished,
            aborted=count.aborted,
        )

    def reshare(self, order: Reshare) -> Reshared:
        """Go by another share of the stage; from any greenlet."""
        unsent, doubled = self._engine.reshare(order.index, order.share, order.unsent)
        return Reshared(
            run_id=self._run_id,
            worker=self._worker,
            index=order.index,
            part=order.share.part,
            unsent=unsent,
            doubled=doubled,
        )

    def end_stage(self, order: EndStage) -> None:
        """Send nothing of the stage that is due later; from any greenlet."""
        self._engine.end_stage(order.index, order.at_unix_ns)

    def halt(self, reason: str, drain_s: float) -> None:
        """End the load; from any greenlet, as often as one likes."""
        self._engine.halt(reason, drain_s)

    def finish(self) -> Final:
        """Last window, the log closed, the database given its deadline; again: the same Final."""
        if self._final is not None:
            return self._final
        if self._guard is not None:
            self._guard.kill()
        if self._ticker is not None:
            self._ticker.kill()
        self._close_second(delay_s=0.0)
        for client in self._clients:
            client.close()
        self._probe.stop()
        self._log.close()
        delivery = None if self._sink is None else self._sink.stop(SINK_DEADLINE_S)
        gc.set_threshold(*self._gc_thresholds)
        gc.unfreeze()
        self._final = Final(
            run_id=self._run_id,
            worker=self._worker,
            records=self._recorder.records,
            output_tokens=self._recorder.output_tokens,
            log_bytes=self._log.size_bytes,
            log_lost=self._log.lost,
            log_removed=self._log.removed_requests,
            sink_written=0 if delivery is None else delivery.written_points,
            sink_backlog_bytes=0 if delivery is None else delivery.backlog_bytes,
            sink_error="" if delivery is None else delivery.error or "",
            error=self._error,
        )
        return self._final

    def _guard_for(self, extends_s: float) -> None:
        """The deadline begins with the first stage, and moves with each that the plan did not foresee."""
        if self._guard is None:
            self._deadline_at_s = time.monotonic() + self._deadline_s
        elif not extends_s:
            return
        else:
            self._guard.kill()
        self._deadline_at_s += extends_s
        left_s = max(self._deadline_at_s - time.monotonic(), 0.0)
        self._guard = gevent.spawn_later(left_s, self.halt, "the run's own deadline has passed", 0.0)

    def _told(self, record: RequestRecord) -> None:
        if self.on_record is not None:
            self.on_record(record)

    def _tick(self) -> None:
        """Close each second of the wall clock at its end, and about one a second whatever the clock does."""
        spread_s = SPREAD_S * self._shard.worker_index / self._shard.worker_count
        while True:
            gevent.sleep(min(max(self._second + 1 - time.time(), 0.001), 1.0))
            try:
                self._close_second(delay_s=spread_s)
            except Exception as error:
                log.exception("closing a second failed")
                self._error = f"closing a second failed: {error}"

    def _close_second(self, *, delay_s: float) -> None:
        """Hand over the second under way and begin the next; no second is closed twice, whatever the clock does."""
        second = self._second
        self._second = max(second + 1, int(time.time()))
        window = self._recorder.take(second)
        health = self._health(second)
        self._log.append(window)
        self._log.append(health)
        self._held.append(Second(run_id=self._run_id, window=window, health=health))
        if delay_s > 0:
            gevent.spawn_later(delay_s, self._send_held)
        else:
            self._send_held()

    def _send_held(self) -> None:
        while self._held:
            self._send(self._held.popleft())

    def _health(self, second: int) -> WorkerSecond:
        recorder, sink = self._recorder, self._sink
        lag_p99_ms, lag_max_ms = self._probe.take()
        schedule_lag_p99_ms = quantile_ms(recorder.lag_ns, 0.99)
        recorder.lag_ns = {}
        reads, merged, unstamped = (
            sum(client.reads for client in self._clients),
            recorder.merged_arrivals,
            recorder.unstamped_arrivals,
        )
        health = WorkerSecond(
            worker=self._worker,
            second_unix=second,
            loop_lag_p99_ms=lag_p99_ms,
            loop_lag_max_ms=lag_max_ms,
            cpu_ratio=self._cpu.take(),
            schedule_lag_p99_ms=schedule_lag_p99_ms,
            in_flight=sum(client.in_flight for client in self._clients),
            sockets=sum(client.sockets for client in self._clients),
            rss_bytes=rss_bytes(),
            log_bytes=self._log.size_bytes,
            log_lost=self._log.lost,
            sink_backlog_bytes=0 if sink is None else sink.backlog_bytes,
            sink_error="" if sink is None else sink.error or "",
            reads=reads - self._last_reads,
            merged_arrivals=merged - self._last_merged,
            unstamped_arrivals=unstamped - self._last_unstamped,
            log_removed=self._log.removed_requests,
        )
        self._last_reads, self._last_merged, self._last_unstamped = reads, merged, unstamped
        return health
