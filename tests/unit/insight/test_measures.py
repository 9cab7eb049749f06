"""Measured by hand: each table is small enough to do the sum beside it on paper."""

import polars as pl
import pytest
from synthetic_run import request, requests_table, unix_ns

from tokswarm.insight.measured_window import MeasuredWindow, measured_window
from tokswarm.insight.measures import Measures, measure
from tokswarm.insight.percentiles import Percentiles
from tokswarm.insight.run_file import StageTimes


def window(begin_s: float, end_s: float) -> MeasuredWindow:
    return MeasuredWindow(begin_unix_ns=unix_ns(begin_s), end_unix_ns=unix_ns(end_s), settle_s=0.0)


def measured(
    rows: list[dict[str, object]],
    span: MeasuredWindow | None = None,
    *,
    streams: int | None = 1,
    dropped: int = 0,
    from_schedule: bool = False,
) -> Measures:
    table = requests_table(rows).with_columns(estimated_wait_ms=pl.lit(None, pl.Float64))
    return measure(table, span or window(0, 10), streams=streams, dropped=dropped, from_schedule=from_schedule)


def equal(value: float, count: int) -> Percentiles:
    return Percentiles(p50=value, p90=value, p99=value, count=count)


@pytest.mark.parametrize(
    ("sending_s", "e2e_p90_ms", "settle_s"),
    [
        pytest.param(10.0, 500.0, 0.5, id="one-typical-answer"),
        pytest.param(10.0, 9000.0, 2.0, id="never-more-than-a-fifth"),
        pytest.param(10.0, None, 2.0, id="nothing-ended-ok"),
        pytest.param(0.0, 100.0, 0.0, id="stopped-at-once"),
    ],
)
def test_a_stage_is_measured_from_its_settling_to_its_stop(
    sending_s: float, e2e_p90_ms: float | None, settle_s: float
) -> None:
    times = StageTimes(name="s", start_unix_ns=unix_ns(3), stop_unix_ns=unix_ns(3 + sending_s), end_unix_ns=unix_ns(60))
    got = measured_window(times, e2e_p90_ms)
    assert got.settle_s == settle_s
    assert got.begin_unix_ns == unix_ns(3 + settle_s)
    assert got.end_unix_ns == unix_ns(3 + sending_s)
    assert got.length_s == sending_s - settle_s


def test_only_tokens_that_arrive_inside_the_window_make_its_rate() -> None:
    rows = [
        request(sent_s=0.5, arrivals_ms=[400, 600], tokens=[1, 2]),  # at 0.9 s and 1.1 s: the 2 are inside
        request(sent_s=9.5, arrivals_ms=[400, 600], tokens=[3, 4]),  # at 9.9 s and 10.1 s: the 3 are inside
    ]
    got = measured(rows, window(1, 10), streams=2)
    assert got.output_tok_per_s == pytest.approx(5 / 9, abs=0.001)
    assert got.output_tokens == 10
    assert got.tok_per_s_per_stream == pytest.approx(2.5 / 9, abs=0.001)


def test_an_answer_that_was_not_streamed_arrives_at_its_end() -> None:
    inside = request(sent_s=1.0, arrivals_ms=[], e2e_ms=2000, output_tokens=50)
    outside = request(sent_s=9.0, arrivals_ms=[], e2e_ms=2000, output_tokens=70)
    got = measured([inside, outside])
    assert got.output_tok_per_s == 5.0
    assert (got.ttft_ms, got.itl_ms) == (None, None)


def test_failures_bring_tokens_but_no_latency() -> None:
    rows = [
        request(arrivals_ms=[100, 200]),
        request(arrivals_ms=[5000, 6000], outcome="reset"),
        request(arrivals_ms=[], e2e_ms=9000, outcome="timeout", output_tokens=0),
    ]
    got = measured(rows)
    assert got.requests == {"ok": 1, "timeout": 1, "reset": 1}
    assert (got.output_tokens, got.failed_output_tokens) == (4, 2)
    assert got.output_tok_per_s == 0.4
    assert got.ttft_ms == equal(100.0, 1)
    assert got.itl_ms == equal(100.0, 1)
    assert got.e2e_ms == equal(200.0, 1)
    assert got.schedule_lag_ms == equal(0.0, 3)


@pytest.mark.parametrize(
    ("tokens", "p50", "count"),
    [
        pytest.param([1, 1, 1], 10.0, 2, id="one-token-each"),
        pytest.param([1, 1, 2], 30.0, 3, id="two-tokens-after-the-long-gap"),
        pytest.param([9, 2, 1], 10.0, 3, id="the-first-arrival-ends-no-gap"),
    ],
)
def test_a_gap_counts_once_for_each_token_it_ended_with(tokens: list[int], p50: float, count: int) -> None:
    got = measured([request(arrivals_ms=[100, 110, 140], tokens=tokens)])
    assert got.itl_ms is not None
    assert (got.itl_ms.p50, got.itl_ms.count) == (p50, count)


def test_an_answer_of_one_token_has_neither_itl_nor_tpot() -> None:
    got = measured([request(arrivals_ms=[80], tpot_ms=None)])
    assert (got.itl_ms, got.tpot_ms) == (None, None)
    assert got.ttft_ms == equal(80.0, 1)


def test_an_answer_let_go_in_bursts_keeps_its_e2e_and_loses_the_rest() -> None:
    burst = request(arrivals_ms=[900.0] * 10, coalesced=True, tpot_ms=0.0)
    got = measured([burst, request(arrivals_ms=[100, 110], tpot_ms=10.0), request(outcome="reset", coalesced=True)])
    assert got.coalesced_ratio == 0.5
    assert (got.ttft_ms, got.ttfo_ms) == (equal(100.0, 1), equal(100.0, 1))
    assert (got.itl_ms, got.tpot_ms) == (equal(10.0, 1), equal(10.0, 1))
    assert got.e2e_ms is not None
    assert (got.e2e_ms.p99, got.e2e_ms.count) == (900.0, 2)
    assert got.output_tokens == 15


def test_gaps_are_never_taken_across_two_requests() -> None:
    got = measured([request(arrivals_ms=[100, 110]), request(arrivals_ms=[900]), request(arrivals_ms=[500, 510])])
    assert got.itl_ms == equal(10.0, 2)


def test_open_loop_latency_runs_from_send_and_from_schedule() -> None:
    """A server that takes 500 ms, one connection, ten arrivals a second: the eighth is sent 2.8 s late."""
    rows = [
        request(sent_s=0.5 * i, arrivals_ms=[500], schedule_lag_ms=round((0.5 - 0.1) * i * 1000, 3)) for i in range(8)
    ]
    got = measured(rows, streams=None, from_schedule=True)
    assert got.e2e_ms == equal(500.0, 8)
    assert got.e2e_from_schedule_ms == Percentiles(p50=1700.0, p90=3300.0, p99=3300.0, count=8)
    assert got.ttft_from_schedule_ms == got.e2e_from_schedule_ms
    assert got.schedule_lag_ms is not None
    assert got.schedule_lag_ms.p99 == 2800.0


def test_opening_a_connection_is_no_lag_of_the_generator_but_time_since_due_all_the_same() -> None:
    rows = [request(sent_s=1.0 + i, arrivals_ms=[100], schedule_lag_ms=2.0, connect_ms=150.0) for i in range(4)]
    got = measured(rows, streams=None, from_schedule=True)
    assert got.schedule_lag_ms == equal(2.0, 4)
    assert got.ttft_ms == equal(100.0, 4)
    assert got.ttft_from_schedule_ms == equal(252.0, 4)
    late = [request(sent_s=10.1, connect_ms=200.0)]  # due inside the window, sent after it
    assert measured(late, streams=None, from_schedule=True).offered_per_s == pytest.approx(0.1)


def test_a_closed_loop_has_no_latency_from_schedule() -> None:
    got = measured([request(schedule_lag_ms=3.0)])
    assert (got.e2e_from_schedule_ms, got.ttft_from_schedule_ms) == (None, None)


def test_offered_counts_what_was_due_and_dropped_while_achieved_counts_what_was_sent() -> None:
    rows = [
        request(sent_s=1.0),
        request(sent_s=5.0, schedule_lag_ms=200.0),
        request(sent_s=10.5, schedule_lag_ms=1000.0),  # due inside, sent after
        request(sent_s=10.7, schedule_lag_ms=1000.0),
        request(sent_s=0.2, schedule_lag_ms=500.0),  # due before the stage, sent inside
    ]
    got = measured(rows, dropped=2)
    assert got.offered_per_s == 0.6  # 4 due and sent some time, 2 dropped, in 10 s
    assert got.achieved_per_s == 0.3


def test_completed_counts_requests_that_ended_ok_inside_the_window() -> None:
    rows = [
        request(sent_s=-2.0, arrivals_ms=[2500]),
        request(sent_s=9.9, arrivals_ms=[200]),
        request(sent_s=4.0, outcome="reset"),
    ]
    assert measured(rows).completed_per_s == 0.1


def test_in_flight_is_the_time_requests_spent_inside_the_window() -> None:
    rows = [
        request(sent_s=-1.0, arrivals_ms=[3000]),  # 2 s of it inside
        request(sent_s=8.0, arrivals_ms=[5000]),  # 2 s of it inside
        request(sent_s=3.0, arrivals_ms=[4000]),  # all 4 s
        request(sent_s=20.0, arrivals_ms=[4000]),  # none
    ]
    got = measured(rows, streams=None)
    assert got.in_flight_mean == 0.8
    assert got.tok_per_s_per_stream == pytest.approx(0.2 / 0.8)


def test_a_window_without_length_has_no_rates() -> None:
    got = measured([request()], window(3, 3))
    rates = (got.output_tok_per_s, got.offered_per_s, got.achieved_per_s, got.completed_per_s, got.in_flight_mean)
    assert rates == (None,) * 5
    assert got.tok_per_s_per_stream is None


def test_no_requests_measure_nothing_but_a_rate_of_none_arriving() -> None:
    got = measured([])
    assert got.requests == {}
    assert (got.output_tokens, got.output_tok_per_s, got.in_flight_mean) == (0, 0.0, 0.0)
    absent = (got.prompt_tokens, got.ttft_ms, got.itl_ms, got.e2e_ms, got.cached_ratio, got.goodput, got.queue_wait_ms)
    assert absent == (None,) * 7


def test_the_servers_queue_wait_is_taken_where_it_gives_one() -> None:
    rows = [
        request(queue_wait_ms=40.0, queue_wait_source="server"),
        request(queue_wait_ms=999.0, queue_wait_source="estimated"),
        request(),
    ]
    got = measured(rows)
    assert (got.queue_wait_ms, got.queue_wait_source) == (equal(40.0, 1), "server")


def test_cached_share_is_over_the_requests_whose_server_says_so() -> None:
    rows = [
        request(prompt_tokens=100, cached_tokens=60, ideal_cached_tokens=80),
        request(prompt_tokens=300, cached_tokens=20, ideal_cached_tokens=120),
        request(prompt_tokens=1000, ideal_cached_tokens=1000),
        request(prompt_tokens=1000, cached_tokens=1000, ideal_cached_tokens=1000, outcome="truncated"),
    ]
    got = measured(rows)
    assert (got.cached_ratio, got.ideal_cached_ratio) == (0.2, 0.5)
    assert got.prompt_tokens == 1400


def test_the_ideal_share_stands_alone_when_the_server_is_silent() -> None:
    got = measured([request(prompt_tokens_planned=200, ideal_cached_tokens=50)])
    assert (got.cached_ratio, got.ideal_cached_ratio, got.prompt_tokens) == (None, 0.25, None)


def test_goodput_counts_requests_whose_class_has_limits() -> None:
    rows = [
        request(slo_met=True),
        request(slo_met=True, sent_s=9.95),  # ends after the window
        request(slo_met=False),
        request(slo_met=False, outcome="timeout"),
        request(),
    ]
    got = measured(rows).goodput
    assert got is not None
    assert (got.met, got.known, got.ratio, got.per_s) == (2, 4, 0.5, 0.1)


def test_answers_shorter_than_allowed_are_a_share_of_those_with_a_limit() -> None:
    rows = [request(max_tokens=3), request(max_tokens=1024), request(max_tokens=1024), request(max_tokens=5), request()]
    assert measured(rows).below_max_tokens_ratio == 0.75
