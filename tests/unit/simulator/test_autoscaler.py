"""When a pool grows and shrinks."""

from tokswarm.simulator.autoscaler import Autoscaler
from tokswarm.simulator.deployment import Autoscale

S = 1_000_000_000
PLAN = Autoscale(min_replicas=1, max_replicas=3, up_waiting=2, up_after_s=5, down_in_flight=1, down_after_s=10)


def decisions(loads: list[tuple[int, int, int, int]]) -> list[int]:
    """Of (second, waiting, in flight, replicas)."""
    scaler = Autoscaler(PLAN)
    return [scaler.decide(at * S, waiting=w, in_flight=f, replicas=n) for at, w, f, n in loads]


def test_grows_when_more_than_the_threshold_wait_per_replica_for_long_enough() -> None:
    assert decisions([(0, 3, 9, 1), (4, 3, 9, 1), (5, 3, 9, 1)]) == [0, 0, 1]
    assert decisions([(0, 4, 9, 2), (4, 4, 9, 2), (9, 4, 9, 2)]) == [0, 0, 0]


def test_a_break_in_the_queue_starts_the_wait_anew() -> None:
    assert decisions([(0, 3, 9, 1), (4, 2, 9, 1), (5, 3, 9, 1), (9, 3, 9, 1), (10, 3, 9, 1)]) == [0, 0, 0, 0, 1]


def test_each_decision_waits_its_time_again() -> None:
    assert decisions([(0, 9, 9, 1), (5, 9, 9, 1), (6, 9, 9, 2), (10, 9, 9, 2), (11, 9, 9, 2)]) == [0, 1, 0, 0, 1]


def test_stays_within_its_bounds() -> None:
    assert decisions([(0, 99, 99, 3), (60, 99, 99, 3)]) == [0, 0]
    assert decisions([(0, 0, 0, 1), (60, 0, 0, 1)]) == [0, 0]


def test_shrinks_when_so_few_are_in_flight_for_long_enough() -> None:
    assert decisions([(0, 0, 2, 2), (9, 0, 2, 2), (10, 0, 2, 2)]) == [0, 0, -1]
    assert decisions([(0, 0, 3, 2), (60, 0, 3, 2)]) == [0, 0]
    assert decisions([(0, 1, 1, 2), (60, 1, 1, 2)]) == [0, 0]
