"""Lengths that were measured are read from files into the mix."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from tokswarm.errors import ConfigError
from tokswarm.traffic.distribution import Sampler
from tokswarm.traffic.lengths_file import binned, read_lengths
from tokswarm.traffic.mix import Distribution, Empirical, Mix
from tokswarm.traffic.mixfile import load_mix, parse_mix

MIX = """\
name: sample
target: {base_url: "http://127.0.0.1:8100/v1"}
classes:
  - name: chat
    prompt: {tokens: {empirical: {file: lengths.csv, column: in}, max: 50}}
    output: {max_tokens: {fixed: 20}}
load:
  - {name: one, concurrency: 1, for: 20s}
"""


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_the_file_of_a_mix_is_read_into_it(tmp_path: Path) -> None:
    written(tmp_path, "lengths.csv", "time,in\n1,30\n2,60\n\n3,30\n")
    mix: Mix = load_mix(written(tmp_path, "mix.yaml", MIX), {})
    assert mix.classes[0].prompt.tokens == Distribution(choice={30: 2.0, 60: 1.0}, max=50)


@pytest.mark.parametrize(
    ("name", "text", "column", "read"),
    [
        pytest.param("x.txt", "5\n5\n\n7\n", None, Distribution(choice={5: 2.0, 7: 1.0}), id="lines"),
        pytest.param("x.csv", '"a","b"\n1,"9.0"\n', "b", Distribution(choice={9: 1.0}), id="column"),
        pytest.param("x.json", "[5, 5, 7]", None, Distribution(choice={5: 2.0, 7: 1.0}), id="list"),
        pytest.param("x.json", '{"5": 2, "7": 0.5}', None, Distribution(choice={5: 2.0, 7: 0.5}), id="weights"),
        pytest.param(
            "x.json",
            '{"edges": [1, 5, 9], "weights": [1, 2]}',
            None,
            Distribution(empirical=Empirical(edges=[1, 5, 9], weights=[1, 2])),
            id="histogram",
        ),
    ],
)
def test_each_form_of_file_is_read(
    tmp_path: Path, name: str, text: str, column: str | None, read: Distribution
) -> None:
    assert read_lengths(written(tmp_path, name, text), column) == read


@pytest.mark.parametrize(
    ("name", "text", "column", "words"),
    [
        pytest.param("x.txt", "", None, ": there are no lengths in it", id="empty"),
        pytest.param("x.txt", "5\nroot:x\n", None, ":2: not a whole number from 1 to 10000000", id="no-number"),
        pytest.param("x.txt", "5\n0\n", None, ":2: not a whole number", id="zero"),
        pytest.param("x.txt", "1.5\n", None, ":1: not a whole number", id="fraction"),
        pytest.param("x.txt", "nan\n", None, ":1: not a whole number", id="nan"),
        pytest.param("x.csv", "a,b\n1,2\n", "c", ":1: there is no column 'c'; its header has 2 columns", id="column"),
        pytest.param("x.csv", "a,b\n1,2\n3\n", "b", ":3: the row ends before the column 'b'", id="short-row"),
        pytest.param("x.csv", "", "b", ":1: there is no column 'b'; it is empty", id="empty-csv"),
        pytest.param("x.json", "[]", None, ": neither a list", id="empty-list"),
        pytest.param("x.json", '{"0": 1}', None, ": neither a list", id="zero-key"),
        pytest.param("x.json", "[1", None, ": neither a list", id="half"),
        pytest.param("x.json", "[1]", "b", ": a JSON file has no column 'b'", id="column-of-json"),
    ],
)
def test_what_holds_no_lengths_is_refused(tmp_path: Path, name: str, text: str, column: str | None, words: str) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(ConfigError) as caught:
        read_lengths(path, column)
    assert str(caught.value).startswith(f"{path}{words}")
    assert "root:x" not in str(caught.value)


def test_a_missing_file_is_told_with_the_line_of_the_mix(tmp_path: Path) -> None:
    path = written(tmp_path, "mix.yaml", MIX)
    with pytest.raises(ConfigError) as caught:
        load_mix(path, {})
    assert str(caught.value).startswith(
        f"{path}:5: classes[0].prompt.tokens.empirical.file: there is no file 'lengths.csv'; looked at {tmp_path}"
    )
    with pytest.raises(ConfigError, match="a mix without a folder cannot name files"):
        parse_mix(MIX, source="mix", environ={})


def test_a_histogram_in_a_file_must_obey_the_rules_too(tmp_path: Path) -> None:
    written(tmp_path, "lengths.json", '{"edges": [5, 1], "weights": [1]}')
    text = MIX.replace("lengths.csv, column: in", "lengths.json")
    with pytest.raises(ConfigError, match=r":5: .*empirical\.edges: expected each edge above the one before"):
        load_mix(written(tmp_path, "mix.yaml", text), {})


def test_many_different_lengths_become_bins_close_to_them(tmp_path: Path) -> None:
    rng = random.Random(4)
    lengths = [1 + int(rng.expovariate(1 / 20_000)) for _ in range(30_000)]
    read = read_lengths(written(tmp_path, "x.json", json.dumps(lengths)), None)
    assert read.empirical is not None
    assert read.empirical.weights is not None
    assert 1800 < len(read.empirical.weights) <= 2200
    counts = Counter(lengths)
    assert sum(read.empirical.weights) == 30_000
    sampler, draws = Sampler(read), random.Random(1)
    drawn = [sampler.draw(draws) for _ in range(30_000)]
    ordered = sorted(counts)
    below = 0
    shares = {}
    for value in ordered:
        below += counts[value]
        shares[value] = below / 30_000
    for value in ordered[:: len(ordered) // 50]:
        assert sum(one <= value for one in drawn) / 30_000 == pytest.approx(shares[value], abs=0.012)


def test_a_value_heavier_than_a_bin_stands_alone_and_wide_gaps_stay_empty() -> None:
    histogram = binned({1: 1, 5: 50, 6: 1, 9: 1, 30: 1}, 10)
    assert histogram == Empirical(edges=[1, 2, 5, 6, 31], weights=[1, 0, 50, 3])
    sampler, rng = Sampler(Distribution(empirical=histogram)), random.Random(1)
    drawn = Counter(sampler.draw(rng) for _ in range(5400))
    assert drawn[5] == pytest.approx(5000, abs=120)
    assert max(drawn) <= 30
