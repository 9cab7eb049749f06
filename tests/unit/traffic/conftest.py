"""Makers of the mixes and plans that the tests of this package share."""

from collections.abc import Callable, Sequence

import pytest

from tokswarm.traffic.mix import (
    Distribution,
    Lognormal,
    Mix,
    Output,
    Popularity,
    Prompt,
    SharedPrefix,
    Stage,
    Target,
    TrafficClass,
)
from tokswarm.traffic.plan import Load, Plan, PlannedStage, TokenFit
from tokswarm.traffic.units import Duration

FIT = TokenFit(tokens_per_word=1.3, overhead_tokens=11, source="assumed")


def _mix(seed: int = 1, load: Sequence[Stage] = (Stage(name="one", concurrency=1, for_=Duration.parse("5s")),)) -> Mix:
    return Mix(
        name="sample",
        seed=seed,
        target=Target(base_url="http://127.0.0.1:8100/v1"),
        classes=[
            TrafficClass(
                name="chat",
                weight=3,
                prompt=Prompt(
                    tokens=Distribution(lognormal=Lognormal(p50=120, p99=500), min=60),
                    shared_prefix=SharedPrefix(groups=5, tokens=40, popularity=Popularity(zipf=1.0)),
                ),
                output=Output(max_tokens=Distribution(choice={16: 3, 64: 1})),
            ),
            TrafficClass(
                name="report",
                weight=1,
                prompt=Prompt(tokens=Distribution(fixed=200)),
                output=Output(max_tokens=Distribution(fixed=300), ignore_eos=True),
            ),
        ],
        load=list(load),
    )


def _plan(*loads: Load, duration_s: float = 5.0, seed: int = 1, content_seed: int = 9, fit: TokenFit = FIT) -> Plan:
    return Plan(
        run_id="r1",
        mix=_mix(seed),
        model="tiny",
        stages=[
            PlannedStage(name=f"stage-{index}", load=load, duration_s=duration_s, drain_s=1.0, warmup=False)
            for index, load in enumerate(loads)
        ],
        fit=fit,
        content_seed=content_seed,
    )


@pytest.fixture(scope="session")
def sample_mix() -> Callable[..., Mix]:
    """Makes a mix of two classes: `sample_mix(seed=1, load=[…])`."""
    return _mix


@pytest.fixture(scope="session")
def sample_plan() -> Callable[..., Plan]:
    """Makes a plan of that mix: `sample_plan(*loads, duration_s=5, seed=1, content_seed=9)`."""
    return _plan
