"""Static, padded batching, as servers without iteration-level scheduling do it.

A batch is formed when the one before is over and nobody joins it later. Every prompt is padded to the
longest of the batch, every slot is computed until the longest answer has ended, and memory is reserved
for padded prompt and longest answer of every slot from the start. Tokens still come out as they are made.
"""

from tokswarm.simulator.kv import BlockPool
from tokswarm.simulator.profile import Profile
from tokswarm.simulator.progress import Counts, Progress, Step
from tokswarm.simulator.waiting import WaitingLine


class StaticBatch:
    """One padded batch at a time."""

    def __init__(self, profile: Profile, pool: BlockPool, waiting: WaitingLine, counts: Counts) -> None:
        self.running: list[Progress] = []
        """Whose answers have not ended; their slots stay taken when they have."""
        self._profile = profile
        self._pool = pool
        self._waiting = waiting
        self._counts = counts
        self._wait_ns = round(profile.batch_wait_us * 1_000)
        self._slots = 0
        self._prompt_tokens = 0
        """Of the longest prompt."""
        self._computed = 0
        """Positions computed so far, over all slots."""
        self._blocks: list[int] = []

    def next_start_ns(self, after_ns: int) -> int | None:
        """At once within a batch; a new one starts when it is full, or when its first has waited long enough."""
        if self.running:
            return after_ns
        arrivals_ns = self._waiting.arrivals_ns()
        if not arrivals_ns:
            return None
        ready_ns = arrivals_ns[0] + self._wait_ns
        if len(arrivals_ns) >= self._profile.max_num_seqs:
            ready_ns = min(ready_ns, arrivals_ns[self._profile.max_num_seqs - 1])
        return max(after_ns, ready_ns)

    def drop(self, sequence: Progress) -> None:
        """A sequence has left; its slot is computed on, unless it was the last."""
        if sequence.admitted_ns is not None and not self.running:
            self._close()

    def step(self, now_ns: int, slowness: float) -> Step | None:
        """Prefill a chunk of the padded batch, or decode one position of every slot."""
        if not self.running:
            self._form(now_ns)
        if not self.running:
            return None
        slots = self._slots
        padded = slots * self._prompt_tokens
        prefill = self._computed < padded
        tokens = min(padded - self._computed, self._profile.max_step_tokens) if prefill else slots
        self._computed += tokens
        length_us = self._profile.step_us(step_tokens=tokens, context_tokens=self._computed, sequences=slots)
        end_ns = now_ns + round(length_us * slowness * 1_000)
        if not prefill:
            self._counts.padding_tokens += slots - len(self.running)
        context_tokens = self._computed
        emitted = list[tuple[Progress, int]]()
        finished = list[Progress]()
        if self._computed >= padded:
            emitted = [(sequence, 1) for sequence in self.running]
            finished = self._advance(end_ns)
        return Step(
            start_ns=now_ns,
            end_ns=end_ns,
            tokens=tokens,
            sequences=slots,
            context_tokens=context_tokens,
            emitted=emitted,
            finished=finished,
            preempted=0,
        )

    def _form(self, now_ns: int) -> None:
        """Take waiting requests in their order as long as all, padded to the longest, fit into memory."""
        longest_prompt = longest_output = 0
        while len(self.running) < self._profile.max_num_seqs:
            sequence = self._waiting.first(now_ns)
            if sequence is None:
                break
            prompt = max(longest_prompt, sequence.request.prompt_tokens)
            output = max(longest_output, sequence.request.output_tokens)
            if (len(self.running) + 1) * self._blocks_for(prompt + output) > self._pool.num_blocks:
                break
            self._waiting.remove(sequence)
            sequence.admitted_ns = now_ns
            self.running.append(sequence)
            longest_prompt, longest_output = prompt, output
        self._slots = len(self.running)
        self._prompt_tokens = longest_prompt
        self._computed = 0
        self._blocks = self._pool.allocate(self._slots * self._blocks_for(longest_prompt + longest_output))
        prompts = sum(sequence.request.prompt_tokens for sequence in self.running)
        self._counts.padding_tokens += self._slots * longest_prompt - prompts

    def _advance(self, end_ns: int) -> list[Progress]:
        """One more token of everybody who runs; who has ended."""
        finished = []
        for sequence in self.running:
            sequence.computed = sequence.total
            sequence.total += 1
            if sequence.first_token_ns is None:
                sequence.first_token_ns = end_ns
            if sequence.total == sequence.length:
                sequence.last_token_ns = end_ns
                finished.append(sequence)
        if finished:
            self.running = [sequence for sequence in self.running if sequence.total < sequence.length]
            if not self.running:
                self._close()
        return finished

    def _close(self) -> None:
        self._pool.release(self._blocks)
        self._blocks = []

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._profile.block_tokens)
