"""Which seconds of the fleet end a run by its `abort` rules."""

import msgspec
import pytest

from tokswarm.master.abort import AbortWatch
from tokswarm.master.merge import fleet_seconds
from tokswarm.measure.histogram import bucket_of
from tokswarm.measure.window import FleetSecond, Window, WindowRow
from tokswarm.traffic.mix import Abort, AbortLatency, AbortShare
from tokswarm.traffic.units import Duration

SHARE = Abort(error_share=AbortShare(over=0.2, for_=Duration.parse("3s")))
SLOW = Abort(ttft_p99=AbortLatency(over=Duration.parse("2s"), for_=Duration.parse("2s")))


def second(at: int, *, stage: str = "s", ttft_ms: int | None = None, **finished: int) -> list[FleetSecond]:
    row = WindowRow(class_name="chat", stage=stage, finished=finished)
    if ttft_ms is not None:
        row.ttft[bucket_of(ttft_ms * 1_000_000)] = 1
    return fleet_seconds(at, [Window(worker="w", second_unix=at, sequence=0, rows=[row])], [])


def fired(rules: Abort | None, seconds: list[list[FleetSecond]]) -> tuple[int, str] | None:
    """The second at which the run ends, and why."""
    watch = AbortWatch(rules)
    for rows in seconds:
        if reason := watch.take(rows):
            return rows[0].second_unix, reason
    return None


def test_errors_over_the_share_for_long_enough_end_the_run_and_the_reason_has_the_seconds() -> None:
    seconds = [second(10, ok=9, reset=1)] + [second(at, ok=2, reset=3) for at in (11, 12, 13, 14)]
    assert fired(SHARE, seconds) == (
        13,
        "abort.error_share: over 20% of requests failed (up to 60%) for 3 s, from Unix second 11 to 13",
    )


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param([second(10, reset=9), second(11, reset=9), second(12, ok=9), second(13, reset=9)], id="recovers"),
        pytest.param([second(at, ok=8, reset=2) for at in range(10, 20)], id="at-the-share"),
        pytest.param([second(at, aborted=5, client_limit=2) for at in range(10, 20)], id="our-own"),
        pytest.param([second(at) for at in range(10, 20)], id="nothing-ended"),
    ],
)
def test_errors_that_are_few_short_or_our_own_do_not(seconds: list[list[FleetSecond]]) -> None:
    assert fired(SHARE, seconds) is None


def test_a_second_in_which_nothing_ended_does_not_interrupt_a_bad_time() -> None:
    assert fired(SHARE, [second(10, reset=1), second(11), second(12, reset=1)]) is not None


def test_two_stages_in_one_second_are_taken_together() -> None:
    both = [second(at, ok=9, stage="a") + second(at, reset=1, stage="b") for at in range(10, 20)]
    assert fired(SHARE, both) is None


def test_a_slow_p99_ends_the_run_after_its_time() -> None:
    slow = [second(at, ttft_ms=2500, ok=1) for at in (10, 11)]
    assert fired(SLOW, [second(9, ttft_ms=1900, ok=1), *slow])
    assert fired(SLOW, [slow[0], second(11, ttft_ms=1900, ok=1), second(12, ttft_ms=2500, ok=1)]) is None


def test_without_rules_nothing_ends() -> None:
    assert fired(None, [second(at, reset=9, ttft_ms=99_000) for at in range(10, 99)]) is None


def test_only_the_fleet_as_a_whole_counts() -> None:
    one_class = [msgspec.structs.replace(row, class_name="rare") for row in second(10, reset=9)]
    assert fired(SHARE, [one_class] * 9) is None
