"""The clients of ServeGen are read and their requests drawn as their rates, variations and lengths say."""

from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from tokswarm.errors import ConfigError
from tokswarm.traffic.mix import TraceSource
from tokswarm.traffic.planning import read_source
from tokswarm.traffic.servegen import is_servegen, read_servegen
from tokswarm.traffic.trace import TraceRow
from tokswarm.traffic.units import Duration

TRACE = "0,10,2.0,Gamma,0.25,0.4\n600,0,0,,0,0\n1200,4,0.5,Weibull,2.1,0.28\n"
DATASET = """{
  "0": {"input_tokens": "{18: 0.25, 20: 0.75}", "output_tokens": "{7: 1.0}"},
  "1000": {"text_tokens": "{500: 1}", "image_tokens": "{9: 1}", "output_tokens": "{0: 1.0}"}
}"""


def client(folder: Path, name: str = "chunk-1", trace: str = TRACE, dataset: str | None = DATASET) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}-trace.csv").write_text(trace, encoding="utf-8")
    if dataset is not None:
        (folder / f"{name}-dataset.json").write_text(dataset, encoding="utf-8")
    return folder / f"{name}-trace.csv"


def drawn(path: Path, from_s: int = 0, until_s: int | None = None, seed: int = 1) -> list[TraceRow]:
    until_ns = None if until_s is None else until_s * 10**9
    return read_servegen(path, from_ns=from_s * 10**9, until_ns=until_ns, seed=seed)


def test_rate_variation_and_lengths_are_those_of_each_window(tmp_path: Path) -> None:
    rows = drawn(client(tmp_path))
    first = [row for row in rows if row.offset_ns < 600e9]
    last = [row for row in rows if row.offset_ns >= 1200e9]
    assert len(first) + len(last) == len(rows)
    assert len(first) == pytest.approx(6000, abs=4 * 2 * 6000**0.5)
    assert len(last) == pytest.approx(2400, abs=4 * 0.5 * 2400**0.5)
    assert rows[-1].offset_ns < 1800e9
    for part, cv in ((first, 2.0), (last, 0.5)):
        gaps = [b.offset_ns - a.offset_ns for a, b in pairwise(part)]
        assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.1)
    assert sum(row.prompt_tokens == 20 for row in first) / len(first) == pytest.approx(0.75, abs=0.03)
    assert {(row.prompt_tokens, row.output_tokens) for row in last} == {(500, 1)}


def test_a_part_of_the_time_has_the_requests_of_the_whole(tmp_path: Path) -> None:
    path = client(tmp_path)
    whole = [row for row in drawn(path) if 100e9 <= row.offset_ns < 200e9]
    part = drawn(path, 100, 200)
    assert [row.offset_ns + 100 * 10**9 for row in part] == [row.offset_ns for row in whole]
    assert drawn(path, 100, 200, seed=2) != part


def test_the_lengths_of_times_without_requests_are_not_needed(tmp_path: Path) -> None:
    dataset = DATASET.replace('"1000": {', '"600": {"input_tokens": "{}", "output_tokens": "{}"}, "1000": {')
    assert drawn(client(tmp_path, dataset=dataset)) == drawn(client(tmp_path, dataset=DATASET))


def test_a_folder_is_all_its_clients_each_as_it_would_be_alone(tmp_path: Path) -> None:
    one = client(tmp_path / "all", "chunk-1")
    two = client(tmp_path / "all", "chunk-2")
    both = drawn(tmp_path / "all", 0, 60)
    assert sorted(both, key=repr) == sorted([*drawn(one, 0, 60), *drawn(two, 0, 60)], key=repr)
    assert [row.offset_ns for row in both] == sorted(row.offset_ns for row in both)
    assert is_servegen(tmp_path / "all")
    assert is_servegen(one)
    assert not is_servegen(tmp_path)


def test_a_mix_takes_a_part_of_it_and_some_of_the_requests(tmp_path: Path) -> None:
    path = client(tmp_path)
    source = TraceSource(file="x", from_=Duration.parse("100s"), until=Duration.parse("400s"), keep=0.25)
    rows = read_source(path, source, seed=1).rows
    assert rows[0].offset_ns == 0
    assert rows[-1].offset_ns < 300e9
    assert len(rows) == pytest.approx(750, abs=250)


@pytest.mark.parametrize(
    ("trace", "dataset", "words"),
    [
        pytest.param("0,1,1,Gamma,1\n", DATASET, "-trace.csv:1: not a window", id="cells"),
        pytest.param("0,1,1,Gamma,1,1\n600,x,1,Gamma,1,1", DATASET, ":2: start, rate and cv", id="no-number"),
        pytest.param("600,1,1,Gamma,1,1\n0,1,1,Gamma,1,1", DATASET, ":2: .*out of order", id="order"),
        pytest.param("0,-1,1,Gamma,1,1", DATASET, ":1: .*makes no sense", id="negative"),
        pytest.param("0,nan,1,Gamma,1,1", DATASET, ":1: .*makes no sense", id="nan"),
        pytest.param("0,1,1,Pareto,1,1", DATASET, ":1: the gaps of a window are Gamma or Weibull", id="kind"),
        pytest.param("0,0,0,,0,0", DATASET, "no requests come in that time", id="idle"),
        pytest.param("0,1e6,1,Gamma,1,1", DATASET, "more than 1,000,000 requests", id="too-many"),
        pytest.param(TRACE, None, "-dataset.json: cannot read the trace", id="no-dataset"),
        pytest.param(
            TRACE, '{"0": {"input_tokens": "{1: 0.0}", "output_tokens": "{}"}}', "make no sense", id="idle-lengths"
        ),
        pytest.param(TRACE, "[]", "-dataset.json: not the lengths of a ServeGen client", id="list"),
        pytest.param(TRACE, "{}", "-dataset.json: there are no lengths", id="none"),
        pytest.param(TRACE, '{"0": {"input_tokens": "{1: 1}"}}', "the lengths from 0 on cannot be read", id="column"),
        pytest.param(
            TRACE,
            '{"0": {"input_tokens": "__import__(\'os\')", "output_tokens": "{1: 1}"}}',
            "the lengths from 0 on cannot be read",
            id="code",
        ),
        pytest.param(
            TRACE, '{"0": {"input_tokens": "{-1: 1}", "output_tokens": "{1: 1}"}}', "make no sense", id="below-zero"
        ),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, trace: str, dataset: str | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        drawn(client(tmp_path, trace=trace, dataset=dataset))
