"""The parameters of a simulated server: how long a step takes, how much fits, how it schedules.

Every figure of the model stands here with its unit; docs/simulator.md has the equations that use them.
"""

from pathlib import Path
from typing import Literal

import msgspec

from tokswarm.errors import ConfigError
from tokswarm.simulator.presets import computed_presets


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulated server. The defaults are those of the preset `demo`."""

    name: str = "demo"
    description: str = ""

    step_overhead_us: float = 1_000.0
    """Host time of any step: scheduling, launching, sampling."""
    sequence_overhead_us: float = 60.0
    """Host time each sequence of the batch adds to a step."""
    token_compute_us: float = 80.0
    """Arithmetic per token of the step, prompt or generated; its inverse is the prefill rate of the hardware."""
    weights_read_us: float = 11_000.0
    """Reading the weights from memory that every step must read: all, but for the experts of a mixture."""
    experts: int = 0
    """Experts in each layer of a mixture of experts; 0: a dense model."""
    experts_per_token: int = 0
    """How many of them a token goes through."""
    experts_read_us: float = 0.0
    """Reading the weights of all experts; a step reads those its tokens go through."""
    kv_read_us: float = 0.35
    """Reading the cached keys and values of one token of context."""
    compute_and_memory: Literal["overlap", "add"] = "overlap"
    """Whether arithmetic and memory traffic go on at the same time, as on a GPU, or one after the other."""
    request_overhead_us: float = 0.0
    """What a request spends outside of steps, on its way to the queue: HTTP, tokenizing, hand-over. It holds up nobody
    else."""

    max_num_seqs: int = 32
    """Most sequences in the batch; the rest wait."""
    max_step_tokens: int = 512
    """Token budget of a step: longer prompts are prefilled in chunks."""

    block_tokens: int = 16
    """Tokens in one block of KV memory; prefixes are shared in whole blocks."""
    num_blocks: int = 1_024
    """Blocks of KV memory."""
    max_model_len: int = 8_192
    """Longest prompt and answer together, tokens."""

    batching: Literal["continuous", "static"] = "continuous"
    """Whether sequences join and leave at every step, or a padded batch runs until its longest answer has ended."""
    batch_wait_us: float = 0.0
    """How long a static batch that is not full waits for more, from the arrival of its first."""
    scheduling: Literal["fcfs", "priority"] = "fcfs"
    """Who is admitted first and preempted last: by arrival, or by the request's priority and then arrival."""
    prefix_cache: bool = True
    """Whether blocks are found again by what they hold."""
    preemption: Literal["recompute", "swap"] = "recompute"
    """What happens to the blocks of a preempted sequence: dropped, or moved to host memory while there is room."""
    swap_blocks: int = 0
    """Blocks of host memory."""
    swap_block_us: float = 0.0
    """Moving one block to host memory or back, in which time nothing is computed."""
    speculative_tokens: int = 0
    """Draft tokens a decoding sequence has checked in each step (speculative decoding); 0: none."""
    speculative_acceptance: float = 0.0
    """Probability that a draft holds, given that those before it do."""

    eos_mean_tokens: float = 256.0
    """Mean length of an answer that may end by itself (geometric); `ignore_eos` requests never do."""

    def __post_init__(self) -> None:
        """Refuse what cannot run, all faults at a time."""
        faults = [*self._out_of_range(), *self._inconsistent()]
        if faults:
            raise ConfigError(
                f"profile {self.name!r}: " + "; ".join(faults), hint="docs/simulator.md explains every parameter"
            )

    def _out_of_range(self) -> list[str]:
        positive = ("max_num_seqs", "max_step_tokens", "block_tokens", "num_blocks", "max_model_len")
        not_negative = (
            "step_overhead_us",
            "sequence_overhead_us",
            "token_compute_us",
            "weights_read_us",
            "kv_read_us",
            "experts_read_us",
            "request_overhead_us",
            "batch_wait_us",
            "swap_blocks",
            "swap_block_us",
            "speculative_tokens",
            "experts",
            "experts_per_token",
        )
        return [
            *(f"{name} is {getattr(self, name)}, expected ≥ 1" for name in positive if getattr(self, name) < 1),
            *(f"{name} is {getattr(self, name)}, expected ≥ 0" for name in not_negative if getattr(self, name) < 0),
            *([f"eos_mean_tokens is {self.eos_mean_tokens}, expected ≥ 1"] if self.eos_mean_tokens < 1 else []),
            *(
                []
                if 0 <= self.speculative_acceptance <= 1
                else [f"speculative_acceptance is {self.speculative_acceptance}, expected 0 to 1"]
            ),
        ]

    def _inconsistent(self) -> list[str]:
        faults = self._without_effect()
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            faults.append(f"experts_per_token is {self.experts_per_token}, expected 1 to experts = {self.experts}")
        if self.max_model_len > self.kv_tokens:
            faults.append(
                f"max_model_len is {self.max_model_len}, but the KV cache holds num_blocks × block_tokens"
                f" = {self.kv_tokens} tokens: one long request would never fit"
            )
        if self.step_us(step_tokens=1, context_tokens=1, sequences=1) <= 0:
            faults.append("every part of the step time is 0, so time would stand still")
        return faults

    def _without_effect(self) -> list[str]:
        """Parameters that need another one."""
        static, swap = self.batching == "static", self.preemption == "swap"
        rules = (
            (self.batch_wait_us > 0 and not static, "batch_wait_us needs batching: static"),
            (static and self.prefix_cache, "batching: static shares no prefixes, so prefix_cache must be false"),
            (static and swap, "batching: static reserves all memory, so there is no preemption: swap"),
            (static and self.speculative_tokens > 0, "batching: static has no speculative_tokens"),
            (self.experts_per_token > 0 and self.experts < 1, "experts_per_token needs experts ≥ 1"),
            (self.experts_read_us > 0 and self.experts < 1, "experts_read_us needs experts ≥ 1"),
            (swap and self.swap_blocks < 1, "preemption: swap needs swap_blocks ≥ 1"),
            (not swap and self.swap_blocks > 0, "swap_blocks needs preemption: swap"),
            (not swap and self.swap_block_us > 0, "swap_block_us needs preemption: swap"),
            (
                self.speculative_acceptance > 0 and self.speculative_tokens < 1,
                "speculative_acceptance needs speculative_tokens ≥ 1",
            ),
        )
        return [words for applies, words in rules if applies]

    @property
    def kv_tokens(self) -> int:
        """Tokens the KV cache holds."""
        return self.num_blocks * self.block_tokens

    def step_us(self, *, step_tokens: int, context_tokens: int, sequences: int) -> float:
        """How long a step takes, µs (docs/simulator.md#step-time).

        `step_tokens` are computed in it, `context_tokens` are the cached tokens its sequences attend to.
        """
        compute_us = step_tokens * self.token_compute_us
        memory_us = self.weights_read_us + context_tokens * self.kv_read_us
        if self.experts:
            memory_us += self.experts_read_us * self.experts_touched_ratio(step_tokens)
        work_us = compute_us + memory_us if self.compute_and_memory == "add" else max(compute_us, memory_us)
        return self.step_overhead_us + sequences * self.sequence_overhead_us + work_us

    def experts_touched_ratio(self, tokens: int) -> float:
        """Expected share of the experts that at least one of so many tokens goes through, if all are as likely."""
        return 1.0 - (1.0 - self.experts_per_token / self.experts) ** tokens


PRESETS: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="demo",
            description="bends within a sweep of 1 to 64: batching and cache churn from 8, queueing above 32",
        ),
        Profile(
            name="tight",
            description="demo with half the KV memory: prefixes are evicted from 4, sequences preempted from 16",
            num_blocks=512,
        ),
        Profile(
            name="fast",
            description="one-millisecond steps for tests of the client: the wire is the limit, not the model",
            step_overhead_us=200.0,
            sequence_overhead_us=1.0,
            token_compute_us=1.0,
            weights_read_us=800.0,
            kv_read_us=0.001,
            max_num_seqs=1_024,
            max_step_tokens=16_384,
            num_blocks=65_536,
            max_model_len=131_072,
        ),
        *(msgspec.convert(parameters, Profile) for parameters in computed_presets()),
    )
}
"""The profiles that ship, by name."""


def load_profile(source: str) -> Profile:
    """The preset of this name, or the profile in this YAML file (what it leaves out is as in `demo`).

    ConfigError when it is neither, or says something that cannot run.
    """
    if source in PRESETS:
        return PRESETS[source]
    path = Path(source)
    if not path.is_file():
        raise ConfigError(
            f"profile {source!r} is neither a preset nor a file",
            hint=f"presets: {', '.join(PRESETS)}; or give the path of a YAML file of parameters",
        )
    try:
        parameters = msgspec.yaml.decode(path.read_bytes(), type=dict[str, str | int | float | bool | None])
        return msgspec.convert({"name": path.stem, **parameters}, Profile)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", hint=error.hint) from error
    except (msgspec.DecodeError, OSError) as error:
        raise ConfigError(
            f"{path}: {error}", hint="parameters and their units: docs/simulator.md#parameters"
        ) from error
