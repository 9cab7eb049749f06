"""Laws of the step loop, most with closed forms."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_engine import profile, request, run, steps

from tokswarm.simulator.engine import Engine, Step

MS = 1_000_000


def emissions_ns(taken: list[Step], request_id: int) -> list[int]:
    return [step.end_ns for step in taken for one, _ in step.emitted if one.request.request_id == request_id]


def test_single_stream_gets_a_token_each_step_time() -> None:
    taken, ended = run(Engine(profile()), [request(1, prompt=20, output=5, arrival_ns=7 * MS)])
    assert emissions_ns(taken, 1) == [17 * MS, 27 * MS, 37 * MS, 47 * MS, 57 * MS]
    assert (ended[1].admitted_ns, ended[1].first_token_ns, ended[1].last_token_ns) == (7 * MS, 17 * MS, 57 * MS)


def test_step_time_is_overhead_plus_the_longer_of_compute_and_memory() -> None:
    engine = Engine(profile(sequence_overhead_us=100.0, kv_read_us=10.0, token_compute_us=200.0))
    first, second = list(steps(engine, [request(1, prompt=60, output=2)]))
    # 60 tokens × 200 µs of compute against 9,000 µs + 60 × 10 µs of memory
    assert first.end_ns - first.start_ns == 1_000_000 + 100_000 + 12_000_000
    # one token of compute against 9,000 µs + 61 × 10 µs of memory
    assert second.end_ns - second.start_ns == 1_000_000 + 100_000 + 9_610_000


def test_long_prompt_is_prefilled_in_chunks_of_the_budget_and_speaks_after_the_last() -> None:
    taken, _ = run(Engine(profile()), [request(1, prompt=150, output=2)])
    assert [step.tokens for step in taken] == [64, 64, 22, 1]
    assert emissions_ns(taken, 1) == [30 * MS, 40 * MS]


def test_prompt_chunk_shares_the_budget_with_those_that_decode() -> None:
    engine = Engine(profile())
    taken, _ = run(engine, [request(1, prompt=16, output=9), request(2, prompt=100, output=2)])
    assert [step.tokens for step in taken[:3]] == [16 + 48, 1 + 52, 1 + 1]
    assert emissions_ns(taken, 1) == [10 * MS * n for n in range(1, 10)], "prefill of another costs no token here"


def test_batch_is_limited_and_the_rest_waits_in_order_of_arrival() -> None:
    engine = Engine(profile(max_num_seqs=2))
    _, ended = run(engine, [request(n, prompt=10, output=n + 1) for n in range(5)])
    admitted = [ended[n].admitted_ns for n in range(5)]
    # 0 ends after step 1, 1 after step 2; 2 runs steps 2-4 and 3 runs 3-6, so 4 joins at step 5
    assert admitted == [0, 0, 10 * MS, 20 * MS, 40 * MS]


def test_nobody_is_admitted_before_it_arrived() -> None:
    engine = Engine(profile())
    _, ended = run(engine, [request(1, output=10), request(2, output=1, arrival_ns=25 * MS)])
    assert ended[2].admitted_ns == 30 * MS
    assert engine.next_start_ns(0) is None


def test_idle_engine_starts_at_the_arrival() -> None:
    engine = Engine(profile())
    engine.submit(request(1, arrival_ns=123))
    assert engine.next_start_ns(100) == 123
    assert engine.step(100) is None
    assert engine.next_start_ns(200) == 200


def test_second_user_of_a_prefix_finds_whole_blocks_of_it() -> None:
    engine = Engine(profile())
    shared = 40  # two blocks and a half
    _, ended = run(
        engine,
        [request(1, prompt=60, shared=shared), request(2, prompt=60, shared=shared, arrival_ns=1_000 * MS)],
    )
    assert (ended[1].cached_tokens, ended[2].cached_tokens) == (0, 32)
    assert (engine.counts.prefix_queries_tokens, engine.counts.prefix_hits_tokens) == (120, 32)


def test_cached_prompt_costs_the_first_token_no_compute() -> None:
    engine = Engine(profile(token_compute_us=1_000.0, max_step_tokens=512))
    _, ended = run(
        engine,
        [request(1, prompt=208, shared=192), request(2, prompt=208, shared=192, arrival_ns=10_000 * MS)],
    )
    waits_ms = [(ended[n].first_token_ns - ended[n].request.arrival_ns) / MS for n in (1, 2)]
    assert waits_ms == [1 + 208, 1 + 16]


def test_whole_prompt_in_the_cache_still_computes_its_last_block() -> None:
    engine = Engine(profile())
    _, ended = run(engine, [request(1, prompt=64, shared=64), request(2, prompt=64, shared=64, arrival_ns=1_000 * MS)])
    assert ended[2].cached_tokens == 48


def test_answer_is_cached_for_the_next_turn_of_a_session() -> None:
    engine = Engine(profile())
    first = request(1, prompt=32, output=33, shared=64)
    _, ended = run(engine, [first, request(2, prompt=80, output=1, shared=64, arrival_ns=1_000 * MS)])
    assert ended[2].cached_tokens == 64


def test_prefix_is_lost_when_others_needed_its_blocks() -> None:
    engine = Engine(profile(num_blocks=32))
    storm = [request(n, prompt=150, output=10, arrival_ns=n * 1_000 * MS) for n in range(2, 6)]
    last = request(9, prompt=100, shared=80, arrival_ns=9_000 * MS)
    _, ended = run(engine, [request(1, prompt=100, shared=80), *storm, last])
    assert ended[9].cached_tokens == 0
    assert engine.pool.evictions > 0


def test_without_free_blocks_the_last_admitted_is_preempted_and_recomputes() -> None:
    # 8 blocks of 16. Both hold four when 64 tokens are computed; 1 takes the last block of 2 for its fifth
    # and the next for its sixth, ends, and 2 finds two blocks of the four it had: 32 of 64 tokens are left.
    engine = Engine(profile(num_blocks=8, max_model_len=128, max_step_tokens=128))
    taken, ended = run(engine, [request(1, prompt=48, output=40), request(2, prompt=48, output=40)])
    assert (ended[1].preemptions, ended[2].preemptions, engine.counts.preemptions) == (0, 1, 1)
    assert sum(step.preempted for step in taken) == 1
    assert (ended[1].recomputed_tokens, ended[2].recomputed_tokens, engine.counts.recomputed_tokens) == (0, 32, 32)
    # 17 tokens each, 23 more of 1 alone, then the other 23 of 2: the first of them with its recompute
    assert emissions_ns(taken, 1) == [10 * MS * n for n in range(1, 41)]
    assert emissions_ns(taken, 2) == [10 * MS * n for n in (*range(1, 18), *range(41, 64))]


def test_preempted_goes_before_those_that_never_ran() -> None:
    engine = Engine(profile(num_blocks=8, max_num_seqs=2, max_model_len=128, max_step_tokens=128))
    _, ended = run(engine, [request(n, prompt=48, output=40) for n in (1, 2, 3)])
    assert ended[2].preemptions == 1
    assert (ended[2].last_token_ns or 0) < (ended[3].last_token_ns or 0)
    assert (ended[3].admitted_ns or 0) >= (ended[1].last_token_ns or 0)


@pytest.mark.parametrize("when", ["waiting", "running"])
def test_abort_frees_the_blocks_at_once(when: str) -> None:
    engine = Engine(profile(max_num_seqs=1))
    engine.submit(request(1, prompt=100, output=50))
    engine.submit(request(2, prompt=100, output=50))
    engine.step(0)
    target = 1 if when == "running" else 2
    dropped = engine.abort(target)
    assert dropped is not None
    assert dropped.request.request_id == target
    assert engine.pool.usage_ratio == (0 if when == "running" else pytest.approx(4 / 64))
    assert engine.abort(target) is None
    assert [step.emitted[-1][0].request.request_id for step in steps(engine, []) if step.emitted][-1] == 3 - target


def test_request_that_can_never_fit_is_refused() -> None:
    engine = Engine(profile())
    with pytest.raises(ValueError, match="is 1025 tokens, memory 1024"):
        engine.submit(request(1, prompt=1000, output=25))
    with pytest.raises(ValueError, match="no prompt or no output"):
        engine.submit(request(1, prompt=0))


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[int, int, int, int, int]]:
    """(arrival ms, prompt, output, shared, family), in order of arrival."""
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, 300),
                st.integers(1, 120),
                st.integers(1, 30),
                st.sampled_from([0, 16, 48, 100]),
                st.integers(0, 2),
            ),
            min_size=1,
            max_size=14,
        )
    )
    return sorted(rows)


@settings(max_examples=120, deadline=None)
@given(workloads(), st.sampled_from([10, 16, 64]), st.integers(1, 5), st.integers(8, 80))
def test_laws_hold_for_any_workload(
    rows: list[tuple[int, int, int, int, int]], num_blocks: int, max_num_seqs: int, max_step_tokens: int
) -> None:
    engine = Engine(
        profile(num_blocks=num_blocks, max_num_seqs=max_num_seqs, max_step_tokens=max_step_tokens, max_model_len=150)
    )
    requests = [
        request(n, prompt=prompt, output=output, arrival_ns=arrival * MS, shared=min(shared, prompt), family=family)
        for n, (arrival, prompt, output, shared, family) in enumerate(rows)
    ]
    computed = 0
    emitted: dict[int, int] = {}
    ended = {}
    for number, step in enumerate(steps(engine, requests)):
        assert number < 20_000, "it does not get on"
        assert 0 < step.tokens <= max_step_tokens
        assert step.sequences <= max_num_seqs
        assert len({id(one) for one, _ in step.emitted}) == len(step.emitted)
        computed += step.tokens
        for one, tokens in step.emitted:
            emitted[one.request.request_id] = emitted.get(one.request.request_id, 0) + tokens
        for one in step.finished:
            ended[one.request.request_id] = one
    # Tokens are conserved: all that was asked comes out, once, and every token was computed or found in the cache.
    assert emitted == {one.request_id: one.output_tokens for one in requests}
    needed = sum(one.prompt_tokens + one.output_tokens - 1 for one in requests)
    assert computed == needed - engine.counts.prefix_hits_tokens + engine.counts.recomputed_tokens
    assert engine.counts.recomputed_tokens == sum(one.recomputed_tokens for one in ended.values())
    # All memory is given back.
    assert engine.pool.usage_ratio == 0
    assert all(engine.pool.references(block) == 0 for block in range(num_blocks))
    # First come, first served.
    admitted = [ended[one.request_id].admitted_ns for one in requests]
    assert admitted == sorted(admitted)
    for one in ended.values():
        assert one.cached_tokens % 16 == 0
        assert one.cached_tokens < one.request.prompt_tokens


def test_same_requests_give_the_same_steps() -> None:
    rows = [request(n, prompt=30 + 7 * n, output=9, arrival_ns=n * 3 * MS, shared=32) for n in range(12)]
    first, _ = run(Engine(profile(num_blocks=12, max_model_len=150)), rows)
    again, _ = run(Engine(profile(num_blocks=12, max_model_len=150)), rows)
    assert [(s.start_ns, s.end_ns, s.tokens) for s in first] == [(s.start_ns, s.end_ns, s.tokens) for s in again]


def test_slow_engine_takes_so_many_times_longer_for_a_step() -> None:
    engine = Engine(profile())
    engine.slowness = 2.5
    assert [step.end_ns for step in steps(engine, [request(1, output=2)])] == [25 * MS, 50 * MS]
