"""The beginnings of the traces that ship, replayed, are what their files say. The whole ones: tests/drills."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from endpoints import simulator
from product import BUSY_MACHINE, run_mix, truth
from replayed_trace import (
    AMPLE_PROFILE,
    Row,
    azure_rows,
    by_client,
    by_server,
    compared,
    ideal_sharing,
    mooncake_rows,
    records,
    replay_mix,
    start_ns,
)

TRACES = Path(__file__).parents[2] / "locustfiles" / "traces"
PACKING_S = 1e-6
"""Times in the plan are whole nanoseconds, and those of the file's floats a little off."""
LATE_P50_MS = 10.0
"""Where the run does not say that its machine was too busy; the times themselves are held by tests/drills."""


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    profile = tmp_path_factory.mktemp("profile") / "ample.yaml"
    profile.write_text(AMPLE_PROFILE)
    with simulator(profile) as url:
        yield url


@pytest.mark.parametrize(
    ("file", "read", "rows", "speed", "api"),
    [
        pytest.param("azure_conversation.csv", azure_rows, 400, 25, "completions", id="azure"),
        pytest.param("mooncake_conversation.jsonl", mooncake_rows, 250, 30, "chat", id="mooncake"),
    ],
)
def test_a_replay_sends_what_the_file_says(
    base_url: str,
    tmp_path: Path,
    file: str,
    read: Callable[..., list[Row]],
    rows: int,
    speed: float,
    api: str,
) -> None:
    shutil.copy(TRACES / file, tmp_path)
    mix = replay_mix(tmp_path, base_url, api=api, file=file, speed=speed, rows=rows)
    run = run_mix(mix, tmp_path / "data", workers=2)
    began_ns = start_ns(run)
    served = truth(base_url, began_ns)
    want, sent = read(TRACES / file, rows=rows), records(run)

    assert sent.select("prompt_tokens", "output_tokens").rows() == [(row[1], row[2]) for row in want]
    assert sent["due_s"].to_list() == pytest.approx([row.at_s / speed for row in want], abs=PACKING_S)
    is_busy = bool(BUSY_MACHINE & {reason["cause"] for reason in run.summary["verdict"]["reasons"]})
    for came in (by_client(sent), by_server(served, began_ns)):
        side = compared(want, came, speed=speed)
        assert (side.missing, side.beyond) == (0, 0)
        assert is_busy or side.late_at(0.5) <= LATE_P50_MS
    ideal = ideal_sharing(want)
    assert sum(each["cached_tokens"] for each in served) / ideal.prompt_tokens == pytest.approx(ideal.ratio, abs=0.01)
    assert sent["ideal_cached_tokens"].sum() == ideal.cached_tokens
