"""The engine in virtual time: runs a list of requests to their end and keeps all steps."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

from tokswarm.simulator.engine import Engine, Progress, Request, Step
from tokswarm.simulator.profile import Profile

PLAIN = Profile(
    name="plain",
    step_overhead_us=1_000.0,
    sequence_overhead_us=0.0,
    token_compute_us=10.0,
    weights_read_us=9_000.0,
    kv_read_us=0.0,
    max_num_seqs=4,
    max_step_tokens=64,
    block_tokens=16,
    num_blocks=64,
    max_model_len=512,
)
"""A step takes 10 ms unless it computes more than 900 tokens."""


def profile(**changes: float) -> Profile:
    """PLAIN with changes."""
    return msgspec.structs.replace(PLAIN, **changes)


def request(
    request_id: int, *, prompt: int = 20, output: int = 5, arrival_ns: int = 0, shared: int = 0, family: int = 0
) -> Request:
    """A request whose first `shared` tokens are those of its family; the rest is its own."""
    blocks = (prompt + output) // PLAIN.block_tokens
    common = shared // PLAIN.block_tokens
    keys = tuple(("shared", family, n) if n < common else ("own", request_id, n) for n in range(blocks))
    return Request(
        request_id=request_id, arrival_ns=arrival_ns, prompt_tokens=prompt, output_tokens=output, block_keys=keys
    )


def steps(engine: Engine, requests: Iterable[Request], start_ns: int = 0) -> Iterator[Step]:
    """Submit all, then step until the engine is idle."""
    for one in requests:
        engine.submit(one)
    now_ns = engine.next_start_ns(start_ns)
    while now_ns is not None:
        step = engine.step(now_ns)
        assert step is not None, "an engine with work to do at this time must do it"
        yield step
        now_ns = engine.next_start_ns(step.end_ns)


def run(engine: Engine, requests: Iterable[Request]) -> tuple[list[Step], dict[int, Progress]]:
    """All steps, and every request as it left, by id."""
    taken = list(steps(engine, requests))
    for before, after in pairwise(taken):
        assert before.end_ns <= after.start_ns
    return taken, {one.request.request_id: one for step in taken for one in step.finished}
