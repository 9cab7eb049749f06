"""The JSON Schema takes what the reader takes, refuses what is mistyped, and explains every key."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tokswarm.resources import resource_dir
from tokswarm.traffic.mix_schema import mix_schema
from tokswarm.traffic.mixfile import parse_mix

BAD_MIXES = Path(__file__).parent / "bad_mixes"
MIXES = sorted((resource_dir("locustfiles") / "mixes").glob("*.yaml"))
SCHEMA = mix_schema()
EVERYTHING = """\
name: full
seed: ${SEED:-7}
target: {base_url: "http://h/v1", tls: {}, stream: "${STREAM:-true}", api: "${API:-chat}", timeout: 1h30m}
classes:
  - name: ${NAME:-chat}
    weight: 20%
    prompt: {tokens: {lognormal: {p50: 1k, p99: 4.5k}, max: "${MOST:-6000}"}}
    output: {max_tokens: {choice: {1024: 9, 4096: 1}}, ignore_eos: true}
  - name: second
    prompt: {tokens: {empirical: {edges: [1, 5k], weights: [1]}}}
    output: {max_tokens: {geometric: {mean: 5}}}
load:
  - {name: bursts, rate: 5/s, arrivals: {gamma: {cv: 2}}, bursts: {on: 1s, off: 1s}, classes: {second: 50%}, for: 5s}
  - {rate: [5/s, "${R:-3/s}"], for: 5s}
  - {rate: {from: 5/s, to: 90/m}, for: 5s}
  - {rate: {steps: [2/s]}, for: 5s}
  - {rate: {diurnal: {levels: [1, 2], peak: 5/s}}, for: 5s}
  - {trace: {file: azure_code.csv, from: 1m, keep: 10%, speed: 2}}
"""


class EditorLoader(yaml.SafeLoader):
    """YAML 1.2, as editors read it: on and off are words."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as the base has it
        first: [pair for pair in pairs if first not in "oO" or not pair[0].endswith(":bool")]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def mistakes(text: str) -> list[str]:
    document: Any = yaml.load(text, Loader=EditorLoader)
    return [error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(document)]


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", MIXES, ids=lambda path: path.stem)
def test_the_mixes_that_ship_obey_it(path: Path) -> None:
    assert mistakes(path.read_text(encoding="utf-8")) == []


def test_units_and_references_obey_it_as_they_obey_the_reader() -> None:
    parse_mix(EVERYTHING, source="mix.yaml", environ={})
    # JSON has no whole numbers as keys.
    assert mistakes(EVERYTHING.replace("{1024: 9, 4096: 1}", '{"1024": 9, "4096": 1}')) == []


@pytest.mark.parametrize("name", ["unknown-keys", "mistyped", "missing", "arrivals-mistyped", "traces-mistyped"])
def test_mistyped_mixes_do_not(name: str) -> None:
    text = (BAD_MIXES / f"{name}.yaml").read_text(encoding="utf-8").replace("{5: 1, 5: 2}", '{"5": 1}')
    assert mistakes(text.replace("few: 1, 20: yes", 'few: 1, "20": true'))


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        pytest.param("for: 5s", "for: 5", id="duration"),
        pytest.param("rate: 5/s", "rate: 5", id="rate"),
        pytest.param("weight: 20%", "weight: lots", id="number"),
        pytest.param("ignore_eos: true", "ignore_eos: maybe", id="bool"),
        pytest.param("keep: 10%", "keep: 2", id="above-the-largest"),
        pytest.param("speed: 2", "speed: 0", id="not-above-zero"),
        pytest.param("name: second", "name: a b", id="name"),
        pytest.param("timeout: 1h30m", "timeout: soon", id="words"),
        pytest.param("tls: {}", "tls: {verfy: true}", id="unknown-key"),
        pytest.param("file: azure_code.csv, ", "", id="missing-key"),
    ],
)
def test_each_kind_of_mistake_is_seen(was: str, becomes: str) -> None:
    text = EVERYTHING.replace("{1024: 9, 4096: 1}", '{"1024": 9, "4096": 1}')
    assert was in text
    assert mistakes(text.replace(was, becomes, 1))


def fields() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, struct in SCHEMA["$defs"].items():
        for key, field in struct["properties"].items():
            yield f"{name}.{key}", field


def test_what_a_key_means_is_shown() -> None:
    texts = {name: field["description"] for name, field in fields() if "description" in field}
    assert (
        texts["Stage.classes"] == "Which classes it sends, each with its weight here; None: all, by their own weights."
    )
    assert texts["RateCourse.from"] == "Where a ramp begins."
    assert texts["TraceSource.speed"] == "2 replays an hour in half an hour."
    assert SCHEMA["properties"]["include"]["description"].startswith("Files with shared classes")
    assert SCHEMA["$defs"]["Stage"]["properties"]["drain"]["default"] == "30s"
