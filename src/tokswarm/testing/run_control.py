"""A `RunControl` whose runs follow a script: a sweep against an endpoint that saturates at 16 in flight.

Time goes on only by `advance`, one second at a call, so a test decides when it does.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml
from gevent.event import Event as Signal

from tokswarm.errors import BusyError, ConfigError, FleetError, TokswarmError, UnknownRunError
from tokswarm.master.load_change import load_asked_for, load_text
from tokswarm.master.run import (
    LiveTick,
    LoadRequest,
    MixFile,
    RunControl,
    RunDetail,
    RunInfo,
    RunState,
    StartRequest,
    WorkerInfo,
)
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import ALL_CLASSES, Event, FleetSecond, WorkerSecond

SWEEP = (1, 2, 4, 8, 16, 32)
SATURATION = 16
STREAM_TOK_PER_S = 60
CLASSES = ("chat", "report")
START_UNIX_S = 1_790_000_000

MIX_TEXT = """\
name: chat-sweep
description: Short chats with shared prefixes, from 1 to 32 in flight.
target:
  base_url: http://127.0.0.1:8100/v1
  model: tiny
classes:
  - name: chat
    weight: 6
    prompt: {tokens: {lognormal: {p50: 1020, p99: 4142}}}
    output: {max_tokens: {lognormal: {p50: 129, p99: 601}}}
  - name: report
    prompt: {tokens: {fixed: 3000}}
    output: {max_tokens: {fixed: 1024}}
load:
  - {name: sweep, concurrency: [1, 2, 4, 8, 16, 32], for: 10s}
"""


class ScriptedControl:
    """Runs that go exactly as written here; `fail_with` makes the next start raise."""

    def __init__(self, root: Path, *, workers: int = 2, stage_s: int = 10) -> None:
        self._root = root
        self._stage_s = stage_s
        self._now_s = START_UNIX_S
        self._runs: dict[str, RunInfo] = {}
        self._texts: dict[str, str] = {}
        self._seconds: dict[str, list[FleetSecond]] = {}
        self._events: dict[str, list[Event]] = {}
        self._fresh: list[Event] = []
        self._worker_names = tuple(f"worker-{index}" for index in range(workers))
        self._ticked = Signal()
        self._tick = self._make_tick([])
        self.fail_with: TokswarmError | None = None
        self.requests: list[StartRequest] = []

    def start(self, request: StartRequest) -> RunInfo:
        """Start a scripted run."""
        self.requests.append(request)
        if self.fail_with is not None:
            error, self.fail_with = self.fail_with, None
            raise error
        text, mix = self._mix_of(request)
        if self._active() is not None:
            raise BusyError("a run is going on", hint="stop it, or wait for its end")
        if not self._worker_names:
            raise FleetError("no worker is connected", hint="start one with `tokswarm worker`")
        run_id = f"20260921-{len(self._runs):06d}-{mix['name']}"
        run_dir = self._root / run_id
        run_dir.mkdir(parents=True)
        target = mix.get("target", {})
        info = RunInfo(
            run_id=run_id,
            state=RunState.RUNNING,
            mix_name=mix["name"],
            base_url=request.base_url or target.get("base_url", ""),
            model=request.model or target.get("model", ""),
            started_unix_ns=self._now_s * 10**9,
            workers=len(self._worker_names),
            stage=f"sweep-{SWEEP[0]}",
            stages_total=len(SWEEP),
            planned_s=float(self._stage_s * len(SWEEP)),
            run_dir=str(run_dir),
        )
        self._runs[run_id] = info
        self._texts[run_id] = text
        self._seconds[run_id] = []
        self._events[run_id] = []
        self._note(run_id, "run", "run started", f"mix {info.mix_name} against {info.base_url}")
        return info

    def stop(self, run_id: str) -> RunInfo:
        """Make a run drain; it is reported in the seconds after."""
        info = self._info(run_id)
        if info.state is RunState.RUNNING:
            self._note(run_id, "run", "stop asked for", "the run drains")
            info = self._change(run_id, state=RunState.STOPPING)
        return info

    def change_load(self, run_id: str, request: LoadRequest) -> RunInfo:
        """Note what was asked for; the script itself goes on."""
        load = load_asked_for(request)
        info = self._info(run_id)
        if info.state is not RunState.RUNNING:
            raise BusyError("the load cannot be changed now: no stage is sending", hint="wait for another stage")
        self._note(run_id, "load", f"{info.stage}: the load is changed", f"to {load_text(load)}")
        return info

    def runs(self) -> list[RunInfo]:
        """All runs, newest first."""
        return list(reversed(self._runs.values()))

    def run(self, run_id: str) -> RunDetail:
        """One run."""
        info = self._info(run_id)
        summary = Path(info.run_dir, "summary.json")
        return RunDetail(
            info=info,
            mix_yaml=self._texts[run_id],
            summary=json.loads(summary.read_text()) if summary.exists() else None,
            events=self._events[run_id],
        )

    def seconds(self, run_id: str) -> list[FleetSecond]:
        """All seconds of a run."""
        self._info(run_id)
        return self._seconds[run_id]

    def server_seconds(self, run_id: str) -> list[ServerSecond]:
        """What its endpoint says of itself, one reading for each second."""
        return _readings(self.seconds(run_id))

    def mixes(self) -> list[MixFile]:
        """One mix."""
        return [MixFile(name="chat-sweep", description=_description(), base_url=_target_url(), text=MIX_TEXT)]

    def workers(self) -> list[WorkerInfo]:
        """As many as asked for; the fleet works while a run does."""
        active = self._active()
        return [self._worker(name, active) for name in self._worker_names]

    def ticks(self) -> Iterator[LiveTick]:
        """One tick at each `advance`."""
        while True:
            self._ticked.wait()
            yield self._tick

    def advance(self, seconds: int = 1) -> None:
        """Let seconds pass."""
        for _ in range(seconds):
            self._now_s += 1
            active = self._active()
            new = [] if active is None else self._step(active)
            self._tick = self._make_tick(new)
            ticked, self._ticked = self._ticked, Signal()
            ticked.set()

    def _step(self, info: RunInfo) -> list[FleetSecond]:
        run_id = info.run_id
        elapsed_s = len(self._seconds[run_id]) // (len(CLASSES) + 1)
        if info.state is RunState.REPORTING:
            self._report(run_id)
        elif info.state is RunState.STOPPING or elapsed_s >= self._stage_s * len(SWEEP):
            self._change(run_id, state=RunState.REPORTING)
        else:
            return self._measure(info, elapsed_s)
        return []

    def _measure(self, info: RunInfo, elapsed_s: int) -> list[FleetSecond]:
        place = elapsed_s // self._stage_s
        stage = f"sweep-{SWEEP[place]}"
        if elapsed_s % self._stage_s == 0:
            self._note(info.run_id, "stage", f"stage {stage}", f"{SWEEP[place]} in flight")
        new = [
            _second(self._now_s, name, SWEEP[place], share=share, workers=len(self._worker_names))
            for name, share in zip((ALL_CLASSES, *CLASSES), (1.0, 0.75, 0.25), strict=True)
        ]
        self._seconds[info.run_id].extend(new)
        requests = dict(info.requests)
        for outcome, count in new[0].finished.items():
            requests[outcome] = requests.get(outcome, 0) + count
        self._change(
            info.run_id,
            stage=stage,
            stages_done=place,
            requests=requests,
            output_tokens=info.output_tokens + new[0].output_tok_per_s,
            peak_tok_per_s=max(info.peak_tok_per_s or 0.0, float(new[0].output_tok_per_s)),
        )
        return new

    def _report(self, run_id: str) -> None:
        info = self._info(run_id)
        bend = (
            "tok/s bends at concurrency 16: 32 in flight bring 1.0 times the tok/s of 16; queue wait p50 rose to 310 ms"
        )
        names = sorted({each.stage for each in self._seconds[run_id]}, key=lambda name: int(name.split("-")[1]))
        summary = {
            "schema_version": 1,
            "stages": [_stage(name, self._stage_s) for name in names],
            "bend": {"found": True, "line": bend},
            "missing": [],
            "verdict": {"state": "suspect", "reasons": [_reason(self._now_s)]},
        }
        Path(info.run_dir, "summary.json").write_text(json.dumps(summary, indent=2))
        Path(info.run_dir, "curve.html").write_text("<!doctype html><title>curve</title><h1>The curve</h1>")
        self._note(run_id, "run", "run finished", "suspect")
        self._change(
            run_id,
            state=RunState.FINISHED,
            ended_unix_ns=self._now_s * 10**9,
            stages_done=len(names),
            verdict="suspect",
            bend=bend,
        )

    def _mix_of(self, request: StartRequest) -> tuple[str, dict[str, Any]]:
        if request.mix_yaml is None and request.mix != "chat-sweep":
            raise ConfigError(f"there is no mix {request.mix!r}", hint="there is chat-sweep")
        text = request.mix_yaml if request.mix_yaml is not None else MIX_TEXT
        mix = yaml.safe_load(text)
        if not isinstance(mix, dict):
            raise ConfigError("mix.yaml: expected a mapping", hint="begin with `name:`")
        unknown = sorted(set(mix) - {"name", "description", "seed", "target", "classes", "load"})
        if unknown:
            raise ConfigError(
                f"mix.yaml: line 1: unknown key `{unknown[0]}` at the top level", hint="did you mean `classes`?"
            )
        return text, mix

    def _info(self, run_id: str) -> RunInfo:
        if run_id not in self._runs:
            raise UnknownRunError(f"there is no run {run_id!r}", hint="`tokswarm runs` lists them")
        return self._runs[run_id]

    def _active(self) -> RunInfo | None:
        return next((info for info in self._runs.values() if not info.state.is_over), None)

    def _change(self, run_id: str, **changes: object) -> RunInfo:
        info = msgspec.structs.replace(self._runs[run_id], **changes)
        self._runs[run_id] = info
        return info

    def _note(self, run_id: str, kind: str, title: str, text: str) -> None:
        event = Event(unix_ns=self._now_s * 10**9, kind=kind, title=title, text=text)
        self._events[run_id].append(event)
        self._fresh.append(event)

    def _make_tick(self, seconds: list[FleetSecond]) -> LiveTick:
        newest = next(iter(self.runs()), None)
        events, self._fresh = self._fresh, []
        return LiveTick(run=newest, seconds=seconds, workers=self.workers(), events=events, server=_readings(seconds))

    def _worker(self, name: str, active: RunInfo | None) -> WorkerInfo:
        running = active is not None and active.state is RunState.RUNNING
        if not self._runs:
            return WorkerInfo(worker=name, state="ready", host="127.0.0.1")
        in_flight = int(active.stage.split("-")[1]) // len(self._worker_names) if active and running else 0
        health = WorkerSecond(
            worker=name,
            second_unix=self._now_s,
            loop_lag_p99_ms=0.4,
            loop_lag_max_ms=1.9,
            cpu_ratio=0.02 + 0.01 * in_flight,
            schedule_lag_p99_ms=0.3 if running else None,
            in_flight=in_flight,
            sockets=in_flight,
            rss_bytes=71 << 20,
            log_bytes=(self._now_s - START_UNIX_S) * 90_000,
            log_lost=0,
            sink_backlog_bytes=0,
            sink_error="",
            reads=in_flight * STREAM_TOK_PER_S,
            merged_arrivals=0,
            unstamped_arrivals=0,
        )
        return WorkerInfo(worker=name, state="running" if running else "ready", host="127.0.0.1", health=health)


def _reason(now_s: int) -> dict[str, object]:
    return {
        "state": "suspect",
        "cause": "cpu",
        "text": "worker-0 used 93 % of its core",
        "stages": ["sweep-32"],
        "seconds": [[now_s - 8, now_s - 5]],
    }


def _description() -> str:
    return "Short chats with shared prefixes, from 1 to 32 in flight."


def _target_url() -> str:
    return "http://127.0.0.1:8100/v1"


def _readings(seconds: list[FleetSecond]) -> list[ServerSecond]:
    return [
        ServerSecond(
            unix_ns=second.second_unix * 10**9 + 500_000_000,
            target="127.0.0.1:8100",
            replica="127.0.0.1:8100",
            up=1,
            engine="vllm",
            running=min(second.in_flight, SATURATION),
            waiting=max(0, second.in_flight - SATURATION),
            kv_use_ratio=min(1.0, second.in_flight / SATURATION),
        )
        for second in seconds
        if second.class_name == ALL_CLASSES
    ]


def _second(now_s: int, name: str, concurrency: int, *, share: float, workers: int) -> FleetSecond:
    wave = 1 + 0.06 * math.sin(now_s * 1.7)
    served = min(concurrency, SATURATION)
    tok_per_s = round(served * STREAM_TOK_PER_S * share * wave * (0.9 if served > 4 else 1.0))
    wait_ms = max(0, concurrency - SATURATION) * 19.5 * wave
    done = max(1, round(tok_per_s / 120))
    return FleetSecond(
        second_unix=now_s,
        class_name=name,
        stage=f"sweep-{concurrency}",
        workers=workers,
        output_tok_per_s=tok_per_s,
        prompt_tok_per_s=done * 1020,
        offered_per_s=done + (1 if concurrency > SATURATION else 0),
        started_per_s=done,
        finished={"ok": done, "rate_limited": 1} if concurrency > SATURATION else {"ok": done},
        in_flight=round(concurrency * share),
        dropped=0,
        late=0,
        goodput_per_s=None,
        goodput_ratio=None,
        cached_ratio=round(0.62 * wave, 3) if concurrency <= SATURATION else round(0.31 * wave, 3),
        ideal_cached_ratio=0.7,
        ttft_p50_ms=90 * wave + wait_ms,
        ttft_p90_ms=160 * wave + wait_ms * 1.5,
        ttft_p99_ms=310 * wave + wait_ms * 2,
        itl_p50_ms=16.2 * wave,
        itl_p90_ms=19.0 * wave,
        itl_p99_ms=31.0 * wave + served,
        e2e_p50_ms=2200 * wave + wait_ms,
        e2e_p90_ms=4100 * wave + wait_ms,
        e2e_p99_ms=7900 * wave + wait_ms,
        e2e_mean_ms=2500 * wave + wait_ms,
        queue_wait_p50_ms=wait_ms,
        queue_wait_p90_ms=wait_ms * 1.4,
        queue_wait_p99_ms=wait_ms * 1.9 + 2,
        schedule_lag_p99_ms=0.3,
    )


def _stage(name: str, stage_s: int) -> dict[str, object]:
    concurrency = int(name.split("-")[1])
    served = min(concurrency, SATURATION)
    wait_ms = max(0, concurrency - SATURATION) * 19.5
    figures: dict[str, object] = {
        "requests": {"ok": served * stage_s // 2 + 1, "rate_limited": stage_s} if wait_ms else {"ok": served * stage_s},
        "output_tok_per_s": served * STREAM_TOK_PER_S * 0.95,
        "tok_per_s_per_stream": served * STREAM_TOK_PER_S * 0.95 / concurrency,
        "linear_ratio": round(served / concurrency * 0.95, 3),
        "ttft_ms": {"p50": 90.0 + wait_ms, "p90": 160.0 + wait_ms, "p99": 310.0 + wait_ms},
        "itl_ms": {"p50": 16.2, "p90": 19.0, "p99": 31.0 + served},
        "e2e_ms": {"p50": 2200.0, "p90": 4100.0, "p99": 7900.0},
        "queue_wait_source": "server",
        "queue_wait_ms": {"p50": wait_ms, "p90": wait_ms * 1.4, "p99": wait_ms * 1.9},
        "cached_ratio": 0.31 if wait_ms else 0.62,
    }
    whole = {
        "name": name,
        "warmup": False,
        "concurrency": concurrency,
        "rate_per_s": None,
        "offered_per_s": None,
        **figures,
    }
    return {**whole, "classes": {each: dict(figures) for each in CLASSES}}


def satisfies_protocol(control: ScriptedControl) -> RunControl:
    """The same object; mypy checks here that it is a run control."""
    return control
