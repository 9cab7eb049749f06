"""Continuous batching: sequences join and leave the batch at every step, memory grows block by block."""

import random
from collections.abc import Hashable, Sequence

from tokswarm.simulator.kv import BlockPool
from tokswarm.simulator.profile import Profile
from tokswarm.simulator.progress import Counts, Progress, Step
from tokswarm.simulator.waiting import WaitingLine


class ContinuousBatch:
    """The batch, and who holds which blocks."""

    def __init__(self, profile: Profile, pool: BlockPool, waiting: WaitingLine, counts: Counts, seed: int) -> None:
        self.running: list[Progress] = []
        self._profile = profile
        self._pool = pool
        self._waiting = waiting
        self._counts = counts
        self._seed = seed
        self._by_priority = profile.scheduling == "priority"
        self._drafts = profile.speculative_tokens
        self._host_blocks = profile.swap_blocks
        """Blocks of host memory that are free."""
        self._moved_blocks = 0
        """Blocks moved from or to host memory by the step that is being decided."""

    def next_start_ns(self, after_ns: int) -> int | None:
        """At once while anybody runs; else with the first arrival."""
        if self.running:
            return after_ns
        arrivals_ns = self._waiting.arrivals_ns()
        return max(after_ns, arrivals_ns[0]) if arrivals_ns else None

    def drop(self, sequence: Progress) -> None:
        """Free what a sequence holds; it has left the batch or the waiting line."""
        self._release(sequence)
        self._host_blocks += sequence.swapped_blocks
        sequence.swapped_blocks = 0

    def step(self, now_ns: int, slowness: float) -> Step | None:
        """Decide who is served, how long that takes, and bring everybody to the end of the step."""
        self._moved_blocks = 0
        batch: list[tuple[Progress, int]] = []
        left, preempted = self._serve_running(batch)
        if not preempted:
            left = self._admit(batch, left, now_ns)
        if not batch:
            return None
        profile = self._profile
        tokens = profile.max_step_tokens - left
        context_tokens = sum([sequence.computed for sequence, _ in batch]) + tokens
        length_us = profile.step_us(step_tokens=tokens, context_tokens=context_tokens, sequences=len(batch))
        length_us += self._moved_blocks * profile.swap_block_us
        end_ns = now_ns + round(length_us * slowness * 1_000)
        emitted, finished = self._advance(batch, end_ns)
        for sequence in finished:
            self.running.remove(sequence)
            self._release(sequence)
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

    def _serve_running(self, batch: list[tuple[Progress, int]]) -> tuple[int, int]:
        """Serve the batch in order of admission; the budget that is left, and how many were preempted for it."""
        left = self._profile.max_step_tokens
        preempted = 0
        place = 0
        running, drafts = self.running, self._drafts
        while left and place < len(running):
            # hot: once a token of every stream (benchmarks/virtual_time.py)
            sequence = running[place]
            computed = sequence.computed
            count = sequence.total - computed
            if drafts and count == 1 and sequence.generated:
                count += min(drafts, sequence.length - sequence.total - 1)
            if count > left:  # noqa: PLR1730 - a call of min() for each token costs more
                count = left
            if computed + count > sequence.room:
                lost, left = self._make_room(sequence, computed + count, batch, left)
                preempted += lost
                if lost:
                    place = len(batch)  # everybody before is in the batch, and some of them may have gone
                    if sequence.room == 0:
                        continue
            batch.append((sequence, count))
            left -= count
            place += 1
        return left, preempted

    def _make_room(
        self, sequence: Progress, tokens: int, batch: list[tuple[Progress, int]], left: int
    ) -> tuple[int, int]:
        """Blocks for so many tokens, taken from others if none is free. How many lost theirs, and the budget then.

        The sequence itself may be among them: then it has no room.
        """
        lost = 0
        missing = self._blocks_for(tokens) - len(sequence.blocks)
        while missing > self._pool.free_count:
            victim = max(self.running, key=lambda one: one.rank) if self._by_priority else self.running[-1]
            self._preempt(victim)
            lost += 1
            if victim is sequence:
                return lost, left
            for entry in batch:
                if entry[0] is victim:
                    batch.remove(entry)
                    left += entry[1]
                    break
        self._extend(sequence, self._pool.allocate(missing))
        return lost, left

    def _preempt(self, victim: Progress) -> None:
        """Take a sequence's blocks; it waits, and goes on from host memory or starts anew."""
        self.running.remove(victim)
        victim.preemptions += 1
        self._counts.preemptions += 1
        victim.reached = max(victim.reached, victim.computed)
        blocks = self._blocks_for(victim.computed)
        if 0 < blocks <= self._host_blocks:
            self._host_blocks -= blocks
            self._moved_blocks += blocks
            self._counts.swapped_out_blocks += blocks
            victim.swapped_blocks = blocks
        else:
            victim.computed = 0
        self._release(victim)
        self._waiting.put_back(victim)

    def _admit(self, batch: list[tuple[Progress, int]], left: int, now_ns: int) -> int:
        """Let waiting requests join in their order; who does not fit holds up those behind. The budget left."""
        profile, pool = self._profile, self._pool
        while left and len(self.running) < profile.max_num_seqs:
            sequence = self._waiting.first(now_ns)
            if sequence is None:
                break
            found = self._find_cached(sequence)
            if self._blocks_for(sequence.total) - len(found) > pool.free_without(found):
                break
            self._waiting.remove(sequence)
            self.running.append(sequence)
            pool.hold(found)
            self._extend(sequence, found)
            if sequence.swapped_blocks:
                self._bring_back(sequence)
            else:
                sequence.computed = len(found) * profile.block_tokens
            count = min(sequence.total - sequence.computed, left)
            missing = self._blocks_for(sequence.computed + count) - len(sequence.blocks)
            self._extend(sequence, pool.allocate(missing))
            if sequence.admitted_ns is None:
                sequence.admitted_ns = now_ns
                if profile.prefix_cache:
                    self._counts.prefix_queries_tokens += sequence.total
            spared = max(0, sequence.computed - sequence.reached)
            sequence.cached_tokens += spared
            self._counts.prefix_hits_tokens += spared
            batch.append((sequence, count))
            left -= count
        return left

    def _find_cached(self, sequence: Progress) -> list[int]:
        if not self._profile.prefix_cache or sequence.swapped_blocks:
            return []
        # One token at least is computed: the model needs its last position to go on.
        return self._pool.find(sequence.request.block_keys, (sequence.total - 1) // self._profile.block_tokens)

    def _bring_back(self, sequence: Progress) -> None:
        """Copy a sequence's blocks from host memory; they can be found again by their keys."""
        blocks = sequence.swapped_blocks
        sequence.swapped_blocks = 0
        self._host_blocks += blocks
        self._moved_blocks += blocks
        self._counts.swapped_in_blocks += blocks
        self._extend(sequence, self._pool.allocate(blocks))
        if self._profile.prefix_cache:
            self._label(sequence, 0, sequence.computed // self._profile.block_tokens)

    def _advance(
        self, batch: list[tuple[Progress, int]], end_ns: int
    ) -> tuple[list[tuple[Progress, int]], list[Progress]]:
        """Compute the chunk of everybody in the batch; whose tokens come out, and who has ended."""
        emitted: list[tuple[Progress, int]] = []
        finished: list[Progress] = []
        block_tokens, cache = self._profile.block_tokens, self._profile.prefix_cache
        for entry in batch:
            # hot: once a token of every stream (benchmarks/virtual_time.py)
            sequence, count = entry
            before = sequence.computed
            after = before + count
            total = sequence.total
            if after > total:
                after = total + self._accepted(sequence, after - total)
            if before < sequence.reached:
                again = min(after, sequence.reached) - before
                sequence.recomputed_tokens += again
                self._counts.recomputed_tokens += again
            sequence.computed = after
            if cache and after // block_tokens != before // block_tokens:
                self._label(sequence, before // block_tokens, after // block_tokens)
            if after < total:
                continue
            sequence.total = after + 1
            if sequence.first_token_ns is None:
                sequence.first_token_ns = end_ns
            tokens = after + 1 - total
            emitted.append(entry if tokens == count else (sequence, tokens))
            if after + 1 == sequence.length:
                sequence.last_token_ns = end_ns
                finished.append(sequence)
        return emitted, finished

    def _accepted(self, sequence: Progress, drafts: int) -> int:
        """How many drafts hold: each with the same probability, none after the first that does not."""
        if sequence.draws is None:
            sequence.draws = random.Random(f"{self._seed} {sequence.request.request_id}")  # noqa: S311 - no secret
        accepted = 0
        while accepted < drafts and sequence.draws.random() < self._profile.speculative_acceptance:
            accepted += 1
        self._counts.drafted_tokens += drafts
        self._counts.accepted_tokens += accepted
        return accepted

    def _extend(self, sequence: Progress, blocks: list[int]) -> None:
        sequence.blocks += blocks
        sequence.room = len(sequence.blocks) * self._profile.block_tokens

    def _release(self, sequence: Progress) -> None:
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.room = 0

    def _label(self, sequence: Progress, first: int, end: int) -> None:
        keys: Sequence[Hashable] = sequence.request.block_keys
        for place in range(first, min(end, len(keys))):
            self._pool.label(sequence.blocks[place], keys[place])

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._profile.block_tokens)
