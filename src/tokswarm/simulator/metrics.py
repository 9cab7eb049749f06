"""What the server counts, under vLLM's names: counters and histograms, rendered for Prometheus."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tokswarm.simulator.answers import OpenAnswer
from tokswarm.simulator.driver import Driver
from tokswarm.simulator.engine import Progress, Step

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Bounds in seconds, as vLLM 0.32 has them.
_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_GAP_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class BoundedHistogram:
    """Counts by fixed bounds, and the sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value in the first bucket whose bound it does not exceed."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Bound and count of values up to it, as Prometheus wants them."""
        total = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip((*map(float, self._bounds), float("inf")), self._counts, strict=True):
            total += count
            rows.append(("+Inf" if bound == float("inf") else str(bound), total))
        return rows

    @property
    def sum(self) -> float:
        """Sum of all values."""
        return self._sum


_HISTOGRAMS = {
    "time_to_first_token_seconds": ("Arrival to first token.", _TTFT_S),
    "inter_token_latency_seconds": ("Gap between tokens of a request.", _GAP_S),
    "request_time_per_output_token_seconds": ("Mean gap of a request.", _GAP_S),
    "e2e_request_latency_seconds": ("Arrival to last token.", _REQUEST_S),
    "request_queue_time_seconds": ("Arrival to the first step that served the request.", _REQUEST_S),
    "request_inference_time_seconds": ("First step to last token.", _REQUEST_S),
    "request_prefill_time_seconds": ("First step to first token.", _REQUEST_S),
    "request_decode_time_seconds": ("First to last token.", _REQUEST_S),
    "iteration_tokens_total": ("Tokens computed in a step.", _STEP_TOKENS),
}


class ServerMetrics(Collector):
    """The counts of one server. The gauges are read from the driver when rendered."""

    def __init__(self, driver: Driver, model: str) -> None:
        self._driver = driver
        self._labels = {"model_name": model, "engine": "0"}
        self._histograms = {name: BoundedHistogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self._gaps = self._histograms["inter_token_latency_seconds"]
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generation_tokens = 0
        self._finished = {"stop": 0, "length": 0, "abort": 0}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        """The text of GET /metrics."""
        return generate_latest(self._registry)

    def on_step(self, step: Step) -> None:
        """Count a step."""
        self._histograms["iteration_tokens_total"].observe(step.tokens)

    def on_tokens(self, progress: Progress, answer: OpenAnswer, tokens: int) -> None:
        """Count the tokens of one step that were just emitted together: one gap, as vLLM counts them."""
        # hot: once a token
        stamps_ns = answer.stamps_ns
        self._generation_tokens += tokens
        before = len(stamps_ns) - tokens
        if before:
            self._gaps.observe((stamps_ns[-1] - stamps_ns[before - 1]) / 1e9)
            return
        self._prompt_tokens += progress.request.prompt_tokens
        self._cached_tokens += progress.cached_tokens
        self._observe("time_to_first_token_seconds", stamps_ns[0] - progress.request.arrival_ns)

    def on_finished(self, progress: Progress, answer: OpenAnswer) -> None:
        """Count a request that was answered to its end."""
        first_ns, last_ns = answer.stamps_ns[0], answer.stamps_ns[-1]
        arrival_ns, admitted_ns = progress.request.arrival_ns, progress.admitted_ns
        if admitted_ns is None:
            raise ValueError(f"request {progress.request.request_id} finished without a step")
        self._finished[answer.accepted.finish_reason] += 1
        self._observe("e2e_request_latency_seconds", last_ns - arrival_ns)
        self._observe("request_queue_time_seconds", admitted_ns - arrival_ns)
        self._observe("request_inference_time_seconds", last_ns - admitted_ns)
        self._observe("request_prefill_time_seconds", first_ns - admitted_ns)
        self._observe("request_decode_time_seconds", last_ns - first_ns)
        if len(answer.stamps_ns) > 1:
            gaps = len(answer.stamps_ns) - 1
            self._observe("request_time_per_output_token_seconds", (last_ns - first_ns) / gaps)

    def on_aborted(self) -> None:
        """Count a request whose client left."""
        self._finished["abort"] += 1

    def collect(self) -> Iterator[Metric]:
        """Everything, for the registry."""
        return self.families({})

    def families(self, extra: Mapping[str, str]) -> Iterator[Metric]:
        """Everything, with further labels on every sample."""
        labels = {**self._labels, **extra}
        engine = self._driver.engine
        yield _gauge(labels, "vllm:num_requests_running", "Requests in the batch.", self._driver.running_count)
        yield _gauge(labels, "vllm:num_requests_waiting", "Requests waiting for the batch.", engine.waiting_count)
        yield _gauge(
            labels, "vllm:kv_cache_usage_perc", "KV blocks in use; 1 means all of them.", engine.pool.usage_ratio
        )
        yield _counter(
            labels,
            "vllm:prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache.",
            engine.counts.prefix_queries_tokens,
        )
        yield _counter(labels, "vllm:prefix_cache_hits", "Prompt tokens found there.", engine.counts.prefix_hits_tokens)
        yield _counter(
            labels, "vllm:num_preemptions", "Requests that had to give their blocks back.", engine.counts.preemptions
        )
        yield _counter(
            labels, "vllm:prompt_tokens", "Prompt tokens of requests that got a first token.", self._prompt_tokens
        )
        yield _counter(labels, "vllm:prompt_tokens_cached", "Of them taken from the cache.", self._cached_tokens)
        by_source = CounterMetricFamily(
            "vllm:prompt_tokens_by_source", "Of them by source.", labels=[*labels, "source"]
        )
        by_source.add_metric([*labels.values(), "local_compute"], self._prompt_tokens - self._cached_tokens)
        by_source.add_metric([*labels.values(), "local_cache_hit"], self._cached_tokens)
        yield by_source
        yield _counter(labels, "vllm:generation_tokens", "Tokens generated.", self._generation_tokens)
        finished = CounterMetricFamily(
            "vllm:request_success", "Requests that ended, by reason.", labels=[*labels, "finished_reason"]
        )
        for reason, count in self._finished.items():
            finished.add_metric([*labels.values(), reason], count)
        yield finished
        for name, histogram in self._histograms.items():
            family = HistogramMetricFamily(f"vllm:{name}", _HISTOGRAMS[name][0], labels=list(labels))
            family.add_metric(list(labels.values()), buckets=histogram.cumulative(), sum_value=histogram.sum)
            yield family
        yield self._cache_config(extra)
        yield _counter(labels, "sim:kv_evictions", "Cached KV blocks given up for other use.", engine.pool.evictions)
        yield _counter(
            labels, "sim:recomputed_tokens", "Tokens computed again after preemptions.", engine.counts.recomputed_tokens
        )
        counts = engine.counts
        if engine.profile.speculative_tokens:
            drafted = ("vllm:spec_decode_num_draft_tokens", "Draft tokens checked.", counts.drafted_tokens)
            accepted = ("vllm:spec_decode_num_accepted_tokens", "Draft tokens that held.", counts.accepted_tokens)
            yield _counter(labels, *drafted)
            yield _counter(labels, *accepted)
        yield _counter(labels, "sim:swapped_out_blocks", "KV blocks moved to host memory.", counts.swapped_out_blocks)
        yield _counter(labels, "sim:swapped_in_blocks", "KV blocks moved back.", counts.swapped_in_blocks)
        yield _counter(labels, "sim:padding_tokens", "Positions computed to pad static batches.", counts.padding_tokens)
        yield _counter(
            labels,
            "sim:slipped_seconds",
            "How far the model's clock was moved because the process was late.",
            self._driver.slipped_ns / 1e9,
        )

    def _observe(self, name: str, duration_ns: float) -> None:
        self._histograms[name].observe(duration_ns / 1e9)

    def _cache_config(self, extra: Mapping[str, str]) -> Metric:
        profile = self._driver.engine.profile
        config = {
            "block_size": str(profile.block_tokens),
            "num_gpu_blocks": str(profile.num_blocks),
            "kv_cache_size_tokens": str(profile.kv_tokens),
            "enable_prefix_caching": str(profile.prefix_cache),
        }
        family = GaugeMetricFamily("vllm:cache_config_info", "The KV cache's size.", labels=["engine", *config, *extra])
        family.add_metric(["0", *config.values(), *extra.values()], 1)
        return family


def _gauge(labels: Mapping[str, str], name: str, meaning: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _counter(labels: Mapping[str, str], name: str, meaning: str, value: float) -> Metric:
    family = CounterMetricFamily(name, meaning, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family
