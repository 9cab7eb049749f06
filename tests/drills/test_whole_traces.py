"""Whole recorded traces through the product, against what their files say: lengths, order, times, shared prefixes.

`TOKSWARM_TRACES` names the folder with the files of locustfiles/traces/README.md, whole. Two and three minutes.
"""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from endpoints import simulator
from product import RunFolder, assert_good, ended, only_run, started, truth_since
from replayed_trace import (
    AMPLE_PROFILE,
    STAGE,
    Compared,
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

LATE_P99_MS = 10.0
SHARING_POINTS = 1.0
WORKERS = 2
TIMEOUT_S = 280


class Replayed(NamedTuple):
    """A trace and how it is replayed."""

    file: str
    read: Callable[[Path], list[Row]]
    speed: float
    api: str


AZURE = Replayed("AzureLLMInferenceTrace_conv.csv", azure_rows, 30, "completions")
MOONCAKE = Replayed("mooncake_conversation_trace.first.jsonl", mooncake_rows, 20, "chat")


@pytest.mark.parametrize("trace", [pytest.param(AZURE, id="azure"), pytest.param(MOONCAKE, id="mooncake")])
def test_a_whole_trace_is_sent_as_its_file_says(trace: Replayed, tmp_path: Path) -> None:
    folder = os.environ.get("TOKSWARM_TRACES", "")
    if not folder or not Path(folder, trace.file).is_file():
        pytest.skip(f"TOKSWARM_TRACES names no folder with {trace.file}")
    shutil.copy(Path(folder, trace.file), tmp_path)
    profile = tmp_path / "ample.yaml"
    profile.write_text(AMPLE_PROFILE)
    with simulator(profile) as base_url:
        mix = replay_mix(tmp_path, base_url, api=trace.api, file=trace.file, speed=trace.speed)
        run, truth = _run(mix, tmp_path / "data", base_url)
    _judge(trace, trace.read(tmp_path / trace.file), run, truth)


def _run(mix: Path, data_dir: Path, base_url: str) -> tuple[RunFolder, list[dict[str, Any]]]:
    """The run, and the server's account of it, fetched meanwhile as it keeps only so much."""
    truth: list[dict[str, Any]] = []
    over = threading.Event()

    def fetch() -> None:
        while not over.wait(1):
            truth.extend(_short(truth_since(base_url, len(truth))))

    fetcher = threading.Thread(target=fetch)
    fetcher.start()
    try:
        with started("run", mix, "--workers", WORKERS, "--data-dir", data_dir) as process:
            end = ended(process, timeout_s=TIMEOUT_S)
    finally:
        over.set()
        fetcher.join()
    truth.extend(_short(truth_since(base_url, len(truth))))
    assert [each["sequence"] for each in truth] == list(range(len(truth))), "a part of the account was not fetched"
    run = only_run(data_dir)
    assert_good(end, run)
    return run, truth


def _short(page: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("sequence", "arrival_ns", "prompt_tokens", "output_tokens", "cached_tokens")
    return [{name: each[name] for name in names} for each in page]


def _judge(trace: Replayed, rows: list[Row], run: RunFolder, truth: list[dict[str, Any]]) -> None:
    began_ns = start_ns(run)
    served = [each for each in truth if each["arrival_ns"] >= began_ns]
    sent = records(run)
    sides = {
        "client": compared(rows, by_client(sent), speed=trace.speed),
        "server": compared(rows, by_server(served, began_ns), speed=trace.speed),
    }
    prompt_tokens = sum(row.prompt_tokens for row in rows)
    ideal = 100 * ideal_sharing(rows).ratio
    cached = 100 * sum(each["cached_tokens"] for each in served) / prompt_tokens
    known = 100 * sent["ideal_cached_tokens"].sum() / prompt_tokens
    load = run.run_file["stages"][0]["load"]
    cut = load["prompts_cut"] + load["outputs_cut"]
    lines = [_line("rows cut to limits", f"{cut} of {len(rows)}", cut == 0)]
    for name, side in sides.items():
        lines += [
            _line(f"{name}: rows not sent, or with other lengths", side.missing, side.missing == 0),
            _line(f"{name}: requests that are no row", side.beyond, side.beyond == 0),
            _line(f"{name}: rows out of order", side.out_of_order, side.out_of_order == 0),
            _line(f"{name}: time error p50, p99, max, ms", _times(side), side.late_at(0.99) <= LATE_P99_MS),
        ]
    lines += [
        _line(
            "shared by the server, by the file, %", f"{cached:.2f}, {ideal:.2f}", abs(cached - ideal) <= SHARING_POINTS
        ),
        _line("shared as planned, by the file, %", f"{known:.2f}, {ideal:.2f}", abs(known - ideal) <= SHARING_POINTS),
    ]
    seconds = run.stage_times(STAGE)
    took_s = (seconds["stop_unix_ns"] - seconds["start_unix_ns"]) / 1e9
    verdict = run.summary["verdict"]["state"]
    print(f"\n{trace.file} at {trace.speed:g} in {took_s:.0f} s, {WORKERS} workers, verdict {verdict}")
    print("\n".join(lines))
    assert not [line for line in lines if line.endswith("MISS")], lines


def _times(side: Compared) -> str:
    return f"{side.late_at(0.5):.2f}, {side.late_at(0.99):.2f}, {side.late_ms[-1]:.2f}"


def _line(what: str, measured: object, is_held: bool) -> str:
    return f"{what:46} {measured!s:24} {'pass' if is_held else 'MISS'}"
