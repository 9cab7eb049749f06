import msgspec
import polars as pl
import pytest
from synthetic_run import (
    T0_S,
    bent_sweep,
    health,
    lost,
    mix_of,
    planned,
    request,
    requests_table,
    run_of,
    sweep,
    workers_table,
)

from tokswarm.errors import ReportError
from tokswarm.insight import tables
from tokswarm.insight.summary import Summary, summarise
from tokswarm.traffic.plan import ClosedLoop, OpenLoop, RateSegment, Replay

NO_WORKERS = workers_table([])
REPLAY = Replay(
    trace="t.jsonl", rows=9, last_due_ns=0, block_tokens=512, columns=b"", prompts_cut=2, outputs_cut=0
)  # of nine rows two had prompts that were too long


def bent() -> Summary:
    run, rows = bent_sweep()
    return summarise(run, requests_table(rows), workers_table([health(second=s) for s in range(75)]))


def test_a_sweep_over_four_slots_is_linear_to_four_and_flat_beyond() -> None:
    stages = bent().stages
    assert [stage.concurrency for stage in stages] == [1, 2, 4, 8, 16]
    assert [stage.output_tok_per_s for stage in stages] == [10.0, 20.0, 40.0, 40.0, 40.0]
    assert [stage.linear_ratio for stage in stages] == [1.0, 1.0, 1.0, 0.5, 0.25]
    assert [stage.tok_per_s_per_stream for stage in stages] == [10.0, 10.0, 10.0, 5.0, 2.5]
    assert [stage.queue_wait_ms.p50 for stage in stages if stage.queue_wait_ms] == [0.0, 0.0, 0.0, 1000.0, 3000.0]
    assert {stage.queue_wait_source for stage in stages} == {"server"}
    assert {stage.cached_ratio for stage in stages} == {0.4}


def test_totals_are_sums_over_whole_requests() -> None:
    summary = bent()
    by_stage = [10, 20, 40, 44, 52]  # ten turns of a second on the slots in use, and the streams still waiting
    assert [stage.requests for stage in summary.stages] == [{"ok": n} for n in by_stage]
    assert summary.totals.requests == {"ok": 166}
    assert (summary.totals.output_tokens, summary.totals.prompt_tokens, summary.totals.cached_tokens) == (
        1660,
        8300,
        3320,
    )
    assert summary.token_sources == {"usage": 1.0}
    assert (summary.merged_ratio, summary.unstamped_ratio) == (0.0, 0.0)
    assert summary.verdict.state == "valid"
    assert summary.missing == []


@pytest.mark.parametrize(("cpu_ratio", "cause"), [(0.3, "queue_wait"), (0.9, "queue_wait"), (0.99, "generator")])
def test_only_a_generator_that_was_the_limit_explains_the_bend(cpu_ratio: float, cause: str) -> None:
    run, rows = bent_sweep()
    workers = workers_table([health(second=s, cpu_ratio=cpu_ratio) for s in range(45, 75)])  # from concurrency 8 on
    assert summarise(run, requests_table(rows), workers).bend.cause == cause


def test_linear_scaling_starts_from_the_lowest_concurrency_whatever_it_is() -> None:
    run, rows = bent_sweep((2, 4, 8))
    got = summarise(run, requests_table(rows), NO_WORKERS)
    assert [stage.linear_ratio for stage in got.stages] == [1.0, 1.0, 0.5]


def test_warm_up_stays_out_of_totals_bend_and_linear_scaling() -> None:
    stages = [planned("warm-up", ClosedLoop(1), warmup=True), *sweep(2, 4)]
    rows = [
        request(stage="warm-up", arrivals_ms=[1], output_tokens_source="chunks", merged_arrivals=1),
        *(request(stage="sweep-2", sent_s=15 + i, arrivals_ms=[100, 900]) for i in range(9)),
        *(request(stage="sweep-4", sent_s=30 + i, arrivals_ms=[100, 900]) for i in range(9)),
    ]
    got = summarise(run_of(stages), requests_table(rows), NO_WORKERS)
    assert (got.totals.requests, got.totals.output_tokens) == ({"ok": 18}, 36)
    assert (got.warmup_totals.requests, got.warmup_totals.output_tokens) == ({"ok": 1}, 1)
    assert [stage.linear_ratio for stage in got.stages] == [None, 1.0, 0.5]
    assert (got.token_sources, got.merged_ratio) == ({"usage": 1.0}, 0.0)
    assert got.bend.line == "no bend to look for: 2 concurrencies measured, it takes 3"


def test_a_request_belongs_to_the_stage_it_was_sent_in_though_it_ends_in_the_drain() -> None:
    rows = [request(stage="sweep-1", sent_s=9.9, arrivals_ms=[1000, 4000])]
    got = summarise(run_of(sweep(1, 2)), requests_table(rows), NO_WORKERS)
    assert [stage.requests for stage in got.stages] == [{"ok": 1}, {}]
    assert [stage.output_tok_per_s for stage in got.stages] == [0.0, 0.0]
    assert "stage sweep-2 has no finished request" in got.missing


def test_every_class_of_the_mix_is_measured_on_its_own() -> None:
    rows = [
        request(class_name="chat", arrivals_ms=[100, 200]),
        request(class_name="report", arrivals_ms=[700, 800], sent_s=2.0),
        request(class_name="report", arrivals_ms=[900, 1000], sent_s=5.0),
        request(class_name="scripted", outcome="reset"),
    ]
    got = summarise(run_of(sweep(1), mix=mix_of("report", "chat", "idle")), requests_table(rows), NO_WORKERS)
    (stage,) = got.stages
    assert list(stage.classes) == ["report", "chat", "idle", "scripted"]
    assert [(name, c.requests) for name, c in stage.classes.items()] == [
        ("report", {"ok": 2}),
        ("chat", {"ok": 1}),
        ("idle", {}),
        ("scripted", {"reset": 1}),
    ]
    assert stage.classes["chat"].ttft_ms is not None
    assert stage.classes["chat"].ttft_ms.p99 == 100.0
    assert stage.classes["idle"].ttft_ms is None
    assert stage.ttft_ms is not None
    assert (stage.ttft_ms.p50, stage.ttft_ms.count) == (700.0, 3)


def test_queue_wait_is_estimated_from_the_least_loaded_stage_when_the_server_is_silent() -> None:
    rows = [
        *(request(stage="sweep-1", sent_s=i, arrivals_ms=[20 + n]) for i, n in enumerate((10, 10, 10, 10, 10))),
        *(request(stage="sweep-8", sent_s=15, arrivals_ms=[30.0 + 500]) for _ in range(8)),
    ]
    got = summarise(run_of(sweep(1, 8)), requests_table(rows), NO_WORKERS)
    loaded = got.stages[1]
    assert (loaded.queue_wait_source, loaded.queue_wait_ms and loaded.queue_wait_ms.p50) == ("estimated", 500.0)
    assert got.unloaded_ttft is not None
    assert got.unloaded_ttft.intercept_ms == pytest.approx(30.0)


def test_a_loaded_lowest_stage_is_no_base_for_an_estimate() -> None:
    rows = [request(stage="sweep-8", sent_s=i % 9) for i in range(40)]
    got = summarise(run_of(sweep(8, 16)), requests_table(rows), NO_WORKERS)
    assert got.unloaded_ttft is None
    assert got.stages[0].queue_wait_ms is None
    assert got.stages[0].queue_wait_source is None


def test_a_rate_that_changes_within_a_stage_is_no_point_of_a_curve() -> None:
    ramp = OpenLoop(rate_per_s=2.0, arrivals="poisson", course=[RateSegment(20, 1, 3)])
    rows = [request(stage="ramp", sent_s=0.5 * i, arrivals_ms=[100]) for i in range(20)]
    (stage,) = summarise(run_of([planned("ramp", ramp)]), requests_table(rows), NO_WORKERS, None).stages
    assert (stage.load, stage.rate_per_s, stage.label) == ("open", None, "changing rate")


def test_loads_keep_their_kind_and_open_loops_their_dropped_arrivals() -> None:
    stages = [
        planned("rate-2", OpenLoop(rate_per_s=2.0, arrivals="poisson")),
        planned("replay", REPLAY),
    ]
    fleet = pl.DataFrame(
        {
            "second_unix": [T0_S, T0_S + 5, T0_S + 5, T0_S + 20],
            "class_name": ["_all", "_all", "chat", "_all"],
            "stage": ["rate-2", "rate-2", "rate-2", "replay"],
            "dropped": [1, 4, 4, 0],
        }
    )
    rows = [request(stage="rate-2", sent_s=0.5 * i, arrivals_ms=[100]) for i in range(20)]
    got = summarise(run_of(stages), requests_table(rows), NO_WORKERS, fleet)
    rate, replay = got.stages
    assert (rate.load, rate.rate_per_s, rate.concurrency, rate.label) == ("open", 2.0, None, "2/s")
    assert (replay.load, replay.rate_per_s, replay.concurrency, replay.label) == ("replay", None, None, "trace")
    assert (rate.dropped, replay.dropped, rate.linear_ratio) == (5, 0, None)
    # settled after 0.1 s, so in 9.9 s: the 19 sent later and the 4 dropped in second 5
    assert rate.achieved_per_s == pytest.approx(19 / 9.9, abs=0.001)
    assert rate.offered_per_s == pytest.approx(23 / 9.9, abs=0.001)
    assert rate.classes["chat"].offered_per_s == rate.offered_per_s
    assert rate.e2e_from_schedule_ms is not None


def test_requests_in_flight_on_a_lost_worker_are_counted_as_lost_in_its_stage() -> None:
    run = run_of(sweep(1, 2), lost_workers=[lost("w1", second=16.0, in_flight=2)])
    rows = [request(stage="sweep-1"), request(stage="sweep-2", sent_s=15, outcome="aborted")]
    got = summarise(run, requests_table(rows), NO_WORKERS)
    assert [stage.requests for stage in got.stages] == [{"ok": 1}, {"aborted": 1, "lost": 2}]
    assert got.totals.requests == {"ok": 1, "aborted": 1, "lost": 2}
    assert (got.lost_requests, got.aborted_requests) == (2, 1)


def test_what_a_worker_that_was_only_silent_had_in_flight_is_counted_by_its_records_alone() -> None:
    run = run_of(sweep(1, 2), lost_workers=[lost("w1", second=16.0, in_flight=2)])
    rows = [
        request(stage="sweep-1"),
        request(stage="sweep-2", sent_s=15.0, e2e_ms=2500.0, outcome="aborted"),
        request(stage="sweep-2", sent_s=15.5, e2e_ms=1200.0),
    ]
    got = summarise(run, requests_table(rows), workers_table([]))
    assert got.stages[1].requests == {"ok": 1, "aborted": 1}
    assert (got.lost_requests, got.aborted_requests) == (0, 1)


def test_token_counts_say_where_they_come_from() -> None:
    rows = [request(tokens=[1, 1, 1]), request(tokens=[1], arrivals_ms=[5], output_tokens_source="chunks")]
    got = summarise(run_of(sweep(1)), requests_table(rows), NO_WORKERS)
    assert got.token_sources == {"chunks": 0.25, "usage": 0.75}


def test_shares_of_merged_and_unstamped_arrivals_are_of_all_arrivals() -> None:
    rows = [request(merged_arrivals=2), request(unstamped_arrivals=3)]
    got = summarise(run_of(sweep(1)), requests_table(rows), NO_WORKERS)
    assert (got.merged_ratio, got.unstamped_ratio) == (0.3333, 0.5)


def test_a_run_without_any_request_says_what_is_missing() -> None:
    got = summarise(run_of(sweep(1, 2, 4), begun=1), tables.empty(tables.REQUESTS), NO_WORKERS)
    assert got.missing == [
        "stage sweep-2 never began",
        "stage sweep-4 never began",
        "stage sweep-1 has no finished request",
        "no health of workers was kept, so the verdict rests on requests alone",
    ]
    assert (got.verdict.state, got.bend.found) == ("invalid", False)
    assert (got.totals.requests, got.totals.output_tokens, got.totals.prompt_tokens) == ({}, 0, None)
    assert (got.merged_ratio, got.token_sources) == (None, {})
    assert got.stages[0].linear_ratio is None


def test_a_run_that_never_began_a_stage_is_summed_up_too() -> None:
    got = summarise(run_of(sweep(1), begun=0), tables.empty(tables.REQUESTS), NO_WORKERS)
    assert (got.stages, got.verdict.state) == ([], "invalid")


def test_the_three_most_frequent_errors_of_a_stage_are_kept() -> None:
    errors = {"b": 2, "a": 2, "c": 3, "d": 1}
    rows = [request(outcome="reset", error=text) for text, n in errors.items() for _ in range(n)]
    rows += [request(), request(outcome="aborted")]
    (stage,) = summarise(run_of(sweep(1)), requests_table(rows), NO_WORKERS).stages
    assert [(f.outcome, f.error, f.count) for f in stage.failures] == [
        ("reset", "c", 3),
        ("reset", "a", 2),
        ("reset", "b", 2),
    ]


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(ReportError, match=r"requests: the columns ttft_ms, arrivals_ns are not there"):
        summarise(run_of(sweep(1)), tables.empty(tables.REQUESTS).drop("ttft_ms", "arrivals_ns"), NO_WORKERS)


def test_a_run_from_before_a_column_was_added_is_summed_up_as_it_was() -> None:
    table = requests_table([request()])
    older = summarise(run_of(sweep(1)), table.drop("coalesced"), NO_WORKERS)
    assert older == summarise(run_of(sweep(1)), table, NO_WORKERS)


def test_columns_that_were_all_null_may_come_without_a_type() -> None:
    table = requests_table([request()]).with_columns(cached_tokens=pl.lit(None), slo_met=pl.lit(None))
    assert table.schema["cached_tokens"] == pl.Null
    assert summarise(run_of(sweep(1)), table, NO_WORKERS).stages[0].cached_ratio is None


def test_notes_tell_what_was_cut_of_a_trace_once() -> None:
    run = run_of([planned("replay", REPLAY), planned("again", REPLAY)], notes=["the endpoint refuses ignore_eos"])
    got = summarise(run, tables.empty(tables.REQUESTS), NO_WORKERS)
    assert got.notes == [
        "the endpoint refuses ignore_eos",
        "t.jsonl: of 9 rows, cut to the mix's limits: 2 prompts",
    ]


def test_the_summary_is_the_same_after_a_trip_through_json() -> None:
    summary = bent()
    assert msgspec.json.decode(msgspec.json.encode(summary), type=Summary) == summary
