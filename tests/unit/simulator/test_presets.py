"""Computed presets: the arithmetic by hand, the cards' own figures, and the page's table."""

import random
from pathlib import Path

import msgspec
import pytest
from virtual_engine import PLAIN

from tokswarm.errors import ConfigError
from tokswarm.simulator.presets import GPUS, MODELS, computed_presets, gpus_needed
from tokswarm.simulator.profile import PRESETS, Profile

PAGE = Path(__file__).parents[3] / "docs" / "simulator.md"
COMPUTED = [str(parameters["name"]) for parameters in computed_presets()]
CONTEXT_TOKENS = 1_000


def per_s(profile: Profile, streams: int) -> float:
    """Tokens a second of so many streams that decode over a context of 1,000 tokens each."""
    step_us = profile.step_us(step_tokens=streams, context_tokens=streams * CONTEXT_TOKENS, sequences=streams)
    return streams * 1e6 / step_us


def prefill_per_s(profile: Profile) -> float:
    """Prompt tokens a second in steps that are full of them."""
    tokens = profile.max_step_tokens
    return tokens * 1e6 / profile.step_us(step_tokens=tokens, context_tokens=tokens, sequences=1)


def row(profile: Profile) -> str:
    """The preset's line in the page."""
    figures = (per_s(profile, 1), per_s(profile, 64), prefill_per_s(profile), profile.kv_tokens)
    cells = " | ".join(f"{round(figure):,}" for figure in figures)
    return f"| `{profile.name}` | {profile.description.split(',')[0]} | {cells} |"


def test_page_shows_what_every_computed_preset_predicts() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    want = [row(PRESETS[name]) for name in COMPUTED]
    assert [line for line in want if line not in lines] == []


def test_page_shows_every_figure_of_hardware_and_models() -> None:
    page = PAGE.read_text(encoding="utf-8")
    want = [
        f"| `{gpu.name}` | {gpu.title} | {gpu.memory_bytes / 1e9:.0f} GB | {gpu.bandwidth_bytes_per_s / 1e12:g} TB/s"
        f" | {gpu.flop_per_s / 1e12:,g} TFLOP/s | {gpu.link_bytes_per_s / 1e9:.0f} GB/s |"
        for gpu in GPUS
    ]
    want += [
        f"| `{model.name}` | {model.title} | {model.parameters / 1e9:g} | {model.active_parameters / 1e9:.3g}"
        f" | {model.layers} | {model.kv_heads} × {model.head_size} | {model.kv_bytes:,} B |"
        for model in MODELS
    ]
    assert [line for line in want if line not in page] == []


def test_dense_model_on_one_gpu_is_the_arithmetic_of_its_data_sheet() -> None:
    preset = PRESETS["h100-8b"]
    assert preset.weights_read_us == pytest.approx(16.06e9 / (3.35e12 * 0.8) * 1e6, rel=1e-4)
    assert preset.token_compute_us == pytest.approx(16.06e9 / (989.5e12 * 0.5) * 1e6, rel=1e-3)
    assert preset.kv_read_us == pytest.approx(131_072 / (3.35e12 * 0.8) * 1e6)
    assert preset.kv_tokens == pytest.approx((80e9 * 0.9 - 16.06e9) / 131_072, abs=16)
    assert (preset.step_overhead_us, preset.experts) == (1_500, 0)


def test_large_model_is_spread_and_pays_for_two_all_reduces_a_layer() -> None:
    preset = PRESETS["h100x4-70b"]
    assert preset.step_overhead_us == 1_500 + 2 * 80 * 10
    assert preset.weights_read_us == pytest.approx(141.2e9 / (4 * 3.35e12 * 0.8) * 1e6, rel=1e-4)
    # arithmetic, and 2 × 80 times 1.5 × 16,384 B over one link
    arithmetic_us = 141.2e9 / (4 * 989.5e12 * 0.5) * 1e6
    link_us = 160 * 1.5 * 16_384 / (450e9 * 0.8) * 1e6
    assert preset.token_compute_us == pytest.approx(arithmetic_us + link_us, rel=1e-3)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_model_is_on_the_fewest_gpus_that_leave_room_for_a_cache(gpu: object, model: object) -> None:
    count = gpus_needed(gpu, model)
    used = gpu.memory_bytes * 0.9
    weights = 2 * model.parameters
    assert count * used - weights >= 0.15 * count * used
    assert count == 1 or count / 2 * used - weights < 0.15 * count / 2 * used
    many = f"x{count}" if count > 1 else ""
    assert f"{gpu.name}{many}-{model.name}" in PRESETS


def test_mixture_has_the_active_parameters_of_its_card() -> None:
    mixture = next(model for model in MODELS if model.name == "8x7b")
    assert mixture.active_parameters == pytest.approx(12.9e9, rel=0.01)


@pytest.mark.parametrize("tokens", [1, 3, 10])
def test_share_of_experts_touched_is_that_of_random_routing(tokens: int) -> None:
    source = random.Random(tokens)
    tries = 20_000
    touched = sum(len({expert for _ in range(tokens) for expert in source.sample(range(8), 2)}) for _ in range(tries))
    assert PRESETS["h200-8x7b"].experts_touched_ratio(tokens) == pytest.approx(touched / tries / 8, abs=0.005)


def test_one_token_reads_its_experts_and_a_large_batch_reads_all() -> None:
    mixture = msgspec.structs.replace(PLAIN, experts=8, experts_per_token=2, experts_read_us=80_000.0)
    plain_us = PLAIN.step_us(step_tokens=1, context_tokens=1, sequences=1)
    assert mixture.step_us(step_tokens=1, context_tokens=1, sequences=1) == pytest.approx(plain_us + 20_000)
    assert mixture.step_us(step_tokens=200, context_tokens=1, sequences=1) == pytest.approx(plain_us + 80_000)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"experts": 8}, "experts_per_token is 0, expected 1 to experts = 8", id="none-per-token"),
        pytest.param({"experts": 8, "experts_per_token": 9}, "expected 1 to experts = 8", id="more-than-there-are"),
        pytest.param({"experts_per_token": 2}, "experts_per_token needs experts ≥ 1", id="of-no-experts"),
        pytest.param({"experts_read_us": 5.0}, "experts_read_us needs experts ≥ 1", id="weights-of-no-experts"),
    ],
)
def test_faulty_mixture_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        msgspec.structs.replace(PLAIN, **changes)
