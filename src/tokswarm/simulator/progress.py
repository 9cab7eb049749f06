"""What goes through an engine: a request, how far it is, and the step that moved it."""

import random
from collections.abc import Hashable

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine must know of a request: lengths and the identity of its blocks, no text."""

    request_id: int
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    """How many it will generate; the caller has drawn it already."""
    block_keys: tuple[Hashable, ...]
    """Keys of the full blocks of prompt and answer, in order; blocks beyond have no key and are never shared."""
    priority: int = 0
    """Lower goes first, as in vLLM; it counts where the profile schedules by priority."""


class Progress:
    """A request inside the engine: how far it is, and what it went through. The engine alone changes it."""

    __slots__ = (
        "admitted_ns",
        "blocks",
        "cached_tokens",
        "computed",
        "draws",
        "first_token_ns",
        "last_token_ns",
        "length",
        "preemptions",
        "reached",
        "recomputed_tokens",
        "request",
        "room",
        "swapped_blocks",
        "total",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.length = request.prompt_tokens + request.output_tokens
        """Tokens known when it has ended."""
        self.total = request.prompt_tokens
        """Tokens known so far: prompt and generated."""
        self.computed = 0
        """Tokens whose keys and values are in its blocks, or were moved to the host with them."""
        self.reached = 0
        """The most `computed` was before a preemption: what is computed below it is recomputed."""
        self.blocks: list[int] = []
        self.room = 0
        """Tokens its blocks have room for."""
        self.swapped_blocks = 0
        """Blocks of it that are in host memory; then it holds none."""
        self.draws: random.Random | None = None
        """Decides which drafts of it are accepted."""
        self.admitted_ns: int | None = None
        """Start of the first step that served it."""
        self.first_token_ns: int | None = None
        self.last_token_ns: int | None = None
        """End of the step its last token came out of; None before."""
        self.cached_tokens = 0
        """Prompt tokens found in the cache instead of being computed a first time."""
        self.recomputed_tokens = 0
        self.preemptions = 0

    @property
    def generated(self) -> int:
        """Tokens it has emitted."""
        return self.total - self.request.prompt_tokens

    @property
    def rank(self) -> tuple[int, int, int]:
        """Its place when priorities count: lower goes first, the higher is preempted first."""
        request = self.request
        return (request.priority, request.arrival_ns, request.request_id)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What one step does, and when it is over."""

    start_ns: int
    end_ns: int
    tokens: int
    """Positions computed: prompt chunks, one for each decoding sequence and its drafts, and padding."""
    sequences: int
    """Slots of the batch, those included that only pad it."""
    context_tokens: int
    emitted: list[tuple[Progress, int]]
    """Who has new tokens at the end of the step, and how many: they come out together."""
    finished: list[Progress]
    """The last token of these is among the emitted; they have left the engine."""
    preempted: int


class Counts:
    """What an engine has done since it was made."""

    __slots__ = (
        "accepted_tokens",
        "drafted_tokens",
        "padding_tokens",
        "preemptions",
        "prefix_hits_tokens",
        "prefix_queries_tokens",
        "recomputed_tokens",
        "swapped_in_blocks",
        "swapped_out_blocks",
    )

    def __init__(self) -> None:
        self.prefix_queries_tokens = 0
        """Prompt tokens looked up in the cache, each request once."""
        self.prefix_hits_tokens = 0
        self.preemptions = 0
        self.recomputed_tokens = 0
        self.swapped_out_blocks = 0
        """Blocks moved to host memory by preemptions."""
        self.swapped_in_blocks = 0
        self.drafted_tokens = 0
        """Positions computed on a guess (speculative decoding)."""
        self.accepted_tokens = 0
        """Of them, those that became tokens of the answer."""
        self.padding_tokens = 0
        """Positions computed for nothing but the shape of a static batch."""
