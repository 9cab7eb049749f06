"""The search for the highest load that meets a goal: which loads it tries, and how sure its verdicts are."""

import random
from collections.abc import Callable

import pytest

from tokswarm.insight.search_result import SearchResult
from tokswarm.master.probe_tally import ProbeTally
from tokswarm.master.search import Search, share_interval
from tokswarm.measure.window import WindowRow
from tokswarm.traffic.plan import ClosedLoop, OpenLoop, PlannedStage, SearchPlan


def plan(from_: float = 1, to: float = 64, *, is_whole: bool = False, precision: float = 0.05) -> SearchPlan:
    return SearchPlan(goal="slo", from_=from_, to=to, is_whole=is_whole, precision=precision, share=0.9)


def searched(plan: SearchPlan, seconds: Callable[[float], list[tuple[int, int]]]) -> tuple[list[float], SearchResult]:
    """The loads in the order of their tries, and what was found."""
    search, loads = Search("find", plan), []
    while (load := search.load) is not None:
        loads.append(load)
        search.take(f"find-{len(loads)}", seconds(load))
    return loads, search.result()


def up_to(limit: float) -> Callable[[float], list[tuple[int, int]]]:
    return lambda load: [(1000 if load <= limit else 500, 1000)]


def test_loads_double_until_one_misses_and_are_halved_between_then() -> None:
    loads, result = searched(plan(), up_to(13))
    assert loads == [1, 2, 4, 8, 16, 12, 14, 13, 13.5]
    assert (result.highest_met, result.lowest_missed, result.is_complete) == (13, 13.5, True)
    assert result.line == (
        "find: the highest load with 90.0 % of requests within their limits is 13/s: "
        "100.0 % of 1,000 requests (99.6 % to 100.0 %); at 13.5/s no longer"
    )


@pytest.mark.parametrize("limit", [1, 2, 7, 31, 32, 33, 63])
def test_whole_loads_are_found_exactly_when_they_are_near(limit: int) -> None:
    loads, result = searched(plan(is_whole=True, precision=0.01), up_to(limit))
    assert (result.highest_met, result.lowest_missed) == (limit, limit + 1)
    assert all(load == int(load) for load in loads)
    assert len(loads) <= plan(precision=0.01).most_probes


def test_a_search_that_misses_at_once_says_so() -> None:
    loads, result = searched(plan(), up_to(0.5))
    assert (loads, result.highest_met, result.lowest_missed) == ([1], None, 1)
    assert result.line.startswith("find: not even 1/s has 90.0 % of requests within their limits: 50.0 % of 1,000")


def test_a_search_that_never_misses_ends_at_its_highest_load() -> None:
    loads, result = searched(plan(to=20), up_to(99))
    assert (loads, result.highest_met, result.lowest_missed) == ([1, 2, 4, 8, 16, 20], 20, None)


def test_an_undecided_load_is_tried_three_times_and_then_its_share_decides() -> None:
    loads, result = searched(plan(to=1), lambda load: [(18, 20)])
    assert loads == [1, 1, 1]
    (probe,) = result.probes
    assert (probe.met, probe.known, probe.tries, probe.is_met, probe.is_sure) == (54, 60, 3, True, False)
    assert "not sure" in probe.line


def test_a_second_try_may_decide() -> None:
    loads, result = searched(plan(to=1), lambda load: [(30, 30)])
    assert loads == [1, 1]
    assert (result.probes[0].is_met, result.probes[0].is_sure) == (True, True)


def test_a_load_without_requests_is_missed() -> None:
    _, result = searched(plan(), lambda load: [])
    assert (result.highest_met, result.probes[0].line) == (None, "no request ended")


def test_the_interval_of_independent_requests_holds_the_truth_as_often_as_it_says() -> None:
    rng, held = random.Random(1), 0
    for _ in range(1000):
        low, high = share_interval([(sum(rng.random() < 0.9 for _ in range(20)), 20) for _ in range(30)])
        assert low is not None
        assert high is not None
        held += low <= 0.9 <= high
    assert 910 <= held <= 975


def test_misses_that_come_together_make_the_interval_wider() -> None:
    spread = share_interval([(9, 10)] * 100)
    clustered = share_interval([(10, 10)] * 90 + [(0, 10)] * 10)
    assert spread == pytest.approx((0.8798, 0.9171), abs=1e-4)  # Wilson's for 900 of 1,000
    assert clustered[0] is not None
    assert clustered[0] < 0.7


def row(stage: str = "find-1", *, met: int, known: int, **finished: int) -> WindowRow:
    return WindowRow(class_name="chat", stage=stage, slo_met=met, slo_known=known, finished=finished)


def probe_stage(load: ClosedLoop | OpenLoop) -> PlannedStage:
    return PlannedStage(name="find-1", load=load, duration_s=8, drain_s=1, warmup=False)


def test_a_tally_leaves_out_other_stages_and_the_time_in_which_a_load_settles() -> None:
    tally = ProbeTally(probe_stage(OpenLoop(rate_per_s=5, arrivals="poisson")), goal="slo", start_unix_ns=100 * 10**9)
    for second in range(99, 106):
        tally.take("a", second, [row(met=second, known=200), row("other", met=1, known=1)])
        tally.take("b", second, [row(met=1, known=2)])
    assert tally.seconds() == [(second + 1, 202) for second in range(102, 106)]
    assert tally.has_heard(["a", "b"], 105)
    assert not tally.has_heard(["a", "b"], 106)
    assert not tally.has_heard(["a", "c"], 105)


def test_a_tally_of_a_closed_loop_leaves_out_the_first_wave() -> None:
    tally = ProbeTally(probe_stage(ClosedLoop(concurrency=10)), goal="slo", start_unix_ns=100 * 10**9)
    for second in range(100, 108):
        tally.take("a", second, [row(met=second, known=200, ok=2)])
    assert [met for met, _ in tally.seconds()] == [105, 106, 107]


def test_a_tally_for_errors_counts_what_ended_ok_but_not_what_could_not_be_sent() -> None:
    tally = ProbeTally(probe_stage(OpenLoop(rate_per_s=5, arrivals="poisson")), goal="errors", start_unix_ns=0)
    tally.take("a", 5, [row(met=0, known=0, ok=7, aborted=2, reset=1, client_limit=4)])
    assert tally.seconds() == [(7, 10)]
