"""The step loop of a batching server with a finite KV cache, as a pure machine: time is an argument.

One step serves the whole batch: each running sequence gets its next token, or a chunk of its prompt
within the step's token budget; waiting requests join in order of arrival while there is room. When no
block is free, the sequence admitted last gives its blocks back and later computes them anew. The caller
says when a step starts; the answer says when it ends and whose tokens come out of it. Real time
(`driver`) and virtual time drive the same code.
"""

from collections import deque
from collections.abc import Hashable, Sequence

import msgspec

from tokswarm.simulator.kv import BlockPool
from tokswarm.simulator.profile import Profile


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine must know of a request: lengths and the identity of its blocks, no text."""

    request_id: int
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    """How many it will generate; the caller has drawn it already."""
    block_keys: tuple[Hashable, ...]
    """Keys of the full blocks of prompt and answer, in order; blocks beyond have no key and are never shared."""


class Progress:
    """A request inside the engine: how far it is, and what it went through. The engine alone changes it."""

    __slots__ = (
        "admitted_ns",
        "blocks",
        "cached_tokens",
        "computed",
        "first_token_ns",
        "generated",
        "last_token_ns",
        "preemptions",
        "reached",
        "recomputed_tokens",
        "request",
        "total",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.total = request.prompt_tokens
        """Tokens known so far: prompt and generated."""
        self.computed = 0
        """Tokens whose keys and values are in its blocks."""
        self.reached = 0
        """The most `computed` ever was: what is computed below it is recomputed, after a preemption."""
        self.generated = 0
        self.blocks: list[int] = []
        self.admitted_ns: int | None = None
        """Start of the first step that served it."""
        self.first_token_ns: int | None = None
        self.last_token_ns: int | None = None
        self.cached_tokens = 0
        """Prompt tokens found in the cache instead of being computed a first time."""
        self.recomputed_tokens = 0
        self.preemptions = 0


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What one step does, and when it is over."""

    start_ns: int
    end_ns: int
    tokens: int
    """Tokens computed: prompt chunks, and one for each decoding sequence."""
    sequences: int
    context_tokens: int
    emitted: list[tuple[Progress, int]]
    """Who has new tokens at the end of the step, and how many: they come out together."""
    finished: list[Progress]
    """The last token of these is among the emitted; they have left the engine."""
    preempted: int


class Engine:
    """The scheduler and the memory of one server."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.pool = BlockPool(profile.num_blocks)
        self.prefix_queries_tokens = 0
        """Prompt tokens looked up in the cache, each request once."""
        self.prefix_hits_tokens = 0
        self.preemptions = 0
        self.recomputed_tokens = 0
        self.steps = 0
        self.slowness = 1.0
        """Steps take so many times longer: a server that warms up."""
        self._waiting: deque[Progress] = deque()
        self._running: list[Progress] = []

    @property
    def waiting_count(self) -> int:
        """Requests that hold no blocks: not yet admitted, or preempted."""
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        """Requests in the batch."""
        return len(self._running)

    def submit(self, request: Request) -> None:
        """Queue a request behind those that arrived before. ValueError when it could never be served."""
        length = request.prompt_tokens + request.output_tokens
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"request {request.request_id} has no prompt or no output tokens")
        if length > self.profile.kv_tokens:
            raise ValueError(f"request {request.request_id} is {length} tokens, memory {self.profile.kv_tokens}")
        self._waiting.append(Progress(request))

    def abort(self, request_id: int) -> Progress | None:
        """Drop a request, free its blocks at once and say how far it was. None: it is not here (any more)."""
        for line in (self._running, self._waiting):
            for sequence in line:
                if sequence.request.request_id == request_id:
                    line.remove(sequence)
                    self.pool.release(sequence.blocks)
                    sequence.blocks = []
                    return sequence
        return None

    def next_start_ns(self, after_ns: int) -> int | None:
        """When the next step can start, at or after `after_ns`. None: there is nothing to do."""
        if self._running:
            return after_ns
        if self._waiting:
            return max(after_ns, self._waiting[0].request.arrival_ns)
        return None

    def step(self, now_ns: int) -> Step | None:
        """Start a step: decide who is served, how long it takes, and bring the state to its end.

        None: nothing can run at this time. The next step must not start before `end_ns` of this one.
        """
        batch: list[tuple[Progress, int]] = []
        left, preempted = self._schedule_running(batch)
        if not preempted:
            self._admit(batch, left, now_ns)
        if not batch:
            return None
        tokens = sum(count for _, count in batch)
        context_tokens = sum(sequence.computed + count for sequence, count in batch)
        length_us = self.profile.step_us(step_tokens=tokens, context_tokens=context_tokens, sequences=len(batch))
        end_ns = now_ns + round(length_us * self.slowness * 1_000)
        emitted = [(sequence, 1) for sequence, count in batch if self._advance(sequence, count, end_ns)]
        finished = [sequence for sequence, _ in emitted if sequence.generated == sequence.request.output_tokens]
        for sequence in finished:
            self._running.remove(sequence)
            self.pool.release(sequence.blocks)
        self.steps += 1
        return Step(
            start_ns=now_ns,
            end_ns=end_ns,
            tokens=tokens,
            sequences=len(batch),
            context_tokens=context_tokens,
            emitted=emitted,
            finished=finished,
            preempted=preempted,
        )

    def _schedule_running(self, batch: list[tuple[Progress, int]]) -> tuple[int, int]:
        """Serve the batch in order of admission; the budget that is left, and how many were preempted for it."""
        left = self.profile.max_step_tokens
        preempted = 0
        place = 0
        while left and place < len(self._running):
            sequence = self._running[place]
            count = min(sequence.total - sequence.computed, left)
            missing = self._blocks_for(sequence.computed + count) - len(sequence.blocks)
            while missing > self.pool.free_count:
                preempted += 1
                if self._preempt_last() is sequence:
                    return left, preempted
            if missing:
                sequence.blocks += self.pool.allocate(missing)
            batch.append((sequence, count))
            left -= count
            place += 1
        return left, preempted

    def _preempt_last(self) -> Progress:
        """Take the blocks of the sequence admitted last; it waits at the front and starts anew."""
        victim = self._running.pop()
        self.pool.release(victim.blocks)
        victim.blocks = []
        victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        self._waiting.appendleft(victim)
        return victim

    def _admit(self, batch: list[tuple[Progress, int]], left: int, now_ns: int) -> None:
        """Let waiting requests join, first come first served; who does not fit holds up those behind."""
        while left and self._waiting and len(self._running) < self.profile.max_num_seqs:
            sequence = self._waiting[0]
            if sequence.request.arrival_ns > now_ns:
                break
            # One token at least is computed: the model needs its last position to go on.
            found = self.pool.find(sequence.request.block_keys, (sequence.total - 1) // self.profile.block_tokens)
            if self._blocks_for(sequence.total) - len(found) > self.pool.free_without(found):
                break
            self._waiting.popleft()
            self._running.append(sequence)
            self.pool.hold(found)
            sequence.computed = len(found) * self.profile.block_tokens
            count = min(sequence.total - sequence.computed, left)
            missing = self._blocks_for(sequence.computed + count) - len(found)
            sequence.blocks = found + self.pool.allocate(missing)
            if sequence.admitted_ns is None:
                sequence.admitted_ns = now_ns
                self.prefix_queries_tokens += sequence.total
            spared = max(0, sequence.computed - sequence.reached)
            sequence.cached_tokens += spared
            self.prefix_hits_tokens += spared
            batch.append((sequence, count))
            left -= count

    def _advance(self, sequence: Progress, count: int, end_ns: int) -> bool:
        """Compute `count` tokens; true when that gives a new token at the end of the step."""
        # hot: once per token of every stream (benchmarked by hand, docs/simulator.md#speed)
        before = sequence.computed
        after = before + count
        if before < sequence.reached:
            again = min(after, sequence.reached) - before
            sequence.recomputed_tokens += again
            self.recomputed_tokens += again
        sequence.reached = max(sequence.reached, after)
        sequence.computed = after
        block_tokens = self.profile.block_tokens
        if before // block_tokens != after // block_tokens:
            self._label(sequence, before // block_tokens, after // block_tokens)
        if after < sequence.total:
            return False
        sequence.total += 1
        sequence.generated += 1
        sequence.last_token_ns = end_ns
        if sequence.first_token_ns is None:
            sequence.first_token_ns = end_ns
        return True

    def _label(self, sequence: Progress, first: int, end: int) -> None:
        keys: Sequence[Hashable] = sequence.request.block_keys
        for place in range(first, min(end, len(keys))):
            self.pool.label(sequence.blocks[place], keys[place])

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.profile.block_tokens)
