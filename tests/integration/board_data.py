"""Two small runs as the record logs would hold them, made up so that what the boards must show is known.

Two workers, two classes, two stages of 20 s. Every request of a second is sent at its start.
"""

from array import array
from typing import NamedTuple

from tokswarm.measure.histogram import Buckets, bucket_of
from tokswarm.measure.record import Outcome, QueueWaitSource, RequestRecord, TokenSource
from tokswarm.measure.window import ALL_CLASSES, Event, FleetSecond, Window, WindowRow, WorkerSecond
from tokswarm.sink.line_protocol import LineFormatter

WORKERS = ("node-1", "node-2")
CLASSES = ("chat", "long.report")
STAGES = ("c4", "c8")
STAGE_S = 20
TOKENS = 5
_MS = 1_000_000
_S = 1_000_000_000


class Run(NamedTuple):
    """A run's name and its first second."""

    run_id: str
    start_s: int


def record(run: Run, worker: int, second: int, place: int, *, request_id: int) -> RequestRecord:
    """One request; `place` 0 and 1 are classes that end ok, 2 is one that fails."""
    failed = place == 2
    ttft_ms = 100 + 10 * (second % 10) + 50 * (place % 2)
    arrivals = array("q", [] if failed else [(ttft_ms + 20 * token) * _MS for token in range(TOKENS)])
    e2e_ns = 30 * _MS if failed else arrivals[-1] + _MS
    ideal = 0 if second % 4 == 0 else 800
    return RequestRecord(
        request_id=(worker << 40) | request_id,
        slot=place,
        class_name=CLASSES[second % 2 if failed else place],
        stage=STAGES[second // STAGE_S],
        target="sim",
        outcome=Outcome.RATE_LIMITED if failed else Outcome.OK,
        planned_ns=0,
        sent_ns=_MS,
        sent_unix_ns=(run.start_s + second) * _S,
        done_ns=_MS + e2e_ns,
        first_token_ns=None if failed else _MS + arrivals[0],
        first_output_ns=None if failed else _MS + arrivals[0],
        last_token_ns=None if failed else _MS + arrivals[-1],
        status=429 if failed else 200,
        error="429: slow down" if failed else None,
        prompt_tokens_planned=1000,
        prompt_tokens=None if failed else 1000,
        max_tokens=TOKENS,
        output_tokens=0 if failed else TOKENS,
        output_tokens_source=TokenSource.USAGE,
        cached_tokens=None if failed else ideal // 2,
        ideal_cached_tokens=None if failed else ideal,
        queue_wait_ms=None if failed else 40.0 + second,
        queue_wait_source=None if failed else QueueWaitSource.SERVER,
        slo_met=not failed and second % 2 == 0,
        arrivals=arrivals.tobytes(),
    )


def _histogram(*values_ms: float) -> Buckets:
    buckets: Buckets = {}
    for value in values_ms:
        index = bucket_of(int(value * _MS))
        buckets[index] = buckets.get(index, 0) + 1
    return buckets


def _windows(run: Run, worker: str, second: int) -> Window:
    rows = [
        WindowRow(
            class_name=name,
            stage=STAGES[second // STAGE_S],
            started=1,
            offered=1,
            finished={"ok": 1},
            in_flight=2,
            output_tokens=TOKENS,
            prompt_tokens=1000,
            cached_tokens=400,
            ideal_cached_tokens=800,
            ttft=_histogram(100, 150),
            itl=_histogram(20, 20, 20, 20),
            e2e=_histogram(180),
        )
        for name in CLASSES
    ]
    return Window(worker=worker, second_unix=run.start_s + second, sequence=second, rows=rows)


def _health(run: Run, worker: str, second: int) -> WorkerSecond:
    return WorkerSecond(
        worker=worker,
        second_unix=run.start_s + second,
        loop_lag_p99_ms=0.5,
        loop_lag_max_ms=1.5,
        cpu_ratio=0.25,
        schedule_lag_p99_ms=0.8,
        in_flight=4,
        sockets=4,
        rss_bytes=60_000_000,
        log_bytes=1000 * second,
        log_lost=0,
        sink_backlog_bytes=512,
        sink_error="",
        reads=100,
        merged_arrivals=3,
        unstamped_arrivals=0,
    )


def fleet_second(run: Run, class_name: str, second: int) -> FleetSecond:
    """In flight 8 in all, 4 a class; 4 requests end ok a second, each after 2 s, so that L = λW = 8."""
    share = 1 if class_name == ALL_CLASSES else 2
    return FleetSecond(
        second_unix=run.start_s + second,
        class_name=class_name,
        stage=STAGES[second // STAGE_S],
        workers=2,
        output_tok_per_s=200 // share,
        prompt_tok_per_s=4000 // share,
        offered_per_s=6 // share,
        started_per_s=6 // share,
        finished={"ok": 4 // share, "rate_limited": 4 // share},
        in_flight=8 // share,
        dropped=0,
        late=1,
        goodput_per_s=1,
        goodput_ratio=0.5,
        cached_ratio=0.4,
        ideal_cached_ratio=0.8,
        ttft_p50_ms=150.0,
        ttft_p90_ms=200.0,
        ttft_p99_ms=240.0 + second,
        itl_p50_ms=20.0,
        itl_p90_ms=25.0,
        itl_p99_ms=40.0,
        e2e_p50_ms=1900.0,
        e2e_p90_ms=2100.0,
        e2e_p99_ms=2500.0,
        e2e_mean_ms=2000.0,
        queue_wait_p50_ms=50.0,
        queue_wait_p90_ms=60.0,
        queue_wait_p99_ms=70.0,
        schedule_lag_p99_ms=0.8,
    )


def _events(run: Run) -> list[Event]:
    def at(second: int) -> int:
        return (run.start_s + second) * _S

    return [
        Event(unix_ns=at(0), kind="run", title="run started", text="2 workers"),
        Event(unix_ns=at(0), kind="stage", title="c4", text="4 in flight", end_unix_ns=at(STAGE_S)),
        Event(unix_ns=at(STAGE_S), kind="stage", title="c8", text="8 in flight", end_unix_ns=at(2 * STAGE_S)),
        Event(unix_ns=at(STAGE_S + 5), kind="cliff", title="cliff: queueing", text="tok/s fell by 40 %"),
        Event(unix_ns=at(2 * STAGE_S - 1), kind="verdict", title="valid", text="nothing to object to"),
    ]


def lines(run: Run) -> list[bytes]:
    """The whole run as line protocol, by the real formatter: three logs, as in a fleet."""
    seconds = range(STAGE_S * len(STAGES))
    out: list[bytes] = []
    for number, worker in enumerate(WORKERS):
        formatter = LineFormatter(run_id=run.run_id, worker=worker)
        for second in seconds:
            for place in range(3):
                out += formatter.lines(record(run, number, second, place, request_id=second * 3 + place))
            out += formatter.lines(_windows(run, worker, second))
            out += formatter.lines(_health(run, worker, second))
    master = LineFormatter(run_id=run.run_id, worker="master")
    for second in seconds:
        for name in (ALL_CLASSES, *CLASSES):
            out += master.lines(fleet_second(run, name, second))
    for event in _events(run):
        out += master.lines(event)
    return out
