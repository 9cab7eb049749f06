import pytest

from tokswarm.sink.pace import BEHIND_BYTES, Pace

FAR_BEHIND = 10 * BEHIND_BYTES


@pytest.mark.parametrize(
    ("busy_s", "took_s", "rest_s"),
    [
        pytest.param(0.006, 0.020, 0.040, id="rests the rest of its share"),
        pytest.param(0.006, 0.060, 0.0, id="took that long anyway"),
        pytest.param(0.006, 1.0, 0.0, id="waited for the log"),
    ],
)
def test_a_writer_that_is_behind_keeps_to_its_share_of_a_core(busy_s: float, took_s: float, rest_s: float) -> None:
    pace = Pace(0.1)
    assert pace.rest_s(busy_s=busy_s, took_s=took_s, backlog_bytes=FAR_BEHIND) == pytest.approx(rest_s)


def test_a_writer_that_keeps_up_never_rests() -> None:
    assert Pace(0.1).rest_s(busy_s=1.0, took_s=1.0, backlog_bytes=BEHIND_BYTES - 1) == 0.0


def test_a_backlog_that_grows_all_the_same_is_not_made_worse_by_rests() -> None:
    pace = Pace(0.1)
    assert pace.rest_s(busy_s=0.006, took_s=0.01, backlog_bytes=FAR_BEHIND) > 0
    assert pace.rest_s(busy_s=0.006, took_s=0.01, backlog_bytes=FAR_BEHIND + 1) == 0.0
    assert pace.rest_s(busy_s=0.006, took_s=0.01, backlog_bytes=FAR_BEHIND) > 0


def test_a_catch_up_of_many_blocks_takes_its_share_and_no_more() -> None:
    pace, clock_s, busy_s, backlog = Pace(0.05, behind_bytes=0), 0.0, 0.0, FAR_BEHIND
    while backlog > 0:
        backlog -= 50_000
        clock_s += 0.02 + pace.rest_s(busy_s=0.006, took_s=0.02, backlog_bytes=max(backlog, 0))
        busy_s += 0.006
    assert busy_s / clock_s == pytest.approx(0.05, rel=0.01)
