import json
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from tokswarm.insight import tables
from tokswarm.insight.cliff_list import CliffFound, read_cliffs
from tokswarm.insight.run_file import StageTimes
from tokswarm.insight.server_stage import ServerStage, server_stages
from tokswarm.measure.server_second import ServerSecond

S = 1_000_000_000
TIMES = [
    StageTimes(name="calm", start_unix_ns=100 * S, stop_unix_ns=103 * S, end_unix_ns=103 * S),
    StageTimes(name="storm", start_unix_ns=104 * S, stop_unix_ns=106 * S, end_unix_ns=107 * S),
]


def readings(*rows: dict[str, Any]) -> pl.DataFrame:
    """Readings of one vLLM, unless said otherwise."""
    base = {"target": "t", "replica": "h:1", "up": 1, "engine": "vllm"}
    seconds = [ServerSecond(**{**base, **row, "unix_ns": int(row["unix_ns"] * S)}) for row in rows]
    table = pl.DataFrame([msgspec.structs.asdict(second) for second in seconds], infer_schema_length=None)
    return tables.conform(table, tables.SERVER, "server").collect()


def stages(*rows: dict[str, Any]) -> list[ServerStage]:
    return server_stages(readings(*rows), TIMES)


def test_means_weigh_as_the_requests_that_ended_and_counts_are_whole() -> None:
    [calm] = stages(
        {"unix_ns": 101.2, "waiting": 1, "queue_wait_mean_ms": 10.0, "finished_per_s": 3.0, "preemptions_per_s": 2.0},
        {"unix_ns": 102.2, "waiting": 3, "queue_wait_mean_ms": 50.0, "finished_per_s": 1.0, "preemptions_per_s": 4.0},
    )
    assert (calm.stage, calm.engine, calm.seconds, calm.silent_seconds) == ("calm", "vllm", 2, 0)
    assert (calm.waiting_mean, calm.waiting_max, calm.preemptions) == (2.0, 3, 6)
    assert calm.queue_wait_mean_ms == pytest.approx(20.0)
    assert (calm.evictions, calm.ttft_mean_ms, calm.hit_ratio) == (None, None, None)


def test_hits_weigh_as_the_prompt_tokens_they_are_of() -> None:
    [calm] = stages(
        {"unix_ns": 101.2, "hit_ratio": 0.9, "prompt_tok_per_s": 100.0},
        {"unix_ns": 102.2, "hit_ratio": 0.1, "prompt_tok_per_s": 300.0},
    )
    assert calm.hit_ratio == pytest.approx(0.3)


def test_a_reading_after_silence_counts_for_the_whole_time() -> None:
    [calm] = stages(
        {"unix_ns": 100.6, "evictions_per_s": 1.0},
        {"unix_ns": 101.6, "up": 0},
        {"unix_ns": 102.6, "evictions_per_s": 5.0, "version": "1.2"},
    )
    assert (calm.seconds, calm.silent_seconds, calm.version) == (3, 1, "1.2")
    assert calm.evictions == 6


def test_a_reading_belongs_to_the_stage_that_most_of_its_time_is_in() -> None:
    told = stages(
        {"unix_ns": 103.2, "waiting": 1},
        {"unix_ns": 104.2, "waiting": 9},  # of the drain and the pause before
        {"unix_ns": 105.2, "waiting": 5},
    )
    assert [(each.stage, each.waiting_max) for each in told] == [("calm", 1), ("storm", 5)]


def test_each_replica_has_its_own_entry_in_each_stage() -> None:
    told = stages(
        *(
            {"unix_ns": at, "replica": replica, "target": target}
            for at in (102.0, 106.9)
            for target, replica in (("b", "h:2"), ("a", "h:9"), ("a", "h:1"))
        )
    )
    assert [(each.stage, each.target, each.replica) for each in told] == [
        (stage, target, replica)
        for stage in ("calm", "storm")
        for target, replica in (("a", "h:1"), ("a", "h:9"), ("b", "h:2"))
    ]


def test_a_run_without_readings_has_no_servers() -> None:
    assert server_stages(tables.empty(tables.SERVER), TIMES) == []


def test_cliffs_are_the_events_of_their_kind_with_the_stage_they_began_in(tmp_path: Path) -> None:
    events = [
        {"unix_ns": 104 * S, "kind": "cliff", "title": "cliff: cache churn", "text": "why", "end_unix_ns": 107 * S},
        {"unix_ns": 100 * S, "kind": "stage", "title": "calm", "text": "", "end_unix_ns": None},
        {"unix_ns": 99 * S, "kind": "cliff", "title": "cliff: errors", "text": "e", "end_unix_ns": None},
    ]
    (tmp_path / "events.json").write_text(json.dumps(events))
    assert read_cliffs(tmp_path, TIMES) == [
        CliffFound(cause="errors", stage=None, from_unix_ns=99 * S, to_unix_ns=None, evidence="e"),
        CliffFound(cause="cache churn", stage="storm", from_unix_ns=104 * S, to_unix_ns=107 * S, evidence="why"),
    ]


@pytest.mark.parametrize("content", [None, "no json", "{}"])
def test_a_folder_without_readable_events_has_no_cliffs(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "events.json").write_text(content)
    assert read_cliffs(tmp_path, TIMES) == []
