"""The engine's modes: who goes first, padded batches, swapping, drafts, and memory without a cache."""

import statistics

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_engine import PLAIN, request, run, steps

from tokswarm.errors import ConfigError
from tokswarm.simulator.engine import Engine, Request, Step
from tokswarm.simulator.profile import Profile

MS = 1_000_000


def mode(**changes: object) -> Profile:
    return msgspec.structs.replace(PLAIN, **changes)


def static(**changes: object) -> Profile:
    return mode(batching="static", prefix_cache=False, max_step_tokens=4_096, **changes)


def ranked(number: int, priority: int, **lengths: int) -> Request:
    return msgspec.structs.replace(request(number, **lengths), priority=priority)


def emissions_ms(taken: list[Step], request_id: int) -> list[float]:
    return [
        step.end_ns / MS
        for step in taken
        for one, tokens in step.emitted
        if one.request.request_id == request_id
        for _ in range(tokens)
    ]


# --- scheduling ------------------------------------------------------------------------------------


def test_lower_priority_value_is_admitted_first_and_equals_by_arrival() -> None:
    rows = [ranked(1, 5), ranked(2, 0, arrival_ns=1), ranked(3, 5, arrival_ns=2), ranked(4, -1, arrival_ns=3)]
    _, ended = run(Engine(mode(scheduling="priority", max_num_seqs=1)), rows)
    # 1 alone is there at the first step
    assert sorted(ended, key=lambda n: ended[n].admitted_ns or 0) == [1, 4, 2, 3]


def test_priority_is_ignored_first_come_first_served() -> None:
    _, ended = run(Engine(mode(max_num_seqs=1)), [ranked(1, 5), ranked(2, 0, arrival_ns=1)])
    assert (ended[1].admitted_ns, ended[2].admitted_ns) == (0, 50 * MS)


def test_unimportant_sequence_is_preempted_though_it_was_admitted_first() -> None:
    tight = mode(scheduling="priority", num_blocks=8, max_model_len=128, max_step_tokens=128)
    rows = [ranked(1, 9, prompt=48, output=40), ranked(2, 0, prompt=48, output=40, arrival_ns=1)]
    taken, ended = run(Engine(tight), rows)
    assert (ended[1].preemptions, ended[2].preemptions) == (1, 0)
    # 2 joins at the second step and never pauses
    assert emissions_ms(taken, 2) == [10.0 * n for n in range(2, 42)]


def test_preempting_one_that_was_already_served_takes_it_out_of_the_step() -> None:
    # 1 is served before 2 in every step; when 2 needs the last block, 1 is in the step already and must leave it.
    tight = mode(scheduling="priority", num_blocks=6, max_model_len=96, max_step_tokens=128)
    rows = [ranked(1, 9, prompt=36, output=30), ranked(2, 0, prompt=47, output=30)]
    taken, ended = run(Engine(tight), rows)
    step = next(step for step in taken if step.preempted)
    assert (step.tokens, step.sequences) == (1, 1)
    assert [one.request.request_id for one, _ in step.emitted] == [2]
    assert ended[1].preemptions >= 1


# --- static batching -------------------------------------------------------------------------------


def test_static_batch_pads_prompts_and_runs_until_its_longest_answer_ends() -> None:
    engine = Engine(static())
    rows = [request(1, prompt=10, output=3), request(2, prompt=40, output=8), request(3, prompt=25, output=1)]
    taken, _ = run(engine, rows)
    assert [step.tokens for step in taken] == [3 * 40] + [3] * 7
    assert [step.context_tokens for step in taken] == [120 + 3 * n for n in range(8)]
    assert emissions_ms(taken, 1) == [10, 20, 30]
    assert emissions_ms(taken, 2) == [10.0 * n for n in range(1, 9)]
    assert emissions_ms(taken, 3) == [10]


def test_padding_costs_exactly_what_the_arithmetic_says() -> None:
    prompts, outputs = (10, 40, 25, 33), (3, 8, 1, 5)
    engine = Engine(static())
    taken, _ = run(
        engine, [request(n, prompt=p, output=o) for n, (p, o) in enumerate(zip(prompts, outputs, strict=True))]
    )
    useful = sum(prompts) + sum(outputs) - len(outputs)
    padded = len(prompts) * (max(prompts) + max(outputs) - 1)
    assert sum(step.tokens for step in taken) == padded
    assert engine.counts.padding_tokens == padded - useful


def test_static_batch_takes_as_long_with_one_long_answer_as_with_all_long() -> None:
    def length_ms(outputs: tuple[int, ...], chosen: Profile) -> float:
        taken, _ = run(Engine(chosen), [request(n, prompt=20, output=one) for n, one in enumerate(outputs)])
        return taken[-1].end_ns / MS

    # step time grows with slots: 10 ms and 1 ms for each slot
    slots = static(sequence_overhead_us=1_000.0)
    joined = mode(sequence_overhead_us=1_000.0, max_step_tokens=4_096)
    assert length_ms((40, 2, 2, 2), slots) == length_ms((40, 40, 40, 40), slots) == 40 * 14
    assert length_ms((40, 2, 2, 2), joined) == 2 * 14 + 38 * 11


def test_nobody_joins_a_static_batch_that_runs() -> None:
    rows = [request(1, output=6), request(2, output=1, arrival_ns=15 * MS), request(3, output=1, arrival_ns=16 * MS)]
    taken, ended = run(Engine(static()), rows)
    assert (ended[2].admitted_ns, ended[3].admitted_ns) == (60 * MS, 60 * MS)
    assert [step.sequences for step in taken] == [1] * 6 + [2]


def test_static_batch_waits_for_more_but_not_when_it_is_full() -> None:
    chosen = static(batch_wait_us=30_000.0, max_num_seqs=3)
    engine = Engine(chosen)
    engine.submit(request(1, output=1, arrival_ns=5 * MS))
    assert engine.next_start_ns(5 * MS) == 35 * MS
    engine.submit(request(2, output=1, arrival_ns=12 * MS))
    assert engine.next_start_ns(12 * MS) == 35 * MS
    engine.submit(request(3, output=1, arrival_ns=20 * MS))
    assert engine.next_start_ns(20 * MS) == 20 * MS


def test_static_batch_is_as_large_as_padded_memory_allows() -> None:
    # 24 blocks: prompt 33 and answer 31 padded are 4 blocks a slot; the fourth would make it 8 a slot
    chosen = static(num_blocks=24, max_model_len=384, max_num_seqs=8)
    rows = [request(n, prompt=33, output=31) for n in range(3)] + [request(3, prompt=97, output=31)]
    engine = Engine(chosen)
    taken, ended = run(engine, rows)
    assert [step.sequences for step in taken[:2]] == [3, 3]
    assert ended[3].admitted_ns == 31 * 10 * MS
    assert engine.pool.usage_ratio == 0


def test_static_batch_ends_when_those_who_are_left_have_gone() -> None:
    engine = Engine(static(max_num_seqs=2))
    for number in (1, 2, 3):
        engine.submit(request(number, output=50))
    engine.step(0)
    assert engine.pool.usage_ratio > 0
    assert engine.abort(1) is not None
    assert engine.abort(2) is not None
    assert engine.pool.usage_ratio == 0
    assert engine.abort(3) is not None
    assert engine.next_start_ns(0) is None


def test_padded_prompts_are_computed_in_chunks_of_the_budget() -> None:
    taken, _ = run(
        Engine(mode(batching="static", prefix_cache=False)), [request(n, prompt=50, output=2) for n in (1, 2)]
    )
    assert [step.tokens for step in taken] == [64, 36, 2]
    assert [step.context_tokens for step in taken] == [64, 100, 102]


# --- no prefix cache -------------------------------------------------------------------------------


def test_without_prefix_cache_everybody_computes_all() -> None:
    engine = Engine(mode(prefix_cache=False))
    rows = [request(1, prompt=60, shared=48), request(2, prompt=60, shared=48, arrival_ns=1_000 * MS)]
    _, ended = run(engine, rows)
    assert ended[2].cached_tokens == 0
    assert (engine.counts.prefix_queries_tokens, engine.counts.prefix_hits_tokens) == (0, 0)
    assert engine.pool.evictions == 0


# --- swapping --------------------------------------------------------------------------------------

SWAP = {"preemption": "swap", "swap_blocks": 16, "swap_block_us": 500.0}


def test_swapped_sequence_goes_on_where_it_was_and_each_block_costs_its_way() -> None:
    # As in recompute: 2 loses its four blocks when 64 tokens each are computed, at the 18th step, and gets
    # them back at the 41st, when 1 has ended.
    engine = Engine(mode(num_blocks=8, max_model_len=128, max_step_tokens=128, **SWAP))
    taken, ended = run(engine, [request(1, prompt=48, output=40), request(2, prompt=48, output=40)])
    assert (ended[2].preemptions, ended[2].recomputed_tokens) == (1, 0)
    assert (engine.counts.swapped_out_blocks, engine.counts.swapped_in_blocks) == (4, 4)
    out, back = 4 * 0.5, 4 * 0.5
    assert emissions_ms(taken, 1) == [10.0 * n + (out if n > 17 else 0) for n in range(1, 41)]
    assert emissions_ms(taken, 2) == [10.0 * n + (out + back if n > 17 else 0) for n in (*range(1, 18), *range(41, 64))]


def test_full_host_memory_falls_back_to_recompute() -> None:
    small = {**SWAP, "swap_blocks": 3}
    engine = Engine(mode(num_blocks=8, max_model_len=128, max_step_tokens=128, **small))
    _, ended = run(engine, [request(1, prompt=48, output=40), request(2, prompt=48, output=40)])
    assert engine.counts.swapped_out_blocks == 0
    assert ended[2].recomputed_tokens > 0


def test_host_memory_of_an_aborted_sequence_is_free_again() -> None:
    engine = Engine(mode(num_blocks=8, max_model_len=128, max_step_tokens=128, **{**SWAP, "swap_blocks": 4}))
    rows = [request(n, prompt=48, output=40) for n in (1, 2)]
    for step in steps(engine, rows):
        if step.preempted:
            break
    assert engine.abort(2) is not None
    for _ in steps(engine, []):
        pass
    _, ended = run(engine, [request(n, prompt=48, output=40, arrival_ns=10_000 * MS) for n in (3, 4)])
    assert (ended[4].preemptions, ended[4].recomputed_tokens) == (1, 0)
    assert engine.counts.swapped_out_blocks == 8


# --- speculative decoding --------------------------------------------------------------------------


def test_drafts_that_all_hold_come_out_together_and_each_is_computed() -> None:
    engine = Engine(mode(speculative_tokens=3, speculative_acceptance=1.0))
    taken, _ = run(engine, [request(1, prompt=20, output=11)])
    # the prompt gives one token; then four a step, and at the end only as many as are due
    assert [[tokens for _, tokens in step.emitted] for step in taken] == [[1], [4], [4], [2]]
    assert [step.tokens for step in taken] == [20, 4, 4, 2]
    assert (engine.counts.drafted_tokens, engine.counts.accepted_tokens) == (7, 7)


def test_drafts_that_never_hold_cost_compute_and_give_nothing() -> None:
    slow = mode(speculative_tokens=3, token_compute_us=4_000.0)
    taken, _ = run(Engine(slow), [request(1, prompt=2, output=3)])
    assert [[tokens for _, tokens in step.emitted] for step in taken] == [[1], [1], [1]]
    # drafts are limited by what is left to say: one, then none
    assert [(step.end_ns - step.start_ns) / MS for step in taken] == [10, 10, 10]
    assert [step.tokens for step in taken] == [2, 2, 1]


def test_mean_tokens_of_a_step_are_those_of_the_truncated_geometric() -> None:
    accept, drafts = 0.7, 4
    engine = Engine(mode(speculative_tokens=drafts, speculative_acceptance=accept, max_model_len=512, max_num_seqs=1))
    emitted = [
        tokens
        for step in steps(engine, [request(n, prompt=10, output=400) for n in range(40)])
        for one, tokens in step.emitted
        if 1 < one.generated < 395
    ]
    want = sum(accept**n for n in range(drafts + 1))
    error = statistics.stdev(emitted) / len(emitted) ** 0.5
    assert abs(statistics.mean(emitted) - want) < 3 * error
    assert error < 0.03


def test_accepted_drafts_depend_on_the_seed_and_the_request_alone() -> None:
    def ends(seed: int, others: int) -> list[int]:
        engine = Engine(mode(speculative_tokens=3, speculative_acceptance=0.6), seed=seed)
        taken, _ = run(engine, [request(n, prompt=10, output=60) for n in range(1 + others)])
        return [tokens for step in taken for one, tokens in step.emitted if one.request.request_id == 0]

    assert ends(1, 0) == ends(1, 2)
    assert ends(1, 0) != ends(2, 0)


# --- laws ------------------------------------------------------------------------------------------

MODES = {
    "priority": {"scheduling": "priority"},
    "swap": SWAP,
    "little-swap": {**SWAP, "swap_blocks": 3},
    "no-cache": {"prefix_cache": False},
    "drafts": {"speculative_tokens": 2, "speculative_acceptance": 0.5},
    "all": {"scheduling": "priority", **SWAP, "speculative_tokens": 3, "speculative_acceptance": 0.8},
    "static": {"batching": "static", "prefix_cache": False, "batch_wait_us": 7_000.0},
    "static-priority": {"batching": "static", "prefix_cache": False, "scheduling": "priority"},
}


@pytest.mark.parametrize("name", MODES)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 300),
            st.integers(1, 120),
            st.integers(1, 30),
            st.sampled_from([0, 16, 48]),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=14,
    ),
    num_blocks=st.sampled_from([10, 16, 64]),
    max_num_seqs=st.integers(1, 5),
    max_step_tokens=st.integers(8, 80),
)
def test_tokens_and_memory_are_conserved_in_every_mode(
    name: str,
    rows: list[tuple[int, int, int, int, int]],
    num_blocks: int,
    max_num_seqs: int,
    max_step_tokens: int,
) -> None:
    shape = {"num_blocks": num_blocks, "max_num_seqs": max_num_seqs, "max_step_tokens": max_step_tokens}
    engine = Engine(mode(max_model_len=150, **shape, **MODES[name]))
    requests = [
        msgspec.structs.replace(
            request(n, prompt=prompt, output=output, arrival_ns=arrival * MS, shared=min(shared, prompt), family=rank),
            priority=rank,
        )
        for n, (arrival, prompt, output, shared, rank) in enumerate(sorted(rows))
    ]
    computed = 0
    emitted: dict[int, int] = {}
    for number, step in enumerate(steps(engine, requests)):
        assert number < 20_000, "it does not get on"
        assert step.sequences <= max_num_seqs
        computed += step.tokens
        for one, tokens in step.emitted:
            emitted[one.request.request_id] = emitted.get(one.request.request_id, 0) + tokens
    assert emitted == {one.request_id: one.output_tokens for one in requests}
    counts = engine.counts
    needed = sum(one.prompt_tokens + one.output_tokens - 1 for one in requests)
    rejected = counts.drafted_tokens - counts.accepted_tokens
    extra = counts.recomputed_tokens + rejected + counts.padding_tokens
    assert computed == needed - counts.prefix_hits_tokens + extra
    assert counts.swapped_in_blocks == counts.swapped_out_blocks
    assert engine.pool.usage_ratio == 0
    assert all(engine.pool.references(block) == 0 for block in range(num_blocks))
    assert engine.waiting_count == engine.running_count == 0


# --- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"batch_wait_us": 5.0}, "batch_wait_us needs batching: static", id="wait"),
        pytest.param({"batching": "static"}, "prefix_cache must be false", id="static-cache"),
        pytest.param({"batching": "static", "prefix_cache": False, **SWAP}, "no preemption: swap", id="static-swap"),
        pytest.param(
            {"batching": "static", "prefix_cache": False, "speculative_tokens": 2},
            "has no speculative",
            id="static-drafts",
        ),
        pytest.param({"preemption": "swap"}, "needs swap_blocks ≥ 1", id="swap-without-memory"),
        pytest.param({"swap_blocks": 4}, "swap_blocks needs preemption: swap", id="memory-without-swap"),
        pytest.param({"swap_block_us": 4.0}, "swap_block_us needs preemption: swap", id="cost-without-swap"),
        pytest.param({"speculative_acceptance": 0.5}, "needs speculative_tokens ≥ 1", id="acceptance-alone"),
        pytest.param(
            {"speculative_tokens": 2, "speculative_acceptance": 1.5}, "is 1.5, expected 0 to 1", id="acceptance-range"
        ),
        pytest.param({"speculative_tokens": -1}, "speculative_tokens is -1", id="negative-drafts"),
    ],
)
def test_parameter_that_could_have_no_effect_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        mode(**changes)
