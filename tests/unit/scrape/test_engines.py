"""Each engine's text, with samples written `before -> after` two seconds apart, gives these fields."""

import re
from pathlib import Path

import msgspec
import pytest

from tokswarm.measure.server_second import ServerSecond
from tokswarm.scrape.engines import ENGINES
from tokswarm.scrape.rates import server_second
from tokswarm.scrape.reading import read_text

TEXTS = Path(__file__).parent / "texts"

COMMON = {"running": 4, "waiting": 2}

WANT: dict[str, tuple[str, dict[str, float]]] = {
    "vllm-v1": (
        "vllm",
        {
            "running": 4,
            "waiting": 7,
            "kv_use_ratio": 0.75,
            "kv_capacity_tokens": 2048,
            "hit_ratio": 0.25,
            "prompt_tok_per_s": 500,
            "cached_tok_per_s": 125,
            "generation_tok_per_s": 200,
            "preemptions_per_s": 1.5,
            "evictions_per_s": 3,
            "finished_per_s": 3,
            "aborted_per_s": 0.5,
            "failed_per_s": 1,
            "rejected_per_s": 4,
            "queue_wait_mean_ms": 350,
            "queue_wait_p50_ms": 375,
            "queue_wait_p90_ms": 475,
            "queue_wait_p99_ms": 497.5,
            "ttft_mean_ms": 250,
            "prefill_mean_ms": 50,
        },
    ),
    "vllm-v0": (
        "vllm",
        {
            "running": 4,
            "waiting": 7,
            "paused": 2,
            "kv_use_ratio": 0.5,
            "kv_capacity_tokens": 1600,
            "hit_ratio": 0.25,
            "prompt_tok_per_s": 100,
            "generation_tok_per_s": 50,
            "preemptions_per_s": 1,
            "finished_per_s": 1,
            "aborted_per_s": None,
            "queue_wait_mean_ms": 500,
        },
    ),
    "sglang": (
        "sglang",
        {
            "running": 4,
            "waiting": 7,
            "paused": 2,
            "kv_use_ratio": 0.8,
            "kv_capacity_tokens": 50000,
            "hit_ratio": 0.25,
            "prompt_tok_per_s": 200,
            "cached_tok_per_s": 50,
            "generation_tok_per_s": 150,
            "recomputed_tok_per_s": 40,
            "preemptions_per_s": 1,
            "evicted_tok_per_s": 350,
            "finished_per_s": 3,
            "aborted_per_s": 1,
            "queue_wait_mean_ms": 20,
            "ttft_mean_ms": 400,
            "prefill_mean_ms": 300,
        },
    ),
    "sglang-underscore": ("sglang", {"running": 4, "waiting": 6, "kv_use_ratio": 0.8, "hit_ratio": 0.4}),
    "tgi": (
        "tgi",
        {
            "running": 8,
            "waiting": 3,
            "prompt_tok_per_s": 500,
            "generation_tok_per_s": 250,
            "finished_per_s": 3,
            "failed_per_s": 1,
            "queue_wait_mean_ms": 50,
            "queue_wait_p50_ms": 50,
            "queue_wait_p90_ms": 89.2,
            "queue_wait_p99_ms": 98.02,
        },
    ),
    "tensorrt-llm": (
        "tensorrt-llm",
        {
            **COMMON,
            "paused": 1,
            "kv_use_ratio": 0.6,
            "kv_capacity_tokens": 32000,
            "hit_ratio": 0.25,
            "prompt_tok_per_s": 200,
            "generation_tok_per_s": 100,
            "finished_per_s": 2,
            "queue_wait_mean_ms": 100,
            "ttft_mean_ms": 200,
            "prefill_mean_ms": 50,
        },
    ),
    "llama.cpp": ("llama.cpp", {"running": 2, "waiting": 5, "prompt_tok_per_s": 100, "generation_tok_per_s": 50}),
    "lmdeploy": (
        "lmdeploy",
        {
            **COMMON,
            "kv_use_ratio": 0.3,
            "prompt_tok_per_s": 20,
            "generation_tok_per_s": 10,
            "finished_per_s": 1,
            "queue_wait_mean_ms": 250,
        },
    ),
    "nim": (
        "nim",
        {
            **COMMON,
            "kv_use_ratio": 0.4,
            "prompt_tok_per_s": 20,
            "generation_tok_per_s": 10,
            "finished_per_s": 1,
            "ttft_mean_ms": 150,
        },
    ),
    "dynamo": (
        "dynamo",
        {
            "running": 5,
            "waiting": 4,
            "hit_ratio": 0.25,
            "prompt_tok_per_s": 300,
            "cached_tok_per_s": 75,
            "generation_tok_per_s": 150,
            "evictions_per_s": 7,
            "finished_per_s": 3,
            "failed_per_s": 1,
            "ttft_mean_ms": 200,
        },
    ),
    "litellm": (
        "litellm",
        {
            "running": 12,
            "prompt_tok_per_s": 300,
            "generation_tok_per_s": 30,
            "finished_per_s": 3,
            "failed_per_s": 2,
            "ttft_mean_ms": 500,
        },
    ),
    "endpoint-picker": (
        "endpoint-picker",
        {
            "running": 9,
            "waiting": 12,
            "kv_use_ratio": 0.7,
            "hit_ratio": 0.25,
            "prompt_tok_per_s": 200,
            "cached_tok_per_s": 50,
            "generation_tok_per_s": 100,
            "finished_per_s": 4,
            "failed_per_s": 1,
            "rejected_per_s": 3,
            "queue_wait_mean_ms": 250,
            "ttft_mean_ms": 500,
            "replicas_ready": 3,
        },
    ),
    "endpoint-picker-2025": (
        "endpoint-picker",
        {
            "running": 9,
            "waiting": 7,
            "kv_use_ratio": 0.7,
            "prompt_tok_per_s": 200,
            "generation_tok_per_s": 100,
            "finished_per_s": 4,
            "failed_per_s": 1,
            "replicas_ready": 3,
        },
    ),
    "endpoint-picker-old": ("endpoint-picker", {"running": 9, "waiting": 6, "finished_per_s": 4, "replicas_ready": 3}),
}


def two_texts(name: str) -> tuple[str, str]:
    text = (TEXTS / f"{name}.txt").read_text(encoding="utf-8")
    return re.sub(r" -> .*", "", text), re.sub(r"\S+ -> ", "", text)


def fields(second: ServerSecond) -> dict[str, float]:
    skipped = {"unix_ns", "target", "replica", "up", "engine"}
    return {
        name: value
        for name, value in msgspec.structs.asdict(second).items()
        if value is not None and name not in skipped
    }


@pytest.mark.parametrize("name", sorted(WANT))
def test_an_engines_text_gives_one_point_in_the_names_of_all(name: str) -> None:
    before, after = (read_text(text) for text in two_texts(name))
    [(part, reading)] = after.parts.items()
    second = server_second(reading, before.parts[part], elapsed_s=2.0, unix_ns=1, target="t", replica="r")
    engine, want = WANT[name]
    assert second.engine == engine
    assert fields(second) == pytest.approx({key: value for key, value in want.items() if value is not None})


def test_every_text_has_its_expectation_and_every_engine_a_text() -> None:
    assert {path.stem for path in TEXTS.glob("*.txt")} == set(WANT)
    assert {engine for engine, _ in WANT.values()} == {engine.name for engine in ENGINES}


def test_the_text_of_a_real_vllm_gives_what_it_counted() -> None:
    path = Path(__file__).parents[2] / "data" / "server-metrics" / "vllm-0.32.0-cpu.metrics.txt"
    text = path.read_text(encoding="utf-8")
    began = re.sub(r"^(vllm:\S+_(?:total|bucket|count|sum)(?:\{.*\})?) \S+$", r"\1 0", text, flags=re.MULTILINE)
    snapshot = read_text(text)
    [(part, reading)] = snapshot.parts.items()
    assert part.identity == (("model_name", "tiny"), ("engine", "0"))
    assert snapshot.process == 1796144862.09
    second = server_second(reading, read_text(began).parts[part], elapsed_s=10, unix_ns=1, target="t", replica="r")
    assert fields(second) == pytest.approx(
        {
            "running": 0,
            "waiting": 0,
            "kv_use_ratio": 0,
            "kv_capacity_tokens": 4096,
            "hit_ratio": 45056 / 130825,
            "prompt_tok_per_s": 13082.5,
            "cached_tok_per_s": 4505.6,
            "generation_tok_per_s": 2280,
            "preemptions_per_s": 5.9,
            "evictions_per_s": 4.8,
            "finished_per_s": 63.5,
            "aborted_per_s": 0,
            "failed_per_s": 0,
            "rejected_per_s": 0,
            "queue_wait_mean_ms": 266.469400,
            "queue_wait_p50_ms": 294.891641,
            "queue_wait_p90_ms": 687.278107,
            "queue_wait_p99_ms": 788.727811,
            "ttft_mean_ms": 304.454914,
            "ttft_p50_ms": 306.137725,
            "ttft_p90_ms": 674.859551,
            "ttft_p99_ms": 841.25,
            "prefill_mean_ms": 19.120499,
        },
        rel=1e-6,
    )
