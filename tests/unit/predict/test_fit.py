"""A fit finds what it is not told: a run measured on a known server gives that server back."""

import msgspec
import pytest
from known_server import KNOWN, NOTHING, measured_on, run_of, sweep

from tokswarm.predict.fit import STEP_TIMES, Compared, Fit, alternate, compare, fit_profile, predict
from tokswarm.predict.measured import Figures, decode_measured, encode_measured
from tokswarm.traffic.plan import OpenLoop

RUN = measured_on(KNOWN, run_of(sweep(1, 2, 4, 8, 12, 16)))
ASTRAY = msgspec.structs.replace(
    KNOWN,
    step_overhead_us=1_500.0,
    sequence_overhead_us=400.0,
    token_compute_us=25.0,
    kv_read_us=0.2,
    request_overhead_us=800.0,
)


def figures(tok_per_s: float, ttft_ms: float, wait_ms: float) -> Figures:
    return Figures(output_tok_per_s=tok_per_s, ttft_p50_ms=ttft_ms, itl_p50_ms=10.0, queue_wait_mean_ms=wait_ms)


def compared(measured: Figures, predicted: Figures) -> Compared:
    return Compared(
        load="8", fitted=False, measured=measured, predicted=predicted, repeats=1, spread_ratios=(None,) * 4
    )


def test_a_fit_to_half_of_the_loads_predicts_the_other_half() -> None:
    seen = alternate(RUN)
    assert seen == ["1", "4", "12"]
    found = fit_profile(RUN, ASTRAY, seen=seen, name="found")
    assert found.name == "found"
    assert found.description == f"fitted to the loads 1, 4, 12 of run {RUN.run_id}"
    assert min(each.worst_error for each in compare(RUN, ASTRAY, seen)) > 0.2
    fit = Fit(profile=found, loads=compare(RUN, found, seen))
    assert [each.load for each in fit.held_out] == ["2", "8", "16"]
    assert max(each.worst_error for each in fit.held_out) < 0.08


def test_a_fit_gives_the_step_times_back_that_throughput_depends_on() -> None:
    found = fit_profile(RUN, ASTRAY, seen=list(RUN.points), name="found")
    assert found.token_compute_us == pytest.approx(KNOWN.token_compute_us, rel=0.1)
    assert found.step_overhead_us == pytest.approx(KNOWN.step_overhead_us, rel=0.1)


def test_a_fit_changes_step_times_and_no_setting() -> None:
    found = fit_profile(RUN, ASTRAY, seen=alternate(RUN), name="found")
    fitted = {*STEP_TIMES, "name", "description"}
    for field in found.__struct_fields__:
        if field not in fitted:
            assert getattr(found, field) == getattr(ASTRAY, field), field


def test_the_server_itself_is_without_error_on_its_own_run() -> None:
    assert [each.worst_error for each in compare(RUN, KNOWN, [])] == [0.0] * 6


def test_a_load_that_was_run_several_times_counts_by_its_median_with_the_spread_beside_it() -> None:
    run = run_of(sweep(4, 8, 4, 4))
    stages = [
        msgspec.structs.replace(stage, figures=Figures(tok_per_s, 40.0, 10.0, 0.0))
        for stage, tok_per_s in zip(run.stages, (100.0, 900.0, 90.0, 120.0), strict=True)
    ]
    four, eight = compare(msgspec.structs.replace(run, stages=stages), KNOWN, [])
    assert (four.load, four.repeats, four.measured.output_tok_per_s) == ("4", 3, 100.0)
    assert four.spread_ratios == (pytest.approx(0.15), 0.0, 0.0, 0.0)
    assert (eight.load, eight.repeats, eight.spread_ratios) == ("8", 1, (None,) * 4)


def test_warm_ups_are_no_loads_to_fit() -> None:
    run = run_of(sweep(4, 8))
    warm = msgspec.structs.replace(run.planned[0], warmup=True)
    assert list(msgspec.structs.replace(run, planned=[warm, run.planned[1]]).points) == ["8"]


def test_a_run_is_the_same_after_a_trip_through_json() -> None:
    assert decode_measured(encode_measured(RUN)) == RUN


def test_open_loops_are_fitted_as_well() -> None:
    run = measured_on(KNOWN, run_of([OpenLoop(rate, "poisson") for rate in (2.0, 5.0, 8.0, 11.0)], seconds=8.0))
    found = fit_profile(run, ASTRAY, seen=alternate(run), name="found")
    assert max(each.worst_error for each in compare(run, found, alternate(run))) < 0.1


def test_further_concurrencies_are_those_a_run_of_them_would_give() -> None:
    ((concurrency, figures_at_8),) = predict(RUN, KNOWN, [8])
    measured = RUN.stages[3].figures
    assert concurrency == 8
    assert figures_at_8.output_tok_per_s == pytest.approx(measured.output_tok_per_s, rel=0.1)
    ((_, beyond),) = predict(RUN, KNOWN, [64])
    assert beyond.output_tok_per_s == pytest.approx(figures_at_8.output_tok_per_s, rel=0.1), "the batch is full at 8"
    assert beyond.queue_wait_mean_ms is not None
    assert beyond.queue_wait_mean_ms > 1_000


@pytest.mark.parametrize(
    ("measured", "predicted", "error"),
    [
        pytest.param(figures(100, 50, 200), figures(100, 50, 220), 0.1, id="over-the-wait"),
        pytest.param(figures(100, 50, 1), figures(100, 50, 2), 0.1, id="over-a-fifth-of-the-ttft-when-it-is-short"),
        pytest.param(figures(100, 50, 0), figures(100, 50, 0), 0.0, id="no-wait-at-all"),
        pytest.param(NOTHING, figures(100, 50, 1), None, id="the-server-does-not-say"),
    ],
)
def test_the_error_of_a_wait_is_relative_to_what_matters(
    measured: Figures, predicted: Figures, error: float | None
) -> None:
    assert compared(measured, predicted).errors[-1] == (None if error is None else pytest.approx(error))


def test_errors_keep_their_sign_and_the_worst_loses_it() -> None:
    both = compared(figures(100, 50, 200), figures(80, 55, 200))
    assert both.errors == (pytest.approx(-0.2), pytest.approx(0.1), 0.0, 0.0)
    assert both.worst_error == pytest.approx(0.2)
