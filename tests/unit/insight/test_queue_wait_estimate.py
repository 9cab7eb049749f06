import pytest
from synthetic_run import request, requests_table

from tokswarm.insight.queue_wait import FIT_REQUESTS_MIN, estimated_wait_ms, fit_unloaded


def with_prompts(pairs: list[tuple[int, float]], **columns: object) -> list[dict[str, object]]:
    return [request(prompt_tokens=tokens, arrivals_ms=[ttft_ms], **columns) for tokens, ttft_ms in pairs]


def test_the_unloaded_line_runs_through_the_points() -> None:
    fit = fit_unloaded(requests_table(with_prompts([(n, 20.0 + 0.5 * n) for n in (10, 20, 40, 80, 160)])))
    assert fit is not None
    assert (fit.intercept_ms, fit.slope_ms_per_token, fit.requests) == pytest.approx((20.0, 0.5, 5))


def test_cached_tokens_cost_no_prefill() -> None:
    rows = with_prompts([(n + 1000, 5.0 + n) for n in (1, 2, 3, 4, 5)], cached_tokens=1000)
    fit = fit_unloaded(requests_table(rows))
    assert fit is not None
    assert (fit.intercept_ms, fit.slope_ms_per_token) == pytest.approx((5.0, 1.0))


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param([(50, t) for t in (10.0, 20.0, 30.0, 40.0, 50.0)], id="all-prompts-alike"),
        pytest.param([(n, 50.0 - n) for n in (0, 10, 20, 30, 40)], id="longer-is-faster"),
    ],
)
def test_where_length_does_not_show_the_mean_stands_for_all(pairs: list[tuple[int, float]]) -> None:
    fit = fit_unloaded(requests_table(with_prompts(pairs)))
    assert fit is not None
    assert (fit.intercept_ms, fit.slope_ms_per_token) == (30.0, 0.0)


def test_too_few_requests_that_ended_ok_make_no_line() -> None:
    few = with_prompts([(n, 10.0) for n in range(FIT_REQUESTS_MIN - 1)])
    useless = with_prompts([(1, 9.0)], outcome="timeout") + with_prompts([(1, 9.0)], coalesced=True)
    assert fit_unloaded(requests_table([*few, *useless])) is None


def test_the_wait_is_what_ttft_has_beyond_the_line_and_never_negative() -> None:
    fit = fit_unloaded(requests_table(with_prompts([(n, 20.0 + n) for n in (10, 20, 30, 40, 50)])))
    assert fit is not None
    loaded = requests_table([*with_prompts([(100, 500.0), (100, 119.0)]), request(arrivals_ms=[])])
    waits = loaded.select(wait=estimated_wait_ms(fit))["wait"].to_list()
    assert waits == [pytest.approx(380.0), 0.0, None]
