"""What a user may ask for instead of the load of a stage, and the stage it becomes."""

import msgspec
import pytest
from virtual_fleet import stage

from tokswarm.errors import ConfigError
from tokswarm.master.load_change import changed_stage, load_asked_for, why_not
from tokswarm.master.run import LoadRequest
from tokswarm.traffic.plan import BurstCycle, ClosedLoop, OpenLoop, RateSegment, Replay

RAMP = OpenLoop(
    rate_per_s=20, arrivals="gamma", cv=4.0, course=[RateSegment(60, 2, 38)], bursts=BurstCycle(1, 1, 1.5, 0.5)
)


def test_a_request_is_one_load() -> None:
    assert load_asked_for(LoadRequest(concurrency=64)) == ClosedLoop(concurrency=64)
    assert load_asked_for(LoadRequest(rate="600/m")) == OpenLoop(rate_per_s=10, arrivals="poisson")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (LoadRequest(), "exactly one"),
        (LoadRequest(concurrency=1, rate="1/s"), "exactly one"),
        (LoadRequest(concurrency=0), "expected at least 1"),
        (LoadRequest(rate="12"), "no unit"),
        (LoadRequest(rate="fast"), "is no rate"),
    ],
)
def test_what_makes_no_load_is_refused(request_: LoadRequest, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_asked_for(request_)


def test_a_rate_keeps_its_kind_and_bursts_and_ends_its_ramp() -> None:
    ramp = msgspec.structs.replace(stage("ramp", 60), load=RAMP)
    changed = changed_stage(ramp, load_asked_for(LoadRequest(rate="12.5/s")), left_s=21.5)
    assert changed.name == "ramp-changed-1-to-12.5"
    assert changed.duration_s == 21.5
    assert changed.load == msgspec.structs.replace(RAMP, rate_per_s=12.5, course=None)
    assert (changed.drain_s, changed.warmup) == (ramp.drain_s, ramp.warmup)


def test_names_count_the_changes_of_the_stage_of_the_mix() -> None:
    first = changed_stage(stage("a-changed-mind"), ClosedLoop(concurrency=8), left_s=5)
    second = changed_stage(first, ClosedLoop(concurrency=64), left_s=3)
    assert [first.name, second.name] == ["a-changed-mind-changed-1-to-8", "a-changed-mind-changed-2-to-64"]


def test_there_are_loads_that_cannot_be_changed() -> None:
    replay = Replay(trace="t", rows=0, last_due_ns=0, block_tokens=512, columns=b"", prompts_cut=0, outputs_cut=0)
    one = stage("one")
    assert why_not(one, left_s=5, is_probe=False) == ""
    assert "search" in why_not(one, left_s=5, is_probe=True)
    assert "less than 1 s" in why_not(one, left_s=0.5, is_probe=False)
    assert "trace" in why_not(msgspec.structs.replace(one, load=replay), left_s=5, is_probe=False)
