from typing import Any

import polars as pl
import pytest
from synthetic_run import T0_S, health, lost, planned, request, requests_table, run_of, sweep, workers_table

from tokswarm.insight.run_file import RunFile
from tokswarm.insight.summary import summarise
from tokswarm.insight.verdict import Verdict, second_spans
from tokswarm.traffic.plan import ClosedLoop, OpenLoop

GOOD = [request(stage="sweep-4", sent_s=0.2 * i) for i in range(50)]


def verdict(
    rows: list[dict[str, Any]] = GOOD,
    workers: list[dict[str, Any]] | None = None,
    *,
    run: RunFile | None = None,
    fleet: pl.DataFrame | None = None,
) -> Verdict:
    healthy = [health(second=s) for s in range(10)] if workers is None else workers
    return summarise(run or run_of(sweep(4)), requests_table(rows), workers_table(healthy), fleet).verdict


def with_outcomes(**counts: int) -> list[dict[str, Any]]:
    return [request(stage="sweep-4", outcome=outcome, sent_s=0.1) for outcome, n in counts.items() for _ in range(n)]


def only(got: Verdict) -> tuple[str, str, str]:
    """State, cause and text of the single reason."""
    (reason,) = got.reasons
    assert got.state == reason.state
    return reason.state.value, reason.cause.value, reason.text


def test_a_healthy_run_is_valid_and_has_no_reasons() -> None:
    got = verdict()
    assert (got.state, got.reasons) == ("valid", [])


@pytest.mark.parametrize(
    ("column", "value", "state", "cause"),
    [
        pytest.param("loop_lag_p99_ms", 9.0, None, None, id="loop-in-time"),
        pytest.param("loop_lag_p99_ms", 11.0, "suspect", "loop_lag", id="loop-late"),
        pytest.param("loop_lag_p99_ms", 150.0, "invalid", "loop_lag", id="loop-very-late"),
        pytest.param("cpu_ratio", 0.84, None, None, id="cpu-free"),
        pytest.param("cpu_ratio", 0.9, "suspect", "cpu", id="cpu-short"),
        pytest.param("cpu_ratio", 0.99, "invalid", "cpu", id="cpu-out"),
    ],
)
def test_workers_are_judged_by_more_than_a_tenth_of_a_stages_seconds(
    column: str, value: float, state: str | None, cause: str | None
) -> None:
    bad = [health(second=s, **({column: value} if s in (3, 4, 7) else {})) for s in range(10)]
    one = [health(second=s, **({column: value} if s == 3 else {})) for s in range(10)]
    assert verdict(workers=one).state == "valid"
    got = verdict(workers=bad)
    assert got.state == (state or "valid")
    for reason in got.reasons:
        assert (reason.cause, reason.stages) == (cause, ["sweep-4"])
        assert reason.seconds == [(T0_S + 3, T0_S + 4), (T0_S + 7, T0_S + 7)]
        assert "3 worker-seconds in sweep-4" in reason.text


def test_one_long_stall_is_enough_to_be_suspect() -> None:
    got = verdict(workers=[health(second=s, loop_lag_max_ms=400.0 if s == 5 else 1.0) for s in range(10)])
    assert only(got) == ("suspect", "loop_stall", "workers stood still, w1 for 400 ms (1 worker-second in sweep-4)")


def test_the_worst_worker_is_named() -> None:
    workers = [health(second=s, worker=w, cpu_ratio=c) for s in range(10) for w, c in (("w1", 0.9), ("w2", 0.95))]
    rows = [request(stage="sweep-4", worker=w) for w in ("w1", "w2") for _ in range(10)]
    got = verdict(rows, workers, run=run_of(sweep(4), workers=["w1", "w2"]))
    assert only(got)[2] == "workers were short of CPU, w2 at 95 % of a core; add workers (20 worker-seconds in sweep-4)"


def test_what_happens_in_warm_up_or_between_stages_spoils_nothing() -> None:
    run = run_of([planned("warm-up", ClosedLoop(4), warmup=True), *sweep(4)])
    rows = [request(stage="sweep-4", sent_s=15 + 0.1 * i) for i in range(50)]
    busy = [
        health(second=s, cpu_ratio=0.99 if s < 15 else 0.2, loop_lag_max_ms=900 if s < 15 else 1) for s in range(25)
    ]
    assert verdict(rows, busy, run=run).state == "valid"


@pytest.mark.parametrize(
    ("counts", "state", "cause", "words"),
    [
        pytest.param({"ok": 91, "http_error": 9}, "valid", None, "", id="few-errors"),
        pytest.param(
            {"ok": 80, "http_error": 15, "reset": 5}, "suspect", "failed", "20 % of the requests failed", id="errors"
        ),
        pytest.param({"ok": 80, "rate_limited": 20}, "suspect", "failed", "20 rate_limited", id="429"),
        pytest.param({"ok": 99, "aborted": 1}, "valid", None, "", id="few-aborted"),
        pytest.param(
            {"ok": 90, "aborted": 10}, "suspect", "aborted", "10 % of the requests were given up", id="aborted"
        ),
        pytest.param({"ok": 199, "client_limit": 1}, "suspect", "client_limit", "never left the worker", id="a-port"),
        pytest.param({"ok": 90, "client_limit": 10}, "invalid", "client_limit", "10 client_limit", id="ports"),
        pytest.param(
            {"reset": 9}, "invalid", "nothing_measured", "no request of a measured stage ended ok", id="none-ok"
        ),
    ],
)
def test_outcomes_beyond_a_share_are_a_reason(
    counts: dict[str, int], state: str, cause: str | None, words: str
) -> None:
    got = verdict(with_outcomes(**counts))
    assert got.state == state
    if cause is not None:
        assert got.reasons[0].cause == cause
        assert words in got.reasons[0].text


def test_failures_are_told_in_the_words_that_came_most_often() -> None:
    long = "HTTP 400: " + "max_tokens=5000 is too large\n" * 20
    failed = [
        request(stage="sweep-4", outcome="http_error", sent_s=0.1, error=text) for text in ["HTTP 502", long, long]
    ]
    aborted = [request(stage="sweep-4", outcome="aborted", sent_s=0.1, error="the drain is over") for _ in range(3)]
    got = verdict([*with_outcomes(ok=4), *failed, *aborted])
    assert [r.cause for r in got.reasons] == ["failed", "aborted"]
    assert got.reasons[0].text.endswith("(3 http_error); most often: " + long.replace("\n", " ")[:199] + "…")
    assert got.reasons[1].text.endswith("(3 aborted); most often: the drain is over")


@pytest.mark.parametrize(
    ("lag_ms", "state"), [(9.0, "valid"), (50.0, "suspect"), (500.0, "invalid")], ids=["in-time", "late", "very-late"]
)
def test_schedule_lag_counts_in_an_open_loop_only(lag_ms: float, state: str) -> None:
    run = run_of([planned("open", OpenLoop(rate_per_s=5.0, arrivals="constant"))])
    rows = [request(stage="open", sent_s=0.2 * i, schedule_lag_ms=lag_ms) for i in range(50)]
    assert verdict(rows, run=run).state == state
    assert verdict([{**row, "stage": "sweep-4"} for row in rows]).state == "valid"


@pytest.mark.parametrize(
    ("dropped", "state"), [(0, "valid"), (1, "suspect"), (20, "invalid")], ids=["none", "one-in-501", "many"]
)
def test_arrivals_that_were_never_sent_are_a_reason(dropped: int, state: str) -> None:
    run = run_of([planned("open", OpenLoop(rate_per_s=50.0, arrivals="constant"))])
    fleet = pl.DataFrame({"second_unix": [T0_S + 3], "class_name": ["_all"], "stage": ["open"], "dropped": [dropped]})
    rows = [request(stage="open", sent_s=0.02 * i) for i in range(500)]
    assert verdict(rows, run=run, fleet=fleet).state == state


@pytest.mark.parametrize(
    ("fleet_size", "second", "state", "words"),
    [
        pytest.param(
            2, 4.0, "invalid", "1 of 2 workers were lost (w2) with 7 requests in flight", id="half-of-the-fleet"
        ),
        pytest.param(20, 4.0, "suspect", "from then on sweep-4 had less load than asked", id="one-of-twenty"),
        pytest.param(2, 12.0, "suspect", "no measured stage was sending", id="after-the-last-stage"),
    ],
)
def test_a_lost_worker_spoils_the_stages_from_then_on(fleet_size: int, second: float, state: str, words: str) -> None:
    names = [f"w{i + 1}" for i in range(fleet_size)]
    rows = [request(stage="sweep-40", worker=name) for name in names for _ in range(40)]
    rows = [{**row, "stage": "sweep-4"} for row in rows]
    run = run_of(sweep(4), workers=names, lost_workers=[lost("w2", second=second, in_flight=7)])
    got = verdict(rows, run=run)
    assert (got.state, got.reasons[0].cause) == (state, "lost_worker")
    assert words in got.reasons[0].text
    assert got.reasons[0].seconds == [(T0_S + int(second),) * 2]


def test_a_worker_without_records_is_missed() -> None:
    got = verdict(run=run_of(sweep(4), workers=["w1", "w2"]))
    assert only(got) == ("invalid", "no_records", "no records of w2: what they sent is missing from every number here")


def test_workers_that_never_had_a_stream_are_not_missed() -> None:
    rows = [request(stage="sweep-1", sent_s=i) for i in range(9)]
    assert verdict(rows, run=run_of(sweep(1), workers=["w1", "w2"])).state == "valid"


@pytest.mark.parametrize(("log_lost", "state"), [(0, "valid"), (1, "invalid")], ids=["none", "one-of-51"])
def test_records_that_were_lost_are_counted_once_a_worker(log_lost: int, state: str) -> None:
    got = verdict(workers=[health(second=s, log_lost=log_lost) for s in range(10)])
    assert got.state == state
    if log_lost:
        assert only(got)[2].startswith("1 record (2 %) could not be written")


@pytest.mark.parametrize(("log_removed", "state"), [(0, "valid"), (50, "suspect")], ids=["none", "half"])
def test_requests_that_only_the_database_has_make_a_run_suspect(log_removed: int, state: str) -> None:
    got = verdict(workers=[health(second=s, log_removed=log_removed) for s in range(10)])
    assert got.state == state
    if log_removed:
        assert only(got)[2].startswith("50 requests (50 %) had to leave full logs: the database has them")


@pytest.mark.parametrize(
    ("columns", "state", "cause"),
    [
        pytest.param({"unstamped_arrivals": 1}, "suspect", "unstamped", id="unstamped"),
        pytest.param({"merged_arrivals": 1}, "suspect", "merged", id="merged"),
        pytest.param({"coalesced": True}, "suspect", "coalesced", id="coalesced"),
    ],
)
def test_bad_stamps_are_a_reason(columns: dict[str, int], state: str, cause: str) -> None:
    rows = [request(stage="sweep-4", **columns) for _ in range(20)]
    assert only(verdict(rows))[:2] == (state, cause)


def test_windows_that_never_arrived_leave_the_report_whole_but_suspect() -> None:
    assert only(verdict(run=run_of(sweep(4), missing_windows=3)))[:2] == ("suspect", "missing_windows")


def test_a_run_that_ended_by_an_error_says_which() -> None:
    got = verdict(run=run_of(sweep(4), stopped_by="error", error="the disk is full"))
    assert only(got) == ("suspect", "run_error", "the run ended by an error: the disk is full")


def test_a_stage_cut_short_is_named() -> None:
    run = run_of(sweep(4))
    times = [type(t)(name=t.name, start_unix_ns=t.start_unix_ns, stop_unix_ns=t.start_unix_ns + 4 * 10**9,
                     end_unix_ns=t.end_unix_ns) for t in run.stage_times]  # fmt: skip
    got = verdict(workers=[], run=run_of(sweep(4), stage_times=times))
    assert only(got) == ("suspect", "short_stage", "sweep-4 was cut short: 4.00 s of 10 s")


def test_the_worst_reason_comes_first_and_gives_the_state() -> None:
    busy = [health(second=s, cpu_ratio=0.99) for s in range(10)]
    got = verdict(with_outcomes(ok=80, timeout=20), busy)
    assert [(r.state, r.cause) for r in got.reasons] == [("invalid", "cpu"), ("suspect", "failed")]
    assert got.state == "invalid"


def test_seconds_become_spans_without_gaps() -> None:
    assert second_spans([7, 3, 4, 5, 9, 4]) == [(3, 5), (7, 7), (9, 9)]
    assert second_spans([]) == []
