"""What happened between two readings of one part: rates, shares, waits. Pure.

A counter that fell began anew (the server was started again), so what it shows now is what came since;
a series that was not there before began at 0. Percentiles lie within the bounds of the server's buckets.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tokswarm.measure.server_second import ServerSecond
from tokswarm.scrape.engines import Quantity
from tokswarm.scrape.reading import HistogramSeries, Reading

QUANTILES = (0.5, 0.9, 0.99)
_ANEW = HistogramSeries({}, 0.0, 0.0)


class Times(NamedTuple):
    """What a histogram observed in between: counts by bounds in seconds (not cumulative), and the sum."""

    counts: dict[tuple[float, float], float]
    sum_s: float
    observed: float

    @property
    def mean_s(self) -> float | None:
        """None: nothing was observed."""
        return self.sum_s / self.observed if self.observed > 0 else None

    def quantile_s(self, q: float) -> float | None:
        """Evenly spread within a bucket; None: nothing was observed, or there are no buckets.

        When all lie in one bucket they are spread around their mean, which is known, as far as its bounds
        allow: vLLM's first bucket ends at 300 ms, which says nothing of a wait of 5.
        """
        filled = sorted((bounds, count) for bounds, count in self.counts.items() if count > 0)
        mean_s = self.mean_s
        if not filled or mean_s is None:
            return None
        if len(filled) == 1:
            (low, high), _ = filled[0]
            reach = max(0.0, min(mean_s - low, high - mean_s))
            return mean_s - reach + 2 * reach * q
        rank = q * sum(count for _, count in filled)
        for (low, high), count in filled:
            if rank <= count:
                return low if high == float("inf") else low + (high - low) * rank / count
            rank -= count
        return filled[-1][0][0]


def server_second(
    now: Reading,
    before: Reading | None,
    *,
    elapsed_s: float,
    unix_ns: int,
    target: str,
    replica: str,
    version: str | None = None,
    scrape_ms: float | None = None,
) -> ServerSecond:
    """The point of one part. `before` None: it was not there yet, so there are no rates."""
    gauges = now.gauges
    change = None if before is None or elapsed_s <= 0 else _Change(now, before, elapsed_s)
    waiting, ready = _whole(gauges.get(Quantity.WAITING)), _whole(gauges.get(Quantity.READY))
    each = gauges.get(Quantity.WAITING_EACH)
    if each is not None and ready is not None:
        waiting = round(each * ready) + (waiting or 0)
    running = _whole(gauges.get(Quantity.RUNNING))
    in_flight = gauges.get(Quantity.IN_FLIGHT)
    if running is None and in_flight is not None:
        running = round(max(0.0, in_flight - (waiting or 0)))
    queue_wait, ttft, prefill = (
        None if change is None else change.times(quantity)
        for quantity in (Quantity.QUEUE_WAIT, Quantity.TTFT, Quantity.PREFILL)
    )
    rate = (lambda _: None) if change is None else change.rate
    queue_wait_ms, ttft_ms = _quantiles_ms(queue_wait), _quantiles_ms(ttft)
    return ServerSecond(
        unix_ns=unix_ns,
        target=target,
        replica=replica,
        up=1,
        engine=now.engine.name,
        version=version,
        scrape_ms=scrape_ms,
        running=running,
        waiting=waiting,
        paused=_whole(gauges.get(Quantity.PAUSED)),
        kv_use_ratio=gauges.get(Quantity.KV_USE),
        kv_capacity_tokens=_kv_capacity(gauges),
        hit_ratio=gauges.get(Quantity.HIT_RATIO) if change is None else change.hit_ratio(),
        prompt_tok_per_s=rate(Quantity.PROMPT),
        cached_tok_per_s=rate(Quantity.CACHED),
        generation_tok_per_s=rate(Quantity.GENERATION),
        recomputed_tok_per_s=rate(Quantity.RECOMPUTED),
        preemptions_per_s=rate(Quantity.PREEMPTIONS),
        evictions_per_s=rate(Quantity.EVICTIONS),
        evicted_tok_per_s=rate(Quantity.EVICTED_TOKENS),
        finished_per_s=rate(Quantity.FINISHED),
        aborted_per_s=rate(Quantity.ABORTED),
        failed_per_s=rate(Quantity.FAILED),
        rejected_per_s=rate(Quantity.REJECTED),
        prefill_mean_ms=_mean_ms(prefill),
        replicas_ready=ready,
        queue_wait_mean_ms=_mean_ms(queue_wait),
        queue_wait_p50_ms=queue_wait_ms[0],
        queue_wait_p90_ms=queue_wait_ms[1],
        queue_wait_p99_ms=queue_wait_ms[2],
        ttft_mean_ms=_mean_ms(ttft),
        ttft_p50_ms=ttft_ms[0],
        ttft_p90_ms=ttft_ms[1],
        ttft_p99_ms=ttft_ms[2],
    )


class _Change:
    """From one reading to the next."""

    def __init__(self, now: Reading, before: Reading, elapsed_s: float) -> None:
        self._now = now
        self._before = before
        self._elapsed_s = elapsed_s

    def increase(self, quantity: Quantity) -> float | None:
        """None: the engine does not count it."""
        now = self._now.counters.get(quantity)
        if now is None:
            return None
        before = self._before.counters.get(quantity, {})
        return sum(_increase(value, before.get(key, 0.0)) for key, value in now.items())

    def rate(self, quantity: Quantity) -> float | None:
        """A second; None: the engine does not count it."""
        increase = self.increase(quantity)
        return None if increase is None else increase / self._elapsed_s

    def hit_ratio(self) -> float | None:
        """By the prompt tokens that came from the cache, else by its lookups, else as the engine says itself."""
        for part, whole in ((Quantity.CACHED, Quantity.PROMPT), (Quantity.HITS, Quantity.QUERIES)):
            hits, lookups = self.increase(part), self.increase(whole)
            if hits is not None and lookups is not None:
                return min(1.0, hits / lookups) if lookups > 0 else None
        return self._now.gauges.get(Quantity.HIT_RATIO)

    def times(self, quantity: Quantity) -> Times | None:
        """None: the engine has no such histogram."""
        now = self._now.histograms.get(quantity)
        if now is None:
            return None
        return _laid_together(
            (series, self._before.histograms.get(quantity, {}).get(key)) for key, series in now.items()
        )


def _increase(now: float, before: float) -> float:
    return now - before if now >= before else now


def _laid_together(pairs: Iterable[tuple[HistogramSeries, HistogramSeries | None]]) -> Times:
    counts: dict[tuple[float, float], float] = {}
    sum_s = observed = 0.0
    for now, last in pairs:
        before = _ANEW if last is None or now.observed < last.observed else last
        sum_s += now.sum_s - before.sum_s
        observed += now.observed - before.observed
        low, below = 0.0, 0.0
        for high in sorted(now.buckets):
            up_to = now.buckets[high] - before.buckets.get(high, 0.0)
            counts[low, high] = counts.get((low, high), 0.0) + up_to - below
            low, below = high, up_to
    return Times(counts, sum_s, observed)


def _quantiles_ms(times: Times | None) -> tuple[float | None, float | None, float | None]:
    if times is None:
        return None, None, None
    p50, p90, p99 = (_ms(times.quantile_s(q)) for q in QUANTILES)
    return p50, p90, p99


def _mean_ms(times: Times | None) -> float | None:
    return None if times is None else _ms(times.mean_s)


def _kv_capacity(gauges: dict[Quantity, float]) -> int | None:
    tokens = gauges.get(Quantity.KV_TOKENS)
    if tokens is None:
        blocks, size = gauges.get(Quantity.KV_BLOCKS), gauges.get(Quantity.BLOCK_TOKENS)
        tokens = None if blocks is None or size is None else blocks * size
    return _whole(tokens)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else value_s * 1e3
