"""What the drills share: the product's worker in a closed or open loop against the truth server, each pinned to a core.

The worker is the one that `tokswarm worker` runs (engine, records, log, windows), driven by messages as
a master would drive it.
"""

import argparse
import contextlib
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from receive_path import build, favour, truth_server

WORKER_CORE, SERVER_CORE = 0, 1


def parser(description: str, *, default_port: int) -> argparse.ArgumentParser:
    """The options every drill has."""
    shared = Path(__file__).resolve().parents[2] / "shared" / "bench"
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--server", type=Path, default=shared / "mocksse.c", help="C source of the truth server")
    made.add_argument("--port", type=int, default=default_port)
    made.add_argument("--json", action="store_true", help="print one JSON object")
    made.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return made


def in_child(script: str, arguments: argparse.Namespace, options: list[str], *, timeout_s: float) -> dict[str, Any]:
    """Run the drill's worker in a pinned process against a pinned server; what it printed last."""
    if not arguments.server.is_file():
        raise SystemExit(f"{arguments.server} is not there; name the C source with --server")
    # Both ends need one descriptor for each stream; children inherit the limit.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    command = [sys.executable, script, "--child", "--port", str(arguments.port), *options]
    with tempfile.TemporaryDirectory() as folder:
        server = build(arguments.server, Path(folder))
        with truth_server(server, arguments.port, SERVER_CORE % (os.cpu_count() or 1)):
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                text=True,
                timeout=timeout_s,
                preexec_fn=_pin,
            )
    if done.returncode:
        raise SystemExit(f"the worker ended with {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _pin() -> None:
    favour()
    os.sched_setaffinity(0, {WORKER_CORE})


class Drill:
    """One worker, one stage; `on_second` is told of each second it reports."""

    def __init__(
        self,
        port: int,
        *,
        streams: int | None = None,
        rate_per_s: float | None = None,
        max_tokens: int,
        duration_s: float,
        prefix_groups: int = 0,
    ) -> None:
        """Either so many `streams` at a time, or Poisson arrivals at a rate."""
        from tokswarm.traffic.mix import Distribution, Mix, Output, Prompt, SharedPrefix, Stage, Target, TrafficClass
        from tokswarm.traffic.plan import ClosedLoop, OpenLoop, Plan, PlannedStage, Shard, TokenFit
        from tokswarm.traffic.units import Duration, Rate
        from tokswarm.worker.messages import PlanMessage

        prefix = SharedPrefix(groups=prefix_groups, tokens=32) if prefix_groups else None
        mix = Mix(
            name="drill",
            target=Target(base_url=f"http://127.0.0.1:{port}/v1", model="mock-model"),
            classes=[
                TrafficClass(
                    name="chat",
                    prompt=Prompt(tokens=Distribution(fixed=50), shared_prefix=prefix),
                    output=Output(max_tokens=Distribution(fixed=max_tokens)),
                )
            ],
            load=[
                Stage(
                    concurrency=streams, rate=rate_per_s and Rate(rate_per_s), for_=Duration.parse(f"{duration_s:g}s")
                )
            ],
        )
        load = ClosedLoop(streams) if rate_per_s is None else OpenLoop(rate_per_s=rate_per_s, arrivals="poisson")
        stage = PlannedStage(name="all", load=load, duration_s=duration_s, drain_s=10.0, warmup=False)
        fit = TokenFit(tokens_per_word=1.0, overhead_tokens=0.0, source="assumed")
        plan = Plan(run_id="drill", mix=mix, model="mock-model", stages=[stage], fit=fit, content_seed=1)
        self.plan = plan
        shard = Shard(plan=plan, worker_index=0, worker_count=1)
        self._message = PlanMessage(run_id="drill", shard=shard, deadline_s=duration_s + 60)

    @contextlib.contextmanager
    def open(self, on_second: Callable[[Any], None]) -> Iterator[Any]:
        """The worker's run, open and not yet sending; closed at the end of the block."""
        from tokswarm.worker.messages import Message, Second
        from tokswarm.worker.session import WorkerRun

        def take(message: Message) -> None:
            if isinstance(message, Second):
                on_second(message)

        with tempfile.TemporaryDirectory() as folder:
            run = WorkerRun(self._message, worker="drill", log_dir=Path(folder), send=take)
            run.open()
            gc.collect()
            try:
                yield run
            finally:
                run.finish()


def go(run: Any) -> None:
    """Run the one stage to its end."""
    from tokswarm.worker.messages import StageGo

    run.run_stage(StageGo(run_id="drill", index=0, start_unix_ns=time.time_ns() + 100_000_000))


def set_server(port: int, *, interval_us: int, ttft_us: int) -> None:
    """Tell the truth server its pace; the number of tokens is each request's own."""
    url = f"http://127.0.0.1:{port}/ctl?interval_us={interval_us}&ttft_us={ttft_us}"
    with urllib.request.urlopen(url, timeout=5) as answer:
        answer.read()


def prepare() -> None:
    """What `tokswarm worker` does first in its process."""
    from gevent import monkey

    monkey.patch_all()
    from tokswarm.worker.descriptors import raise_descriptor_limit

    raise_descriptor_limit()
