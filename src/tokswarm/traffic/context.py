"""How much of a plan does not fit the model's context: a prompt alone, an answer alone, or only both together.

Every server refuses the first. What fits only in part is refused by some and cut short by others: vLLM 0.32 lowers
`max_tokens` to what is left beside the prompt, and the answer ends early without a word.
"""

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from tokswarm.errors import PreflightError
from tokswarm.traffic.distribution import Sampler
from tokswarm.traffic.mix import Mix, TrafficClass
from tokswarm.traffic.plan import PlannedStage, Replay
from tokswarm.traffic.replay import replay_rows
from tokswarm.traffic.schedule import stage_class_weights
from tokswarm.traffic.session import SessionDraws

DRAWS = 2000
"""Enough to see one request in a thousand more often than not."""


class Asking(NamedTuple):
    """A class, or the replay of a trace, and how much of it asks for more tokens than the context has."""

    name: str
    hopeless_ratio: float
    """Share of its requests whose prompt alone, or whose answer alone, is too long."""
    too_long_ratio: float
    """Share whose prompt and answer are too long together; the hopeless among them."""
    keys: str
    """What in the mix to lower."""


def context_notes(mix: Mix, stages: list[PlannedStage], context_tokens: int | None) -> list[str]:
    """What in the plan is too long, in words; nothing when `context_tokens` is None: not known.

    PreflightError when every request of the plan is hopeless.
    """
    if context_tokens is None:
        return []
    asking = [*_classes(mix, stages, context_tokens), *_replays(stages, context_tokens)]
    if asking and all(each.hopeless_ratio == 1 for each in asking):
        raise PreflightError(
            f"every request would be refused: {' and '.join(each.name for each in asking)} ask for prompts or answers "
            f"that do not fit into the model's context of {context_tokens:,} tokens",
            hint="lower " + " and ".join(dict.fromkeys(each.keys for each in asking)),
        )
    return [
        f"{each.name}: {_about(each.too_long_ratio)} of the requests do not fit into the model's context of "
        f"{context_tokens:,} tokens, and will be refused or cut short: lower {each.keys}"
        for each in asking
        if each.too_long_ratio > 0
    ]


def _about(ratio: float) -> str:
    return "all" if ratio == 1 else f"about {max(1, round(ratio * 100))} %"


def _classes(mix: Mix, stages: list[PlannedStage], context_tokens: int) -> Iterator[Asking]:
    drawing = [stage for stage in stages if not isinstance(stage.load, Replay)]
    for index, traffic_class in enumerate(mix.classes):
        if not any(stage_class_weights(mix, stage)[index] > 0 for stage in drawing):
            continue
        shares = _shares(_draws(traffic_class), context_tokens)
        keys = "the max of prompt.tokens or of output.max_tokens"
        if traffic_class.session is not None:
            keys += ", or of session.turns"
        yield Asking(traffic_class.name, *shares, keys)


def _draws(traffic_class: TrafficClass) -> Iterator[tuple[int, int]]:
    """Prompts and answers as drawn; of sessions every turn, as if every answer were as long as it may be."""
    rng = random.Random(1)  # noqa: S311 - an estimate, the same each time
    prompt, output = Sampler(traffic_class.prompt.lengths), Sampler(traffic_class.output.max_tokens)
    if traffic_class.session is None:
        return ((prompt.draw(rng), output.draw(rng)) for _ in range(DRAWS))
    session = SessionDraws(traffic_class, traffic_class.session)
    turns = (turn for _ in range(DRAWS) for turn in session.lengths(rng, prompt.draw(rng), output.draw(rng)))
    return islice(turns, DRAWS)


def _replays(stages: list[PlannedStage], context_tokens: int) -> Iterator[Asking]:
    for stage in stages:
        if isinstance(stage.load, Replay) and stage.load.rows:
            rows = replay_rows(stage.load)
            shares = _shares(zip(rows.prompt_tokens, rows.output_tokens, strict=True), context_tokens)
            yield Asking(stage.name, *shares, "the trace's max_prompt_tokens or max_output_tokens")


def _shares(lengths: Iterable[tuple[int, int]], context_tokens: int) -> tuple[float, float]:
    """Of these prompts and answers: the share that is hopeless, and the share that is too long at all."""
    count = hopeless = too_long = 0
    for prompt, output in lengths:
        count += 1
        hopeless += prompt >= context_tokens or output > context_tokens
        too_long += prompt + output > context_tokens
    return hopeless / count, too_long / count
