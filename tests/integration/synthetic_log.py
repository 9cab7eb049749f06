"""Record logs of a run that never was, with every kind of entry and many requests at the same moments."""

import random
from array import array
from pathlib import Path
from typing import NamedTuple

from tokswarm.measure.record import Outcome, RequestRecord, TokenSource
from tokswarm.measure.window import Event, FleetSecond, Window, WindowRow, WorkerSecond
from tokswarm.sink.record_log import Entry, RecordLog

CLASSES = ("chat", "long report")


class Totals(NamedTuple):
    """What a database has to hold in the end."""

    requests: int
    output_tokens: int
    ok: int
    windows: int


def requests(count: int, *, seed: int, begin_unix_ns: int, in_flight: int = 50) -> list[RequestRecord]:
    """Requests of one worker: streams in lockstep, bursts within microseconds, unstreamed answers, failures."""
    rng = random.Random(seed)
    sequence = rng.randrange(1 << 20) << 20
    free_ns = [0] * in_flight
    records = []
    for number in range(count):
        slot = number % in_flight
        sent_ns = free_ns[slot] + 40_000
        kind = rng.choices(("stream", "whole", "limited", "reset"), (16, 2, 1, 1))[0]
        offsets = array("q")
        tokens = array("I")
        if kind in ("stream", "reset"):
            at = 30_000_000
            for _ in range(rng.randrange(1, 40)):
                offsets.append(at)
                tokens.append(rng.choice((1, 1, 1, 4)))
                at += rng.choice((0, 500, 9_999, 10_000, 20_000_000, 20_000_001))
        output_tokens = sum(tokens) if kind != "whole" else 64
        done_ns = sent_ns + (offsets[-1] if offsets else 2_000) + 1_000
        free_ns[slot] = done_ns
        records.append(
            RequestRecord(
                request_id=sequence + number,
                slot=slot,
                class_name=CLASSES[number % 2],
                stage="sweep, 50",
                target="tiny",
                outcome={"limited": Outcome.RATE_LIMITED, "reset": Outcome.RESET}.get(kind, Outcome.OK),
                planned_ns=sent_ns - 1_000,
                sent_ns=sent_ns,
                sent_unix_ns=begin_unix_ns + sent_ns,
                done_ns=done_ns,
                first_token_ns=sent_ns + offsets[0] if offsets else None,
                last_token_ns=sent_ns + offsets[-1] if offsets else None,
                status=429 if kind == "limited" else 200,
                error=None if kind in ("stream", "whole") else 'said "no", twice\nand left',
                output_tokens=0 if kind == "limited" else output_tokens,
                output_tokens_source=TokenSource.USAGE,
                prompt_tokens=100,
                arrivals=offsets.tobytes(),
                arrival_tokens=tokens.tobytes(),
            )
        )
    return records


def seconds(worker: str, count: int, *, begin_unix_s: int) -> list[Entry]:
    """A window and a worker second each second."""
    entries: list[Entry] = []
    for sequence in range(count):
        second = begin_unix_s + sequence
        rows = [
            WindowRow(class_name=name, stage="sweep, 50", started=3, finished={"ok": 2, "reset": 1}, ttft={1200: 3})
            for name in CLASSES
        ]
        entries.append(Window(worker=worker, second_unix=second, sequence=sequence, rows=rows))
        entries.append(
            WorkerSecond(
                worker=worker,
                second_unix=second,
                loop_lag_p99_ms=0.5,
                loop_lag_max_ms=1.0,
                cpu_ratio=0.3,
                schedule_lag_p99_ms=0.1,
                in_flight=50,
                sockets=50,
                rss_bytes=1 << 26,
                log_bytes=0,
                log_lost=0,
                sink_backlog_bytes=0,
                sink_error="",
                reads=1000,
                merged_arrivals=2,
                unstamped_arrivals=0,
            )
        )
    return entries


def fleet_second(second_unix: int) -> FleetSecond:
    return FleetSecond(
        second_unix=second_unix,
        class_name="_all",
        stage="sweep, 50",
        workers=1,
        output_tok_per_s=1000,
        prompt_tok_per_s=100,
        offered_per_s=6,
        started_per_s=6,
        finished={"ok": 4, "reset": 2},
        in_flight=50,
        dropped=0,
        late=0,
        goodput_per_s=None,
        goodput_ratio=None,
        cached_ratio=0.25,
        ideal_cached_ratio=None,
    )


def entries(count: int, *, worker: str, seed: int, begin_unix_s: int) -> list[Entry]:
    """A worker's whole log."""
    records = requests(count, seed=seed, begin_unix_ns=begin_unix_s * 1_000_000_000)
    mixed: list[Entry] = []
    ticks = seconds(worker, 20, begin_unix_s=begin_unix_s)
    for number, record in enumerate(records):
        mixed.append(record)
        if number % 50 == 0 and ticks:
            mixed += [ticks.pop(0), ticks.pop(0)]
    mixed += ticks
    mixed.append(fleet_second(begin_unix_s))
    mixed.append(Event(unix_ns=begin_unix_s * 1_000_000_000, kind="stage", title="sweep, 50", text="50 in flight"))
    return mixed


def totals(mixed: list[Entry]) -> Totals:
    records = [entry for entry in mixed if isinstance(entry, RequestRecord)]
    return Totals(
        requests=len(records),
        output_tokens=sum(record.output_tokens for record in records),
        ok=sum(record.outcome is Outcome.OK for record in records),
        windows=sum(len(entry.rows) for entry in mixed if isinstance(entry, Window)),
    )


def write_log(path: Path, mixed: list[Entry], *, run_id: str, worker: str) -> None:
    with RecordLog(path, run_id=run_id, worker=worker) as log:
        for entry in mixed:
            assert log.append(entry)
