"""The plan of a run and each worker's shard of it: what the master sends and a worker carries out.

Every worker draws the same seeded schedule and takes every n-th ticket of it, so totals, order and
contents do not depend on how many workers there are.
"""

import math

import msgspec

from tokswarm.traffic.mix import Mix


class ClosedLoop(msgspec.Struct, frozen=True, tag="closed"):
    """A fixed number of requests in flight over the whole fleet."""

    concurrency: int


class RateSegment(msgspec.Struct, frozen=True):
    """A rate that goes straight from one value to another."""

    duration_s: float
    from_per_s: float
    to_per_s: float


class BurstCycle(msgspec.Struct, frozen=True):
    """What the rate is multiplied with: `on_factor`, then `off_factor`, then over again."""

    on_s: float
    off_s: float
    on_factor: float
    off_factor: float


class OpenLoop(msgspec.Struct, frozen=True, tag="open"):
    """Arrivals at a rate, whatever the server does."""

    rate_per_s: float
    """Mean over the stage."""
    arrivals: str
    """The gaps' kind: poisson, constant, gamma or weibull."""
    cv: float | None = None
    """Variation of the gaps of gamma and weibull."""
    course: list[RateSegment] | None = None
    """The rate within the stage, over again when it is shorter; None: `rate_per_s` throughout."""
    bursts: BurstCycle | None = None


class Replay(msgspec.Struct, frozen=True, kw_only=True, tag="replay"):
    """Arrivals and lengths out of a trace, whole, so that a worker needs no file; `replay` packs and unpacks it."""

    trace: str
    """As the mix names it; keeps blocks of different traces apart."""
    rows: int
    last_due_ns: int
    """From the start of the stage, as scaled."""
    block_tokens: int
    columns: bytes
    prompts_cut: int
    """Rows whose prompt was longer than `max_prompt_tokens`."""
    outputs_cut: int
    """Rows whose answer was longer than `max_output_tokens`."""

    @property
    def note(self) -> str:
        """What was cut, for the run's notes; empty when nothing was."""
        cut = [
            f"{count} {what}" for count, what in ((self.prompts_cut, "prompts"), (self.outputs_cut, "outputs")) if count
        ]
        return f"{self.trace}: of {self.rows} rows, cut to the mix's limits: {' and '.join(cut)}" if cut else ""


Load = ClosedLoop | OpenLoop | Replay


class SearchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a stage searches for the highest load that meets a goal."""

    goal: str
    """slo, errors or knee."""
    from_: float
    to: float
    is_whole: bool
    """Whether loads are whole numbers in flight; else rates per second."""
    precision: float
    """How far apart the highest load that met and the lowest that missed may be, as a share of the latter; of a
    knee, how far apart the loads around it."""
    share: float | None
    """Of the requests, that must do as the goal asks; None for a knee."""

    @property
    def most_probes(self) -> int:
        """The most loads it tries."""
        doublings = math.ceil(math.log2(max(self.to / self.from_, 1))) + 1
        halvings = math.ceil(math.log2(1 / self.precision))
        return doublings + (2 * halvings if self.goal == "knee" else halvings)  # a knee has two sides

    def load_of(self, template: "Load", load: float) -> "Load":
        """The load of a probe."""
        if isinstance(template, OpenLoop):
            return msgspec.structs.replace(template, rate_per_s=load)
        return ClosedLoop(concurrency=int(load))


class PlannedStage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage: sends for `duration_s`, then waits at most `drain_s` for what is open.

    The master gives each stage its start once every worker has drained the one before, so stages
    never mix and a quick drain costs no time.
    """

    name: str
    """Unique in the plan; stages of a sweep are `sweep-8`, `rate-12.5`, …"""
    load: Load
    duration_s: float
    drain_s: float
    warmup: bool
    class_weights: list[float] | None = None
    """Of each class of the mix, 0 where the stage does not send it; None: their own weights."""
    search: SearchPlan | None = None
    """The stage is only a model of those that a search decides while it goes on, each `duration_s` long."""


class TokenFit(msgspec.Struct, frozen=True, kw_only=True):
    """How our texts become tokens of this endpoint: those of their units, and an overhead."""

    tokens_per_word: float
    """Of English; for text that is in no table."""
    tables: dict[str, bytes] = {}
    """Tokens of each unit, for each part of the corpus, as `token_counts` packs them."""
    overhead_tokens: float
    """What the chat template adds to one message."""
    source: str
    """tokenize (the server's own), tokenizer (a local one), usage (probes), token_ids (exact), or assumed."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What the preflight found out about a target."""

    model: str
    fit: TokenFit
    dropped_fields: list[str] = []
    """Optional request fields that it refuses."""


class PromptSet(msgspec.Struct, frozen=True, kw_only=True):
    """The prompts of a class that has its own; `own_prompts` packs and deals them out."""

    class_index: int
    rows: int
    texts: bytes
    repeat: bool
    """Whether they are sent over again when all were sent."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A run, ready to be shared out."""

    run_id: str
    mix: Mix
    model: str
    """Of the mix's target, or of the first of them; so are `fit` and `dropped_fields`."""
    stages: list[PlannedStage]
    fit: TokenFit
    dropped_fields: list[str] = []
    """Optional request fields that the endpoint refuses, found by the preflight."""
    further_endpoints: list[Endpoint] = []
    """Of the mix's second and later targets."""
    content_seed: int
    """Seeds the text (not the lengths), fresh for each run, so that no run finds the cache of another."""
    prompts: list[PromptSet] = []
    """Of each class that has its own."""

    @property
    def endpoints(self) -> list[Endpoint]:
        """One for each target of the mix, in their order."""
        first = Endpoint(model=self.model, fit=self.fit, dropped_fields=self.dropped_fields)
        return [first, *self.further_endpoints]


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's share: tickets worker_index, worker_index + worker_count, …"""

    plan: Plan
    worker_index: int
    worker_count: int
    joins_late: bool = False
    """The run goes on already: prefixes and blocks have been used, and its share of each stage comes with the stage."""
