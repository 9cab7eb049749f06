"""Several endpoints in one run: two compared under mirrored load, one that falls back, and one that dies."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from endpoints import simulator
from product import RunFolder, ended, only_run, run_mix, started, truth_since, write_mix

from tokswarm.measure.record import Outcome

CHAT = {
    "name": "chat",
    "prompt": {"tokens": {"uniform": {"low": 40, "high": 160}}, "shared_prefix": {"groups": 4, "tokens": 32}},
    "output": {"max_tokens": {"uniform": {"low": 8, "high": 24}}, "ignore_eos": True},
}
SLOWER = 1.5
USERS = 4


def write_targets_mix(path: Path, targets: dict[str, str], **parts: Any) -> Path:
    named = [{"name": name, "base_url": base_url, "metrics": "off"} for name, base_url in targets.items()]
    write_mix(path, "", classes=[CHAT], **parts)
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    del document["target"]
    path.write_text(yaml.safe_dump({**document, "targets": named}, sort_keys=False), encoding="utf-8")
    return path


def profile(folder: Path, name: str, weights_read_us: float) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"name": name, "weights_read_us": weights_read_us, "token_compute_us": 10}))
    return path


# --- compared -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Over two workers 25 requests/s to each of two servers, then four users for each."""
    folder = tmp_path_factory.mktemp("compared")
    with (
        simulator(profile(folder, "quick", 4000)) as quick,
        simulator(profile(folder, "slow", 4000 * SLOWER)) as slow,
    ):
        mix = write_targets_mix(
            folder / "ab.yaml",
            {"quick": quick, "slow": slow},
            split="mirror",
            load=[
                {"name": "open", "rate": "25/s", "for": "5s"},
                {"name": "users", "concurrency": USERS, "for": "4s"},
            ],
        )
        return run_mix(mix, folder / "data", workers=2)


def test_mirrored_requests_are_equal_in_length_and_time(compared: RunFolder) -> None:
    asked = {
        target: [
            (record.prompt_tokens_planned, record.max_tokens)
            for record in compared.records("open")
            if record.target == target
        ]
        for target in ("quick", "slow")
    }
    assert len(asked["quick"]) > 80
    # Pairs due at one instant, in any order: each target has its own half.
    assert sorted(asked["quick"]) == sorted(asked["slow"])
    due = {t: sorted(r.planned_ns for r in compared.records("open") if r.target == t) for t in ("quick", "slow")}
    assert due["quick"] == due["slow"]


def test_the_slower_server_is_found(compared: RunFolder) -> None:
    [comparison] = compared.stage("open")["comparisons"]
    assert (comparison["first"], comparison["other"]) == ("quick", "slow")
    ratios = {each["figure"]: each for each in comparison["ratios"]}
    assert 1 < ratios["itl_p50_ms"]["low"] <= ratios["itl_p50_ms"]["ratio"]
    assert ratios["e2e_p50_ms"]["low"] > 1
    assert ratios["itl_p50_ms"]["ratio"] == pytest.approx(SLOWER, rel=0.15)
    assert ratios["ok_ratio"]["ratio"] == 1


def test_each_target_has_users_of_its_own(compared: RunFolder) -> None:
    """Both are held at four in flight, and the quicker one answers more for it."""
    stage = compared.stage("users")
    assert stage["concurrency"] == USERS
    quick, slow = stage["targets"]["quick"], stage["targets"]["slow"]
    for target in (quick, slow):
        assert target["in_flight_mean"] == pytest.approx(USERS, rel=0.1)
    assert quick["requests"]["ok"] > 1.2 * slow["requests"]["ok"]
    [comparison] = stage["comparisons"]
    [rate] = [each for each in comparison["ratios"] if each["figure"] == "output_tok_per_s"]
    assert rate["high"] < 1


def test_each_target_is_counted_as_its_own_tokenizer_says(compared: RunFolder) -> None:
    for record in compared.records("open"):
        assert record.prompt_tokens is not None
        assert record.prompt_tokens == pytest.approx(record.prompt_tokens_planned, rel=0.05, abs=2)


# --- in trouble -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFolder]:
    """A gateway whose first provider fails one in twenty, and a server that is killed while requests come."""
    folder = tmp_path_factory.mktemp("troubled")
    with simulator("gateway-fallback", model=None) as gateway:
        with simulator("fast") as dying:
            mix = write_targets_mix(
                folder / "trouble.yaml",
                {"gateway": gateway, "dying": dying},
                load=[{"name": "load", "rate": "40/s", "for": "6s"}],
            )
            command = started("run", mix, "--workers", 2, "--data-dir", folder / "data")
            process = command.__enter__()
            seen = len(truth_since(dying, 0))
            deadline_s = time.monotonic() + 60
            while len(truth_since(dying, 0)) < seen + 15 and time.monotonic() < deadline_s:
                time.sleep(0.05)
        end = ended(process)
        command.__exit__(None, None, None)
        assert (folder / "data" / "runs").is_dir(), end
        yield only_run(folder / "data")


def test_what_a_dead_target_fails_is_its_own(troubled: RunFolder) -> None:
    targets = troubled.stage("load")["targets"]
    dying = targets["dying"]["requests"]
    assert dying["ok"] >= 5
    assert dying[Outcome.RESET] > 20
    assert sum(dying.values()) == sum(record.target == "dying" for record in troubled.records())
    assert "refused" in targets["dying"]["failures"][0]["error"].lower()
    assert set(targets["gateway"]["requests"]) == {"ok"}
    assert targets["gateway"]["failures"] == []


def test_requests_are_shared_by_weight_however_a_target_fares(troubled: RunFolder) -> None:
    shares = {name: sum(part["requests"].values()) for name, part in troubled.stage("load")["targets"].items()}
    total = sum(shares.values())
    assert 180 < total < 300
    assert abs(shares["gateway"] - total / 2) < 4 * (total / 4) ** 0.5


def test_answers_of_the_second_provider_are_named_fallbacks(troubled: RunFolder) -> None:
    stage = troubled.stage("load")
    found = stage["targets"]["gateway"]["fallbacks"]
    fell = [record for record in troubled.records() if record.fell_back]
    assert found["requests"] == len(fell) > 0
    assert found["known"] == sum(record.target == "gateway" for record in troubled.records())
    assert all(name.startswith("second") for name in found["servers"])
    assert sum(found["servers"].values()) == len(fell)
    assert stage["targets"]["dying"]["fallbacks"]["requests"] == 0
