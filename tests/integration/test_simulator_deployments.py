"""Deployments over real sockets: replicas and their router, a cold replica, autoscaling, fallback, limits, models."""

import contextlib
import http.client
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from endpoints import simulator
from product import RunFolder, run_mix, truth, write_mix
from prometheus_client.parser import text_string_to_metric_families

from tokswarm.measure.record import QueueWaitSource, RequestRecord, TokenSource

STAMP_MS = 5.0
"""How far the client's stamps may be from the server's: the kernel and a busy machine lie between. Clocks are one."""

TEN_MS = {
    "preset": "demo",
    "name": "ten",
    "token_compute_us": 0,
    "sequence_overhead_us": 0,
    "weights_read_us": 9_000,
    "kv_read_us": 0,
}
"""A step takes 10 ms whatever is in it."""


class Reply(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


@contextlib.contextmanager
def deployment(folder: Path, document: dict[str, Any]) -> Iterator[str]:
    path = folder / "mine.yaml"
    path.write_text(json.dumps(document), encoding="utf-8")  # JSON is YAML
    with simulator(path, model=None) as base_url:
        yield base_url


def ask(base_url: str, text: str = "tell me a story", *, headers: dict[str, str] | None = None, **body: Any) -> Reply:
    parts = urlsplit(base_url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=20)
    fields = {"messages": [{"role": "user", "content": text}], "max_tokens": 5, "ignore_eos": True, **body}
    with contextlib.closing(connection):
        connection.request("POST", "/v1/chat/completions", json.dumps(fields), headers or {})
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())


def get(base_url: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        assert response.status == 200
        return response.read()


def samples(base_url: str, path: str = "/metrics") -> list[tuple[str, dict[str, str], float]]:
    families = text_string_to_metric_families(get(base_url, path).decode())
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def total(base_url: str, name: str, path: str = "/metrics", **labels: str) -> float:
    found = [value for each, has, value in samples(base_url, path) if each == name and labels.items() <= has.items()]
    assert found, name
    return sum(found)


def events(base_url: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in get(base_url, "/sim/events").splitlines()]


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# --- a run over two replicas, and the truth ----------------------------------------------------------


class Told(NamedTuple):
    """A run and the server's account of it: each record with the truth of its request."""

    run: RunFolder
    pairs: list[tuple[RequestRecord, dict[str, Any]]]
    unmatched: int


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("pair")
    server = {"profile": {**TEN_MS, "max_num_seqs": 3, "num_blocks": 4096}, "replicas": 2, "router": "least_loaded"}
    with deployment(folder, server) as base_url:
        mix = write_mix(
            folder / "pair.yaml",
            base_url,
            classes=[
                {
                    "name": "chat",
                    "prompt": {
                        "tokens": {"uniform": {"low": 120, "high": 200}},
                        "shared_prefix": {"groups": 3, "tokens": 96},
                    },
                    "output": {"max_tokens": {"uniform": {"low": 8, "high": 24}}, "ignore_eos": True},
                }
            ],
            load=[{"name": "steady", "concurrency": 8, "for": "4s", "drain": "8s"}],
        )
        run = run_mix(mix, folder / "data", workers=1)
        records = run.records("steady")
        rows = truth(base_url, records[0].planned_ns)
    pairs, left = [], list(rows)
    for record in sorted(records, key=lambda one: one.sent_ns):
        row = next(
            (
                row
                for row in left
                if row["replica"] == record.served_by
                and row["output_tokens"] == record.max_tokens
                and row["prompt_tokens"] == record.prompt_tokens
                and record.sent_ns <= row["arrival_ns"] <= record.done_ns
            ),
            None,
        )
        if row is not None:
            left.remove(row)
            pairs.append((record, row))
    return Told(run, pairs, len(records) - len(pairs) + len(left))


def test_every_record_has_its_request_in_the_truth_and_both_replicas_served(told: Told) -> None:
    assert told.unmatched == 0
    assert len(told.pairs) > 60
    shares = Counter(row["replica"] for _, row in told.pairs)
    assert set(shares) == {"replica-0", "replica-1"}
    assert min(shares.values()) > len(told.pairs) / 3
    assert {(row["status"], row["provider"], row["model"], len(row["refused"])) for _, row in told.pairs} == {
        (200, "main", "tiny", 0)
    }


def test_tokens_and_cached_tokens_are_the_truth(told: Told) -> None:
    for record, row in told.pairs:
        assert record.output_tokens_source is TokenSource.USAGE
        assert (record.output_tokens, record.prompt_tokens) == (row["output_tokens"], row["prompt_tokens"])
        assert record.cached_tokens == row["cached_tokens"]
    assert sum(row["cached_tokens"] for _, row in told.pairs) > 0


def test_queue_wait_is_the_truth_and_there_was_some(told: Told) -> None:
    for record, row in told.pairs:
        assert record.queue_wait_source is QueueWaitSource.SERVER
        assert record.queue_wait_ms == pytest.approx(row["queue_ms"], abs=0.01)
    assert sum(row["queue_ms"] > 10 for _, row in told.pairs) > len(told.pairs) / 4  # 8 in flight, 6 places


def test_first_tokens_arrive_when_they_were_emitted(told: Told) -> None:
    late_ms = sorted((record.first_token_ns - row["emitted_ns"][0]) / 1e6 for record, row in told.pairs)
    assert late_ms[0] >= 0
    assert late_ms[len(late_ms) // 2] < STAMP_MS


def test_all_tokens_arrive_when_they_were_emitted(told: Told) -> None:
    late_ms = []
    for record, row in told.pairs:
        arrivals = [record.sent_ns + offset for offset in record.arrival_offsets_ns()]
        assert len(arrivals) == len(row["emitted_ns"])
        late_ms += [(came - sent) / 1e6 for came, sent in zip(arrivals, row["emitted_ns"], strict=True)]
    late_ms.sort()
    assert late_ms[0] >= 0
    assert late_ms[len(late_ms) * 9 // 10] < STAMP_MS


# --- replicas ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    groups = [{"count": 2, "region": "eu-1"}, {"region": "us-1"}]
    with deployment(tmp_path_factory.mktemp("regions"), {"profile": "fast", "replicas": groups}) as base_url:
        yield base_url


def test_round_robin_answers_name_who_served_and_where(regions: str) -> None:
    served = [ask(regions).headers for _ in range(6)]
    assert Counter(one["x-served-by"] for one in served) == {"replica-0": 2, "replica-1": 2, "replica-2": 2}
    assert {(one["x-served-by"], one["x-region"]) for one in served} == {
        ("replica-0", "eu-1"),
        ("replica-1", "eu-1"),
        ("replica-2", "us-1"),
    }


def test_asked_region_serves(regions: str) -> None:
    assert {ask(regions, headers={"x-region": "us-1"}).headers["x-served-by"] for _ in range(4)} == {"replica-2"}
    assert len({ask(regions, headers={"x-region": "mars"}).headers["x-served-by"] for _ in range(6)}) == 3


def test_metrics_of_all_are_the_sum_of_each(regions: str) -> None:
    for number in range(5):
        ask(regions, f"story number {number}", max_tokens=3 + number)
    for name in (
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
        "vllm:request_success_total",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_sum",
        "vllm:prefix_cache_queries_total",
    ):
        each = [total(regions, name, f"/metrics?replica=replica-{number}") for number in range(3)]
        assert all(each), name
        assert total(regions, name) == pytest.approx(sum(each))
        assert [total(regions, name, replica=f"replica-{number}") for number in range(3)] == pytest.approx(each)
    rows = truth(regions, 0)
    assert total(regions, "vllm:generation_tokens_total") == sum(row["output_tokens"] for row in rows)
    alone = samples(regions, "/metrics?replica=replica-1")
    assert not any("replica" in labels for _, labels, _ in alone)
    assert total(regions, "sim:replicas", state="serving") == 3


def test_prefix_aware_router_keeps_a_conversation_where_its_cache_is(tmp_path: Path) -> None:
    with deployment(tmp_path, {"profile": "fast", "replicas": 3, "router": "prefix_aware"}) as base_url:
        first, second = " ".join(["left"] * 100), " ".join(["right"] * 100)
        homes = [ask(base_url, text).headers["x-served-by"] for text in (first, second)]
        assert homes[0] != homes[1]
        for text, home in ((first, homes[0]), (second, homes[1])) * 3:
            reply = ask(base_url, f"{text} and on")
            assert reply.headers["x-served-by"] == home
            assert json.loads(reply.body)["usage"]["prompt_tokens_details"]["cached_tokens"] >= 96


def test_cold_replica_joins_after_the_first_request_and_is_slow_and_empty_at_first(tmp_path: Path) -> None:
    server = {
        "profile": TEN_MS,
        "replicas": [{"count": 1}, {"joins_after_s": 0.3}],
        "cold_start": {"boot_s": 0.5, "warmup_s": 1.5, "warmup_factor": 3},
    }
    text = " ".join(["word"] * 64)
    with deployment(tmp_path, server) as base_url:
        time.sleep(0.5)
        assert total(base_url, "sim:replicas", state="stopped") == 1
        began_ns = time.monotonic_ns()
        assert {ask(base_url, text).headers["x-served-by"] for _ in range(4)} == {"replica-0"}
        assert until(lambda: total(base_url, "sim:replicas", state="warming") == 1)
        replies = [ask(base_url, text, max_tokens=10) for _ in range(2)]
        assert until(lambda: total(base_url, "sim:replicas", state="serving") == 2)
        ask(base_url, text, max_tokens=10), ask(base_url, text, max_tokens=10)
        rows = truth(base_url, began_ns)
        changes = events(base_url)
    cold = [row for row in rows if row["replica"] == "replica-1"]
    assert {reply.headers["x-served-by"] for reply in replies} == {"replica-0", "replica-1"}
    assert [row["cached_tokens"] for row in cold] == [0, 64]

    def gap_ms(row: dict[str, Any]) -> float:
        return float(row["due_ns"][-1] - row["due_ns"][0]) / 9e6

    assert [gap_ms(row) for row in cold] == pytest.approx([30, 10])
    assert [(one["replica"], one["state"], one["reason"]) for one in changes] == [
        ("replica-1", "booting", "joins"),
        ("replica-1", "warming", "booted"),
        ("replica-1", "serving", "warm"),
    ]
    after_s = [(one["at_ns"] - began_ns) / 1e9 for one in changes]
    assert after_s == pytest.approx([0.3, 0.8, 2.3], abs=0.25)


def test_pool_grows_under_a_queue_and_shrinks_when_idle(tmp_path: Path) -> None:
    server = {
        "profile": {**TEN_MS, "max_num_seqs": 1},
        "router": "least_loaded",
        "cold_start": {"boot_s": 0.2},
        "autoscale": {"max_replicas": 2, "up_waiting": 1, "up_after_s": 0.2, "down_after_s": 0.5},
    }
    with deployment(tmp_path, server) as base_url:
        assert total(base_url, "sim:replicas", state="stopped") == 1
        open_calls = []
        parts = urlsplit(base_url)
        for _ in range(4):
            connection = http.client.HTTPConnection(parts.netloc, timeout=20)
            fields = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 50, "ignore_eos": True}
            connection.request("POST", "/v1/chat/completions", json.dumps(fields))
            open_calls.append(connection)
        assert until(lambda: total(base_url, "sim:replicas", state="serving") == 2)
        assert ask(base_url).headers["x-served-by"] == "replica-1"
        for connection in open_calls:
            assert connection.getresponse().read()
            connection.close()
        assert until(lambda: total(base_url, "sim:replicas", state="stopped") == 1)
        states = [(one["state"], one["reason"]) for one in events(base_url)]
        assert total(base_url, "vllm:generation_tokens_total") == 205
    assert states == [("booting", "load"), ("serving", "booted"), ("draining", "idle"), ("stopped", "drained")]


# --- gateways, limits, models ------------------------------------------------------------------------


def test_second_provider_answers_what_the_first_refuses_and_time_is_paid(tmp_path: Path) -> None:
    providers = [
        {"name": "near", "profile": TEN_MS, "limits": {"requests_per_minute": 2}, "latency_ms": 20},
        {"name": "far", "profile": TEN_MS, "latency_ms": 150},
    ]
    with deployment(tmp_path, {"providers": providers}) as base_url:
        replies = [ask(base_url) for _ in range(4)]
        rows = truth(base_url, 0)
        assert total(base_url, "sim:fallbacks_total") == 2
        assert total(base_url, "sim:provider_attempts_total", provider="near", status="200") == 2
        assert total(base_url, "sim:provider_attempts_total", provider="near", status="429") == 2
        assert total(base_url, "sim:provider_attempts_total", provider="far", status="200") == 2
        assert total(base_url, "vllm:request_success_total", provider="far", replica="far-0") == 2
    said = [[reply.headers[name] for name in ("x-provider", "x-attempts", "x-fallback")] for reply in replies]
    assert said == [["near", "1", "false"]] * 2 + [["far", "2", "true"]] * 2
    assert [reply.headers["x-served-by"] for reply in replies] == ["near-0", "near-0", "far-0", "far-0"]
    assert replies[0].headers["x-ratelimit-remaining-requests"] == "1"
    assert [reply.status for reply in replies] == [200] * 4
    way_ms = [(row["routed_ns"] - row["arrival_ns"]) / 1e6 for row in rows]
    assert way_ms == pytest.approx([20, 20, 170, 170], abs=12)
    assert [row["refused"] for row in rows] == [[], [], *[[{"provider": "near", "status": 429}]] * 2]


def test_request_that_all_providers_refuse_gets_the_last_ones_answer_and_is_in_the_truth(tmp_path: Path) -> None:
    providers = [
        {"name": "first", "profile": "fast", "error_share": 1, "error_status": 500},
        {"name": "second", "profile": "fast", "error_share": 1, "error_status": 503},
    ]
    with deployment(tmp_path, {"providers": providers}) as base_url:
        reply = ask(base_url)
        [row] = truth(base_url, 0)
    assert (reply.status, reply.headers["x-attempts"], reply.headers["x-fallback"]) == (503, "2", "false")
    assert json.loads(reply.body)["error"]["code"] == 503
    assert (row["outcome"], row["status"], row["replica"], row["output_tokens"]) == ("rejected", 503, None, 0)
    assert [one["status"] for one in row["refused"]] == [500, 503]


def test_seeded_failures_of_the_first_provider_are_all_saved(tmp_path: Path) -> None:
    providers = [{"name": "first", "profile": "fast", "error_share": 0.3}, {"name": "second", "profile": "fast"}]
    with deployment(tmp_path, {"providers": providers}) as base_url:
        replies = [ask(base_url) for _ in range(100)]
    assert {reply.status for reply in replies} == {200}
    assert 15 <= sum(reply.headers["x-fallback"] == "true" for reply in replies) <= 45


def test_client_that_leaves_on_its_way_to_a_provider_is_in_the_truth(tmp_path: Path) -> None:
    with deployment(tmp_path, {"profile": "fast", "latency_ms": 2_000}) as base_url:
        connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=5)
        fields = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
        connection.request("POST", "/v1/chat/completions", json.dumps(fields))
        time.sleep(0.2)
        connection.close()
        assert until(lambda: bool(truth(base_url, 0)))
        [row] = truth(base_url, 0)
    assert (row["outcome"], row["status"], row["replica"], row["routed_ns"]) == ("abort", None, None, None)
    assert (row["ended_ns"] - row["arrival_ns"]) / 1e6 < 1_500


def test_limits_without_a_second_provider_answer_429(tmp_path: Path) -> None:
    with deployment(tmp_path, {"profile": "fast", "limits": {"requests_per_minute": 3}}) as base_url:
        replies = [ask(base_url) for _ in range(5)]
        rows = truth(base_url, 0)
    assert [reply.status for reply in replies] == [200, 200, 200, 429, 429]
    assert replies[2].headers["x-ratelimit-remaining-requests"] == "0"
    assert int(replies[3].headers["retry-after"]) >= 1
    assert "x-provider" not in replies[0].headers
    assert Counter(row["outcome"] for row in rows) == {"length": 3, "rejected": 2}


def test_one_endpoint_serves_a_static_and_a_continuous_model() -> None:
    with simulator("side-by-side", model=None) as base_url:
        names = [one["id"] for one in json.loads(get(base_url, "/v1/models"))["data"]]
        assert names == ["tiny-static", "tiny-continuous"]
        for name in names:
            reply = ask(base_url, model=name)
            assert (json.loads(reply.body)["model"], reply.headers["x-served-by"]) == (name, f"{name}-0")
        assert ask(base_url, model="tiny").status == 404
        assert total(base_url, "vllm:generation_tokens_total", model_name="tiny-static") == 5
        assert total(base_url, "vllm:generation_tokens_total", model_name="tiny-continuous") == 5
