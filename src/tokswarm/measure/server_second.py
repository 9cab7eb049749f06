"""What one replica of the target said about itself in one second, whatever its engine calls it."""

import msgspec


class ServerSecond(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="s1"):
    """One scrape of one replica, in the names of all engines; a field is None when the engine does not say it.

    Rates, shares, means and percentiles are of the time since the scrape before (about a second).
    """

    unix_ns: int
    """When the answer had come."""
    target: str
    replica: str
    """Host and port, and what tells engines apart that answer together: rank, model, replica."""
    up: int
    """1: the metrics were read; 0: they were not, and all else is None."""
    engine: str | None = None
    version: str | None = None
    scrape_ms: float | None = None
    running: int | None = None
    waiting: int | None = None
    paused: int | None = None
    kv_use_ratio: float | None = None
    kv_capacity_tokens: int | None = None
    hit_ratio: float | None = None
    prompt_tok_per_s: float | None = None
    cached_tok_per_s: float | None = None
    generation_tok_per_s: float | None = None
    recomputed_tok_per_s: float | None = None
    preemptions_per_s: float | None = None
    evictions_per_s: float | None = None
    evicted_tok_per_s: float | None = None
    finished_per_s: float | None = None
    aborted_per_s: float | None = None
    failed_per_s: float | None = None
    rejected_per_s: float | None = None
    queue_wait_mean_ms: float | None = None
    """By the server's histogram, of the requests it observed since the scrape before; None: none."""
    queue_wait_p50_ms: float | None = None
    queue_wait_p90_ms: float | None = None
    queue_wait_p99_ms: float | None = None
    ttft_mean_ms: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p90_ms: float | None = None
    ttft_p99_ms: float | None = None
    prefill_mean_ms: float | None = None
    replicas_ready: int | None = None
