import pytest

from tokswarm.master.metrics_source import metrics_sources
from tokswarm.traffic.mix import NamedTarget, Target


def addresses(target: Target) -> list[tuple[str, list[str]]]:
    return [(source.target, [each.base_url for each in source.addresses]) for source in metrics_sources(target)]


@pytest.mark.parametrize(
    ("base_url", "root", "name"),
    [
        pytest.param("http://h:8000/v1", "http://h:8000", "h:8000", id="usual"),
        pytest.param("https://h/openai/v1/", "https://h/openai", "h:443", id="prefixed"),
        pytest.param("http://h:8000", "http://h:8000", "h:8000", id="no-v1"),
        pytest.param("http+unix://%2Frun%2Fs.sock/v1", "http+unix://%2Frun%2Fs.sock", "/run/s.sock", id="unix"),
    ],
)
def test_auto_looks_at_the_usual_places_below_the_root(base_url: str, root: str, name: str) -> None:
    want = [f"{root}/metrics", f"{root}/prometheus/metrics", f"{root}/v1/metrics"]
    assert addresses(Target(base_url=base_url)) == [(name, want)]


def test_off_looks_nowhere() -> None:
    assert addresses(Target(base_url="http://h/v1", metrics="off")) == []


def test_a_list_is_a_replica_each_under_the_name_of_the_target() -> None:
    target = NamedTarget(name="prod", base_url="http://lb/v1", metrics=["http://a:8000/metrics", "http://b:8000"])
    assert addresses(target) == [
        ("prod", ["http://a:8000/metrics"]),
        ("prod", ["http://b:8000/metrics", "http://b:8000/prometheus/metrics", "http://b:8000/v1/metrics"]),
    ]


def test_the_key_and_the_headers_of_the_load_do_not_go_to_the_metrics() -> None:
    target = Target(base_url="https://h/v1", key="env:KEY", headers={"x-key": "env:OTHER"}, query={"a": "b"})
    for source in metrics_sources(target):
        for each in source.addresses:
            assert (each.key, each.headers, each.query) == (None, {}, {})


def test_a_metrics_key_and_the_certificates_do() -> None:
    target = Target(base_url="https://h/v1", metrics="https://m/metrics", metrics_key="env:METRICS")
    [source] = metrics_sources(target)
    [address] = source.addresses
    assert (address.key, address.tls, source.named) == ("env:METRICS", target.tls, True)
