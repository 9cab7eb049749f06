"""Runs against endpoints that nobody here wrote: what tokswarm reports must be what they counted.

docs/verification.md says how to get each of them. `-s` prints both sides of every comparison.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from counting_proxy import CountingProxy, Passed
from third_party import (
    CHECKOUT,
    Counters,
    counted_by_tokswarm,
    free_port,
    measured_window_ns,
    run,
    run_mix,
    served,
    venv_of,
)

MOONCAKE = CHECKOUT / "locustfiles" / "mixes" / "mooncake-conversation.yaml"
CHAT_SWEEP = CHECKOUT / "locustfiles" / "mixes" / "chat-sweep.yaml"
VLLM_URL = os.environ.get("TOKSWARM_VLLM_URL", "")
vllm = pytest.mark.skipif(not VLLM_URL, reason="TOKSWARM_VLLM_URL names no running vLLM (docs/verification.md)")


def replay_size() -> dict[str, str]:
    """A short cut of the trace, unless the environment asks for another."""
    return {"TRACE_ROWS": "60", "TRACE_SPEED": "4", **{k: v for k, v in os.environ.items() if k.startswith("TRACE_")}}


def load_began_unix_ns(summary: dict[str, Any]) -> int:
    """The preflight's own probes came before."""
    return int(summary["stages"][0]["started_unix_ns"])


def show(what: str, server: dict[str, Any], tokswarm: dict[str, Any]) -> None:
    print(f"\n{what}\n  server   {server}\n  tokswarm {tokswarm}")


def compare_rates(stage: dict[str, Any], passed: list[Passed]) -> None:
    """Requests and tokens in the stage's measured window, per second: as reported, and as they passed the proxy."""
    begin_unix_ns, end_unix_ns = measured_window_ns(stage)
    seconds = stage["duration_s"]
    begun = sum(begin_unix_ns <= each.arrived_unix_ns < end_unix_ns for each in passed)
    tokens = sum(
        each.output_tokens / len(each.token_unix_ns)
        for each in passed
        for at_unix_ns in each.token_unix_ns
        if begin_unix_ns <= at_unix_ns < end_unix_ns
    )
    reported = {name: stage[name] for name in ("achieved_per_s", "output_tok_per_s")}
    show("rates", {"achieved_per_s": begun / seconds, "output_tok_per_s": tokens / seconds}, reported)
    # at the edges of the window a request, and the tokens of a packet, may be on either side
    assert reported["achieved_per_s"] * seconds == pytest.approx(begun, abs=2)
    assert reported["output_tok_per_s"] == pytest.approx(tokens / seconds, rel=0.03)


# --- LiteLLM's proxy ------------------------------------------------------------------------------

LITELLM_KEY = "sk-of-the-tests"
LITELLM_CONFIG = """
model_list:
  - model_name: mock
    litellm_params: {model: openai/mock, api_key: none, mock_response: "MOCK"}
litellm_settings: {callbacks: litellm_counts.counter, telemetry: false}
general_settings: {master_key: KEY}
"""


@pytest.fixture(scope="module")
def litellm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A proxy that answers by itself; its base URL, and the file of its accounts."""
    venv = venv_of("litellm")
    if venv is None:
        pytest.skip("LiteLLM's proxy is not installed: sh tests/install-third-party.sh")
    folder = tmp_path_factory.mktemp("litellm")
    shutil.copy(Path(__file__).with_name("litellm_counts.py"), folder)
    text = "A mock answer of a length that is not the number of its events. " * 3
    config = LITELLM_CONFIG.replace("MOCK", text).replace("KEY", LITELLM_KEY)
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    port, counts = free_port(), folder / "counts.jsonl"
    command = [venv / "bin" / "litellm", "--config", folder / "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    environ = {"LITELLM_COUNTS": str(counts), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}
    with served(command, port=port, ready="/health/liveliness", log=folder / "output", environ=environ) as base_url:
        yield base_url, counts


def accounts_since(unix_ns: int, counts: Path) -> list[dict[str, Any]]:
    accounts = [json.loads(line) for line in counts.read_text().splitlines()]
    return [account for account in accounts if account["begun_unix_ns"] >= unix_ns]


def keyed_mix(folder: Path) -> Path:
    """The shipped mix with its line for a key taken in."""
    text = MOONCAKE.read_text(encoding="utf-8")
    path = folder / "keyed.yaml"
    path.write_text(text.replace("# key: env:OPENAI_API_KEY", "key: env:OPENAI_API_KEY"), encoding="utf-8")
    return path


def test_a_replay_through_litellm_is_reported_as_litellm_accounts_for_it(
    litellm: tuple[str, Path], tmp_path: Path
) -> None:
    base_url, counts = litellm
    counts.unlink(missing_ok=True)
    with CountingProxy(base_url) as proxy:
        mix = keyed_mix(tmp_path)
        summary = run_mix(mix, proxy.base_url, tmp_path, OPENAI_API_KEY=LITELLM_KEY, **replay_size())
    tokswarm = counted_by_tokswarm(summary)
    started_unix_ns = load_began_unix_ns(summary)
    expected = sum(each.arrived_unix_ns >= started_unix_ns for each in proxy.passed)
    deadline_s = time.monotonic() + 20
    while len(load := accounts_since(started_unix_ns, counts)) < expected:  # LiteLLM accounts after it has answered
        assert time.monotonic() < deadline_s, f"{len(load)} accounts of {expected} requests"
        time.sleep(0.2)
    server = {
        "requests": {"ok": sum(account["outcome"] == "ok" for account in load)},
        "output_tokens": sum(account["output_tokens"] for account in load),
        "prompt_tokens": sum(account["prompt_tokens"] for account in load),
    }
    show("LiteLLM", server, tokswarm)
    assert tokswarm == server
    assert summary["token_sources"] == {"usage": 1.0}
    compare_rates(summary["stages"][-1], proxy.passed)


@pytest.mark.parametrize(
    ("key", "model", "words"),
    [
        pytest.param("sk-wrong", "mock", "does the endpoint refuse the key of env:OPENAI_API_KEY?", id="wrong-key"),
        pytest.param(LITELLM_KEY, "no-such", "set target.model to one that the endpoint lists: mock", id="wrong-model"),
    ],
)
def test_litellm_refuses_and_the_preflight_says_what_to_do(
    litellm: tuple[str, Path], tmp_path: Path, key: str, model: str, words: str
) -> None:
    done = run(keyed_mix(tmp_path), litellm[0], tmp_path, OPENAI_API_KEY=key, MODEL=model)
    assert done.returncode == 2
    assert words in done.stderr
    assert key not in done.stderr


# --- guidellm's mock server -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def guidellm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The mock server of guidellm, with answers of differing length; its base URL."""
    venv = venv_of("guidellm")
    if venv is None:
        pytest.skip("guidellm is not installed: sh tests/install-third-party.sh guidellm")
    port = free_port()
    command: list[str | Path] = [venv / "bin" / "guidellm", "mock-server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", "mock", "--ttft-ms", "60", "--itl-ms", "8", "--output-tokens", "90"]
    command += ["--output-tokens-std", "45"]
    log = tmp_path_factory.mktemp("guidellm") / "output"
    environ = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    with served(command, port=port, ready="/health", log=log, environ=environ) as base_url:
        yield base_url


def test_a_replay_against_guidellms_mock_is_reported_as_it_passed_a_counting_proxy(
    guidellm: str, tmp_path: Path
) -> None:
    with CountingProxy(guidellm) as proxy:
        summary = run_mix(MOONCAKE, proxy.base_url, tmp_path, **replay_size())
    load = [each for each in proxy.passed if each.arrived_unix_ns >= load_began_unix_ns(summary)]
    ok = [passed for passed in load if passed.output_tokens]
    server = {
        "requests": {"ok": len(ok)} | ({"empty": len(load) - len(ok)} if len(ok) < len(load) else {}),
        "output_tokens": sum(passed.output_tokens for passed in load),
        "prompt_tokens": sum(passed.prompt_tokens for passed in ok),
    }
    tokswarm = counted_by_tokswarm(summary)
    show("guidellm", server, tokswarm)
    assert all(passed.status == 200 and passed.answered for passed in load)
    assert tokswarm == server
    compare_rates(summary["stages"][-1], proxy.passed)


# --- vLLM -----------------------------------------------------------------------------------------


def compare_with_vllm(mix: Path, folder: Path, **environ: str) -> dict[str, Any]:
    """Run a mix against the running vLLM, compare what both counted; the summary."""
    with Counters(VLLM_URL) as counters:
        summary = run_mix(mix, VLLM_URL, folder, **environ)
        time.sleep(2)  # vLLM publishes its counters after each step
    before, after = counters.before(load_began_unix_ns(summary)), counters.last
    assert before["vllm:request_success_total"] > counters.first["vllm:request_success_total"], "the probes"
    for sample in (before, after):
        assert sample["vllm:num_requests_running"] == sample["vllm:num_requests_waiting"] == 0

    def grown(name: str) -> int:
        return round(after[f"vllm:{name}"] - before[f"vllm:{name}"])

    server = {
        "requests": {"ok": grown("request_success_total")},
        "output_tokens": grown("generation_tokens_total"),
        "prompt_tokens": grown("prompt_tokens_total"),
    }
    tokswarm = counted_by_tokswarm(summary)
    show(f"vLLM, {mix.stem}", server, tokswarm)
    assert tokswarm == server

    parts = (summary["warmup_totals"], summary["totals"])
    cached = sum(part["cached_tokens"] for part in parts)
    show("cached tokens", {"prompt_tokens_cached": grown("prompt_tokens_cached_total")}, {"cached": cached})
    assert cached == grown("prompt_tokens_cached_total")

    waits = pl.read_parquet(folder / "runs" / summary["run_id"] / "requests.parquet", columns=["queue_wait_ms"])
    queue_s = after["vllm:request_queue_time_seconds_sum"] - before["vllm:request_queue_time_seconds_sum"]
    show("queue wait, s", {"sum": queue_s}, {"sum": waits["queue_wait_ms"].sum() / 1e3})
    assert waits["queue_wait_ms"].null_count() == 0
    assert waits["queue_wait_ms"].sum() / 1e3 == pytest.approx(queue_s, rel=0.01, abs=0.01)

    for stage in summary["stages"]:
        window_ns = measured_window_ns(stage)
        tok_per_s = counters.grown("vllm:generation_tokens_total", *window_ns) / stage["duration_s"]
        show(f"{stage['name']}, tok/s", {"": round(tok_per_s, 1)}, {"": stage["output_tok_per_s"]})
        assert stage["output_tok_per_s"] == pytest.approx(tok_per_s, rel=0.05, abs=20)
    compare_server_metrics(folder / "runs" / summary["run_id"], summary, counters)
    return summary


def compare_server_metrics(run_folder: Path, summary: dict[str, Any], counters: Counters) -> None:
    """What the master read of vLLM each second, against vLLM's counters read ten times a second by this test."""
    table = pl.read_parquet(run_folder / "server.parquet").sort("unix_ns")
    assert table["engine"].unique().to_list() == ["vllm"]
    assert table["version"][-1].startswith("0.")
    assert table["up"].min() == 1
    table = table.with_columns(since_s=pl.col("unix_ns").diff() / 1e9).drop_nulls("since_s")
    began_ns, ended_ns = table["unix_ns"][0], table["unix_ns"][-1]
    for field, name in (
        ("generation_tok_per_s", "generation_tokens_total"),
        ("prompt_tok_per_s", "prompt_tokens_total"),
        ("cached_tok_per_s", "prompt_tokens_cached_total"),
        ("finished_per_s", "request_success_total"),
        ("preemptions_per_s", "num_preemptions_total"),
    ):
        read = float((table[field] * table["since_s"])[1:].sum())
        counted = counters.grown(f"vllm:{name}", began_ns, ended_ns)
        show(f"server metrics, {field}", {name: round(counted, 1)}, {"read": round(read, 1)})
        assert read == pytest.approx(counted, rel=0.03, abs=3)
    stages = {stage["name"]: stage for stage in summary["stages"]}
    for server in summary["servers"]:
        stage = stages[server["stage"]]
        waits = pl.read_parquet(run_folder / "requests.parquet", columns=["stage", "queue_wait_ms"])
        mean_ms = float(waits.filter(pl.col("stage") == server["stage"])["queue_wait_ms"].mean())  # type: ignore[arg-type]
        show(f"{stage['name']}, queue wait", {"mean": server["queue_wait_mean_ms"]}, {"mean": mean_ms})
        assert server["queue_wait_mean_ms"] == pytest.approx(mean_ms, rel=0.25, abs=10)


@vllm
def test_a_replay_against_vllm_is_reported_as_its_counters_say(tmp_path: Path) -> None:
    compare_with_vllm(MOONCAKE, tmp_path, **replay_size())


@vllm
def test_a_sweep_against_vllm_is_reported_as_its_counters_say_and_queues_where_vllm_is_full(tmp_path: Path) -> None:
    text = CHAT_SWEEP.read_text(encoding="utf-8")
    for long, short in (
        ("{p50: 1020, p99: 4142}, min: 64, max: 6000", "{p50: 300, p99: 900}, min: 64, max: 1200"),
        ("groups: 20, tokens: 512", "groups: 20, tokens: 128"),
        ("{p50: 129, p99: 601}, min: 8, max: 1000", "{p50: 40, p99: 160}, min: 8, max: 200"),
        ("[1, 2, 4, 8, 16, 32, 64], for: 30s", "[1, 4, 16, 64], for: 8s"),
        ("for: 15s, warmup: true", "for: 4s, warmup: true"),
    ):
        assert long in text
        text = text.replace(long, short)
    mix = tmp_path / "small-sweep.yaml"
    mix.write_text(text, encoding="utf-8")
    summary = compare_with_vllm(mix, tmp_path)
    waits_ms = [stage["queue_wait_ms"]["p50"] for stage in summary["stages"] if not stage["warmup"]]
    assert waits_ms[0] < 20 < waits_ms[-1]
    assert {stage["queue_wait_source"] for stage in summary["stages"]} == {"server"}
