"""Small runs made by hand: requests as rows of `requests.parquet`, and the `run.json` around them."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from tokswarm.insight import tables
from tokswarm.insight.run_file import LostWorker, RunFile, StageTimes
from tokswarm.traffic.mix import Distribution, Mix, Output, Prompt, Stage, Target, TrafficClass
from tokswarm.traffic.plan import ClosedLoop, Load, PlannedStage, TokenFit
from tokswarm.traffic.units import Duration

T0_S = 1_800_000_000
"""When every synthetic run starts, Unix seconds."""


def unix_ns(second: float) -> int:
    """A time of the run on the wall clock."""
    return T0_S * 1_000_000_000 + round(second * 1e9)


def request(
    *,
    stage: str = "sweep-1",
    sent_s: float = 0.0,
    arrivals_ms: Sequence[float] = (100.0, 110.0, 120.0),
    tokens: Sequence[int] | None = None,
    e2e_ms: float | None = None,
    **columns: Any,
) -> dict[str, Any]:
    """One row; what is not said is a plain streamed answer of one token per arrival that ended ok."""
    counts = list(tokens) if tokens is not None else [1] * len(arrivals_ms)
    if e2e_ms is None:
        e2e_ms = arrivals_ms[-1] if arrivals_ms else 100.0
    row: dict[str, Any] = dict.fromkeys(tables.REQUESTS)
    row |= {
        "worker": "w1",
        "class_name": "chat",
        "stage": stage,
        "outcome": "ok",
        "sent_ns": round(sent_s * 1e9),
        "sent_unix_ns": unix_ns(sent_s),
        "done_ns": round(sent_s * 1e9) + round(e2e_ms * 1e6),
        "ttft_ms": arrivals_ms[0] if arrivals_ms else None,
        "ttfo_ms": arrivals_ms[0] if arrivals_ms else None,
        "e2e_ms": e2e_ms,
        "schedule_lag_ms": 0.0,
        "prompt_tokens_planned": 50,
        "output_tokens": sum(counts),
        "output_tokens_source": "usage",
        "merged_arrivals": 0,
        "unstamped_arrivals": 0,
        "coalesced": False,
        "arrivals_ns": [round(arrival * 1e6) for arrival in arrivals_ms],
        "arrival_tokens": counts,
    }
    return row | columns


def requests_table(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Rows as the table a run leaves."""
    return pl.DataFrame(list(rows), schema=tables.REQUESTS)


def health(*, second: int, worker: str = "w1", **columns: Any) -> dict[str, Any]:
    """One healthy worker-second, as a row of `workers.parquet`."""
    row = {
        "worker": worker,
        "second_unix": T0_S + second,
        "loop_lag_p99_ms": 0.5,
        "loop_lag_max_ms": 1.0,
        "cpu_ratio": 0.3,
        "log_lost": 0,
        "log_removed": 0,
    }
    return row | columns


def workers_table(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Rows as the table a run leaves."""
    return pl.DataFrame(list(rows), schema=tables.WORKERS)


def planned(name: str, load: Load, *, duration_s: float = 10.0, warmup: bool = False) -> PlannedStage:
    return PlannedStage(name=name, load=load, duration_s=duration_s, drain_s=5.0, warmup=warmup)


def sweep(*concurrencies: int, duration_s: float = 10.0) -> list[PlannedStage]:
    """Closed-loop stages named as a plan names them."""
    return [planned(f"sweep-{c}", ClosedLoop(c), duration_s=duration_s) for c in concurrencies]


def run_of(stages: Sequence[PlannedStage], *, begun: int | None = None, gap_s: float = 5.0, **fields: Any) -> RunFile:
    """A run whose stages follow one another, each with `gap_s` of drain; only the first `begun` began."""
    times, at_s = [], 0.0
    for stage in stages[:begun]:
        stop_s = at_s + stage.duration_s
        times.append(
            StageTimes(
                name=stage.name,
                start_unix_ns=unix_ns(at_s),
                stop_unix_ns=unix_ns(stop_s),
                end_unix_ns=unix_ns(stop_s + gap_s),
            )
        )
        at_s = stop_s + gap_s
    values: dict[str, Any] = {
        "run_id": "20270115-080000-tiny-0a1b",
        "mix": mix_of("chat"),
        "model": "tiny",
        "stages": list(stages),
        "stage_times": times,
        "fit": TokenFit(tokens_per_word=1.0, overhead_tokens=0.0, source="assumed"),
        "content_seed": 11,
        "workers": ["w1"],
        "lost_workers": [],
        "missing_windows": 0,
        "started_unix_ns": unix_ns(0.0),
        "ended_unix_ns": unix_ns(at_s),
        "stopped_by": "plan",
        "error": "",
        "notes": [],
        "versions": {"tokswarm": "0.1.0"},
    }
    return RunFile(**(values | fields))


def mix_of(*class_names: str) -> Mix:
    """A mix with these classes."""
    return Mix(
        name="tiny",
        seed=7,
        target=Target(base_url="http://127.0.0.1:8100/v1"),
        classes=[
            TrafficClass(
                name=name,
                prompt=Prompt(tokens=Distribution(fixed=50)),
                output=Output(max_tokens=Distribution(fixed=3)),
            )
            for name in class_names
        ],
        load=[Stage(concurrency=1, for_=Duration.parse("10s"))],
    )


def lost(worker: str, *, second: float, in_flight: int) -> LostWorker:
    return LostWorker(worker=worker, unix_ns=unix_ns(second), in_flight=in_flight)


def bent_sweep(
    concurrencies: Sequence[int] = (1, 2, 4, 8, 16), *, slots: int = 4
) -> tuple[RunFile, list[dict[str, Any]]]:
    """A server with `slots` places, equally fast however many are taken; the other streams queue in turn.

    Each answer takes 100 ms to its first token and nine gaps of 100 ms: 10 tokens in 1 s on a slot,
    so 10 tok/s per stream and 10 * slots at most. Request r of a stage is served from second
    r // width on, width being the slots in use; its stream sent it when its request before ended.
    Concurrencies beyond the slots are multiples of them, so that every turn is full.
    """
    run = run_of(sweep(*concurrencies))
    rows = []
    for concurrency, times in zip(concurrencies, run.stage_times, strict=True):
        start_s = (times.start_unix_ns - unix_ns(0.0)) / 1e9
        width = min(concurrency, slots)
        for number in range(width * 10 + concurrency):
            served_s = number // width
            sent_s = 0 if number < concurrency else (number - concurrency) // width + 1
            if sent_s >= 10:
                break
            wait_ms = (served_s - sent_s) * 1000.0
            rows.append(
                request(
                    stage=times.name,
                    sent_s=start_s + sent_s,
                    arrivals_ms=[wait_ms + 100.0 * (i + 1) for i in range(10)],
                    tpot_ms=100.0,
                    queue_wait_ms=wait_ms,
                    queue_wait_source="server",
                    prompt_tokens=50,
                    cached_tokens=20,
                    ideal_cached_tokens=25,
                    max_tokens=10,
                )
            )
    return run, rows
