"""Admission limits over real sockets, as the product's client and the official SDK see them."""

from collections.abc import Iterator
from pathlib import Path

import gevent
import openai
import pytest
from endpoints import simulator

from tokswarm.measure.record import Outcome
from tokswarm.traffic.mix import Target
from tokswarm.wire.answer import LiveRow
from tokswarm.wire.api import RequestWriter
from tokswarm.wire.client import LoadClient
from tokswarm.wire.exchange import Exchange
from tokswarm.wire.response_headers import server_word
from tokswarm.wire.target import ResolvedTarget


def served(tmp_path: Path, limits: str, profile: str = "fast") -> Path:
    path = tmp_path / "limited.yaml"
    path.write_text(f"profile: {profile}\nlimits: {limits}\n")
    return path


def ask(client: LoadClient, *, max_tokens: int) -> Exchange:
    return client.ask(
        RequestWriter(client.target, "tiny").write(b"hello", max_tokens=max_tokens, ignore_eos=True), timeout_s=10
    )


@pytest.fixture
def limited_url(tmp_path: Path) -> Iterator[str]:
    with simulator(served(tmp_path, "{requests_per_minute: 4, tokens_per_minute: 600}")) as url:
        yield url


def test_requests_over_the_rate_are_rate_limited_and_told_when_to_come_back(limited_url: str) -> None:
    client = LoadClient(ResolvedTarget(Target(base_url=limited_url, model="tiny"), {}))
    try:
        exchanges = [ask(client, max_tokens=4) for _ in range(6)]
    finally:
        client.close()
    assert [each.outcome for each in exchanges] == [Outcome.OK] * 4 + [Outcome.RATE_LIMITED] * 2
    words = [server_word(each.headers) for each in exchanges]
    assert [word.remaining_requests for word in words] == [3, 2, 1, 0, 0, 0]
    assert [word.remaining_tokens for word in words[:4]] == pytest.approx([590, 580, 570, 560], abs=35)
    assert words[0].retry_after_ms is None
    assert words[4].retry_after_ms == pytest.approx(15_000, abs=3_000)
    assert exchanges[4].error is not None
    assert "rate_limit_exceeded" in exchanges[4].error
    assert exchanges[0].headers["x-ratelimit-limit-tokens"] == "600"


def test_tokens_count_as_prompt_and_limit_and_the_sdk_knows_the_error(limited_url: str) -> None:
    client = openai.OpenAI(base_url=limited_url, api_key="unused", max_retries=0)
    client.completions.create(model="tiny", prompt="a b", max_tokens=500, stream=True).close()
    with pytest.raises(openai.RateLimitError) as refused:
        client.completions.create(model="tiny", prompt="a b", max_tokens=400)
    assert (refused.value.code, refused.value.type) == ("rate_limit_exceeded", "tokens")
    assert int(refused.value.response.headers["retry-after"]) >= 25


def test_a_crowd_gets_429_for_flight_and_503_for_the_queue(tmp_path: Path) -> None:
    slow = "{preset: fast, step_overhead_us: 20000, max_num_seqs: 1}"
    with simulator(served(tmp_path, "{max_concurrent: 4, max_waiting: 1}", slow)) as url:
        client = LoadClient(ResolvedTarget(Target(base_url=url, model="tiny"), {}))
        call = RequestWriter(client.target, "tiny").write(b"hello", max_tokens=20, ignore_eos=True)
        got: list[Exchange] = []
        try:
            for _ in range(6):
                client.start(call, LiveRow(), got.append, None)
                gevent.sleep(0.03)
            with gevent.Timeout(10):
                while len(got) < 6:
                    gevent.sleep(0.01)
        finally:
            client.close()
    # One runs, two wait (the second finds one waiting), the fourth finds two.
    assert sorted((each.outcome or "", each.status) for each in got) == [
        *[(Outcome.HTTP_ERROR, 503)] * 3,
        *[(Outcome.OK, 200)] * 3,
    ]
    refused = next(each for each in got if each.status == 503)
    assert server_word(refused.headers).retry_after_ms == 1_000
