"""Profiles of hardware and models, computed: what a data sheet and a model's shape say about a step.

Every figure here is from a vendor's data sheet or a model's card; the shares of peak that are reached,
and the host times, are assumptions and stand together below. Equations: docs/simulator.md#hardware-and-models.
"""

from itertools import product

import msgspec

BANDWIDTH_REACHED = 0.8
"""Share of the peak memory bandwidth."""
COMPUTE_REACHED = 0.5
"""Share of the peak arithmetic rate."""
LINK_REACHED = 0.8
"""Share of the peak rate between GPUs."""
MEMORY_USED = 0.9
"""Share of memory given to weights and KV cache (vLLM's default)."""
LEAST_KV_SHARE = 0.15
"""With less than that of the used memory left for the KV cache, a model is spread over twice the GPUs."""
ALL_REDUCE_US = 10.0
"""Latency of one all-reduce; tensor parallelism needs two in each layer."""
STEP_OVERHEAD_US = 1_500.0
SEQUENCE_OVERHEAD_US = 10.0
BYTES_PER_PARAMETER = 2
BYTES_PER_KV_VALUE = 2
BLOCK_TOKENS = 16
MAX_NUM_SEQS = 256
MAX_STEP_TOKENS = 8_192


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator, by its data sheet; 16-bit arithmetic without sparsity."""

    name: str
    title: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    flop_per_s: float
    link_bytes_per_s: float
    """To the other GPUs of its node, one direction."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a decoder, by its card and configuration."""

    name: str
    title: str
    parameters: float
    layers: int
    hidden_size: int
    kv_heads: int
    head_size: int
    max_model_len: int
    experts: int = 0
    """In each layer; 0: dense."""
    experts_per_token: int = 0
    expert_parameters: float = 0.0
    """In all experts of all layers together, contained in `parameters`."""

    @property
    def active_parameters(self) -> float:
        """What one token is multiplied with."""
        if not self.experts:
            return self.parameters
        return self.parameters - self.expert_parameters * (1 - self.experts_per_token / self.experts)

    @property
    def kv_bytes(self) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_size * BYTES_PER_KV_VALUE


GPUS = (
    Gpu(
        name="a100",
        title="NVIDIA A100 80 GB SXM",
        memory_bytes=80e9,
        bandwidth_bytes_per_s=2.039e12,
        flop_per_s=312e12,
        link_bytes_per_s=300e9,
    ),
    Gpu(
        name="h100",
        title="NVIDIA H100 SXM",
        memory_bytes=80e9,
        bandwidth_bytes_per_s=3.35e12,
        flop_per_s=989.5e12,
        link_bytes_per_s=450e9,
    ),
    Gpu(
        name="h200",
        title="NVIDIA H200 SXM",
        memory_bytes=141e9,
        bandwidth_bytes_per_s=4.8e12,
        flop_per_s=989.5e12,
        link_bytes_per_s=450e9,
    ),
    Gpu(
        name="mi300x",
        title="AMD Instinct MI300X",
        memory_bytes=192e9,
        bandwidth_bytes_per_s=5.3e12,
        flop_per_s=1_307.4e12,
        link_bytes_per_s=448e9,
    ),
)

MODELS = (
    Model(
        name="8b",
        title="Llama 3.1 8B",
        parameters=8.03e9,
        layers=32,
        hidden_size=4_096,
        kv_heads=8,
        head_size=128,
        max_model_len=131_072,
    ),
    Model(
        name="70b",
        title="Llama 3.1 70B",
        parameters=70.6e9,
        layers=80,
        hidden_size=8_192,
        kv_heads=8,
        head_size=128,
        max_model_len=131_072,
    ),
    # Each expert has three matrices of 4,096 × 14,336 in each of 32 layers.
    Model(
        name="8x7b",
        title="Mixtral 8x7B",
        parameters=46.7e9,
        layers=32,
        hidden_size=4_096,
        kv_heads=8,
        head_size=128,
        max_model_len=32_768,
        experts=8,
        experts_per_token=2,
        expert_parameters=8 * 3 * 4_096 * 14_336 * 32,
    ),
)


def gpus_needed(gpu: Gpu, model: Model) -> int:
    """The smallest power of two that leaves room for a KV cache."""
    count = 1
    while _kv_bytes(gpu, model, count) < LEAST_KV_SHARE * count * gpu.memory_bytes * MEMORY_USED:
        count *= 2
    return count


def parameters_of(gpu: Gpu, model: Model) -> dict[str, str | int | float]:
    """A profile's parameters for this model on as many of these GPUs as it needs (tensor parallel)."""
    count = gpus_needed(gpu, model)
    bandwidth = count * gpu.bandwidth_bytes_per_s * BANDWIDTH_REACHED
    compute = count * gpu.flop_per_s * COMPUTE_REACHED
    expert_bytes = model.expert_parameters * BYTES_PER_PARAMETER
    weight_bytes = model.parameters * BYTES_PER_PARAMETER
    num_blocks = int(_kv_bytes(gpu, model, count) / (model.kv_bytes * BLOCK_TOKENS))
    all_reduces = 2 * model.layers if count > 1 else 0
    # A ring sends 2 (n - 1) / n of the activations over each link.
    reduced_bytes = all_reduces * model.hidden_size * BYTES_PER_PARAMETER * 2 * (count - 1) / count
    many = f"x{count}" if count > 1 else ""
    return {
        "name": f"{gpu.name}{many}-{model.name}",
        "description": f"{model.title} in 16 bits on {count} × {gpu.title}, computed from data sheets",
        "step_overhead_us": STEP_OVERHEAD_US + all_reduces * ALL_REDUCE_US,
        "sequence_overhead_us": SEQUENCE_OVERHEAD_US,
        "token_compute_us": _us(2 * model.active_parameters / compute)
        + _us(reduced_bytes / (gpu.link_bytes_per_s * LINK_REACHED)),
        "weights_read_us": _us((weight_bytes - expert_bytes) / bandwidth),
        "experts": model.experts,
        "experts_per_token": model.experts_per_token,
        "experts_read_us": _us(expert_bytes / bandwidth),
        "kv_read_us": model.kv_bytes / bandwidth * 1e6,
        "max_num_seqs": MAX_NUM_SEQS,
        "max_step_tokens": MAX_STEP_TOKENS,
        "block_tokens": BLOCK_TOKENS,
        "num_blocks": num_blocks,
        "max_model_len": min(model.max_model_len, num_blocks * BLOCK_TOKENS),
    }


def computed_presets() -> list[dict[str, str | int | float]]:
    """Every model on every GPU."""
    return [parameters_of(gpu, model) for model, gpu in product(MODELS, GPUS)]


def _kv_bytes(gpu: Gpu, model: Model, count: int) -> float:
    return count * gpu.memory_bytes * MEMORY_USED - model.parameters * BYTES_PER_PARAMETER


def _us(seconds: float) -> float:
    """Rounded to what is worth showing."""
    return round(seconds * 1e6, 2)
