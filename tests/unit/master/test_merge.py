"""The live merge."""

import random
from itertools import pairwise

import pytest

from tokswarm.master.merge import WindowMerge, fleet_seconds
from tokswarm.measure.histogram import Histogram
from tokswarm.measure.window import ALL_CLASSES, FleetSecond, Window, WindowRow
from tokswarm.traffic.mix import Limit, Slo
from tokswarm.traffic.units import Duration


def window(worker: str, second: int, sequence: int, *rows: WindowRow) -> Window:
    return Window(worker=worker, second_unix=second, sequence=sequence, rows=list(rows))


def row(tokens: int, class_name: str = "chat", stage: str = "s", **fields: object) -> WindowRow:
    return WindowRow(class_name=class_name, stage=stage, output_tokens=tokens, **fields)  # type: ignore[arg-type]


def tok_per_s(rows: list[FleetSecond], class_name: str = ALL_CLASSES) -> list[tuple[int, int]]:
    return [(r.second_unix, r.output_tok_per_s) for r in rows if r.class_name == class_name]


def test_a_second_is_closed_as_soon_as_every_worker_delivered_it() -> None:
    merge = WindowMerge()
    merge.add(window("a", 100, 0, row(3)))
    assert merge.take(now_unix_s=101.1, workers=["a", "b"]) == []
    merge.add(window("b", 100, 0, row(4)))
    assert tok_per_s(merge.take(now_unix_s=101.2, workers=["a", "b"])) == [(100, 7)]
    assert merge.take(now_unix_s=101.3, workers=["a", "b"]) == []


def test_an_overdue_second_is_closed_without_the_missing_worker() -> None:
    merge = WindowMerge()
    merge.add(window("a", 100, 0, row(3)))
    assert merge.take(now_unix_s=103.4, workers=["a", "b"]) == []
    closed = merge.take(now_unix_s=103.5, workers=["a", "b"])
    assert tok_per_s(closed) == [(100, 3)]
    assert closed[0].workers == 1


def test_a_worker_that_skipped_a_second_does_not_hold_it_up() -> None:
    merge = WindowMerge()
    merge.add(window("a", 100, 0, row(3)))
    merge.add(window("b", 101, 0, row(4)))
    assert tok_per_s(merge.take(now_unix_s=101.5, workers=["a", "b"])) == [(100, 3)]


def test_a_lost_worker_is_not_waited_for() -> None:
    merge = WindowMerge()
    merge.add(window("a", 100, 0, row(3)))
    assert tok_per_s(merge.take(now_unix_s=101.1, workers=["a"])) == [(100, 3)]


def test_a_late_window_is_counted() -> None:
    merge = WindowMerge()
    merge.add(window("a", 100, 0, row(3)))
    merge.take(now_unix_s=110, workers=["a", "b"])
    merge.add(window("b", 100, 0, row(4)))
    assert merge.late == 1
    assert merge.take_rest() == []


@pytest.mark.parametrize(
    ("sequences", "missing"),
    [
        pytest.param([0, 1, 2], 0, id="none"),
        pytest.param([0, 3], 2, id="gap"),
        pytest.param([2], 2, id="first-ones"),
        pytest.param([0, 2, 1], 0, id="came-after-all"),
    ],
)
def test_missing_sequence_numbers_are_counted(sequences: list[int], missing: int) -> None:
    merge = WindowMerge()
    for sequence in sequences:
        merge.add(window("a", 100 + sequence, sequence))
    assert merge.missing == missing


def test_the_rest_comes_oldest_first() -> None:
    merge = WindowMerge()
    merge.add(window("a", 101, 1, row(2)))
    merge.add(window("a", 100, 0, row(1)))
    assert tok_per_s(merge.take_rest()) == [(100, 1), (101, 2)]


def test_classes_and_stages_are_kept_apart_and_all_is_their_sum_per_stage() -> None:
    windows = [
        window("a", 7, 0, row(1, "chat", "s1"), row(10, "report", "s1"), row(100, "chat", "s2")),
        window("b", 7, 0, row(2, "chat", "s1")),
    ]
    cells = {(r.stage, r.class_name): (r.output_tok_per_s, r.workers) for r in fleet_seconds(7, windows, ())}
    assert cells == {
        ("s1", "chat"): (3, 2),
        ("s1", "report"): (10, 1),
        ("s1", ALL_CLASSES): (13, 2),
        ("s2", "chat"): (100, 1),
        ("s2", ALL_CLASSES): (100, 1),
    }


def test_outcomes_and_open_requests_are_summed() -> None:
    windows = [
        window(
            "a", 7, 0, row(0, finished={"ok": 2, "timeout": 1}, in_flight=5, started=3, offered=4, dropped=1, late=2)
        ),
        window("b", 7, 0, row(0, finished={"ok": 3}, in_flight=6, started=1, offered=1)),
    ]
    whole = next(r for r in fleet_seconds(7, windows, ()) if r.class_name == ALL_CLASSES)
    assert whole.finished == {"ok": 5, "timeout": 1}
    assert (whole.in_flight, whole.started_per_s, whole.offered_per_s, whole.dropped, whole.late) == (11, 4, 5, 1, 2)


def test_fleet_percentiles_are_those_of_the_pooled_values_not_a_mean_of_percentiles() -> None:
    seeded = random.Random(11)
    fast = [seeded.randint(1_000_000, 2_000_000) for _ in range(900)]
    slow = [10 * value for value in fast[:100]]
    rows = []
    for values in (fast, slow):
        histogram = Histogram()
        for value in values:
            histogram.add(value)
        rows.append(row(0, ttft=histogram.buckets()))
    whole = fleet_seconds(7, [window("a", 7, 0, rows[0]), window("b", 7, 0, rows[1])], ())[0]
    pooled = sorted(fast + slow)
    assert whole.ttft_p99_ms == pytest.approx(pooled[int(0.99 * 999)] / 1e6, rel=0.008)
    assert whole.ttft_p50_ms == pytest.approx(pooled[int(0.5 * 999)] / 1e6, rel=0.008)
    quantiles = [whole.ttft_p50_ms, whole.ttft_p90_ms, whole.ttft_p99_ms]
    assert all(a is not None and b is not None and a <= b for a, b in pairwise(quantiles))


def test_what_was_not_measured_is_absent() -> None:
    whole = fleet_seconds(7, [window("a", 7, 0, row(1))], ())[0]
    assert whole.ttft_p50_ms is None
    assert whole.e2e_mean_ms is None
    assert whole.cached_ratio is None
    assert whole.goodput_ratio is None
    assert whole.goodput_per_s is None


def test_goodput_is_nought_not_absent_when_a_class_has_limits_and_nothing_met_them() -> None:
    windows = [window("a", 7, 0, row(1, "chat", slo_known=2), row(1, "report"))]
    goodput = {r.class_name: (r.goodput_per_s, r.goodput_ratio) for r in fleet_seconds(7, windows, ["chat"])}
    assert goodput == {"chat": (0, 0.0), "report": (None, None), ALL_CLASSES: (0, 0.0)}


def test_cache_shares_are_of_the_prompts_whose_server_says_so() -> None:
    windows = [
        window(
            "a",
            7,
            0,
            row(0, prompt_tokens=900, cached_tokens=100, cache_known_prompt_tokens=400, ideal_cached_tokens=200),
        )
    ]
    whole = fleet_seconds(7, windows, ())[0]
    assert whole.cached_ratio == 0.25
    assert whole.ideal_cached_ratio == 0.5


def test_seconds_count_from_the_first_one_with_anything_in_it() -> None:
    merge = WindowMerge()
    for sequence, second in enumerate((98, 99, 100, 101, 103)):
        merge.add(window("a", second, sequence, *([row(1)] if second >= 100 else [])))
    closed = merge.take(now_unix_s=104, workers=["a"])
    assert [(r.second_unix, r.run_second) for r in closed if r.class_name == "chat"] == [(100, 0), (101, 1), (103, 3)]


def test_a_class_carries_its_limits_and_all_together_none() -> None:
    limits = {"chat": Slo(ttft=Limit(p50=Duration.parse("80ms"), p99=Duration.parse("800ms")))}
    merge = WindowMerge(limits=limits)
    merge.add(window("a", 100, 0, row(1), row(1, "batch")))
    closed = {r.class_name: r for r in merge.take(now_unix_s=101, workers=["a"])}
    assert closed["chat"].ttft_limit_ms == 800
    assert (closed["chat"].itl_limit_ms, closed["batch"].ttft_limit_ms, closed[ALL_CLASSES].ttft_limit_ms) == (
        None,
        None,
        None,
    )
    assert (closed["chat"].goodput_per_s, closed["batch"].goodput_per_s, closed[ALL_CLASSES].goodput_per_s) == (
        0,
        None,
        0,
    )
