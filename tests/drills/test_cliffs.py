"""The live cliff watch on the real thing: `tokswarm run` against `tokswarm sim`, the master's log read as it grows.

How long after a storm or a limit begins is a cliff marked, with which cause, and does a quiet run stay quiet?
Takes four minutes; figures of one run are in docs/verification.md.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from endpoints import simulator
from product import environment, write_mix

from tokswarm.errors import LogError
from tokswarm.measure.window import Event
from tokswarm.sink.record_log import read_log

MIXES = Path(__file__).parents[2] / "locustfiles" / "mixes"


class Marked(NamedTuple):
    """A cliff, and when it was first in the master's log."""

    title: str
    text: str
    from_unix_s: float
    seen_unix_s: float


class Course(NamedTuple):
    """What a run said of itself."""

    stages: dict[str, float]
    """Name to start, Unix seconds."""
    cliffs: list[Marked]


def watch(mix: Path, data_dir: Path) -> Course:
    """Run a mix to its end, and read what the master logs meanwhile."""
    command = [sys.executable, "-m", "tokswarm", "run", str(mix), "--workers", "1", "--data-dir", str(data_dir)]
    stages: dict[str, float] = {}
    cliffs: dict[tuple[int, str], Marked] = {}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment()
    ) as process:
        while process.poll() is None:
            time.sleep(0.1)
            for event in events(data_dir):
                if event.kind == "stage":
                    stages[event.title] = event.unix_ns / 1e9
                elif event.kind == "cliff":
                    marked = Marked(event.title, event.text, event.unix_ns / 1e9, time.time())
                    cliffs.setdefault((event.unix_ns, event.title), marked)
        assert process.returncode in (0, 4), process.stderr.read() if process.stderr else ""
    return Course(stages, list(cliffs.values()))


def events(data_dir: Path) -> list[Event]:
    found: list[Event] = []
    for path in (data_dir / "runs").glob("*/logs/master.log"):
        try:
            with read_log(path) as reader:
                found += [entry for entry, _ in reader if isinstance(entry, Event)]
        except LogError:
            continue  # it has no header yet
    return found


def mix_of(name: str, base_url: str, folder: Path, **changes: Any) -> Path:
    document = yaml.safe_load((MIXES / f"{name}.yaml").read_text(encoding="utf-8"))
    document["target"]["base_url"] = base_url
    del document["name"]
    return write_mix(folder / f"{name}.yaml", base_url, **{**document, **changes})


def show(what: str, course: Course) -> None:
    for cliff in course.cliffs:
        print(f"\n{what}: {cliff.title}, from {cliff.from_unix_s:.0f}, seen {cliff.seen_unix_s:.1f}: {cliff.text}")


@pytest.mark.parametrize("metrics", ["auto", "off"])
def test_an_eviction_storm_is_marked_within_five_seconds_as_cache_churn(tmp_path: Path, metrics: str) -> None:
    with simulator("eviction-storm") as base_url:
        mix = mix_of("eviction-storm", base_url, tmp_path, target={"base_url": base_url, "metrics": metrics})
        course = watch(mix, tmp_path / "data")
    show(f"storm, metrics {metrics}, which began {course.stages['storm']:.1f}", course)
    [cliff] = course.cliffs
    assert cliff.title == "cliff: cache churn"
    assert 0 <= cliff.seen_unix_s - course.stages["storm"] <= 5


def test_a_limit_of_requests_is_marked_as_rate_limiting(tmp_path: Path) -> None:
    with simulator("rate-limited") as base_url:
        course = watch(mix_of("rate-limited", base_url, tmp_path), tmp_path / "data")
    show(f"limit, {course.stages}", course)
    assert {cliff.title for cliff in course.cliffs} == {"cliff: rate limiting"}
    assert any(cliff.from_unix_s >= course.stages["rate-18"] - 1 for cliff in course.cliffs)
    assert all(cliff.seen_unix_s - cliff.from_unix_s <= 5 for cliff in course.cliffs)


def test_a_quiet_run_is_not_marked(tmp_path: Path) -> None:
    load = [{"name": "calm", "rate": "22/s", "for": "40s", "classes": {"chat": 1}}]
    with simulator("eviction-storm") as base_url:
        course = watch(mix_of("eviction-storm", base_url, tmp_path, load=load), tmp_path / "data")
    assert course.cliffs == []
