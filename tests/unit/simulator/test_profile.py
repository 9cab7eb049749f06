"""Profiles: presets, files, and what is refused."""

from pathlib import Path

import msgspec
import pytest

from tokswarm.errors import ConfigError
from tokswarm.simulator.profile import PRESETS, Profile, load_profile


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_preset_is_found_by_its_name(name: str) -> None:
    assert load_profile(name).name == name


def test_demo_stream_alone_gets_between_60_and_100_tokens_per_second() -> None:
    assert 60 < 1e6 / PRESETS["demo"].step_us(step_tokens=1, context_tokens=1_000, sequences=1) < 100


def test_demo_batch_of_32_gives_less_than_half_of_linear_and_below_5000_tokens_per_second() -> None:
    demo = PRESETS["demo"]
    alone_per_s = 1e6 / demo.step_us(step_tokens=1, context_tokens=900, sequences=1)
    batch_per_s = 32e6 / demo.step_us(step_tokens=32, context_tokens=32 * 900, sequences=32)
    assert 0.3 < batch_per_s / (32 * alone_per_s) < 0.6
    assert batch_per_s < 5_000


def test_file_changes_what_it_says_and_keeps_the_rest_of_demo(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("max_num_seqs: 7\nweights_read_us: 5000\n")
    mine = load_profile(str(path))
    assert (mine.name, mine.max_num_seqs, mine.weights_read_us) == ("mine", 7, 5000.0)
    assert mine.num_blocks == PRESETS["demo"].num_blocks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("max_seqs: 3\n", "max_seqs", id="unknown-key"),
        pytest.param("max_num_seqs: many\n", "max_num_seqs", id="wrong-type"),
        pytest.param("max_num_seqs: [\n", "mine.yaml", id="not-yaml"),
        pytest.param("max_num_seqs: 0\n", "max_num_seqs is 0, expected ≥ 1", id="out-of-range"),
        pytest.param("kv_read_us: -1\n", "kv_read_us is -1", id="negative"),
        pytest.param("num_blocks: 10\n", "one long request would never fit", id="context-beyond-memory"),
    ],
)
def test_faulty_file_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_profile(str(path))
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "docs/simulator.md" in caught.value.hint


def test_all_faults_are_told_at_a_time() -> None:
    with pytest.raises(ConfigError) as caught:
        Profile(max_num_seqs=0, eos_mean_tokens=0.5)
    assert "max_num_seqs is 0" in str(caught.value)
    assert "eos_mean_tokens is 0.5" in str(caught.value)


def test_step_that_takes_no_time_is_refused() -> None:
    free = dict.fromkeys(
        ("step_overhead_us", "sequence_overhead_us", "token_compute_us", "weights_read_us", "kv_read_us"), 0.0
    )
    with pytest.raises(ConfigError, match="time would stand still"):
        msgspec.convert(free, Profile)


def test_name_of_nothing_lists_the_presets() -> None:
    with pytest.raises(ConfigError) as caught:
        load_profile("dmeo")
    assert "demo, tight" in caught.value.hint


def test_a_cpu_adds_its_arithmetic_to_its_memory_traffic() -> None:
    parts = {
        "step_overhead_us": 100.0,
        "sequence_overhead_us": 10.0,
        "token_compute_us": 3.0,
        "weights_read_us": 50.0,
        "kv_read_us": 0.5,
    }
    load = {"step_tokens": 20, "context_tokens": 40, "sequences": 2}
    assert msgspec.convert(parts, Profile).step_us(**load) == 100 + 20 + max(60, 50 + 20)
    assert msgspec.convert({**parts, "compute_and_memory": "add"}, Profile).step_us(**load) == 100 + 20 + 60 + 50 + 20
