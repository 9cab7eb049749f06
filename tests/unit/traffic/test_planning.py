"""Stages are spread out and named, traces are found and read, and every mix that ships plans."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tokswarm.errors import ConfigError
from tokswarm.resources import resource_dir
from tokswarm.traffic.mix import Arrivals, Bursts, Constant, Mix, Stage, TraceSource, Varied
from tokswarm.traffic.mixfile import load_mix
from tokswarm.traffic.plan import BurstCycle, ClosedLoop, OpenLoop, PlannedStage, RateSegment, Replay
from tokswarm.traffic.planning import plan_stages
from tokswarm.traffic.rates import Rates
from tokswarm.traffic.units import Duration

FIVE_S = Duration.parse("5s")
MIXES = resource_dir("locustfiles") / "mixes"
ROWS = """\
{"timestamp": 0, "input_length": 5, "output_length": 2}
{"timestamp": 1500, "input_length": 9, "output_length": 2}
"""


@pytest.fixture(scope="session")
def planned(sample_mix: Callable[..., Mix]) -> Callable[..., list[PlannedStage]]:
    """Plans stages: `planned(*stages, folder=…)`."""
    return lambda *stages, folder=Path(): plan_stages(sample_mix(load=stages), folder)


def test_sweeps_are_spread_out_and_named_by_value(planned: Callable[..., list[PlannedStage]]) -> None:
    stages = planned(
        Stage(name="warm-up", concurrency=2, for_=FIVE_S, drain=Duration.parse("1s"), warmup=True),
        Stage(name="sweep", concurrency=[1, 8], for_=FIVE_S),
        Stage(name="open", rate=Rates.parse(["12.5/s", "600/m"]), for_=FIVE_S),
        Stage(concurrency=3, for_=FIVE_S),
        Stage(rate=Rates.parse("4/s"), arrivals=Arrivals(constant=Constant()), for_=FIVE_S),
    )
    assert [(stage.name, stage.load) for stage in stages] == [
        ("warm-up", ClosedLoop(concurrency=2)),
        ("sweep-1", ClosedLoop(concurrency=1)),
        ("sweep-8", ClosedLoop(concurrency=8)),
        ("open-12.5", OpenLoop(rate_per_s=12.5, arrivals="poisson")),
        ("open-10", OpenLoop(rate_per_s=10, arrivals="poisson")),
        ("concurrency-3", ClosedLoop(concurrency=3)),
        ("rate-4", OpenLoop(rate_per_s=4, arrivals="constant")),
    ]
    assert [(stage.duration_s, stage.drain_s, stage.warmup) for stage in stages[:2]] == [(5, 1, True), (5, 30, False)]


def test_rates_that_change_become_courses_of_their_mean(planned: Callable[..., list[PlannedStage]]) -> None:
    stages = planned(
        Stage(rate=Rates.parse({"from": "2/s", "to": "40/s"}), for_=FIVE_S),
        Stage(rate=Rates.parse({"steps": ["60/m", "4/s"]}), arrivals=Arrivals(gamma=Varied(cv=2)), for_=FIVE_S),
        Stage(rate=Rates.parse({"diurnal": {"levels": [1, 3, 2], "peak": "6/s"}}), for_=FIVE_S),
        Stage(
            name="two-days",
            rate=Rates.parse({"diurnal": {"levels": [1, 3], "mean": "6/s", "period": "2.5s"}}),
            for_=FIVE_S,
        ),
    )
    assert [(stage.name, stage.load) for stage in stages] == [
        ("rate-2-to-40", OpenLoop(21, "poisson", course=[RateSegment(5, 2, 40)])),
        ("rate-steps", OpenLoop(2.5, "gamma", cv=2, course=[RateSegment(2.5, 1, 1), RateSegment(2.5, 4, 4)])),
        (
            "rate-diurnal",
            OpenLoop(
                4, "poisson", course=[RateSegment(5 / 3, 2, 6), RateSegment(5 / 3, 6, 4), RateSegment(5 / 3, 4, 2)]
            ),
        ),
        ("two-days", OpenLoop(6, "poisson", course=[RateSegment(1.25, 3, 9), RateSegment(1.25, 9, 3)])),
    ]


def test_bursts_keep_the_mean_of_the_rate(planned: Callable[..., list[PlannedStage]]) -> None:
    on, off = Duration.parse("5s"), Duration.parse("20s")
    stages = planned(
        Stage(name="all", rate=Rates.parse("4/s"), bursts=Bursts(on=on, off=off), for_=FIVE_S),
        Stage(name="some", rate=Rates.parse("4/s"), bursts=Bursts(on=on, off=off, factor=3), for_=FIVE_S),
    )
    cycles = [stage.load.bursts for stage in stages if isinstance(stage.load, OpenLoop)]
    assert cycles == [BurstCycle(5, 20, 5, 0), BurstCycle(5, 20, 3, 0.5)]


def test_the_weights_of_a_stage_go_by_the_order_of_the_classes(planned: Callable[..., list[PlannedStage]]) -> None:
    stages = planned(
        Stage(name="storm", rate=Rates.parse(["1/s", "2/s"]), classes={"report": 9, "chat": 1}, for_=FIVE_S),
        Stage(name="reports", concurrency=1, classes={"report": 2}, for_=FIVE_S),
        Stage(name="all", concurrency=1, for_=FIVE_S),
    )
    assert [stage.class_weights for stage in stages] == [[1, 9], [1, 9], [0, 2], None]


def test_a_trace_beside_the_mix_is_read_and_lasts_until_its_last_request(
    planned: Callable[..., list[PlannedStage]], tmp_path: Path
) -> None:
    (tmp_path / "own.jsonl").write_text(ROWS, encoding="utf-8")
    (stage,) = planned(Stage(trace=TraceSource(file="own.jsonl")), folder=tmp_path)
    assert isinstance(stage.load, Replay)
    assert (stage.name, stage.duration_s, stage.load.rows, stage.load.trace) == ("replay", 1.501, 2, "own.jsonl")


def test_a_trace_is_cut_at_the_end_of_its_stage(planned: Callable[..., list[PlannedStage]], tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text(ROWS, encoding="utf-8")
    (stage,) = planned(Stage(trace=TraceSource(file="own.jsonl"), for_=Duration.parse("1s")), folder=tmp_path)
    assert isinstance(stage.load, Replay)
    assert (stage.duration_s, stage.load.rows) == (0.001, 1)


def test_a_trace_that_ships_is_found_from_anywhere(planned: Callable[..., list[PlannedStage]], tmp_path: Path) -> None:
    for file in ("azure_code.csv", "traces/azure_code.csv"):
        (stage,) = planned(Stage(trace=TraceSource(file=file)), folder=tmp_path)
        assert isinstance(stage.load, Replay)
        assert stage.load.rows == 1500


def test_a_missing_trace_is_an_error_that_lists_where_it_was_looked_for(
    planned: Callable[..., list[PlannedStage]], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"load\[0\]\.trace\.file: there is no trace 'no\.jsonl'") as caught:
        planned(Stage(trace=TraceSource(file="no.jsonl")), folder=tmp_path)
    shipped = resource_dir("locustfiles")
    for place in (tmp_path / "no.jsonl", shipped / "no.jsonl", shipped / "traces" / "no.jsonl"):
        assert str(place) in str(caught.value)


@pytest.mark.parametrize("path", sorted(MIXES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_mix_that_ships_loads_and_plans(path: Path) -> None:
    mix = load_mix(path, {})
    stages = plan_stages(mix, path.parent)
    assert mix.name == path.stem
    assert mix.description
    assert stages[0].warmup
    assert not any(stage.warmup for stage in stages[1:])
    elsewhere = dict.fromkeys(("OPENAI_BASE_URL", "OLD_BASE_URL", "NEW_BASE_URL"), "http://elsewhere/v1")
    assert {target.base_url for target in load_mix(path, elsewhere).all_targets} == {"http://elsewhere/v1"}


@pytest.mark.parametrize("name", ["mooncake-conversation", "mooncake-synthetic", "azure-code", "azure-conversation"])
def test_the_replays_that_ship_suit_a_small_server_and_can_be_widened(name: str) -> None:
    path = MIXES / f"{name}.yaml"
    small = plan_stages(load_mix(path, {}), path.parent)[-1]
    assert isinstance(small.load, Replay)
    assert 50 <= small.duration_s <= 70
    assert 2 <= small.load.rows / small.duration_s <= 3.5
    widened = load_mix(path, {"MAX_PROMPT_TOKENS": "200000", "MAX_OUTPUT_TOKENS": "200000", "TRACE_ROWS": "1000"})
    wide = plan_stages(widened, path.parent)[-1].load
    assert isinstance(wide, Replay)
    assert (wide.rows, wide.note) == (1000, "")


def test_the_mixes_the_documents_name_ship() -> None:
    assert {path.stem for path in MIXES.glob("*.yaml")} >= {"demo", "chat-sweep", "open-loop", "mooncake-conversation"}
