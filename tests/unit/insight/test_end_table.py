import io
from typing import Any

import polars as pl
import pytest
from rich.console import Console
from synthetic_run import T0_S, bent_sweep, health, planned, request, requests_table, run_of, sweep, workers_table

from tokswarm.insight import tables
from tokswarm.insight.figures import number, percent, spans
from tokswarm.insight.summary import Summary, summarise
from tokswarm.insight.table import end_table
from tokswarm.traffic.plan import ClosedLoop, OpenLoop

HEALTHY = workers_table([health(second=s) for s in range(100)])


def text_of(summary: Summary, *, width: int = 120) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, legacy_windows=False).print(end_table(summary))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def bent() -> Summary:
    run, rows = bent_sweep()
    return summarise(run, requests_table(rows), HEALTHY)


def test_the_end_of_a_bent_sweep_reads_as_agreed(golden: Any) -> None:
    golden("bent_sweep.txt", text_of(bent()))


def test_the_end_of_a_troubled_run_reads_as_agreed(golden: Any) -> None:
    stages = [
        planned("warm-up", ClosedLoop(1), warmup=True),
        planned("rate-4", OpenLoop(rate_per_s=4.0, arrivals="poisson")),
        *sweep(2),
    ]
    rows = [
        *(request(stage="warm-up", sent_s=i) for i in range(9)),
        *(request(stage="rate-4", sent_s=15 + i / 4, arrivals_ms=[130, 150], schedule_lag_ms=20.0) for i in range(36)),
        *(request(stage="rate-4", sent_s=20, outcome="timeout") for _ in range(9)),
        *(request(stage="sweep-2", sent_s=30 + i, arrivals_ms=[105.5, 3000]) for i in range(6)),
    ]
    fleet = pl.DataFrame({"second_unix": [T0_S + 20], "class_name": ["_all"], "stage": ["rate-4"], "dropped": [1]})
    workers = workers_table([health(second=s, cpu_ratio=0.9 if 20 <= s < 23 else 0.3) for s in range(45)])
    golden("troubled_run.txt", text_of(summarise(run_of(stages), requests_table(rows), workers, fleet)))


def test_a_run_without_anything_still_ends_in_words(golden: Any) -> None:
    empty = summarise(run_of(sweep(1, 2), begun=0), tables.empty(tables.REQUESTS), tables.empty(tables.WORKERS))
    golden("empty_run.txt", text_of(empty))


def test_a_narrow_terminal_keeps_every_number() -> None:
    wide, narrow = text_of(bent()), text_of(bent(), width=60)
    assert "…" not in narrow
    assert max(map(len, narrow.splitlines())) <= 60
    assert narrow.split().count("3,000") == wide.split().count("3,000") == 2


def test_names_are_no_markup() -> None:
    run = run_of(sweep(4), stopped_by="error", error="[bold red]boom[/] [0/3]")
    text = text_of(summarise(run, requests_table([request(stage="sweep-4")]), HEALTHY))
    assert "[bold red]boom[/] [0/3]" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (0.0042, "0.004"), (0.5, "0.50"), (9.996, "10.00"), (12.34, "12.3"), (1234.5, "1,234")],
)
def test_numbers_have_about_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(None, "–"), (0.0, "0 %"), (0.004, "0.4 %"), (0.0125, "1.2 %"), (0.125, "12 %"), (1.0, "100 %")]
)
def test_ratios_read_as_percent(ratio: float | None, text: str) -> None:
    assert percent(ratio) == text


def test_spans_count_from_the_start_of_the_run_and_stop_at_five() -> None:
    start_ns = 1_000 * 10**9 + 500_000_000
    assert spans([(1003, 1005), (1009, 1009)], start_ns) == "3–5, 9 s"
    assert spans([(1000 + s, 1000 + s) for s in range(0, 14, 2)], start_ns) == "0, 2, 4, 6, 8 s and 2 more"


def test_a_run_that_several_replicas_served_says_what_each_did() -> None:
    rows = [
        *(request(sent_s=i, served_by="replica-0", arrivals_ms=[50, 60]) for i in range(6)),
        *(request(sent_s=i + 0.5, served_by="replica-1", arrivals_ms=[250, 260]) for i in range(2)),
    ]
    lines = text_of(summarise(run_of(sweep(1)), requests_table(rows), HEALTHY)).splitlines()
    assert [line.split() for line in lines if "replica-" in line] == [
        ["sweep-1", "replica-0", "6", "75", "%", "50.0", "–"],
        ["sweep-1", "replica-1", "2", "25", "%", "250", "–"],
    ]


def test_a_run_that_one_server_served_needs_no_table_of_servers() -> None:
    rows = [request(sent_s=i, served_by="replica-0") for i in range(6)]
    assert "replica-0" not in text_of(summarise(run_of(sweep(1)), requests_table(rows), HEALTHY))
