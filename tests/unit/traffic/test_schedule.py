"""The schedule is the same for any number of workers, and each ticket knows what a cache could have."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from statistics import fmean, pstdev

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokswarm.traffic.mix import TraceSource
from tokswarm.traffic.plan import BurstCycle, ClosedLoop, Load, OpenLoop, Plan, RateSegment
from tokswarm.traffic.replay import cut_replay
from tokswarm.traffic.schedule import TicketSource
from tokswarm.traffic.share import concurrency_share
from tokswarm.traffic.ticket import Ticket
from tokswarm.traffic.trace import TraceRow

ROWS = [
    TraceRow(offset_ns=0, prompt_tokens=1200, output_tokens=5, blocks=(0, 1, 2)),
    TraceRow(offset_ns=10**9, prompt_tokens=1600, output_tokens=6, blocks=(0, 1, 2, 3)),
    TraceRow(offset_ns=2 * 10**9, prompt_tokens=900, output_tokens=7, blocks=(0, 9)),
    TraceRow(offset_ns=3 * 10**9, prompt_tokens=300, output_tokens=8, blocks=(4,)),
    TraceRow(offset_ns=4 * 10**9, prompt_tokens=2100, output_tokens=9, blocks=(0, 1, 2, 3, 5)),
]
REPLAY = cut_replay(ROWS, TraceSource(file="t.jsonl"), duration_ns=None)


def shares(plan: Plan, workers: int, stage: int = 0, limit: int | None = None) -> list[list[Ticket]]:
    return [list(islice(TicketSource(plan, k, workers).tickets(stage), limit)) for k in range(workers)]


def without_cache(tickets: Iterator[Ticket] | Sequence[Ticket]) -> list[Ticket]:
    """What one worker can have cached depends on how many there are; nothing else does."""
    return sorted(
        (msgspec.structs.replace(ticket, ideal_cached_tokens=0) for ticket in tickets), key=lambda ticket: ticket.index
    )


@pytest.mark.parametrize("workers", [2, 3, 7])
@pytest.mark.parametrize(
    "load",
    [
        pytest.param(OpenLoop(rate_per_s=40, arrivals="poisson"), id="poisson"),
        pytest.param(OpenLoop(rate_per_s=40, arrivals="constant"), id="constant"),
        pytest.param(OpenLoop(rate_per_s=40, arrivals="gamma", cv=4.0), id="gamma"),
        pytest.param(OpenLoop(rate_per_s=40, arrivals="weibull", cv=2.0), id="weibull"),
        pytest.param(OpenLoop(rate_per_s=40, arrivals="gamma", cv=0.5, bursts=BurstCycle(1, 1, 1.5, 0.5)), id="bursts"),
        pytest.param(OpenLoop(rate_per_s=40, arrivals="poisson", course=[RateSegment(5, 10, 70)]), id="ramp"),
        pytest.param(
            OpenLoop(rate_per_s=40, arrivals="constant", course=[RateSegment(1, 20, 20), RateSegment(1, 60, 60)]),
            id="steps",
        ),
        pytest.param(REPLAY, id="replay"),
    ],
)
def test_the_workers_together_send_the_global_schedule_once(
    sample_plan: Callable[..., Plan], load: Load, workers: int
) -> None:
    plan = sample_plan(load)
    alone = without_cache(shares(plan, 1)[0])
    parts = shares(plan, workers)
    assert without_cache([ticket for part in parts for ticket in part]) == alone
    assert [ticket.index for ticket in alone] == list(range(len(alone)))
    for k, part in enumerate(parts):
        assert all(ticket.index % workers == k for ticket in part)
        assert [ticket.due_ns for ticket in part] == sorted(ticket.due_ns or 0 for ticket in part)


@given(st.integers(1, 7), st.integers(0, 2**63), st.integers(0, 2**63))
@settings(max_examples=10, deadline=None)
def test_closed_loops_take_every_nth_ticket_and_never_end(
    sample_plan: Callable[..., Plan], workers: int, seed: int, content_seed: int
) -> None:
    plan = sample_plan(ClosedLoop(concurrency=3), seed=seed, content_seed=content_seed)
    alone = without_cache(shares(plan, 1, limit=35)[0])
    parts = shares(plan, workers, limit=5)
    together = without_cache([ticket for part in parts for ticket in part])
    assert together == alone[: 5 * workers]
    assert all(ticket.due_ns is None for ticket in together)


@pytest.mark.parametrize("seed", [1, 2])
def test_an_open_loop_keeps_its_rate_and_its_variation(sample_plan: Callable[..., Plan], seed: int) -> None:
    plan = sample_plan(OpenLoop(rate_per_s=100, arrivals="poisson"), duration_s=60, seed=seed)
    due = [ticket.due_ns or 0 for ticket in shares(plan, 1)[0]]
    gaps = [later - sooner for sooner, later in pairwise(due)]
    assert len(due) / 60 == pytest.approx(100, rel=0.04)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1.0, abs=0.05)
    assert max(due) < 60e9


def test_an_open_loop_ends_with_its_stage(sample_plan: Callable[..., Plan]) -> None:
    plan = sample_plan(OpenLoop(rate_per_s=4, arrivals="constant"), duration_s=2)
    assert [ticket.due_ns for ticket in shares(plan, 1)[0]] == [k * 250_000_000 for k in range(8)]


def test_classes_lengths_and_groups_follow_the_mix(sample_plan: Callable[..., Plan]) -> None:
    tickets = shares(sample_plan(ClosedLoop(concurrency=1)), 1, limit=4000)[0]
    classes = Counter(ticket.class_index for ticket in tickets)
    chats = [ticket for ticket in tickets if ticket.class_index == 0]
    assert classes[1] / 4000 == pytest.approx(0.25, abs=0.03)
    assert {(ticket.prompt_tokens, ticket.max_tokens) for ticket in tickets if ticket.class_index == 1} == {(200, 300)}
    assert Counter(ticket.max_tokens for ticket in chats)[64] / len(chats) == pytest.approx(0.25, abs=0.03)
    groups = Counter(tuple(ticket.prompt.split()[:7]) for ticket in chats).most_common()
    assert len(groups) == 5
    assert groups[0][1] / groups[4][1] == pytest.approx(5, rel=0.3)  # Zipf with exponent 1


def test_other_seeds_and_stages_draw_other_requests(sample_plan: Callable[..., Plan]) -> None:
    plan = sample_plan(ClosedLoop(concurrency=1), ClosedLoop(concurrency=1))
    other = sample_plan(ClosedLoop(concurrency=1), seed=2)

    def lengths(one: Plan, stage: int) -> list[int]:
        return [ticket.prompt_tokens for ticket in islice(TicketSource(one, 0, 1).tickets(stage), 100)]

    assert lengths(plan, 0) != lengths(plan, 1)
    assert lengths(plan, 0) != lengths(other, 0)


def test_no_two_requests_of_a_run_start_alike_where_nothing_is_shared(sample_plan: Callable[..., Plan]) -> None:
    source = TicketSource(sample_plan(ClosedLoop(concurrency=1), ClosedLoop(concurrency=1)), 0, 1)
    tickets = [ticket for stage in (0, 1) for ticket in islice(source.tickets(stage), 300)]
    starts = [tuple(ticket.prompt.split()[:7]) for ticket in tickets if ticket.class_index == 1]
    assert len(set(starts)) == len(starts) > 100


def test_lengths_do_not_depend_on_the_content_seed_and_texts_do(sample_plan: Callable[..., Plan]) -> None:
    one, other = (sample_plan(ClosedLoop(concurrency=1), content_seed=seed) for seed in (1, 2))
    for mine, theirs in zip(shares(one, 1, limit=50)[0], shares(other, 1, limit=50)[0], strict=True):
        assert (mine.class_index, mine.prompt_tokens, mine.max_tokens) == (
            theirs.class_index,
            theirs.prompt_tokens,
            theirs.max_tokens,
        )
        assert mine.prompt != theirs.prompt


def test_the_ideal_cache_has_a_prefix_from_its_second_use_on_in_any_stage(
    sample_plan: Callable[..., Plan],
) -> None:
    plan = sample_plan(ClosedLoop(concurrency=1), ClosedLoop(concurrency=1))
    source = TicketSource(plan, 0, 1)
    used: set[bytes] = set()
    for ticket in [*islice(source.tickets(0), 60), *islice(source.tickets(1), 60)]:
        start = b" ".join(ticket.prompt.replace(rb"\n", b" ").split()[: int(40 / 1.3)])
        expected = 40 if ticket.class_index == 0 and start in used else 0
        assert ticket.ideal_cached_tokens == expected
        used.add(start)


def test_replayed_requests_have_the_lengths_and_the_ideal_cache_of_the_trace(sample_plan: Callable[..., Plan]) -> None:
    tickets = shares(sample_plan(REPLAY, duration_s=4.001), 1)[0]
    assert [(ticket.due_ns, ticket.prompt_tokens, ticket.max_tokens, ticket.class_index) for ticket in tickets] == [
        (row.offset_ns, row.prompt_tokens, row.output_tokens, 0) for row in ROWS
    ]
    # Whole blocks only: the first row sends two, so of the second row's three only two were there.
    assert [ticket.ideal_cached_tokens for ticket in tickets] == [0, 2 * 512, 512, 0, 3 * 512]


def test_the_ideal_cache_of_a_replay_counts_the_rows_of_other_workers(sample_plan: Callable[..., Plan]) -> None:
    assert shares(sample_plan(REPLAY), 2)[1][0].ideal_cached_tokens == 2 * 512


def test_a_replay_ends_with_its_stage(sample_plan: Callable[..., Plan]) -> None:
    assert len(shares(sample_plan(REPLAY, duration_s=2.5), 1)[0]) == 3


@given(st.integers(1, 10_000), st.integers(1, 300))
def test_shares_of_a_concurrency_add_up_and_differ_by_one_at_most(total: int, workers: int) -> None:
    parts = [concurrency_share(total, k, workers) for k in range(workers)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1


def test_a_worker_outside_the_fleet_is_refused(sample_plan: Callable[..., Plan]) -> None:
    with pytest.raises(ValueError, match="worker_index is 2, expected 0 to 1"):
        TicketSource(sample_plan(ClosedLoop(concurrency=1)), 2, 2)


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_the_fleet_pays_for_each_group_once(sample_plan: Callable[..., Plan], workers: int) -> None:
    parts = shares(sample_plan(ClosedLoop(concurrency=workers)), workers, limit=400)
    chat = [ticket for part in parts for ticket in part if ticket.class_index == 0]
    assert sum(ticket.ideal_cached_tokens == 0 for ticket in chat) == 5
    assert {ticket.ideal_cached_tokens for ticket in chat} == {0, 40}


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_a_stage_sends_the_classes_it_names_by_its_own_weights(sample_plan: Callable[..., Plan], workers: int) -> None:
    plan = sample_plan(OpenLoop(rate_per_s=400, arrivals="poisson"), ClosedLoop(concurrency=1), duration_s=10)
    storm = msgspec.structs.replace(plan.stages[0], class_weights=[1.0, 9.0])
    plan = msgspec.structs.replace(plan, stages=[storm, plan.stages[1]])
    tickets = [ticket for part in shares(plan, workers) for ticket in part]
    assert Counter(ticket.class_index for ticket in tickets)[1] / len(tickets) == pytest.approx(0.9, abs=0.02)
    rest = shares(plan, 1, stage=1, limit=2000)[0]
    assert Counter(ticket.class_index for ticket in rest)[1] / len(rest) == pytest.approx(0.25, abs=0.03)


def test_a_class_with_no_weight_in_a_stage_is_not_sent(sample_plan: Callable[..., Plan]) -> None:
    plan = sample_plan(ClosedLoop(concurrency=1))
    only = msgspec.structs.replace(plan.stages[0], class_weights=[0.0, 2.0])
    tickets = shares(msgspec.structs.replace(plan, stages=[only]), 1, limit=500)[0]
    assert {ticket.class_index for ticket in tickets} == {1}
