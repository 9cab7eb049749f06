"""A plan travels to the workers and back without change."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tokswarm.errors import FleetError
from tokswarm.resources import resource_dir
from tokswarm.traffic.mixfile import load_mix
from tokswarm.traffic.plan import Plan, Shard
from tokswarm.traffic.planning import plan_stages
from tokswarm.traffic.units import dec_hook, enc_hook
from tokswarm.worker.messages import Ack, PlanMessage, decode, encode

MIXES = resource_dir("locustfiles") / "mixes"


@pytest.fixture(scope="session")
def plan_of(sample_plan: Callable[..., Plan]) -> Callable[[Path], Plan]:
    """Plans the mix in a file."""

    def planned(path: Path) -> Plan:
        mix = load_mix(path, {})
        return msgspec.structs.replace(sample_plan(), mix=mix, stages=plan_stages(mix, path.parent))

    return planned


@pytest.mark.parametrize("path", sorted(MIXES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_plan_comes_back_from_a_message_as_it_was(plan_of: Callable[[Path], Plan], path: Path) -> None:
    shard = Shard(plan=plan_of(path), worker_index=1, worker_count=3)
    message = PlanMessage(run_id="r1", shard=shard, deadline_s=90)
    data = encode(message)
    assert decode(PlanMessage, data) == message
    assert len(data) < 20_000


def test_a_plan_comes_back_from_json_with_its_durations_as_text(plan_of: Callable[[Path], Plan]) -> None:
    plan = plan_of(MIXES / "demo.yaml")
    data = msgspec.json.encode(plan, enc_hook=enc_hook)
    assert msgspec.json.decode(data, type=Plan, dec_hook=dec_hook) == plan
    assert msgspec.json.decode(data)["mix"]["load"][1]["for"] == "8s"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x81\xa6run_id", id="half"),
        pytest.param(encode(Ack(run_id="r", worker="w", wall_unix_ns=1)), id="another-message"),
        pytest.param(msgspec.msgpack.encode({"run_id": 5}), id="wrong-type"),
    ],
)
def test_bytes_that_are_no_message_are_a_fleet_error_with_a_hint(data: bytes) -> None:
    with pytest.raises(FleetError, match=r"a PlanMessage message of .* cannot be read") as caught:
        decode(PlanMessage, data)
    assert "same version" in caught.value.hint
