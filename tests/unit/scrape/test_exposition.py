from pathlib import Path

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tokswarm.scrape.exposition import Sample, samples

VLLM = Path(__file__).parents[2] / "data" / "server-metrics" / "vllm-0.32.0-cpu.metrics.txt"


class Any:
    """Wants every name."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(name) and not name.startswith("#")


def test_the_text_of_a_real_server_reads_as_the_official_parser_reads_it() -> None:
    text = VLLM.read_text(encoding="utf-8")
    want = [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    got = [tuple(sample) for sample in samples(text, Any())]
    assert len(got) == 505
    assert sorted(got, key=str) == sorted(want, key=str)


def test_only_what_is_wanted_is_read() -> None:
    text = 'a{x="1"} 1\nab 2\na 3\n\nb{} 4\n'
    assert list(samples(text, {"a", "b"})) == [Sample("a", {"x": "1"}, 1.0), Sample("a", {}, 3.0), Sample("b", {}, 4.0)]


def test_escapes_braces_and_commas_in_label_values_are_no_syntax() -> None:
    text = r'a{path="C:\\x\n",say="\"hi\", } {",last="z",} 1.5e3 1700000000000'
    assert list(samples(text, {"a"})) == [
        Sample("a", {"path": "C:\\x\n", "say": '"hi", } {', "last": "z"}, 1500.0),
    ]


def test_openmetrics_with_exemplars_reads_alike() -> None:
    registry = CollectorRegistry()
    histogram = Histogram("wait_seconds", "Wait.", buckets=(0.1, 1), registry=registry)
    histogram.observe(0.5, {"trace": "x y"})
    text = generate_latest(registry).decode()
    assert '# {trace="x y"}' in text
    assert list(samples(text, {"wait_seconds_bucket", "wait_seconds_sum"})) == [
        Sample("wait_seconds_bucket", {"le": "0.1"}, 0.0),
        Sample("wait_seconds_bucket", {"le": "1.0"}, 1.0),
        Sample("wait_seconds_bucket", {"le": "+Inf"}, 1.0),
        Sample("wait_seconds_sum", {}, 0.5),
    ]


def test_lines_that_are_no_samples_are_passed_over() -> None:
    text = 'a\na{\na{x=1} 2\na{x="1} 2\na{x="1"}\na{x="1"} two\n[{"a": 1}]\na 7'
    assert list(samples(text, {"a"})) == [Sample("a", {}, 7.0)]


def test_infinity_and_no_number_are_values() -> None:
    high, low, none = samples("a +Inf\na -Inf\na NaN", {"a"})
    assert (high.value, low.value) == (float("inf"), float("-inf"))
    assert none.value != none.value
