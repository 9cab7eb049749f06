"""Cliffs are found, timed and explained: by hand-made seconds, and in scenarios of the simulator in virtual time."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from virtual_seconds import Ledger, run

from tokswarm.insight.cliff import Cause, Cliff, CliffDetector, CliffSecond, Demand

RATE, USERS = Demand(is_open=True, level=20.0), Demand(is_open=False, level=16.0)
SEEDS = range(10)


def seconds(count: int, tok_per_s: float, *, start: int = 0, **changes: Any) -> Iterator[CliffSecond]:
    """So many seconds alike but for a little noise, from a second on."""
    base: dict[str, Any] = {
        "demand": USERS,
        "in_flight": 16,
        "ended": 20,
        "refused": 0,
        "failed": 0,
        "workers": 2,
        "loop_lag_ms": 1.0,
        "schedule_lag_ms": 1.0,
        "cached_ratio": 0.9,
        "waiting": 0,
        "queue_wait_ms": 5.0,
        "evictions_per_s": 0.0,
        "replicas": frozenset({"a", "b"}),
    }
    for number in range(count):
        wobble = 1 + 0.03 * (number % 3 - 1)
        yield CliffSecond(second_unix=start + number, output_tok_per_s=tok_per_s * wobble, **{**base, **changes})


def found(given: Iterable[CliffSecond]) -> list[Cliff]:
    """The cliffs, each as last told."""
    detector = CliffDetector()
    told = [cliff for second in given for cliff in detector.take(second)] + detector.close()
    return list({cliff.from_unix: cliff for cliff in told}.values())


def told_at(given: Iterable[CliffSecond]) -> list[tuple[int, int, Cause]]:
    """When each cliff was first told: second, its first second, cause."""
    detector = CliffDetector()
    first: dict[int, tuple[int, int, Cause]] = {}
    for second in given:
        for cliff in detector.take(second):
            first.setdefault(cliff.from_unix, (second.second_unix, cliff.from_unix, cliff.cause))
    return list(first.values())


CHANGES = [
    pytest.param({"hit_ratio": 0.1}, Cause.CACHE_CHURN, id="servers-hit-less"),
    pytest.param({"cached_ratio": 0.1}, Cause.CACHE_CHURN, id="answers-say-less-was-cached"),
    pytest.param({"evictions_per_s": 500.0, "waiting": 40}, Cause.CACHE_CHURN, id="evictions-before-queueing"),
    pytest.param({"preemptions_per_s": 4.0}, Cause.CACHE_CHURN, id="preemptions"),
    pytest.param({"recomputed_tok_per_s": 900.0}, Cause.CACHE_CHURN, id="recomputed"),
    pytest.param({"waiting": 40}, Cause.QUEUEING, id="waiting"),
    pytest.param({"queue_wait_ms": 900.0}, Cause.QUEUEING, id="queue-wait"),
    pytest.param({"replicas": frozenset({"a"}), "hit_ratio": 0.1}, Cause.REPLICAS, id="a-replica-went"),
    pytest.param({"replicas": frozenset({"a", "b", "c"})}, Cause.REPLICAS, id="a-replica-came"),
    pytest.param({"refused": 8, "waiting": 40}, Cause.RATE_LIMITING, id="429s"),
    pytest.param({"failed": 8}, Cause.ERRORS, id="errors"),
    pytest.param({"workers": 1, "failed": 3}, Cause.GENERATOR, id="a-worker-went"),
    pytest.param({"loop_lag_ms": 400.0, "hit_ratio": 0.1}, Cause.GENERATOR, id="a-worker-stalls"),
    pytest.param({"schedule_lag_ms": 400.0}, Cause.GENERATOR, id="sent-late"),
    pytest.param({}, Cause.UNKNOWN, id="nothing-else-changed"),
]


@pytest.mark.parametrize(("changes", "cause"), CHANGES)
def test_a_fall_has_the_cause_that_the_same_seconds_show(changes: dict[str, Any], cause: Cause) -> None:
    given = [*seconds(10, 1000, hit_ratio=0.9), *seconds(10, 500, start=10, **{"hit_ratio": 0.9, **changes})]
    [cliff] = found(given)
    assert (cliff.from_unix, cliff.cause, cliff.to_unix) == (10, cause, 20)


def test_the_evidence_says_what_fell_and_what_else_changed() -> None:
    given = [*seconds(10, 1000, hit_ratio=0.9), *seconds(5, 500, start=10, hit_ratio=0.1, evictions_per_s=80.0)]
    [cliff] = found(given)
    assert cliff.text == (
        "492 tok/s after 1,000, with 16 in flight after 16; "
        "hit share of the servers 10% after 90%, 80 evictions/s after 0"
    )


def test_a_cliff_ends_when_the_tokens_are_back_and_the_next_is_another() -> None:
    given = [
        *seconds(10, 1000),
        *seconds(6, 500, start=10, waiting=30),
        *seconds(10, 1000, start=16),
        *seconds(6, 500, start=26, cached_ratio=0.1),
    ]
    assert [(cliff.from_unix, cliff.to_unix, cliff.cause) for cliff in found(given)] == [
        (10, 16, Cause.QUEUEING),
        (26, 32, Cause.CACHE_CHURN),
    ]


def test_a_cliff_ends_with_its_demand() -> None:
    more = Demand(is_open=False, level=32.0)
    given = [
        *seconds(10, 1000),
        *seconds(6, 500, start=10, cached_ratio=0.1),
        *seconds(9, 500, start=16, demand=more, in_flight=32),
    ]
    [cliff] = found(given)
    assert (cliff.from_unix, cliff.to_unix) == (10, 16)


QUIET = [
    pytest.param([*seconds(30, 1000)], id="steady"),
    pytest.param([*seconds(10, 1000), *seconds(10, 850, start=10)], id="a-little-less"),
    pytest.param([*seconds(10, 1000), *seconds(1, 300, start=10), *seconds(9, 1000, start=11)], id="one-second"),
    pytest.param(
        [*seconds(10, 1000), *seconds(4, 500, start=10), *seconds(9, 1000, start=14)], id="a-dip-without-cause"
    ),
    pytest.param([*seconds(10, 1000), *seconds(10, 500, start=10, in_flight=7)], id="users-that-think"),
    pytest.param(
        [*seconds(10, 1000, demand=RATE), *seconds(10, 500, start=10, demand=RATE, in_flight=16)], id="a-lull-of-a-rate"
    ),
    pytest.param(
        [*seconds(10, 1000), *seconds(10, 500, start=10, demand=Demand(is_open=False, level=8.0))], id="less-demand"
    ),
    pytest.param([*seconds(10, 1000), *seconds(10, 0, start=10, demand=None, in_flight=20)], id="a-drain"),
    pytest.param([*seconds(2, 1000), *seconds(9, 500, start=2, hit_ratio=0.0)], id="too-little-before"),
    pytest.param([*seconds(9, 1000, failed=3)], id="some-errors-all-along"),
    pytest.param([*seconds(9, 1000, failed=15)], id="many-errors-all-along"),
    pytest.param([*seconds(30, 0, in_flight=0, ended=0)], id="nothing-at-all"),
]


@pytest.mark.parametrize("given", QUIET)
def test_what_is_no_cliff_is_not_told(given: list[CliffSecond]) -> None:
    assert found(given) == []


def test_a_rate_whose_requests_pile_up_while_the_tokens_fall_is_a_cliff() -> None:
    given = [
        *seconds(10, 1000, demand=RATE),
        *seconds(5, 500, start=10, demand=RATE, in_flight=40, cached_ratio=0.1),
    ]
    [cliff] = found(given)
    assert (cliff.from_unix, cliff.cause) == (10, Cause.CACHE_CHURN)


@pytest.mark.parametrize(
    ("refused", "failed", "cause"), [(6, 0, Cause.RATE_LIMITING), (0, 6, Cause.ERRORS), (2, 4, Cause.ERRORS)]
)
def test_refusals_are_a_cliff_although_the_tokens_stay(refused: int, failed: int, cause: Cause) -> None:
    given = [
        *seconds(3, 1000, demand=None),
        *seconds(5, 1000, start=3, demand=None, refused=refused, failed=failed),
        *seconds(5, 1000, start=8, demand=None),
    ]
    [cliff] = found(given)
    assert (cliff.from_unix, cliff.cause, cliff.to_unix) == (3, cause, 8)


def test_seconds_that_are_missing_do_not_make_a_window() -> None:
    given = [*seconds(10, 1000), *seconds(1, 500, start=10), *seconds(1, 500, start=13), *seconds(9, 1000, start=15)]
    assert found(given) == []


# --- in virtual time ------------------------------------------------------------------------------


@pytest.mark.parametrize("with_server", [True, False], ids=["with-server-metrics", "without"])
def test_every_storm_is_marked_as_cache_churn_within_five_seconds_and_nothing_else_is(*, with_server: bool) -> None:
    for seed in SEEDS:
        ledger = run("eviction-storm", seed=seed, stages=("calm", "storm", "recovery"))
        [(at, from_unix, cause)] = told_at(ledger.seconds(with_server=with_server))
        storm = ledger.stage_begin_s["storm"]
        assert (cause, from_unix - storm in range(2)) == (Cause.CACHE_CHURN, True), seed
        assert at + 1 - storm <= 5, seed


def test_every_rate_above_the_limit_is_marked_as_rate_limiting_within_five_seconds_of_its_refusals() -> None:
    for seed in SEEDS:
        ledger = run("rate-limited", seed=seed, stages=("rate-6", "rate-12", "rate-18", "rate-24"))
        told = told_at(ledger.seconds(with_server=True))
        assert {cause for _, _, cause in told} == {Cause.RATE_LIMITING}, seed
        assert any(at >= ledger.stage_begin_s["rate-18"] for at, _, _ in told), seed
        for at, from_unix, _ in told:
            assert ledger.refused[from_unix] > 0, seed
            assert at + 1 - from_unix <= 5, seed


QUIET_RUNS = [
    pytest.param("eviction-storm", ("calm", "recovery"), 1.0, id="calm"),
    pytest.param("eviction-storm", ("calm", "recovery"), 1.2, id="calm-and-fuller"),
    pytest.param("rate-limited", ("rate-6",), 1.0, id="below-the-limit"),
]


@pytest.mark.parametrize(("mix", "stages", "rate_factor"), QUIET_RUNS)
def test_quiet_runs_raise_no_alarm(mix: str, stages: tuple[str, ...], rate_factor: float) -> None:
    for seed in SEEDS:
        ledger: Ledger = run(mix, seed=seed, stages=stages, rate_factor=rate_factor)
        assert told_at(ledger.seconds(with_server=True)) == [], seed
