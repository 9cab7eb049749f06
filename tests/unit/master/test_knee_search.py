"""The search for the knee, on curves whose knee is known."""

import math
import random
from collections.abc import Callable

import pytest

from tokswarm.insight.search_result import SearchResult
from tokswarm.master.knee_search import KneeSearch, power_of
from tokswarm.master.probe_tally import ProbeTally
from tokswarm.measure.window import WindowRow
from tokswarm.traffic.plan import ClosedLoop, PlannedStage, SearchPlan

SECONDS = 45
Curve = Callable[[float], float]


def scalability(first: float, contention: float, coherence: float) -> Curve:
    """tok/s by the number in flight, after the Universal Scalability Law."""
    return lambda n: first * n / (1 + contention * (n - 1) + coherence * n * (n - 1))


def slots(first: float, most: int) -> Curve:
    """tok/s of a server that serves so many at a time, each as fast as one alone."""
    return lambda n: first * min(n, most)


def true_knee(curve: Curve, most: int = 512) -> int:
    return max(range(1, most + 1), key=lambda n: curve(n) ** 2 / n)


def plan(from_: float = 1, to: float = 512, precision: float = 0.05, *, is_whole: bool = True) -> SearchPlan:
    return SearchPlan(goal="knee", from_=from_, to=to, is_whole=is_whole, precision=precision, share=None)


def searched(curve: Curve, seed: int, noise: float = 0.05, of: SearchPlan | None = None) -> tuple[int, SearchResult]:
    """How many probes it took, and what was found; each second is off by chance."""
    rng, search, probes = random.Random(seed), KneeSearch("find", of or plan()), 0
    while (load := search.load) is not None:
        probes += 1
        search.take(f"find-{probes}", [(round(curve(load) * rng.gauss(1, noise)), round(load)) for _ in range(SECONDS)])
    return probes, search.result()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("curve", "knee"),
    [
        pytest.param(scalability(80, 0.02, 0.0008), 17, id="batching-costs-more-and-more"),
        pytest.param(scalability(80, 0.05, 0.0001), 18, id="contention"),
        pytest.param(slots(60, 32), 32, id="thirty-two-at-a-time"),
        pytest.param(slots(60, 5), 5, id="five-at-a-time"),
    ],
)
def test_the_knee_is_found_within_a_tenth(curve: Curve, knee: int, seed: int) -> None:
    assert true_knee(curve) == pytest.approx(knee, abs=1)
    probes, result = searched(curve, seed)
    assert result.highest_met == pytest.approx(true_knee(curve), rel=0.1)
    assert result.highest_below is not None
    assert result.lowest_missed is not None
    assert result.highest_below < true_knee(curve) < result.lowest_missed
    assert (result.is_complete, result.goal, result.share) == (True, "knee", None)
    assert probes <= 3 * plan().most_probes


def test_a_flat_curve_with_much_noise_ends_the_search_all_the_same() -> None:
    probes, result = searched(lambda n: 100 * math.sqrt(n), 1, noise=0.5, of=plan(to=64))
    assert result.is_complete
    assert probes <= 3 * plan(to=64).most_probes


def test_a_curve_that_never_bends_says_up_to_where() -> None:
    _, result = searched(lambda n: 50 * n, 1, of=plan(to=100))
    assert (result.highest_met, result.lowest_missed) == (100, None)
    assert result.line == "find: no knee up to concurrency 100: " + result.probes[-1].line
    assert result.probes[-1].verdict == "more power"


def test_a_knee_at_the_lowest_load_is_that() -> None:
    _, result = searched(lambda n: 50, 1)
    assert (result.highest_met, result.highest_below, result.lowest_missed) == (1, None, 2)
    assert result.probes[1].verdict == "less power"
    assert result.line.endswith("concurrency 2 surely has less")


def test_a_load_without_a_token_ends_the_search_and_says_what_to_do() -> None:
    search = KneeSearch("find", plan())
    for _ in range(3):
        search.take("find-1", [(0, 1)] * SECONDS)
    assert search.load is None
    assert search.result().highest_met is None
    assert "try each load for longer" in search.result().line


def test_the_powers_error_is_that_of_its_tokens() -> None:
    rng = random.Random(3)
    logs = []
    for _ in range(200):
        power = power_of([(round(rng.gauss(1000, 100)), 10) for _ in range(40)])
        assert power is not None
        logs.append(power.log)
    power = power_of([(900, 10), (1100, 10)] * 20)
    spread = math.sqrt(sum((log - math.log(1e5)) ** 2 for log in logs) / len(logs))
    assert spread == pytest.approx(2 * 0.1 / math.sqrt(40), rel=0.15)
    assert power is not None
    assert power.error == pytest.approx(0.0, abs=1e-9)


def test_a_tally_for_the_knee_looks_only_at_the_time_in_which_its_load_is_sent() -> None:
    stage = PlannedStage(name="find-1", load=ClosedLoop(concurrency=4), duration_s=16, drain_s=9, warmup=False)
    tally = ProbeTally(stage, goal="knee", start_unix_ns=100 * 10**9)
    for second in range(99, 120):
        for worker in ("a", "b"):
            row = WindowRow(class_name="chat", stage="find-1", output_tokens=second, in_flight=2, finished={"ok": 1})
            tally.take(worker, second, [row])
    assert tally.seconds() == [(2 * second, 4) for second in range(104, 116)]
