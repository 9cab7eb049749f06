"""A run while it goes on, for a terminal: one line a second that rewrites itself, or plain lines in a log."""

import time

import gevent
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tokswarm.master.cliff_watch import KIND
from tokswarm.master.control import RunControl
from tokswarm.master.run import LiveTick, RunInfo, RunState
from tokswarm.measure.window import ALL_CLASSES, FleetSecond

PLAIN_LINE_EVERY_S = 5.0
"""Where nobody watches a line change: a log."""


class Progress:
    """Shows a run's ticks on a console until closed."""

    def __init__(self, control: RunControl, console: Console) -> None:
        self._control = control
        self._console = console
        self._stages_told: set[str] = set()
        self._live: Live | None = None
        self._reader: gevent.Greenlet | None = None

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._reader = gevent.spawn(self._read)
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.kill()
        if self._live is not None:
            self._live.stop()

    def _read(self) -> None:
        next_line_s = 0.0
        for tick in self._control.ticks():
            if tick.run is None:
                continue
            for line in cliff_lines(tick):
                self._console.print(Text(line), soft_wrap=True)
            if self._live is not None:
                self._live.update(Text(status_line(tick)), refresh=True)
            elif time.monotonic() >= next_line_s or tick.run.stage not in self._stages_told:
                next_line_s = time.monotonic() + PLAIN_LINE_EVERY_S
                self._stages_told.add(tick.run.stage)
                self._console.print(Text(status_line(tick)), soft_wrap=True)


def status_line(tick: LiveTick) -> str:
    """One line: where the run is and what the last second showed."""
    run = tick.run
    assert run is not None
    return f"{_place(run)}  {_figures(_newest(tick.seconds))}".rstrip()


def cliff_lines(tick: LiveTick) -> list[str]:
    """A line for each cliff that was marked in this second."""
    return [f"{event.title}: {event.text}" for event in tick.events if event.kind == KIND and event.end_unix_ns is None]


def _place(run: RunInfo) -> str:
    if run.state is RunState.RUNNING and run.stages_done == run.stages_total:
        return "all stages are done; workers close their logs and deliver what is left"
    stage = f"stage {min(run.stages_done + 1, run.stages_total)}/{run.stages_total} {run.stage}" if run.stage else ""
    return f"{run.state} {stage}".strip()


def _newest(seconds: list[FleetSecond]) -> FleetSecond | None:
    whole = [second for second in seconds if second.class_name == ALL_CLASSES]
    return max(whole, key=lambda second: second.second_unix, default=None)


def _figures(second: FleetSecond | None) -> str:
    if second is None:
        return ""
    parts = [f"{second.output_tok_per_s:,} tok/s", f"{second.in_flight} in flight"]
    for name, value in (("TTFT p50", second.ttft_p50_ms), ("queue wait p50", second.queue_wait_p50_ms)):
        if value is not None:
            parts.append(f"{name} {value:,.0f} ms")
    if second.itl_p50_ms is not None:
        parts.append(f"ITL p50 {second.itl_p50_ms:,.1f} ms")
    failed = {outcome: count for outcome, count in second.finished.items() if outcome != "ok" and count}
    if failed:
        parts.append("failed: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(failed.items())))
    return " · ".join(parts)
