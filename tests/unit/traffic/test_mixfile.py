"""A mix is read whole or refused with every mistake, each with file, line, path and what was expected."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokswarm.errors import ConfigError
from tokswarm.resources import resource_dir
from tokswarm.traffic.mix import Arrivals, Distribution, Empirical, Mix, Normal, Poisson, Stage, TraceSource
from tokswarm.traffic.mixfile import check_mix, load_mix, mix_to_yaml, parse_mix
from tokswarm.traffic.rates import Rates
from tokswarm.traffic.units import Duration

BAD_MIXES = Path(__file__).parent / "bad_mixes"
MIX_YAML = """\
name: sample
target:
  base_url: http://127.0.0.1:8100/v1
classes:
  - name: chat
    prompt: {tokens: {fixed: 100}}
    output: {max_tokens: {fixed: 20}}
load:
  - {name: sweep, concurrency: [1, 2], for: 5s}
"""
FULL_YAML = """\
name: full
description: "Every key: once"
seed: 7
target:
  base_url: https://api.example.com/v1
  model: tiny
  api: completions
  key: env:OPENAI_API_KEY
  headers: {x-region: eu-1, authorization-extra: env:EXTRA}
  tls: {verify: false, ca_file: /etc/ssl/own.pem}
  metrics: [https://a.example.com/metrics, https://b.example.com/metrics]
  metrics_key: file:/etc/metrics-key
  connect_timeout: 1s
  first_byte_timeout: 2s
  gap_timeout: 3s
  timeout: 4m
classes:
  - name: chat
    weight: 6
    prompt:
      tokens: {lognormal: {p50: 1020, p99: 4142}, min: 2, max: 9000}
      shared_prefix: {groups: 20, tokens: 800, popularity: {zipf: 1.1}}
    output: {max_tokens: {lognormal: {mean: 129, sd: 60}}, ignore_eos: true}
    session:
      turns: {geometric: {mean: 3}}
      think_time: {lognormal: {p50: 5s, p99: 1m}, max: 2m}
      turn_tokens: {fixed: 60}
      history: server
      sticky: header
    slo: {ttft: {p50: 1s, p90: 2s, p95: 3s, p99: 800ms}, itl: {p99: 60ms}, e2e: {p99: 1m}}
  - name: report
    prompt: {tokens: {uniform: {low: 5, high: 9}}}
    output: {max_tokens: {choice: {1024: 9, 4096: 1}}}
  - name: third
    prompt: {tokens: {normal: {mean: 5k, sd: 9}}}
    output: {max_tokens: {exponential: {mean: 50}}}
  - name: fourth
    weight: 20%
    prompt: {tokens: {empirical: {edges: [1, 50, 2k], weights: [1, 0.5]}}}
    output: {max_tokens: {geometric: {mean: 50}}}
load:
  - {name: warm-up, concurrency: 4, for: 20s, warmup: true}
  - {name: sweep, concurrency: [1, 2, 4], for: 60s, drain: 5s}
  - {name: open, rate: 12/s, arrivals: {poisson: {}}, for: 2m}
  - {name: storm, rate: 12/s, classes: {chat: 9, report: 1}, for: 2m}
  - {rate: [1/s, 90/m], arrivals: {constant: {}}, for: 2m}
  - {rate: {from: 2/s, to: 40/s}, arrivals: {gamma: {cv: 4}}, for: 2m}
  - {rate: {steps: [2/s, 1/s]}, arrivals: {weibull: {cv: 0.5}}, bursts: {on: 1s, off: 3s, factor: 2}, for: 2m}
  - {rate: {diurnal: {levels: [1, 50%], peak: 4/s, period: 20s}}, for: 2m}
  - name: replay
    trace:
      file: azure_code.csv
      format: azure
      from: 1s
      until: 1h
      keep: 50%
      max_gap: 10s
      speed: 2
      rows: 10
      max_prompt_tokens: 100
      max_output_tokens: 10
"""


def refused(text: str, environ: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_mix(text, source="mix.yaml", environ=environ or {})
    return caught.value


@pytest.mark.parametrize("path", sorted(BAD_MIXES.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_bad_mix_is_refused_in_the_words_written_down(path: Path) -> None:
    error = refused(path.read_text(encoding="utf-8"), {"LEAKED": "hunter2-secret"})
    said = f"{error}\nhint: {error.hint}\n"
    assert said == path.with_suffix(".txt").read_text(encoding="utf-8")
    assert "hunter2" not in said
    assert "1234567890" not in said


def test_every_key_is_read() -> None:
    mix = parse_mix(FULL_YAML, source="mix.yaml", environ={})
    assert mix.target.headers == {"x-region": "eu-1", "authorization-extra": "env:EXTRA"}
    assert mix.target.timeout == Duration.parse("4m")
    assert mix.classes[1].output.max_tokens == Distribution(choice={1024: 9.0, 4096: 1.0})
    assert mix.classes[2].prompt.tokens == Distribution(normal=Normal(mean=5000.0, sd=9.0))
    assert mix.classes[3].weight == 0.2
    assert mix.classes[3].prompt.tokens == Distribution(empirical=Empirical(edges=[1, 50, 2000], weights=[1.0, 0.5]))
    assert mix.load[2] == Stage(
        name="open",
        rate=Rates.parse("12/s"),
        arrivals=Arrivals(poisson=Poisson()),
        for_=Duration.parse("2m"),
    )
    assert mix.load[8].trace == TraceSource(
        file="azure_code.csv",
        format="azure",
        from_=Duration.parse("1s"),
        until=Duration.parse("1h"),
        keep=0.5,
        max_gap=Duration.parse("10s"),
        speed=2.0,
        rows=10,
        max_prompt_tokens=100,
        max_output_tokens=10,
    )


def test_references_are_replaced_and_read_as_what_they_become() -> None:
    text = MIX_YAML.replace("127.0.0.1:8100", "${HOST}:${PORT:-8100}").replace("{fixed: 20}", '{fixed: "${OUT:-20}"}')
    text = text.replace("/v1\n", "/v1\n  model: ${MODEL:-}\n") + "description: $${HOST} ${NUMBER}\n"
    mix = parse_mix(text, source="mix.yaml", environ={"HOST": "h", "OUT": "33", "NUMBER": "5", "PORT": ""})
    assert mix.target.base_url == "http://h:8100/v1"
    assert mix.target.model is None
    assert mix.classes[0].output.max_tokens == Distribution(fixed=33)
    assert mix.description == "${HOST} 5"
    assert parse_mix(text, source="m", environ={"HOST": "h", "NUMBER": "", "MODEL": "7b"}).target.model == "7b"


def test_a_reference_cannot_bring_in_structure() -> None:
    text = MIX_YAML + "description: ${TEXT}\n"
    mix = parse_mix(text, source="mix.yaml", environ={"TEXT": "a: {b: c}\nseed: 5"})
    assert mix.description == "a: {b: c}\nseed: 5"
    assert mix.seed == 1


@pytest.mark.parametrize("text", [MIX_YAML, FULL_YAML], ids=["small", "full"])
def test_a_mix_comes_back_from_its_yaml(text: str) -> None:
    mix = parse_mix(text, source="mix.yaml", environ={})
    assert parse_mix(mix_to_yaml(mix), source="mix.yaml", environ={}) == mix


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=40), st.integers(0, 2**53))
def test_any_description_and_seed_come_back_from_yaml(
    sample_mix: Callable[..., Mix], description: str, seed: int
) -> None:
    mix = msgspec.structs.replace(sample_mix(), description=description, seed=seed)
    assert parse_mix(mix_to_yaml(mix), source="mix.yaml", environ={}) == mix


def test_what_is_at_its_default_is_not_written() -> None:
    assert mix_to_yaml(parse_mix(MIX_YAML, source="m", environ={})).splitlines()[:4] == [
        "name: sample",
        "target:",
        "  base_url: http://127.0.0.1:8100/v1",
        "classes:",
    ]


@given(st.text(max_size=200))
def test_any_text_is_a_mix_or_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"mix\.yaml"):
        parse_mix(text, source="mix.yaml", environ={})


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 5000, id="deep-nesting"),
        pytest.param("a: &a [*a]\nclasses: *a\n", id="an-alias-of-itself"),
        pytest.param("name: x\n" * 40_000, id="too-long"),
        pytest.param("a: 1\n---\nb: 2\n", id="two-documents"),
        pytest.param("\x00", id="control-character"),
        pytest.param("seed: " + "9" * 5000, id="endless-number"),
        pytest.param("? [a, b]\n: c\n", id="a-list-as-key"),
    ],
)
def test_hostile_yaml_is_refused_quickly(text: str) -> None:
    refused(text)


def test_files_that_cannot_be_read_are_config_errors(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    for name, words in (("no.yaml", "there is no such mix"), ("binary.yaml", "not UTF-8"), ("", "cannot read the mix")):
        with pytest.raises(ConfigError, match=words):
            load_mix(tmp_path / name, {})


def test_a_mix_from_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MIX_YAML.replace("fixed: 100", "fixed: 0"), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_mix(path, {})
    assert str(caught.value) == (
        f"{path}:6: classes[0].prompt.tokens.fixed: expected a whole number from 1 to 10000000, came 0"
    )


def test_a_mix_changed_in_code_is_checked_by_the_same_rules(sample_mix: Callable[..., Mix]) -> None:
    mix = sample_mix()
    check_mix(mix, source="start")
    changed = msgspec.structs.replace(mix, target=msgspec.structs.replace(mix.target, base_url="localhost:8000"))
    with pytest.raises(ConfigError, match=r"start: target\.base_url: expected an http:// or https:// address"):
        check_mix(changed, source="start")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        pytest.param("http://h:0/v1", "no address that can be connected to", id="port-zero"),
        pytest.param("http://h:99999/v1", "is no address", id="port-too-large"),
        pytest.param("http://h/v1?a=b", r"without \? or #", id="query"),
        pytest.param("http://h /v1", "no address that can be connected to", id="space"),
        pytest.param("me:pw@host/v1", "address, came something else", id="a-password-without-a-scheme"),
        pytest.param("http:///v1", "expected an http", id="no-host"),
        pytest.param("http://[::1/v1", "is no address", id="half-an-ipv6"),
    ],
)
def test_addresses_that_cannot_be_used_are_refused(sample_mix: Callable[..., Mix], url: str, words: str) -> None:
    mix = sample_mix()
    with pytest.raises(ConfigError, match=words):
        check_mix(msgspec.structs.replace(mix, target=msgspec.structs.replace(mix.target, base_url=url)), source="m")


def test_trust_settings_go_with_https_only() -> None:
    text = MIX_YAML.replace("/v1\n", "/v1\n  tls: {verify: false}\n")
    assert str(refused(text)) == "mix.yaml:4: target.tls: goes with an https address only"
    assert not parse_mix(text.replace("http:", "https:"), source="m", environ={}).target.tls.verify


def test_limits_of_token_times_need_streamed_answers() -> None:
    text = MIX_YAML.replace("/v1\n", "/v1\n  stream: false\n")
    text = text.replace("  - name: chat\n", "  - name: chat\n    slo: {ttft: {p99: 1s}, e2e: {p99: 9s}}\n", 1)
    assert "slo" in text
    assert str(refused(text)) == (
        "mix.yaml:7: classes[0].slo.ttft: limits token times, which answers that are not streamed do not have"
    )
    assert parse_mix(text.replace("ttft: {p99: 1s}, ", ""), source="m", environ={}).classes[0].slo is not None


def test_the_mixes_that_ship_come_back_from_their_yaml() -> None:
    for path in (resource_dir("locustfiles") / "mixes").glob("*.yaml"):
        mix = load_mix(path, {})
        assert parse_mix(mix_to_yaml(mix), source=path.name, environ={}) == mix
