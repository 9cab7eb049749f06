"""Each scenario is a mix and a deployment of one name that fit each other; two effects, in virtual time."""

import random
from pathlib import Path

import pytest

from tokswarm.simulator.deployment import load_deployment
from tokswarm.simulator.engine import Engine, Request
from tokswarm.simulator.virtual import Served, closed_loop, open_loop
from tokswarm.traffic.mix import Mix
from tokswarm.traffic.mixfile import load_mix
from tokswarm.traffic.planning import plan_stages

ROOT = Path(__file__).parents[3]
MIXES = ROOT / "locustfiles" / "mixes"
SCENARIOS = (
    *("bend", "padding-tax", "eviction-storm", "rho", "cold-replica", "gateway-fallback", "rate-limited"),
    "ab",
)


def mix_of(name: str) -> Mix:
    return load_mix(MIXES / f"{name}.yaml", environ={"MODEL": "tiny-static"})


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_a_mix_a_deployment_and_a_section_of_its_page(name: str) -> None:
    mix, deployment = mix_of(name), load_deployment(name)
    assert mix.name == deployment.name == name
    assert sum(stage.duration_s for stage in plan_stages(mix, MIXES)) < 120
    assert f"## {name}\n" in (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")


def tok_per_s(served: list[Served]) -> float:
    return sum(len(each.token_ns) for each in served) / (served[-1].ended_ns / 1e9)


@pytest.mark.parametrize(
    ("model", "tax"), [pytest.param(0, 1 - 64 / 111.625, id="static"), pytest.param(1, 0.0, id="continuous")]
)
def test_a_static_batch_pays_for_its_longest_answer_as_arithmetic_says(model: int, tax: float) -> None:
    profile = load_deployment("padding-tax").models[model].providers[0].profile
    rates = {}
    for lengths in ((64,), (16, 112)):
        draws = random.Random(1)
        made = 0

        def draw(client: int, arrival_ns: int, lengths: tuple[int, ...] = lengths) -> Request | None:
            nonlocal made
            made += 1
            if made > 4000:
                return None
            return Request(
                request_id=made,
                arrival_ns=arrival_ns,
                prompt_tokens=32,
                output_tokens=draws.choice(lengths),  # noqa: B023 - of this round
                block_keys=(),
            )

        rates[lengths] = tok_per_s(list(closed_loop(Engine(profile), 16, draw)))
    # 500 batches of 8 draws: the mean length is known to 0.75 of 64.
    assert 1 - rates[16, 112] / rates[64,] == pytest.approx(tax, abs=0.03)


def test_at_one_rate_a_storm_of_prefixes_takes_two_fifths_of_the_tokens_and_gives_them_back() -> None:
    """Arrivals, groups and lengths of the mix, drawn here."""
    profile = load_deployment("eviction-storm").models[0].providers[0].profile
    stages = [stage for stage in plan_stages(mix_of("eviction-storm"), MIXES) if not stage.warmup]
    groups = {
        each.name: each.prompt.shared_prefix.groups
        for each in mix_of("eviction-storm").classes
        if each.prompt.shared_prefix
    }
    engine, draws = Engine(profile), random.Random(5)
    sent, at_s = 0, 0.0
    rates, hits = {}, {}
    for stage in stages:
        weights = stage.class_weights or [1.0] * len(groups)
        rate = stage.load.rate_per_s  # type: ignore[union-attr]
        begin_s, end_s = at_s, at_s + stage.duration_s
        requests = []
        while (at_s := at_s + draws.expovariate(rate)) < end_s:
            name = draws.choices(list(groups), weights)[0]
            group, sent = draws.randrange(groups[name]), sent + 1
            keys = (*((name, group, block) for block in range(64)), *((sent, block) for block in range(6)))
            requests.append(
                Request(
                    request_id=sent, arrival_ns=int(at_s * 1e9), prompt_tokens=1088, output_tokens=40, block_keys=keys
                )
            )
        served = list(open_loop(engine, requests))
        in_time = [stamp for each in served for stamp in each.token_ns if begin_s * 1e9 <= stamp < end_s * 1e9]
        rates[stage.name] = len(in_time) / stage.duration_s
        hits[stage.name] = sum(each.cached_tokens for each in served) / sum(
            each.request.prompt_tokens for each in served
        )
        at_s = max(end_s, max(each.ended_ns for each in served) / 1e9)
    assert rates["storm"] < 0.6 * rates["calm"]
    assert rates["recovery"] > 0.9 * rates["calm"]
    assert hits["storm"] < 0.3 < 0.85 < min(hits["calm"], hits["recovery"])
