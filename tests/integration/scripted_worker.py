"""A worker process whose runs are scripted: real node, real Locust, real log; no endpoint and no requests.

python scripted_worker.py MASTER_PORT DATA_DIR NAME [SILENCE_S LONELY_S]
"""

import locust  # noqa: F401, I001 -- first: it patches the process
import logging
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import gevent
from gevent.event import Event

from tokswarm.errors import ConfigError
from tokswarm.measure.record import Outcome, RequestRecord
from tokswarm.measure.window import Window, WindowRow, WorkerSecond
from tokswarm.sink.record_log import RecordLog
from tokswarm.worker import node
from tokswarm.worker.join import parse_join
from tokswarm.worker.messages import Final, Message, PlanMessage, Second, StageDone, StageGo
from tokswarm.worker.node import NodeSettings, run_node

RECORDS_PER_S = 20
TOKENS = 5
ARRIVALS = array("q", [10_000_000 * (1 + n) for n in range(TOKENS)])


class ScriptedRun:
    """Finishes `RECORDS_PER_S` requests of `TOKENS` tokens each second, and keeps two in flight."""

    def __init__(self, message: PlanMessage, *, worker: str, log_dir: Path, send: Callable[[Message], None]) -> None:
        self.on_record: Callable[[RequestRecord], None] | None = None
        self._message = message
        self._worker = worker
        self._log_dir = log_dir
        self._send = send
        self._halted = Event()
        self._sequence = 0
        self._records = 0
        self._fresh = 0
        self._stage = ""

    def open(self) -> None:
        if self._message.shard.plan.mix.description == f"refuse {self._worker}":
            raise ConfigError("the key OPENAI_API_KEY is not set here", hint="set it")
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self._log = RecordLog(self._log_dir / f"{self._worker}.log", run_id=self._message.run_id, worker=self._worker)
        self._ticker = gevent.spawn(self._tick)

    def run_stage(self, go: StageGo) -> StageDone:
        stage = self._message.shard.plan.stages[go.index]
        self._stage = stage.name
        before = self._records
        gevent.sleep(max(go.start_unix_ns / 1e9 - time.time(), 0))
        end_s = time.monotonic() + stage.duration_s
        while time.monotonic() < end_s and not self._halted.wait(1 / RECORDS_PER_S):
            self._record()
        return StageDone(
            run_id=self._message.run_id,
            worker=self._worker,
            index=go.index,
            finished=self._records - before,
            aborted=0,
        )

    def halt(self, reason: str, drain_s: float) -> None:
        self._halted.set()

    def finish(self) -> Final:
        self._ticker.kill()
        self._second(int(time.time()))
        self._log.close()
        return Final(
            run_id=self._message.run_id,
            worker=self._worker,
            records=self._records,
            output_tokens=self._records * TOKENS,
            log_bytes=self._log.size_bytes,
            log_lost=0,
            sink_written=0,
            sink_backlog_bytes=0,
        )

    def _record(self) -> None:
        now_ns = time.monotonic_ns()
        record = RequestRecord(
            request_id=(self._message.shard.worker_index << 40) | self._records,
            slot=0,
            class_name="chat",
            stage=self._stage,
            target="t",
            outcome=Outcome.OK if self._records % 10 else Outcome.TIMEOUT,
            planned_ns=now_ns - 50_000_000,
            sent_ns=now_ns - 50_000_000,
            sent_unix_ns=time.time_ns() - 50_000_000,
            done_ns=now_ns,
            first_token_ns=now_ns - 40_000_000,
            last_token_ns=now_ns,
            status=200,
            output_tokens=TOKENS,
            arrivals=ARRIVALS.tobytes(),
        )
        self._records += 1
        self._fresh += 1
        self._log.append(record)
        if self.on_record is not None:
            self.on_record(record)

    def _tick(self) -> None:
        while True:
            second = int(time.time())
            gevent.sleep(second + 1 - time.time())
            self._second(second)

    def _second(self, second: int) -> None:
        fresh, self._fresh = self._fresh, 0
        row = WindowRow(
            class_name="chat", stage=self._stage, output_tokens=fresh * TOKENS, finished={"ok": fresh}, in_flight=2
        )
        rows = [row] if self._stage else []
        window = Window(worker=self._worker, second_unix=second, sequence=self._sequence, rows=rows)
        self._sequence += 1
        health = WorkerSecond(
            worker=self._worker,
            second_unix=second,
            loop_lag_p99_ms=0.1,
            loop_lag_max_ms=0.1,
            cpu_ratio=0.0,
            schedule_lag_p99_ms=None,
            in_flight=2,
            sockets=0,
            rss_bytes=1,
            log_bytes=self._log.size_bytes,
            log_lost=0,
            sink_backlog_bytes=0,
            sink_error="",
            reads=0,
            merged_arrivals=0,
            unstamped_arrivals=0,
        )
        self._log.append(window)
        self._log.append(health)
        self._send(Second(run_id=self._message.run_id, window=window, health=health))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    port, data_dir, name = sys.argv[1:4]
    if len(sys.argv) > 4:  # a test need not wait for as long as a user
        node.SILENCE_S, node.LONELY_S = float(sys.argv[4]), float(sys.argv[5])
    settings = NodeSettings(
        data_dir=Path(data_dir),
        master_port=int(port),
        join=parse_join((Path(data_dir) / "fleet.join").read_text()),
        name=name,
    )
    sys.exit(run_node(settings, make_run=ScriptedRun))
