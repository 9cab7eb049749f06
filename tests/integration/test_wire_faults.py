"""Every kind of wire fault, as the product's own client sees it: the outcomes the table of faults promises."""

import contextlib
import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest
from endpoints import simulator

from tokswarm.measure.record import Outcome
from tokswarm.simulator.faults import KINDS
from tokswarm.traffic.mix import Target
from tokswarm.traffic.units import Duration
from tokswarm.wire.answer import LiveRow
from tokswarm.wire.api import RequestWriter
from tokswarm.wire.client import LoadClient
from tokswarm.wire.exchange import Exchange
from tokswarm.wire.target import ResolvedTarget

TOKENS = 6
CASES = [(spec, outcome) for kind in KINDS.values() for spec, outcome in kind.reported]


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with simulator("fast") as url:
        yield url


@contextlib.contextmanager
def client_of(base_url: str, fault: str = "", **options: object) -> Iterator[LoadClient]:
    headers = {"x-sim-fault": fault} if fault else {}
    waits = {"first_byte_timeout": Duration.parse("700ms"), "gap_timeout": Duration.parse("700ms")}
    client = LoadClient(
        ResolvedTarget(Target(base_url=base_url, model="tiny", headers=headers, **{**waits, **options}), {})
    )
    try:
        yield client
    finally:
        client.close()


def ask(base_url: str, fault: str, **options: object) -> Exchange:
    with client_of(base_url, fault, **options) as client:
        call = RequestWriter(client.target, "tiny").write(b"hello", max_tokens=TOKENS, ignore_eos=True)
        return client.ask(call, timeout_s=20)


def in_turn(client: LoadClient, count: int) -> list[Exchange]:
    """On kept connections, as the engine does."""
    call = RequestWriter(client.target, "tiny").write(b"hello", max_tokens=TOKENS, ignore_eos=True)
    got: list[Exchange] = []
    for number in range(count):
        client.start(call, LiveRow(), got.append, None)
        with gevent.Timeout(10):
            while len(got) <= number:
                gevent.sleep(0.001)
    return got


@pytest.mark.parametrize(("fault", "outcome"), CASES)
def test_each_fault_is_reported_as_the_table_says(base_url: str, fault: str, outcome: str) -> None:
    exchange = ask(base_url, fault)
    assert (exchange.outcome, exchange.error if exchange.outcome == "ok" else None) == (Outcome(outcome), None)
    if exchange.outcome is Outcome.OK:
        assert len(exchange.answer.stamps_ns) == TOKENS
        assert exchange.answer.finish_reason == "length"
        usage = exchange.answer.usage
        assert (None if usage is None else usage.output) == (None if fault == "no_usage" else TOKENS)
    else:
        assert exchange.error


# Faults that only change the form of events or the HTTP around them: the same in the other API.
@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        *(
            (name, "ok")
            for name in ("crlf", "cr", "no_space", "lines", "comments", "bom", "unicode", "gzip", "coalesce")
        ),
        *((name, "ok") for name in ("split=3", "huge_event", "no_usage", "stall=0.1:2", "until_close")),
        ("length=-7", "truncated"),
        ("empty", "empty"),
        ("reset=3", "reset"),
        ("tear=3", "truncated"),
        ("end_early=3", "truncated"),
        ("bad_json=2", "protocol"),
        ("error_event", "in_band_error"),
        ("error_event=typed:2", "in_band_error"),
        ("status=503", "http_error"),
    ],
)
def test_faults_act_on_the_responses_api_as_well(base_url: str, fault: str, outcome: str) -> None:
    exchange = ask(base_url, fault, api="responses")
    assert (exchange.outcome, exchange.error if exchange.outcome == "ok" else None) == (Outcome(outcome), None)
    assert exchange.outcome is not Outcome.OK or len(exchange.answer.stamps_ns) == TOKENS


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        *((name, "ok") for name in ("gzip", "slow_head", "interim", "until_close", "split=3", "close_each", "crlf")),
        ("reset", "reset"),
        ("tear", "truncated"),
        ("length=10", "truncated"),
        ("hang", "timeout"),
        ("status=502", "http_error"),
    ],
)
def test_faults_of_head_and_body_act_on_whole_answers(base_url: str, fault: str, outcome: str) -> None:
    exchange = ask(base_url, fault, stream=False)
    assert (exchange.outcome, exchange.error if exchange.outcome == "ok" else None) == (Outcome(outcome), None)


@pytest.mark.parametrize(
    ("fault", "reused"),
    [
        ("crlf", True),
        ("gzip", True),
        ("comments,split=9", True),
        ("interim", True),
        ("close_each", False),
        ("until_close", False),
        ("stray", False),
        ("hold_open", False),
        ("length=-7", False),
    ],
)
def test_a_connection_is_kept_exactly_when_that_is_safe(base_url: str, fault: str, *, reused: bool) -> None:
    with client_of(base_url, fault) as client:
        exchanges = in_turn(client, 3)
    assert [exchange.outcome for exchange in exchanges] == [Outcome.OK] * 3
    assert [exchange.reused for exchange in exchanges] == [False, reused, reused]


def test_a_connection_closed_behind_the_clients_back_costs_no_request(base_url: str) -> None:
    with client_of(base_url, "close_after") as client:
        assert [exchange.outcome for exchange in in_turn(client, 4)] == [Outcome.OK] * 4


def test_a_stall_shows_where_it_was(base_url: str) -> None:
    stamps_ns = ask(base_url, "stall=0.3:2").answer.stamps_ns
    gaps_ms = [(after - before) / 1e6 for before, after in itertools.pairwise(stamps_ns)]
    assert gaps_ms[1] == pytest.approx(300, abs=60)
    assert max(gaps_ms[:1] + gaps_ms[2:]) < 100


def test_a_coalesced_answer_is_one_burst(base_url: str) -> None:
    answer = ask(base_url, "coalesce").answer
    assert len(answer.stamps_ns) == TOKENS
    assert answer.stamps_ns[-1] - answer.stamps_ns[0] < 5_000_000
    assert answer.merged_arrivals >= TOKENS - 2


def test_an_unknown_fault_is_refused_with_the_list_of_those_there_are(base_url: str) -> None:
    for fault, words in (("rest=3", "crlf"), ("reset=x", "no whole number"), ("status=200", "none of 400")):
        exchange = ask(base_url, fault)
        assert exchange.status == 400
        assert words in exchange.raw_body.decode()


def test_a_client_that_leaves_in_a_stall_frees_its_memory(base_url: str) -> None:
    root = base_url.removesuffix("/v1")
    ask(base_url, "stall=30:2", gap_timeout=Duration.parse("200ms"))
    with urllib.request.urlopen(f"{root}/metrics", timeout=5) as response:
        metrics = response.read().decode()
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in metrics


def test_a_share_of_requests_meets_a_fault_and_the_same_ones_by_seed(tmp_path: Path) -> None:
    path = tmp_path / "faulty.yaml"
    path.write_text("profile: fast\nfaults:\n- {fault: status=502, share: 0.3}\n- {fault: 'end_early=2', share: 0.2}\n")
    runs = []
    for _ in range(2):
        with simulator(path) as url, client_of(url) as client:
            runs.append([exchange.outcome for exchange in in_turn(client, 60)])
    assert runs[0] == runs[1]
    counts = {outcome: runs[0].count(outcome) for outcome in set(runs[0])}
    assert counts.keys() == {Outcome.OK, Outcome.HTTP_ERROR, Outcome.TRUNCATED}
    assert 8 <= counts[Outcome.HTTP_ERROR] <= 30
    assert 4 <= counts[Outcome.TRUNCATED] <= 24


def test_faults_leave_other_requests_alone(base_url: str) -> None:
    request = urllib.request.Request(f"{base_url}/models", headers={"x-sim-fault": "gzip"})
    with urllib.request.urlopen(request, timeout=5) as response:
        assert response.headers["content-encoding"] == "gzip"
    with urllib.request.urlopen(f"{base_url}/models", timeout=5) as response:
        assert json.loads(response.read())["data"][0]["id"] == "tiny"
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(
            urllib.request.Request(f"{base_url}/models", headers={"x-sim-fault": "status=503"}), timeout=5
        )
