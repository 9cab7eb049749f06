"""Admission limits as vendors have them: token buckets for requests and tokens, and bounds on what is in flight.

Pure: the clock is an argument. A request counts as its prompt and its `max_tokens`, whatever it will really
generate; nothing is given back. What is refused costs nothing.
"""

import math
from collections.abc import Callable

import msgspec

from tokswarm.errors import ConfigError
from tokswarm.simulator.api import ApiError

_MINUTE_S = 60.0


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a provider takes; None: no limit of that kind."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    """Prompt and `max_tokens` together."""
    burst_s: float = 60.0
    """A bucket holds what accrues in so many seconds; full at the start."""
    max_concurrent: int | None = None
    """Most requests in flight, waiting ones included; beyond, 429."""
    max_waiting: int | None = None
    """A request that finds more than so many waiting for the batch is refused with 503."""

    @property
    def on(self) -> bool:
        """Whether anything is limited."""
        bounds = (self.requests_per_minute, self.tokens_per_minute, self.max_concurrent, self.max_waiting)
        return any(bound is not None for bound in bounds)

    def __post_init__(self) -> None:
        """Refuse what would take nothing at all, all faults at a time."""
        above_zero = (
            ("requests_per_minute", self.requests_per_minute),
            ("tokens_per_minute", self.tokens_per_minute),
            ("burst_s", self.burst_s),
            ("max_concurrent", self.max_concurrent),
        )
        faults = [
            f"{name} is {value:g}, expected > 0" for name, value in above_zero if value is not None and not value > 0
        ]
        if self.max_waiting is not None and self.max_waiting < 0:
            faults.append(f"max_waiting is {self.max_waiting}, expected ≥ 0")
        if faults:
            raise ConfigError("limits: " + "; ".join(faults), hint="docs/simulator.md#limits explains every limit")


class Bucket:
    """A token bucket: fills at a constant rate up to its size."""

    def __init__(self, per_minute: float, burst_s: float, now_ns: int) -> None:
        self.per_minute = per_minute
        self.size = max(1.0, per_minute * burst_s / _MINUTE_S)
        self._level = self.size
        self._at_ns = now_ns

    def level(self, now_ns: int) -> float:
        """What is in it now."""
        gained = max(0, now_ns - self._at_ns) / 1e9 * self.per_minute / _MINUTE_S
        self._level = min(self.size, self._level + gained)
        self._at_ns = max(self._at_ns, now_ns)
        return self._level

    def take(self, amount: float, now_ns: int) -> None:
        """Take out what is there."""
        self._level = self.level(now_ns) - amount

    def wait_s(self, amount: float, now_ns: int) -> float:
        """How long until it holds so much; infinite when it never will."""
        if amount > self.size:
            return math.inf
        return max(0.0, amount - self.level(now_ns)) * _MINUTE_S / self.per_minute

    def full_in_s(self, now_ns: int) -> float:
        """How long until it is full, if nobody takes."""
        return (self.size - self.level(now_ns)) * _MINUTE_S / self.per_minute


class Limiter:
    """The limits of one provider at work."""

    def __init__(self, limits: Limits, clock_ns: Callable[[], int]) -> None:
        self.limits = limits
        self._clock_ns = clock_ns
        now_ns = clock_ns()
        self._requests = self._bucket(limits.requests_per_minute, now_ns)
        self._tokens = self._bucket(limits.tokens_per_minute, now_ns)

    def _bucket(self, per_minute: float | None, now_ns: int) -> Bucket | None:
        return None if per_minute is None else Bucket(per_minute, self.limits.burst_s, now_ns)

    def refusal(self, *, tokens: int, in_flight: int, waiting: int) -> ApiError | None:
        """Why a request of so many tokens is refused now; None: it is admitted, and the buckets are charged."""
        now_ns = self._clock_ns()
        refused = self._overload(in_flight, waiting) or self._over_rate(tokens, now_ns)
        if refused is None:
            if self._requests is not None:
                self._requests.take(1, now_ns)
            if self._tokens is not None:
                self._tokens.take(tokens, now_ns)
        return refused

    def _overload(self, in_flight: int, waiting: int) -> ApiError | None:
        limits = self.limits
        if limits.max_waiting is not None and waiting > limits.max_waiting:
            return ApiError(
                503,
                f"The engine is overloaded: {waiting} requests wait, the limit is {limits.max_waiting}. Try later.",
                code="overloaded",
                kind="overloaded_error",
                headers=_retry_after(1.0),
            )
        if limits.max_concurrent is not None and in_flight >= limits.max_concurrent:
            return ApiError(
                429,
                f"Too many requests at a time: {in_flight} are in flight, the limit is {limits.max_concurrent}.",
                code="concurrency_limit_exceeded",
                kind="concurrency",
                headers=_retry_after(1.0),
            )
        return None

    def _over_rate(self, tokens: int, now_ns: int) -> ApiError | None:
        """The limit that keeps the request away longest."""
        waits = [
            (bucket.wait_s(amount, now_ns), kind, bucket, amount)
            for kind, bucket, amount in (("requests", self._requests, 1), ("tokens", self._tokens, tokens))
            if bucket is not None
        ]
        wait_s, kind, bucket, amount = max(waits, key=lambda each: each[0], default=(0.0, "", None, 0))
        if bucket is None or not wait_s:
            return None
        figures = f"Limit {bucket.per_minute:.12g}, remaining {int(bucket.level(now_ns))}, requested {amount}."
        if math.isinf(wait_s):
            message = (
                f"Request too large for the limit on {kind} per minute, of which {bucket.size:.12g} fit at a time."
            )
            return ApiError(429, f"{message} {figures}", code="rate_limit_exceeded", kind=kind)
        return ApiError(
            429,
            f"Rate limit reached on {kind} per minute. {figures} Please try again in {_duration(wait_s)}.",
            code="rate_limit_exceeded",
            kind=kind,
            headers=_retry_after(wait_s),
        )

    def headers(self) -> list[str]:
        """What is left, as header lines for any answer."""
        now_ns = self._clock_ns()
        lines = []
        for kind, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                lines += [
                    f"x-ratelimit-limit-{kind}: {bucket.per_minute:.12g}",
                    f"x-ratelimit-remaining-{kind}: {int(bucket.level(now_ns))}",
                    f"x-ratelimit-reset-{kind}: {_duration(bucket.full_in_s(now_ns))}",
                ]
        return lines


def _retry_after(wait_s: float) -> tuple[str, ...]:
    """When to come back: in whole seconds, and exactly."""
    return (f"retry-after: {math.ceil(wait_s)}", f"retry-after-ms: {math.ceil(wait_s * 1e3)}")


def _duration(seconds: float) -> str:
    """As vendors write it: 0s, 120ms, 7.66s, 6m0s."""
    whole_ms = math.ceil(seconds * 1e3)
    if 0 < whole_ms < 1_000:
        return f"{whole_ms}ms"
    minutes, rest_ms = divmod(whole_ms, 60_000)
    text = f"{rest_ms / 1e3:g}s"
    return f"{minutes}m{text}" if minutes else text
