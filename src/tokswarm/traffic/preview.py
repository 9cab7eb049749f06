"""What a mix is going to send, before it does: lengths, arrivals, expected tokens and shared prefixes.

Lengths are drawn as the run draws them, DRAWS of each class; arrivals are those of the run itself.
"""

import random
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile
from statistics import fmean

import msgspec

from tokswarm.traffic.distribution import Sampler
from tokswarm.traffic.mix import Mix, Session, TrafficClass
from tokswarm.traffic.plan import ClosedLoop, OpenLoop, PlannedStage, Replay, SearchPlan
from tokswarm.traffic.replay import ReplayRows, replay_rows
from tokswarm.traffic.schedule import stage_class_weights, stage_offsets_ns
from tokswarm.traffic.session import SessionDraws

DRAWS = 5000
BINS = 60
"""Of the arrivals over the time of a stage."""


class ClassPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What one class sends."""

    name: str
    prompt_tokens: list[int]
    """Drawn, ascending."""
    max_tokens: list[int]
    """Drawn, ascending."""
    shared_ratio: float
    """Share of the prompt tokens that belong to a shared prefix, or to what was said before in a session."""
    churn: str = ""
    """Share of the groups of its prefix that is replaced in a time, as the mix writes it; empty: none."""
    turns_mean: float = 1.0
    """Requests for each that begins; above 1 of sessions, of which every turn is in the lengths."""


class StagePreview(msgspec.Struct, frozen=True, kw_only=True):
    """What one stage sends."""

    name: str
    load: str
    duration_s: float
    requests: int | None
    """Over the whole fleet, every turn of a session counted; None of a closed loop, where the endpoint decides."""
    prompt_tokens_mean: float
    max_tokens_mean: float
    shared_ratio: float
    """Of a trace: the share of prompt tokens that an unlimited cache would have by then."""
    arrivals: list[int]
    """Requests in each part of the stage, of sessions the first turn; empty of a closed loop."""

    @property
    def prompt_tokens(self) -> float | None:
        """Expected over the stage; None where the number of requests is not known."""
        return None if self.requests is None else self.requests * self.prompt_tokens_mean

    @property
    def max_tokens(self) -> float | None:
        """Expected over the stage at most."""
        return None if self.requests is None else self.requests * self.max_tokens_mean


def class_previews(mix: Mix) -> list[ClassPreview]:
    """Each class of a mix."""
    return [_with_churn(_class_preview(one), one) for one in mix.classes]


def stage_previews(mix: Mix, stages: Sequence[PlannedStage]) -> list[StagePreview]:
    """Each stage of its plan."""
    classes = class_previews(mix)
    previews = [_stage_preview(mix, index, stage, classes) for index, stage in enumerate(stages)]
    return [
        one
        if stage.search is None
        else msgspec.structs.replace(one, load=_search_words(stage.search), requests=None, arrivals=[])
        for one, stage in zip(previews, stages, strict=True)
    ]


def _with_churn(preview: ClassPreview, one: TrafficClass) -> ClassPreview:
    prefix = one.prompt.shared_prefix
    churn = "" if prefix is None or prefix.churn is None else str(prefix.churn)
    return msgspec.structs.replace(preview, churn=churn)


def _class_preview(one: TrafficClass) -> ClassPreview:
    rng = random.Random(1)  # noqa: S311 - an estimate, the same each time
    prompt, output = Sampler(one.prompt.lengths), Sampler(one.output.max_tokens)
    prefix_tokens = 0 if one.prompt.shared_prefix is None else one.prompt.shared_prefix.tokens
    if one.session is not None:
        return _session_preview(one, one.session, prefix_tokens)
    prompts = sorted(prompt.draw(rng) for _ in range(DRAWS))
    return ClassPreview(
        name=one.name,
        prompt_tokens=prompts,
        max_tokens=sorted(output.draw(rng) for _ in range(DRAWS)),
        shared_ratio=sum(min(prefix_tokens, tokens) for tokens in prompts) / sum(prompts),
    )


def _session_preview(one: TrafficClass, spec: Session, prefix_tokens: int) -> ClassPreview:
    """Every turn of sessions until there are DRAWS, as if every answer were as long as it may be."""
    rng = random.Random(1)  # noqa: S311 - an estimate, the same each time
    prompt, output = Sampler(one.prompt.lengths), Sampler(one.output.max_tokens)
    draws = SessionDraws(one, spec)
    prompts: list[int] = []
    outputs: list[int] = []
    sessions = shared = 0
    while len(prompts) < DRAWS:
        sessions += 1
        known = prefix_tokens
        for tokens, max_tokens in islice(draws.lengths(rng, prompt.draw(rng), output.draw(rng)), DRAWS):
            prompts.append(tokens)
            outputs.append(max_tokens)
            shared += min(known, tokens)
            known = tokens + (max_tokens if spec.history == "server" else 0)
    return ClassPreview(
        name=one.name,
        prompt_tokens=sorted(prompts),
        max_tokens=sorted(outputs),
        shared_ratio=shared / sum(prompts),
        turns_mean=len(prompts) / sessions,
    )


def _stage_preview(mix: Mix, index: int, stage: PlannedStage, classes: Sequence[ClassPreview]) -> StagePreview:
    if isinstance(stage.load, Replay):
        return _replay_preview(stage, stage.load)
    weights = stage_class_weights(mix, stage)
    begun = [weight / sum(weights) for weight in weights]
    turns = sum(share * one.turns_mean for share, one in zip(begun, classes, strict=True))
    shares = [share * one.turns_mean / turns for share, one in zip(begun, classes, strict=True)]
    prompts = [share * fmean(one.prompt_tokens) for share, one in zip(shares, classes, strict=True)]
    shared = sum(tokens * one.shared_ratio for tokens, one in zip(prompts, classes, strict=True))
    due_ns: list[int] = []
    if isinstance(stage.load, OpenLoop):
        end_ns = round(stage.duration_s * 1e9)
        due_ns = list(takewhile(lambda ns: ns < end_ns, stage_offsets_ns(mix, index, stage.load)))
    return StagePreview(
        name=stage.name,
        load=_load_words(stage.load),
        duration_s=stage.duration_s,
        requests=round(len(due_ns) * turns) if isinstance(stage.load, OpenLoop) else None,
        prompt_tokens_mean=sum(prompts),
        max_tokens_mean=sum(share * fmean(one.max_tokens) for share, one in zip(shares, classes, strict=True)),
        shared_ratio=shared / sum(prompts),
        arrivals=_binned(due_ns, stage.duration_s) if isinstance(stage.load, OpenLoop) else [],
    )


def _search_words(search: SearchPlan) -> str:
    unit = " in flight" if search.is_whole else "/s"
    return f"search from {search.from_:.6g} to {search.to:.6g}{unit}, at most {search.most_probes} loads"


def _load_words(load: ClosedLoop | OpenLoop) -> str:
    if isinstance(load, ClosedLoop):
        return f"{load.concurrency} in flight"
    kind = load.arrivals if load.cv is None else f"{load.arrivals}, cv {load.cv:g}"
    return f"{load.rate_per_s:.6g}/s{'' if load.course is None else ' on average'}, {kind}" + (
        "" if load.bursts is None else ", in bursts"
    )


def _replay_preview(stage: PlannedStage, replay: Replay) -> StagePreview:
    rows = replay_rows(replay)
    return StagePreview(
        name=stage.name,
        load=f"trace {replay.trace}",
        duration_s=stage.duration_s,
        requests=replay.rows,
        prompt_tokens_mean=fmean(rows.prompt_tokens),
        max_tokens_mean=fmean(rows.output_tokens),
        shared_ratio=known_tokens(rows, replay.block_tokens) / sum(rows.prompt_tokens),
        arrivals=_binned(rows.due_ns, stage.duration_s),
    )


def known_tokens(rows: ReplayRows, block_tokens: int) -> int:
    """Prompt tokens that an unlimited prefix cache would have, request after request."""
    used: set[int] = set()
    known = 0
    for index, tokens in enumerate(rows.prompt_tokens):
        blocks = rows.blocks_of(index)
        whole = blocks[: tokens // block_tokens]
        run = next((place for place, block in enumerate(whole) if block not in used), len(whole))
        known += run * block_tokens
        used.update(whole)
    return known


def _binned(due_ns: Iterable[int], duration_s: float) -> list[int]:
    counts = [0] * BINS
    for due in due_ns:
        counts[min(int(due / 1e9 / duration_s * BINS), BINS - 1)] += 1
    return counts
