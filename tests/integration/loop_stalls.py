"""A worker's whole run in a process of its own, that says how long each turn of its loop took: run by test_loop_stalls.

    python loop_stalls.py BASE_URL SECONDS FOLDER

A turn lasts from the end of the loop's wait for events to the beginning of the next one. Its time is the
thread's CPU time: a turn during which the machine gave the core to somebody else is no stall of ours.
Prints JSON: the turns by what they held longest, ms, and what the run did.
"""

# ruff: noqa: E402 - what is imported later must find the patched modules

from gevent import monkey

monkey.patch_all()

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import gevent

from tokswarm.traffic.mixfile import parse_mix
from tokswarm.traffic.plan import Plan, Shard, TokenFit
from tokswarm.traffic.planning import plan_stages
from tokswarm.wire.receiver import Receiver
from tokswarm.worker.messages import Message, PlanMessage, Second, StageGo
from tokswarm.worker.session import WorkerRun

MIX = """
name: stalls
target: {base_url: "%s", model: tiny}
classes:
  - name: chat
    prompt: {tokens: {uniform: {low: 100, high: 3000}}}
    output: {max_tokens: {uniform: {low: 20, high: 400}}, ignore_eos: true}
  - name: long
    prompt: {tokens: {fixed: 6000}}
    output: {max_tokens: {fixed: 50}, ignore_eos: true}
load: [{concurrency: 48, for: %gs, drain: 5s}]
"""


class Turns:
    """The CPU time of each turn of the loop, that of reading sockets apart."""

    def __init__(self) -> None:
        self.reading_ms: list[float] = []
        self.other_ms: list[float] = []
        self._began_ns: int | None = None
        self._reading_ns = 0
        loop = gevent.get_hub().loop
        self._after, self._before = loop.check(), loop.prepare()

    def start(self) -> None:
        """Watch the loop and the receive pass."""
        on_ready = Receiver._on_ready

        def timed(receiver: Receiver) -> None:
            began_ns = time.thread_time_ns()
            on_ready(receiver)
            self._reading_ns += time.thread_time_ns() - began_ns

        Receiver._on_ready = timed  # type: ignore[method-assign,assignment]
        self._after.start(self._begin)
        self._before.start(self._end)

    def stop(self) -> None:
        """Watch no longer."""
        self._after.stop()
        self._before.stop()

    def _begin(self) -> None:
        self._began_ns, self._reading_ns = time.thread_time_ns(), 0

    def _end(self) -> None:
        if self._began_ns is not None:
            passed_ns = time.thread_time_ns() - self._began_ns
            self.reading_ms.append(self._reading_ns / 1e6)
            self.other_ms.append((passed_ns - self._reading_ns) / 1e6)


def main() -> None:
    """Run the worker with its log, windows and database, and print its turns."""
    base_url, seconds, folder = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    mix = parse_mix(MIX % (base_url, seconds), source="stalls", environ={})
    fit = TokenFit(tokens_per_word=1.0, overhead_tokens=0.0, source="assumed")
    plan = Plan(run_id="stalls", mix=mix, model="tiny", stages=plan_stages(mix, folder), fit=fit, content_seed=3)
    message = PlanMessage(
        run_id="stalls", shard=Shard(plan=plan, worker_index=0, worker_count=1), deadline_s=seconds + 30
    )
    told: list[Message] = []
    turns = Turns()
    turns.start()
    run = WorkerRun(message, worker="w", log_dir=folder, send=told.append)
    run.open()
    turns.reading_ms.clear()
    turns.other_ms.clear()
    run.run_stage(StageGo(run_id="stalls", index=0, start_unix_ns=time.time_ns() + 200_000_000))
    turns.stop()
    final = run.finish()
    result: dict[str, Any] = {
        "turns": len(turns.other_ms),
        "other_ms": sorted(turns.other_ms)[-20:],
        "reading_ms": sorted(turns.reading_ms)[-20:],
        "records": final.records,
        "output_tokens": final.output_tokens,
        "sink_written": final.sink_written,
        "sink_error": final.sink_error,
        "seconds": sum(isinstance(each, Second) for each in told),
    }
    print(json.dumps(result), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
