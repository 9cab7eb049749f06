"""What each inference engine calls the quantities we want, through all generations of its names.

An engine is known by its names alone. For each quantity there are alternatives, the best first: the
first that a text has is taken, so that a deprecated name beside its successor counts once. What one
alternative names is added up. Counters are found with and without `_total`. Texts and versions the names
are from: docs/server-metrics.md.
"""

import enum
from typing import NamedTuple


class Kind(enum.Enum):
    """How the samples of a quantity become one number."""

    SUM = "gauges, added up"
    MEAN = "gauges, their mean"
    COUNTER = "counters, added up"
    HISTOGRAM = "histograms of seconds, laid together"
    INFO = "labels of an information metric"


class Quantity(enum.Enum):
    """What we want to know, each with its kind."""

    RUNNING = "running", Kind.SUM
    IN_FLIGHT = "in_flight", Kind.SUM
    """Running and waiting together, of gateways that say no more."""
    WAITING = "waiting", Kind.SUM
    WAITING_EACH = "waiting_each", Kind.MEAN
    """In the queue of a replica on average, as gateways know it."""
    PAUSED = "paused", Kind.SUM
    READY = "ready", Kind.SUM
    KV_USE = "kv_use", Kind.MEAN
    KV_TOKENS = "kv_tokens", Kind.SUM
    KV_BLOCKS = "kv_blocks", Kind.SUM
    BLOCK_TOKENS = "block_tokens", Kind.MEAN
    CACHE_CONFIG = "cache_config", Kind.INFO
    HIT_RATIO = "hit_ratio", Kind.MEAN
    """A share the engine worked out itself, over a window of its own."""
    PROMPT = "prompt", Kind.COUNTER
    CACHED = "cached", Kind.COUNTER
    """Prompt tokens of PROMPT that came from the cache."""
    QUERIES = "queries", Kind.COUNTER
    """Tokens or blocks looked up in the prefix cache; a waiting request may be looked up more than once."""
    HITS = "hits", Kind.COUNTER
    GENERATION = "generation", Kind.COUNTER
    RECOMPUTED = "recomputed", Kind.COUNTER
    PREEMPTIONS = "preemptions", Kind.COUNTER
    EVICTIONS = "evictions", Kind.COUNTER
    EVICTED_TOKENS = "evicted_tokens", Kind.COUNTER
    FINISHED = "finished", Kind.COUNTER
    ABORTED = "aborted", Kind.COUNTER
    FAILED = "failed", Kind.COUNTER
    REJECTED = "rejected", Kind.COUNTER
    QUEUE_WAIT = "queue_wait", Kind.HISTOGRAM
    TTFT = "ttft", Kind.HISTOGRAM
    PREFILL = "prefill", Kind.HISTOGRAM

    @property
    def kind(self) -> Kind:
        """How its samples become one number."""
        return self.value[1]


class Series(NamedTuple):
    """Samples of one name, all or those whose label has one of these values."""

    name: str
    label: str = ""
    values: tuple[str, ...] = ()

    def holds(self, labels: dict[str, str]) -> bool:
        """Whether a sample of the name is meant."""
        return not self.label or labels.get(self.label) in self.values


Alternatives = tuple[tuple[Series, ...], ...]


class Engine(NamedTuple):
    """One engine and its names."""

    name: str
    title: str
    names: dict[Quantity, Alternatives]
    identity: tuple[str, ...] = ()
    """Labels that tell engines, ranks, models and replicas in one text apart; the others are added up."""
    copies: tuple[str, ...] = ()
    """Labels of ranks that all report the same: rank 0 speaks for them."""
    sure_by: Quantity | None = None
    """What a text must have for this engine, whose other names anybody may use."""
    version: tuple[str, str] | None = None
    """Path and key of a JSON answer that names the version."""


def _names(
    prefix: str, **quantities: str | tuple[Series | str, ...] | list[str | Series]
) -> dict[Quantity, Alternatives]:
    """One name, a tuple of names to add up, or a list of alternatives of one name each."""
    names: dict[Quantity, Alternatives] = {}
    for word, given in quantities.items():
        alternatives = (
            [(each,) for each in given]
            if isinstance(given, list)
            else [given if isinstance(given, tuple) else (given,)]
        )
        names[Quantity[word.upper()]] = tuple(
            tuple(_prefixed(prefix, each) for each in alternative) for alternative in alternatives
        )
    return names


def _prefixed(prefix: str, given: Series | str) -> Series:
    series = Series(given) if isinstance(given, str) else given
    # A name that has its own prefix already keeps it.
    return series if ":" in series.name else series._replace(name=prefix + series.name)


_ENDED_WELL = ("stop", "length", "repetition")

VLLM = Engine(
    "vllm",
    "vLLM",
    _names(
        "vllm:",
        running="num_requests_running",
        waiting="num_requests_waiting",
        paused="num_requests_swapped",
        kv_use=["kv_cache_usage_perc", "gpu_cache_usage_perc"],
        cache_config="cache_config_info",
        hit_ratio="gpu_prefix_cache_hit_rate",
        prompt="prompt_tokens",
        queries=["prefix_cache_queries", "gpu_prefix_cache_queries"],
        hits=["prefix_cache_hits", "gpu_prefix_cache_hits"],
        generation="generation_tokens",
        recomputed="sim:recomputed_tokens",
        preemptions="num_preemptions",
        evictions=["sim:kv_evictions", "kv_block_lifetime_seconds_count"],
        finished=(Series("request_success", "finished_reason", _ENDED_WELL),),
        aborted=(Series("request_success", "finished_reason", ("abort",)),),
        failed=(Series("request_success", "finished_reason", ("error",)),),
        rejected="admission_rejections",
        queue_wait=["request_queue_time_seconds", "time_in_queue_requests"],
        ttft="time_to_first_token_seconds",
        prefill="request_prefill_time_seconds",
        cached=[
            "prompt_tokens_cached",
            Series("prompt_tokens_by_source", "source", ("local_cache_hit", "external_kv_transfer")),
        ],
    ),
    identity=("provider", "replica", "pod", "model_name", "engine"),
    version=("/version", "version"),
)


def _sglang(prefix: str) -> dict[Quantity, Alternatives]:
    return _names(
        prefix,
        running="num_running_reqs",
        waiting=("num_queue_reqs", "num_grammar_queue_reqs"),
        paused="num_paused_reqs",
        kv_use=["token_usage", "full_token_usage"],
        kv_tokens="max_total_num_tokens",
        hit_ratio="cache_hit_rate",
        prompt="prompt_tokens",
        cached=[Series("cached_tokens", "cache_source", ("total",)), "cached_tokens"],
        generation="generation_tokens",
        recomputed="num_retracted_input_tokens",
        preemptions="num_retracted_requests",
        evicted_tokens="evicted_tokens",
        finished="num_requests",
        aborted="num_aborted_requests",
        queue_wait="queue_time_seconds",
        ttft="time_to_first_token_seconds",
        prefill=(Series("per_stage_req_latency_seconds", "stage", ("prefill_forward",)),),
    )


def _one_of(*generations: dict[Quantity, Alternatives]) -> dict[Quantity, Alternatives]:
    """The names of several generations, the newest first."""
    names: dict[Quantity, Alternatives] = {}
    for generation in generations:
        for quantity, alternatives in generation.items():
            names[quantity] = names.get(quantity, ()) + alternatives
    return names


SGLANG = Engine(
    "sglang",
    "SGLang",
    _one_of(_sglang("sglang:"), _sglang("sglang_")),
    identity=("replica", "pod", "model_name", "dp_rank"),
    copies=("tp_rank", "pp_rank", "moe_ep_rank"),
    version=("/get_server_info", "version"),
)

TGI = Engine(
    "tgi",
    "TGI",
    _names(
        "tgi_",
        running="batch_current_size",
        waiting="queue_size",
        prompt="request_input_length_sum",
        generation="request_generated_tokens_sum",
        finished="request_success",
        failed="request_failure",
        queue_wait="request_queue_duration",
    ),
    version=("/info", "version"),
)

TENSORRT_LLM = Engine(
    "tensorrt-llm",
    "TensorRT-LLM",
    _names(
        "trtllm_",
        running="num_requests_running",
        waiting="num_requests_waiting",
        paused="num_paused_requests",
        kv_use="kv_cache_utilization",
        kv_blocks="kv_cache_max_blocks",
        block_tokens="kv_cache_tokens_per_block",
        hit_ratio="kv_cache_hit_rate",
        prompt="prompt_tokens",
        queries=("kv_cache_reused_blocks", "kv_cache_missed_blocks"),
        hits="kv_cache_reused_blocks",
        generation="generation_tokens",
        finished="request_success",
        queue_wait="request_queue_time_seconds",
        ttft="time_to_first_token_seconds",
        prefill="request_prefill_time_seconds",
    ),
    identity=("replica", "pod", "model_name"),
)

LLAMA_CPP = Engine(
    "llama.cpp",
    "llama.cpp",
    _names(
        "llamacpp:",
        running="requests_processing",
        waiting="requests_deferred",
        kv_use="kv_cache_usage_ratio",
        prompt="prompt_tokens",
        generation="tokens_predicted",
    ),
    version=("/props", "build_info"),
)

LMDEPLOY = Engine(
    "lmdeploy",
    "LMDeploy",
    _names(
        "lmdeploy:",
        running="num_requests_running",
        waiting="num_requests_waiting",
        kv_use="gpu_cache_usage_perc",
        prompt="prompt_tokens",
        generation="generation_tokens",
        finished="e2e_request_latency_seconds_count",
        queue_wait="request_queue_time_seconds",
        ttft="time_to_first_token_seconds",
        prefill="request_prefill_time_seconds",
    ),
    identity=("replica", "pod", "model_name", "engine"),
)

NIM = Engine(
    "nim",
    "NIM",
    _names(
        "",
        running="num_requests_running",
        waiting="num_requests_waiting",
        kv_use="gpu_cache_usage_perc",
        prompt="prompt_tokens",
        generation="generation_tokens",
        finished="request_finish",
        ttft="time_to_first_token_seconds",
    ),
    identity=("replica", "pod", "model_name"),
    sure_by=Quantity.RUNNING,
    version=("/v1/version", "release"),
)

DYNAMO = Engine(
    "dynamo",
    "Dynamo",
    _one_of(
        _names(
            "dynamo_frontend_",
            in_flight="inflight_requests",
            waiting="queued_requests",
            prompt="input_sequence_tokens_sum",
            cached="cached_tokens_sum",
            generation="output_sequence_tokens_sum",
            finished=(Series("requests", "status", ("success",)),),
            failed=(Series("requests", "status", ("error",)),),
            ttft="time_to_first_token_seconds",
        ),
        _names("kvbm_", evictions="evictions"),
        _names("dynamo_kvbm_", evictions="evictions"),
    ),
    identity=("model",),
)

LITELLM = Engine(
    "litellm",
    "LiteLLM",
    _names(
        "litellm_",
        running="in_flight_requests",
        prompt=["input_tokens_metric", "input_tokens"],
        generation=["output_tokens_metric", "output_tokens"],
        finished="request_total_latency_metric_count",
        failed="proxy_failed_requests_metric",
        ttft="llm_api_time_to_first_token_metric",
    ),
    version=("/health/readiness", "litellm_version"),
)


def _endpoint_picker(requests: str, pool: str, flow: str) -> dict[Quantity, Alternatives]:
    rejected = ("RejectedCapacity", "RejectedOther")
    return {
        **_names(
            requests,
            running=["request_running", "running_requests"],
            prompt=["request_input_tokens_sum", "input_tokens_sum"],
            cached=["request_cached_tokens_sum", "prompt_cached_tokens_sum"],
            generation=["request_output_tokens_sum", "output_tokens_sum"],
            finished="request_duration_seconds_count",
            failed="request_error",
            ttft="request_ttft_seconds",
        ),
        **_names(
            pool,
            ready=["ready_endpoints", "ready_pods"],
            waiting_each="average_queue_size",
            kv_use="average_kv_cache_utilization",
        ),
        **_names(
            flow,
            waiting="flow_control_queue_size",
            queue_wait="flow_control_request_queue_duration_seconds",
            rejected=(Series("flow_control_requests", "outcome", rejected),),
        ),
    }


ENDPOINT_PICKER = Engine(
    "endpoint-picker",
    "the llm-d endpoint picker",
    _one_of(
        _endpoint_picker("llm_d_epp_", "llm_d_epp_", "llm_d_epp_"),
        _endpoint_picker("llm_d_router_epp_", "llm_d_router_epp_", "llm_d_router_epp_"),
        _endpoint_picker("inference_objective_", "inference_pool_", "inference_extension_"),
        _endpoint_picker("inference_model_", "inference_pool_", "inference_extension_"),
    ),
)

ENGINES = (
    *(VLLM, SGLANG, TGI, TENSORRT_LLM, LLAMA_CPP, LMDEPLOY, NIM),
    *(DYNAMO, LITELLM, ENDPOINT_PICKER),
)


class Pick(NamedTuple):
    """What a sample of some name is for."""

    engine: Engine
    quantity: Quantity
    alternative: int
    series: Series


def _picks() -> dict[str, tuple[Pick, ...]]:
    picks: dict[str, tuple[Pick, ...]] = {}
    for engine in ENGINES:
        for quantity, alternatives in engine.names.items():
            for place, alternative in enumerate(alternatives):
                for series in alternative:
                    for name in _sample_names(series.name, quantity.kind):
                        picks[name] = (*picks.get(name, ()), Pick(engine, quantity, place, series))
    return picks


def _sample_names(name: str, kind: Kind) -> tuple[str, ...]:
    if kind is Kind.HISTOGRAM:
        return (f"{name}_bucket", f"{name}_sum", f"{name}_count")
    if kind is Kind.COUNTER and not name.endswith(("_sum", "_count")):
        return (name, f"{name}_total")
    return (name,)


PICKS = _picks()
"""Sample name to what it is for."""
