"""Admission limits: buckets that fill, what is refused, and what the headers say."""

import pytest

from tokswarm.errors import ConfigError
from tokswarm.simulator.api import ApiError
from tokswarm.simulator.limits import Limiter, Limits

SECOND_NS = 1_000_000_000


class Clock:
    """Time that is set by hand."""

    def __init__(self) -> None:
        self.now_ns = 5 * SECOND_NS

    def __call__(self) -> int:
        return self.now_ns


def limiter(clock: Clock | None = None, **limits: float) -> Limiter:
    return Limiter(Limits(**limits), clock or Clock())  # type: ignore[arg-type]


def ask(one: Limiter, *, tokens: int = 1, in_flight: int = 0, waiting: int = 0) -> ApiError | None:
    return one.refusal(tokens=tokens, in_flight=in_flight, waiting=waiting)


def header(error: ApiError, name: str) -> str:
    return next(line.partition(": ")[2] for line in error.headers if line.startswith(f"{name}: "))


def test_a_burst_is_taken_and_what_comes_after_it_waits_for_the_rate() -> None:
    clock = Clock()
    one = limiter(clock, requests_per_minute=60, burst_s=5)
    assert [ask(one) for _ in range(5)] == [None] * 5
    refused = ask(one)
    assert refused is not None
    assert (refused.status, refused.code, refused.kind) == (429, "rate_limit_exceeded", "requests")
    assert (header(refused, "retry-after"), header(refused, "retry-after-ms")) == ("1", "1000")
    clock.now_ns += SECOND_NS
    assert ask(one) is None
    assert ask(one) is not None


def test_over_a_long_time_exactly_the_rate_is_admitted() -> None:
    clock = Clock()
    one = limiter(clock, requests_per_minute=120, burst_s=1)
    admitted = 0
    for _ in range(10 * 60 * 10):  # ten requests a second for ten minutes
        admitted += ask(one) is None
        clock.now_ns += SECOND_NS // 10
    assert admitted == pytest.approx(120 * 10, abs=2)


def test_tokens_are_charged_as_asked_and_a_refused_request_costs_nothing() -> None:
    one = limiter(tokens_per_minute=1_000)
    assert ask(one, tokens=700) is None
    refused = ask(one, tokens=400)
    assert refused is not None
    assert refused.kind == "tokens"
    assert "Limit 1000, remaining 300, requested 400" in str(refused)
    assert header(refused, "retry-after") == "6"
    assert ask(one, tokens=300) is None


def test_the_limit_that_lasts_longest_is_the_one_named() -> None:
    one = limiter(requests_per_minute=60, tokens_per_minute=60, burst_s=1)
    assert ask(one) is None
    one = limiter(requests_per_minute=1, tokens_per_minute=600)
    assert ask(one, tokens=600) is None
    refused = ask(one, tokens=300)
    assert refused is not None
    assert (refused.kind, header(refused, "retry-after")) == ("requests", "60")


def test_a_request_that_no_bucket_can_hold_is_told_not_to_come_back() -> None:
    refused = ask(limiter(tokens_per_minute=100), tokens=101)
    assert refused is not None
    assert refused.status == 429
    assert "too large" in str(refused)
    assert refused.headers == ()


def test_too_many_at_a_time_is_429_and_a_long_queue_is_503() -> None:
    one = limiter(max_concurrent=3, max_waiting=1)
    assert ask(one, in_flight=2, waiting=1) is None
    crowded, queued = ask(one, in_flight=3), ask(one, in_flight=2, waiting=2)
    assert crowded is not None
    assert queued is not None
    assert (crowded.status, crowded.code) == (429, "concurrency_limit_exceeded")
    assert (queued.status, queued.code) == (503, "overloaded")
    assert header(queued, "retry-after") == "1"


def test_headers_tell_limit_rest_and_when_the_bucket_is_full_again() -> None:
    clock = Clock()
    one = limiter(clock, requests_per_minute=60, tokens_per_minute=6_000_000)
    ask(one, tokens=12_000)
    assert one.headers() == [
        "x-ratelimit-limit-requests: 60",
        "x-ratelimit-remaining-requests: 59",
        "x-ratelimit-reset-requests: 1s",
        "x-ratelimit-limit-tokens: 6000000",
        "x-ratelimit-remaining-tokens: 5988000",
        "x-ratelimit-reset-tokens: 120ms",
    ]
    one = limiter(requests_per_minute=1)
    ask(one)
    assert one.headers()[2] == "x-ratelimit-reset-requests: 1m0s"
    assert limiter(max_concurrent=1).headers() == []


def test_a_clock_that_stands_still_or_steps_back_gives_nothing_away() -> None:
    clock = Clock()
    one = limiter(clock, requests_per_minute=60, burst_s=1)
    assert ask(one) is None
    clock.now_ns -= SECOND_NS
    assert ask(one) is not None


def test_limits_that_would_take_nothing_are_refused_all_at_a_time() -> None:
    with pytest.raises(ConfigError, match="requests_per_minute is 0, expected > 0; max_waiting is -1, expected ≥ 0"):
        Limits(requests_per_minute=0, max_waiting=-1)
    assert not Limits().on
    assert Limits(max_waiting=0).on
