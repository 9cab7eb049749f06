"""`tokswarm mix`: what is drawn, described and fitted, as it is typed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tokswarm.commands.mix import bars, histogram, mix
from tokswarm.errors import ConfigError
from tokswarm.traffic.mix import Arrivals, Constant, Distribution
from tokswarm.traffic.mix_schema import mix_schema
from tokswarm.traffic.mixfile import load_mix
from tokswarm.traffic.rates import Rates

PRICED = """\
name: priced
target: {base_url: "http://h/v1"}
classes: [{name: a, prompt: {tokens: {fixed: 1000}}, output: {max_tokens: {fixed: 100}}}]
load: [{name: even, rate: 10/s, arrivals: {constant: {}}, for: 10s}]
"""
BOTH = """\
name: both
target: {base_url: "http://h/v1"}
classes:
  - name: churning
    prompt: {tokens: {fixed: 1000}, shared_prefix: {groups: 4, tokens: 400, churn: 10%/m}}
    output: {max_tokens: {fixed: 100}}
  - {name: own, prompt: {rows: {file: rows.csv}}, output: {max_tokens: {fixed: 100}}}
load: [{concurrency: 1, for: 10s}]
"""
HEADS = ("Lengths in tokens", "Stages", "Requests over time")


def typed(*words: str) -> Result:
    return CliRunner().invoke(mix, words, catch_exceptions=False)


def refused(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(mix, words, catch_exceptions=False)
    return str(caught.value)


def test_bars_are_as_high_as_their_counts_and_none_is_hidden() -> None:
    assert bars([0, 1, 50, 100]) == " ▁▄█"
    assert bars([]) == ""
    assert histogram([5, 5, 6, 9], 24) == [2, 1, 0, 0, 1]
    assert histogram([1, 50, 51, 100], 2) == [2, 2]


def test_show_draws_lengths_stages_and_arrivals() -> None:
    said = typed("show", "open-loop").stdout
    places = [said.index(head) for head in HEADS]
    assert places == sorted(places)
    even = next(line for line in said.splitlines() if line.startswith("even ") and "█" in line)
    assert even.split() == ["even", "█" * 60, "4"]
    assert "USD" not in said


def test_show_prices_open_loops_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "priced.yaml"
    path.write_text(PRICED, encoding="utf-8")
    said = typed("show", str(path), "--input-price", "2", "--output-price", "10").stdout
    row = next(line for line in said.splitlines() if line.startswith("even"))
    assert row.split()[-1] == "0.3000"  # 100 requests of 1,000 and 100 tokens
    assert "100,000" in row


def test_show_says_how_fast_prefixes_are_replaced_and_how_long_own_prompts_are(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("prompt\n" + "word " * 99 + "word\n", encoding="utf-8")
    path = tmp_path / "both.yaml"
    path.write_text(BOTH, encoding="utf-8")
    said = [line.split() for line in typed("show", str(path)).stdout.splitlines()]
    assert ["churning", "prompt", "1,000", "1,000", "1,000", "1,000", "40%,", "10%/m", "new", "█"] in said
    assert ["own", "prompt", "131", "131", "131", "131", "0%", "█"] in said


def test_schema_prints_the_schema() -> None:
    assert json.loads(typed("schema").stdout) == json.loads(json.dumps(mix_schema()))


def test_from_trace_fits_a_mix_that_can_be_run(tmp_path: Path) -> None:
    result = typed("from-trace", "azure_conversation.csv", "--name", "mine", "--classes", "2")
    path = tmp_path / "mine.yaml"
    path.write_text(result.stdout, encoding="utf-8")
    fitted = load_mix(path, {"OPENAI_BASE_URL": "http://there/v1"})
    assert (fitted.name, fitted.target.base_url) == ("mine", "http://there/v1")
    assert [one.name for one in fitted.classes] == ["class-1", "class-2"]
    assert "KS distance" in result.stderr
    assert "class-2: output tokens" in result.stderr


def test_from_trace_keeps_the_shared_prefixes_of_a_trace(tmp_path: Path) -> None:
    result = typed("from-trace", "mooncake_conversation.jsonl")
    path = tmp_path / "mine.yaml"
    path.write_text(result.stdout, encoding="utf-8")
    prefix = load_mix(path, {}).classes[0].prompt.shared_prefix
    assert prefix is not None
    assert prefix.tokens > 512
    assert "recorded" in result.stderr


def test_from_trace_reads_a_log_by_its_columns(tmp_path: Path) -> None:
    rows = "".join(f"{k / 4},{600 if k % 4 else 90},{k % 4 + 1},{'chat' if k % 4 else 'tag'}\n" for k in range(400))
    (tmp_path / "log.csv").write_text("at,in,out,route\n" + rows, encoding="utf-8")
    words = ("--time", "at", "--prompt", "in", "--output", "out", "--class", "route")
    path = tmp_path / "mine.yaml"
    path.write_text(typed("from-trace", str(tmp_path / "log.csv"), *words).stdout, encoding="utf-8")
    fitted = load_mix(path, {})
    assert [(one.name, one.weight) for one in fitted.classes] == [("chat", 300), ("tag", 100)]
    assert [one.prompt.tokens for one in fitted.classes] == [Distribution(fixed=600), Distribution(fixed=90)]
    assert fitted.load[1].arrivals == Arrivals(constant=Constant())
    assert fitted.load[1].rate == Rates.parse("4/s")


@pytest.mark.parametrize("words", [("--time", "at"), ("--class", "at")], ids=["half", "class-alone"])
def test_from_trace_wants_all_columns_of_a_log(words: tuple[str, ...]) -> None:
    result = typed("from-trace", "log.csv", *words)
    assert result.exit_code == 2
    assert "a CSV of a log needs --time, --prompt and --output" in result.stderr


def test_from_trace_needs_two_requests_at_two_times(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text('{"at_s": 0, "prompt_tokens": 5, "output_tokens": 5}\n' * 3, encoding="utf-8")
    assert "too few requests, or all at one time" in refused("from-trace", str(path))
    assert "there is no trace 'no.csv'" in refused("from-trace", "no.csv")


def test_show_says_what_prompts_are_written_in_where_it_is_one_thing(tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(PRICED.replace("prompt: {", "prompt: {text: code, "), encoding="utf-8")
    assert ["a", "code", "prompt", "1,000"] in [
        line.split()[:4] for line in typed("show", str(path)).stdout.splitlines()
    ]
