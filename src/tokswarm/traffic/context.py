"""How much of a plan does not fit the model's context: requests that a server refuses, whatever the load."""

import random
from collections.abc import Iterator
from typing import NamedTuple

from tokswarm.errors import PreflightError
from tokswarm.traffic.distribution import Sampler
from tokswarm.traffic.mix import Mix, TrafficClass
from tokswarm.traffic.plan import PlannedStage, Replay
from tokswarm.traffic.replay import replay_rows

DRAWS = 2000
"""Enough to see one request in a thousand more often than not."""


class Asking(NamedTuple):
    """A class, or the replay of a trace, and how much of it asks for more tokens than the context has."""

    name: str
    too_long_ratio: float
    keys: str
    """What in the mix to lower."""


def context_notes(mix: Mix, stages: list[PlannedStage], context_tokens: int | None) -> list[str]:
    """What in the plan is too long, in words; nothing when `context_tokens` is None: not known.

    PreflightError when no request of the plan could be answered.
    """
    if context_tokens is None:
        return []
    asking = [*_classes(mix, stages, context_tokens), *_replays(stages, context_tokens)]
    too_long = [each for each in asking if each.too_long_ratio > 0]
    size = f"more than the {context_tokens:,} tokens of the model's context, prompt and answer together"
    if too_long and all(each.too_long_ratio == 1 for each in asking):
        raise PreflightError(
            f"every request would be refused: {' and '.join(each.name for each in too_long)} ask for {size}",
            hint="lower " + " and ".join(dict.fromkeys(each.keys for each in too_long)),
        )
    return [
        f"{each.name}: {_about(each.too_long_ratio)} of the requests ask for {size}, and will be refused: "
        f"lower {each.keys}"
        for each in too_long
    ]


def _about(ratio: float) -> str:
    return "all" if ratio == 1 else f"about {max(1, round(ratio * 100))} %"


def _classes(mix: Mix, stages: list[PlannedStage], context_tokens: int) -> Iterator[Asking]:
    if all(isinstance(stage.load, Replay) for stage in stages):
        return
    for traffic_class in mix.classes:
        ratio = _share_of_draws(traffic_class, context_tokens)
        yield Asking(traffic_class.name, ratio, "the max of prompt.tokens or of output.max_tokens")


def _share_of_draws(traffic_class: TrafficClass, context_tokens: int) -> float:
    rng = random.Random(1)  # noqa: S311 - an estimate, the same each time
    prompt, output = Sampler(traffic_class.prompt.tokens), Sampler(traffic_class.output.max_tokens)
    return sum(prompt.draw(rng) + output.draw(rng) > context_tokens for _ in range(DRAWS)) / DRAWS


def _replays(stages: list[PlannedStage], context_tokens: int) -> Iterator[Asking]:
    for stage in stages:
        if isinstance(stage.load, Replay) and stage.load.rows:
            rows = replay_rows(stage.load)
            over = sum(
                prompt + output > context_tokens
                for prompt, output in zip(rows.prompt_tokens, rows.output_tokens, strict=True)
            )
            yield Asking(stage.name, over / stage.load.rows, "the trace's max_prompt_tokens or max_output_tokens")
