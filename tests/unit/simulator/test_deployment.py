"""Deployment files: what they may say, and what is said of mistakes."""

import re
from pathlib import Path

import msgspec
import pytest

from tokswarm.errors import ConfigError
from tokswarm.simulator.deployment import (
    Autoscale,
    ColdStart,
    Deployment,
    ProviderPlan,
    ReplicaGroup,
    Routing,
    deployment_presets,
    load_deployment,
    outline,
    replica_prefix,
    single,
)
from tokswarm.simulator.limits import Limits
from tokswarm.simulator.profile import PRESETS

PAGE = Path(__file__).parents[3] / "docs" / "simulator.md"


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def load(folder: Path, text: str, *, model: str | None = None) -> Deployment:
    return load_deployment(str(written(folder, text)), model=model)


def test_profile_is_a_deployment_of_one_replica(tmp_path: Path) -> None:
    assert load_deployment("tight", model="m") == single(PRESETS["tight"], "m")
    [model] = load(tmp_path, "max_num_seqs: 3\n").models
    [provider] = model.providers
    assert (model.name, provider.profile.max_num_seqs, provider.most_replicas) == ("tiny", 3, 1)


def test_file_with_the_keys_of_a_pool_is_one_model_of_one_provider(tmp_path: Path) -> None:
    deployment = load(
        tmp_path,
        """
        profile: {preset: tight, max_num_seqs: 8}
        replicas:
          - {count: 2, region: eu-1}
          - {region: us-1, joins_after_s: 30}
        router: prefix_aware
        load_guard: 3
        cold_start: {boot_s: 10, warmup_s: 4, warmup_factor: 2.5}
        limits: {requests_per_minute: 600}
        """,
        model="m",
    )
    assert deployment.name == "mine"
    [model] = deployment.models
    assert model.name == "m"
    assert model.providers == (
        ProviderPlan(
            profile=msgspec.structs.replace(PRESETS["tight"], max_num_seqs=8),
            replicas=(ReplicaGroup(count=2, region="eu-1"), ReplicaGroup(region="us-1", joins_after_s=30)),
            router=Routing.PREFIX_AWARE,
            load_guard=3,
            cold_start=ColdStart(boot_s=10, warmup_s=4, warmup_factor=2.5),
            limits=Limits(requests_per_minute=600),
        ),
    )


def test_models_have_their_own_providers_and_files_are_found_beside_the_deployment(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("max_num_seqs: 5\n")
    deployment = load(
        tmp_path,
        """
        name: both
        models:
          a: {profile: own.yaml, autoscale: {max_replicas: 3}}
          b:
            providers:
              - {name: near, profile: demo, error_share: 0.1}
              - {name: far, profile: demo, latency_ms: 80, replicas: 2}
        """,
    )
    first, second = deployment.models
    assert (first.name, first.providers[0].profile.max_num_seqs) == ("a", 5)
    assert first.providers[0].autoscale == Autoscale(max_replicas=3)
    assert [(one.name, one.latency_ms, one.most_replicas) for one in second.providers] == [
        ("near", 0, 1),
        ("far", 80, 2),
    ]
    assert outline(deployment) == (
        "deployment both; model a: 1 to 3 replicas of own;"
        " model b: near: 1 replica of demo, then far: 2 replicas of demo"
    )
    assert replica_prefix(deployment, first, first.providers[0]) == "a"
    assert replica_prefix(deployment, second, second.providers[1]) == "b-far"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("replicas: 2\nroutr: round_robin\n", "unknown field `routr`", id="unknown-key"),
        pytest.param("router: random\n", "router: Invalid enum value 'random'", id="unknown-policy"),
        pytest.param("replicas: two\n", "replicas: Expected `int | array`", id="wrong-type"),
        pytest.param("replicas: 0\n", "replicas[0].count is 0, expected ≥ 1", id="no-replica"),
        pytest.param("replicas: []\n", "replicas is an empty list", id="empty-list"),
        pytest.param(
            "replicas: 100\n", "up to 100 replicas, expected at most 64", id="more-than-one-process-can-drive"
        ),
        pytest.param(
            "latency_ms: -1\nerror_share: 2\n",
            "latency_ms is -1, expected ≥ 0; error_share is 2, expected 0 to 1",
            id="all-faults-at-a-time",
        ),
        pytest.param("error_share: 0.1\nerror_status: 404\n", "error_status is 404", id="an-error-that-is-none"),
        pytest.param(
            "replicas: 5\nautoscale: {max_replicas: 4}\n", "5 replicas to begin with", id="outside-of-autoscaling"
        ),
        pytest.param(
            "replicas: [{joins_after_s: 3}]\nautoscale: {max_replicas: 4}\n",
            "joins_after_s and autoscale cannot be combined",
            id="two-masters",
        ),
        pytest.param("models: {}\n", "models is empty", id="no-model"),
        pytest.param("models: {a: {replicas: two}}\n", "models.a.replicas: Expected", id="place-in-a-model"),
        pytest.param(
            "models: {a: {providers: [{}, {}]}}\n", "providers are named main, main", id="providers-of-one-name"
        ),
        pytest.param("providers: [{profile: nowhere}]\n", "profile 'nowhere' is neither", id="unknown-profile"),
        pytest.param(
            "providers: [{}, {name: b, profile: {max_num_seqs: 0}}]\n",
            "providers[1].profile: profile 'demo': max_num_seqs is 0",
            id="place-of-a-profile",
        ),
        pytest.param("providers: [{}]\nreplicas: 2\n", "beside providers stands replicas", id="two-levels-at-a-time"),
        pytest.param("models: {a: {}}\nreplicas: 2\n", "beside models stands replicas", id="pool-beside-models"),
    ],
)
def test_mistake_is_told_with_its_file_and_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as told:
        load(tmp_path, text)
    assert str(told.value).startswith(str(tmp_path / "mine.yaml"))
    assert told.value.hint


def test_model_option_needs_a_deployment_that_does_not_name_its_models(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it names its models"):
        load(tmp_path, "models: {a: {}}\n", model="m")


def test_every_deployment_that_ships_loads_and_says_what_it_is_for() -> None:
    assert deployment_presets().keys() >= {"pair", "elastic", "gateway", "side-by-side"}
    assert not deployment_presets().keys() & PRESETS.keys()
    for name in deployment_presets():
        deployment = load_deployment(name)
        assert deployment.name == name
        assert deployment.description
        assert "\n" not in deployment.description


def test_page_explains_every_key_and_lists_every_deployment_that_ships() -> None:
    page = PAGE.read_text(encoding="utf-8")
    kinds = (ProviderPlan, ReplicaGroup, ColdStart, Autoscale)
    names = [*deployment_presets(), *(name for kind in kinds for name in kind.__struct_fields__)]
    assert [name for name in names if f"`{name}`" not in page] == []
