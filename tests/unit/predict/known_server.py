"""Runs as they would be measured on a simulated server whose profile is known."""

from collections.abc import Sequence

import msgspec

from tokswarm.predict.measured import Figures, MeasuredRun, MeasuredStage
from tokswarm.predict.simulate import Simulation
from tokswarm.predict.workload import Workload
from tokswarm.simulator.profile import Profile
from tokswarm.traffic.mix import Distribution, Mix, Output, Prompt, SharedPrefix, Stage, Target, TrafficClass, Uniform
from tokswarm.traffic.plan import ClosedLoop, Load, PlannedStage, TokenFit
from tokswarm.traffic.units import Duration

KNOWN = Profile(
    name="known",
    step_overhead_us=4_000.0,
    sequence_overhead_us=150.0,
    token_compute_us=60.0,
    weights_read_us=0.0,
    kv_read_us=0.8,
    request_overhead_us=2_500.0,
    compute_and_memory="add",
    max_num_seqs=8,
    max_step_tokens=256,
    block_tokens=32,
    num_blocks=128,
    max_model_len=2_048,
)

NOTHING = Figures(None, None, None, None)


def mix_of(*, api: str = "completions", prompt_format: str = "token_ids", ignore_eos: bool = True) -> Mix:
    """One class: prompts of 80 to 400 tokens, two blocks and more of it shared, answers of 8 or 40."""
    prompt = Prompt(
        tokens=Distribution(uniform=Uniform(low=80, high=400)), shared_prefix=SharedPrefix(groups=6, tokens=70)
    )
    output = Output(max_tokens=Distribution(choice={8: 1, 40: 1}), ignore_eos=ignore_eos)
    return Mix(
        name="known",
        seed=3,
        target=Target(base_url="http://127.0.0.1:8100/v1", api=api, prompt_format=prompt_format),
        classes=[TrafficClass(name="chat", prompt=prompt, output=output)],
        load=[Stage(concurrency=1, for_=Duration.parse("4s"))],
    )


def run_of(
    loads: Sequence[Load], *, mix: Mix | None = None, fit: TokenFit | None = None, seconds: float = 4.0
) -> MeasuredRun:
    """A run of these loads that has not been measured yet."""
    planned = [
        PlannedStage(name=f"stage-{place}", load=load, duration_s=seconds, drain_s=5.0, warmup=False)
        for place, load in enumerate(loads)
    ]
    return MeasuredRun(
        run_id="20270115-080000-known-0a1b",
        mix=mix or mix_of(),
        planned=planned,
        fit=fit or TokenFit(tokens_per_word=1.0, overhead_tokens=0.0, source="token_ids"),
        content_seed=5,
        stages=[
            MeasuredStage(name=each.name, sent_for_s=seconds, settle_s=0.5, window_s=seconds - 0.5, figures=NOTHING)
            for each in planned
        ],
        answer_tokens={},
    )


def measured_on(profile: Profile, run: MeasuredRun) -> MeasuredRun:
    """The run with the figures this server gives."""
    simulation = Simulation(profile, Workload(run, block_tokens=32, max_model_len=profile.max_model_len))
    stages = [msgspec.structs.replace(stage, figures=simulation.run(stage)) for stage in run.stages]
    return msgspec.structs.replace(run, stages=stages)


def sweep(*concurrencies: int) -> list[Load]:
    """Closed loops."""
    return [ClosedLoop(concurrency) for concurrency in concurrencies]
