"""What the master knows of a second, put together, and the events that come of it."""

from typing import Any

import msgspec
import pytest
from virtual_fleet import health, stage

from tokswarm.insight.cliff import Demand
from tokswarm.master.cliff_watch import CliffWatch, demand_of
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond
from tokswarm.traffic.plan import BurstCycle, ClosedLoop, Load, OpenLoop, RateSegment, Replay

RATE = OpenLoop(rate_per_s=20.0, arrivals="poisson")
REPLAY = Replay(trace="t", rows=1, last_due_ns=1, block_tokens=16, columns=b"", prompts_cut=0, outputs_cut=0)


@pytest.mark.parametrize(
    ("load", "demand"),
    [
        pytest.param(ClosedLoop(concurrency=8), Demand(is_open=False, level=8), id="closed"),
        pytest.param(RATE, Demand(is_open=True, level=20.0), id="open"),
        pytest.param(
            msgspec.structs.replace(RATE, course=[RateSegment(duration_s=1, from_per_s=1, to_per_s=2)]), None, id="ramp"
        ),
        pytest.param(
            msgspec.structs.replace(RATE, bursts=BurstCycle(on_s=1, off_s=1, on_factor=2, off_factor=0)),
            None,
            id="bursts",
        ),
        pytest.param(REPLAY, None, id="replay"),
    ],
)
def test_only_a_steady_load_is_a_demand(load: Load, demand: Demand | None) -> None:
    assert demand_of(load) == demand


def fleet_second(at: int, tok_per_s: int, **changes: Any) -> FleetSecond:
    base: dict[str, Any] = {
        "second_unix": at,
        "class_name": "_all",
        "stage": "s",
        "workers": 2,
        "output_tok_per_s": tok_per_s,
        "prompt_tok_per_s": 0,
        "offered_per_s": 10,
        "started_per_s": 10,
        "finished": {"ok": 10},
        "in_flight": 4,
        "dropped": 0,
        "late": 0,
        "goodput_per_s": None,
        "goodput_ratio": None,
        "cached_ratio": 0.9,
        "ideal_cached_ratio": None,
    }
    return FleetSecond(**{**base, **changes})


def reading(at: int, replica: str = "h:1", **changes: Any) -> ServerSecond:
    base: dict[str, Any] = {"target": "t", "up": 1, "hit_ratio": 0.9, "prompt_tok_per_s": 100.0, "waiting": 0}
    return ServerSecond(**{**base, "unix_ns": at * 10**9 + 400_000_000, "replica": replica, **changes})


class Watched:
    """Ten good seconds, then six bad ones, with what else is seen in the latter."""

    def __init__(self) -> None:
        self.watch = CliffWatch()
        self.watch.stage(stage("s"))
        self.events: list[Event] = []

    def second(self, at: int, tok_per_s: int, **changes: Any) -> None:
        self.events += self.watch.take([fleet_second(at, tok_per_s, **changes)])

    def course(self, servers: list[dict[str, Any]] | None = None, **changes: Any) -> list[Event]:
        for at in range(10):
            self.watch.server([reading(at), reading(at, "h:2")])
            self.second(at, 1000 + at % 3)
        for at in range(10, 16):
            self.watch.server([reading(at, **{"replica": "h:1", **each}) for each in servers or []])
            self.second(at, 400, **changes)
        return self.events


def test_a_cliff_is_an_event_at_its_first_second_and_again_with_its_end() -> None:
    watched = Watched()
    [begun] = watched.course(cached_ratio=0.1)
    assert (begun.unix_ns, begun.kind, begun.title, begun.end_unix_ns) == (
        10 * 10**9,
        "cliff",
        "cliff: cache churn",
        None,
    )
    assert "cached share of the answers 10% after 90%" in begun.text
    assert watched.watch.close() == [msgspec.structs.replace(begun, end_unix_ns=16 * 10**9)]
    assert watched.watch.close() == []


def test_hits_of_several_servers_weigh_as_their_prompt_tokens() -> None:
    [event] = Watched().course(
        [{"hit_ratio": 0.0, "prompt_tok_per_s": 900.0}, {"replica": "h:2", "hit_ratio": 1.0, "prompt_tok_per_s": 100.0}]
    )
    assert "hit share of the servers 10% after 90%" in event.text


def test_requests_that_wait_in_several_servers_are_added_up() -> None:
    [event] = Watched().course([{"waiting": 12}, {"replica": "h:2", "waiting": 8}])
    assert event.title == "cliff: queueing"
    assert "20 requests wait in the servers' queues after 0" in event.text


def test_a_server_that_does_not_answer_any_more_is_a_change_of_replicas() -> None:
    [event] = Watched().course([{}, {"replica": "h:2", "up": 0, "hit_ratio": None, "waiting": None}])
    assert (event.title, "replicas gone: h:2" in event.text) == ("cliff: replica change", True)


def test_a_gateway_that_counts_fewer_replicas_is_one_too() -> None:
    watched = Watched()
    watched.watch.server([reading(0, "gw", replicas_ready=3)])
    for at in range(16):
        watched.watch.server([reading(at, "gw", replicas_ready=3 if at < 10 else 2)])
        watched.second(at, 1000 if at < 10 else 400)
    assert [event.title for event in watched.events] == ["cliff: replica change"]


def test_a_worker_that_stalls_is_the_generator() -> None:
    watched = Watched()
    for at in range(9, 16):
        watched.watch.health(msgspec.structs.replace(health("w", at), loop_lag_p99_ms=300.0))
    [event] = watched.course(cached_ratio=0.1)
    assert (event.title, "a worker's loop was 300 ms late" in event.text) == ("cliff: the generator", True)


@pytest.mark.parametrize(("outcome", "title"), [("rate_limited", "rate limiting"), ("http_error", "errors")])
def test_refusals_and_errors_are_told_apart(outcome: str, title: str) -> None:
    events = Watched().course(finished={"ok": 2, outcome: 8})
    assert [event.title for event in events] == [f"cliff: {title}"]


def test_what_the_generator_gave_up_or_asked_wrongly_is_no_error_of_the_endpoint() -> None:
    watched = Watched()
    for at in range(16):
        watched.second(at, 1000, finished={"ok": 2, "aborted": 4, "context_length": 4} if at > 10 else {"ok": 10})
    assert watched.events == []


def test_a_rate_that_has_ended_drains_and_falls_no_cliff() -> None:
    watched = Watched()
    watched.watch.stage(msgspec.structs.replace(stage("s"), load=RATE))
    for at in range(20):
        watched.second(at, 1000 if at < 10 else 300, offered_per_s=20 if at < 10 else 0, in_flight=30)
    assert watched.events == []


def test_classes_and_seconds_of_two_stages_are_not_mistaken_for_a_fall() -> None:
    watched = Watched()
    for at in range(16):
        watched.second(at, 1000)
        watched.events += watched.watch.take([fleet_second(at, 10, class_name="chat")])
    watched.events += watched.watch.take([fleet_second(16, 100), fleet_second(16, 100, stage="next")])
    assert watched.events == []
