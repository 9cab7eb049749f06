"""Several targets: which one a ticket goes to, what stays the same whatever they are, and what is each one's own."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import msgspec
import pytest

from tokswarm.errors import PreflightError
from tokswarm.master.endpoints import look_at_targets, stages_of_target
from tokswarm.traffic.mix import Mix, NamedTarget, TraceSource
from tokswarm.traffic.plan import ClosedLoop, Endpoint, Load, OpenLoop, Plan, TokenFit
from tokswarm.traffic.replay import cut_replay
from tokswarm.traffic.routing import Routing
from tokswarm.traffic.schedule import TicketSource
from tokswarm.traffic.ticket import Ticket
from tokswarm.traffic.trace import TraceRow

OPEN = OpenLoop(rate_per_s=200.0, arrivals="poisson")
REPLAY = cut_replay(
    [
        TraceRow(offset_ns=number * 10**8, prompt_tokens=1200, output_tokens=5, blocks=(0, 1, number % 3 + 2))
        for number in range(40)
    ],
    TraceSource(file="t.jsonl"),
    duration_ns=None,
)
OTHER_FIT = TokenFit(tokens_per_word=2.0, overhead_tokens=3, source="assumed")


def targets(**weights: float) -> list[NamedTarget]:
    return [
        NamedTarget(name=name, base_url=f"http://127.0.0.1:1/{name}", weight=weight) for name, weight in weights.items()
    ]


@pytest.fixture(scope="module")
def plan_of(sample_plan: Callable[..., Plan]) -> Callable[..., Plan]:
    """A sample plan with two targets, a and b."""

    def make(
        *loads: Load, of: Sequence[NamedTarget] = tuple(targets(a=1, b=1)), class_targets: Any = None, **parts: Any
    ) -> Plan:
        plan = sample_plan(*loads)
        classes = [
            msgspec.structs.replace(one, target=target)
            for one, target in zip(plan.mix.classes, class_targets or (None, None), strict=True)
        ]
        mix = msgspec.structs.replace(plan.mix, target=None, targets=list(of), classes=classes, **parts)
        further = [Endpoint(model="m", fit=OTHER_FIT) for _ in of[1:]]
        return msgspec.structs.replace(plan, mix=mix, further_endpoints=further)

    return make


def sent(plan: Plan, workers: int = 1, limit: int | None = None) -> list[Ticket]:
    """The tickets of the first stage of all workers, by their place in the schedule."""
    tickets = [t for k in range(workers) for t in islice(TicketSource(plan, k, workers).tickets(0), limit)]
    return sorted(tickets, key=lambda ticket: (ticket.index, ticket.target_index))


def drawn(ticket: Ticket) -> tuple[Any, ...]:
    """What the seed decides but for the target."""
    return ticket.index, ticket.class_index, ticket.due_ns, ticket.prompt_tokens, ticket.max_tokens


# --- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [OPEN, REPLAY], ids=["open", "replay"])
def test_classes_lengths_and_times_do_not_depend_on_the_targets(
    load: Load, plan_of: Callable[..., Plan], sample_plan: Callable[..., Plan]
) -> None:
    assert list(map(drawn, sent(plan_of(load)))) == list(map(drawn, sent(sample_plan(load))))


@pytest.mark.parametrize("split", ["weights", "mirror"])
@pytest.mark.parametrize("load", [OPEN, REPLAY], ids=["open", "replay"])
def test_any_number_of_workers_sends_the_same_to_the_same_targets(
    load: Load, split: str, plan_of: Callable[..., Plan]
) -> None:
    plan = plan_of(load, split=split)
    one = [(*drawn(ticket), ticket.target_index, ticket.prompt) for ticket in sent(plan)]
    for workers in (2, 3, 7):
        assert [(*drawn(t), t.target_index, t.prompt) for t in sent(plan, workers)] == one


def test_targets_are_drawn_by_their_weights(plan_of: Callable[..., Plan]) -> None:
    routing = Routing(plan_of(OPEN, of=targets(a=6, b=3, c=1)).mix)
    count = 20_000
    seen = Counter(routing.targets_of(0, 0, index)[0] for index in range(count))
    expected = [count * 0.6, count * 0.3, count * 0.1]
    chi_square = sum((seen[place] - mean) ** 2 / mean for place, mean in enumerate(expected))
    assert chi_square < 13.8  # the 99.9th percentile of two degrees of freedom


def test_a_stage_draws_other_targets_than_the_one_before(plan_of: Callable[..., Plan]) -> None:
    routing = Routing(plan_of(OPEN).mix)
    first, second = ([routing.targets_of(0, stage, index) for index in range(200)] for stage in (0, 1))
    assert 60 < sum(a == b for a, b in zip(first, second, strict=True)) < 140


def test_a_class_goes_only_where_it_says(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of(OPEN, of=targets(a=1, b=1, c=2), class_targets=("b", ["a", "c"]))
    by_class: dict[int, Counter[int]] = {0: Counter(), 1: Counter()}
    for ticket in sent(plan):
        by_class[ticket.class_index][ticket.target_index] += 1
    assert set(by_class[0]) == {1}
    assert set(by_class[1]) == {0, 2}
    assert by_class[1][2] > by_class[1][0]


# --- mirror ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [OPEN, REPLAY, ClosedLoop(concurrency=4)], ids=["open", "replay", "closed"])
def test_mirrored_tickets_are_the_same_for_each_target_but_for_their_texts(
    load: Load, plan_of: Callable[..., Plan]
) -> None:
    tickets = sent(plan_of(load, split="mirror"), limit=400)
    of_a, of_b = ([ticket for ticket in tickets if ticket.target_index == place] for place in (0, 1))
    assert len(of_a) > 30
    assert list(map(drawn, of_a)) == list(map(drawn, of_b))
    assert not {ticket.prompt[:40] for ticket in of_a} & {ticket.prompt[:40] for ticket in of_b}


def test_a_mirrored_class_goes_to_each_of_its_own_targets(plan_of: Callable[..., Plan]) -> None:
    tickets = sent(plan_of(OPEN, split="mirror", class_targets=("b", None)))
    assert {ticket.target_index for ticket in tickets if ticket.class_index == 0} == {1}
    reports = Counter(ticket.index for ticket in tickets if ticket.class_index == 1)
    assert set(reports.values()) == {2}


def test_in_a_mirrored_closed_loop_each_target_has_a_lane_of_its_own(plan_of: Callable[..., Plan]) -> None:
    """What one target's users take is not taken from the other's; a target that no class goes to has nothing."""
    plan = plan_of(
        ClosedLoop(concurrency=4), of=targets(a=1, b=1, c=1), split="mirror", class_targets=("a", ["a", "b"])
    )
    source = TicketSource(plan, 0, 1)
    of_a, of_b, of_c = source.lanes(0, source.share, lambda: 0)
    taken_of_a, taken_of_b = list(islice(of_a, 60)), list(islice(of_b, 10))
    assert [ticket.index for ticket in taken_of_a] == list(range(60))
    reports = [drawn(ticket) for ticket in taken_of_a if ticket.class_index == 1]
    assert [drawn(ticket) for ticket in taken_of_b] == reports[:10]
    assert list(of_c) == []


def test_where_traffic_is_split_all_users_take_from_one_lane(plan_of: Callable[..., Plan]) -> None:
    source = TicketSource(plan_of(ClosedLoop(concurrency=4)), 0, 1)
    one, another = source.lanes(0, source.share, lambda: 0)
    assert one is another
    assert {ticket.target_index for ticket in islice(one, 40)} == {0, 1}


def test_a_prefix_that_one_target_has_seen_is_new_to_the_other(plan_of: Callable[..., Plan]) -> None:
    """With one worker, each group's first request to each target finds nothing."""
    tickets = [ticket for ticket in sent(plan_of(OPEN, split="mirror")) if ticket.class_index == 0]
    for place in (0, 1):
        mine = [ticket.ideal_cached_tokens for ticket in tickets if ticket.target_index == place]
        assert mine.count(0) == 5  # as many as there are groups
    starts = [{ticket.prompt[:30] for ticket in tickets if ticket.target_index == place} for place in (0, 1)]
    assert [len(each) for each in starts] == [5, 5]
    assert not starts[0] & starts[1]


def test_a_block_of_a_trace_that_one_target_has_seen_is_new_to_the_other(plan_of: Callable[..., Plan]) -> None:
    tickets = sent(plan_of(REPLAY))
    first = {place: next(t for t in tickets if t.target_index == place) for place in (0, 1)}
    assert [first[place].ideal_cached_tokens for place in (0, 1)] == [0, 0]
    assert all(t.ideal_cached_tokens >= 1024 for t in tickets if t.index not in {first[0].index, first[1].index})


def test_each_target_has_lengths_by_its_own_fit(plan_of: Callable[..., Plan]) -> None:
    """1.3 tokens a word there, 2 here: as many tokens are fewer words."""
    report = [ticket for ticket in sent(plan_of(OPEN, split="mirror")) if ticket.class_index == 1][:2]
    assert [len(ticket.prompt.replace(rb"\n", b" ").split()) for ticket in report] == [145, 99]


# --- before the run -------------------------------------------------------------------------------


class Found(msgspec.Struct):
    """What a preflight says."""

    model: str
    fit: TokenFit = OTHER_FIT
    dropped_fields: list[str] = []
    context_tokens: int | None = None
    notes: list[str] = []


def test_each_target_is_looked_at_and_named_in_what_is_said_of_it(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of(OPEN)
    found = {
        "a": Found("m-a", dropped_fields=["ignore_eos"], notes=["the endpoint is odd"]),
        "b": Found("m-b", context_tokens=350),
    }
    endpoints, notes = look_at_targets(plan.mix, plan.stages, lambda _, target: found[target.name])  # type: ignore[attr-defined]
    assert [(each.model, each.dropped_fields) for each in endpoints] == [("m-a", ["ignore_eos"]), ("m-b", [])]
    assert notes[0] == "target a: the endpoint is odd"
    assert notes[1].startswith("target b: chat: about ")


def test_a_target_that_does_not_do_is_named(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of(OPEN)

    def refuse_b(_: Mix, target: Any) -> Found:
        if target.name == "b":
            raise PreflightError("the endpoint does not answer", hint="start it")
        return Found("m")

    with pytest.raises(PreflightError, match=r"^target b: the endpoint does not answer$") as caught:
        look_at_targets(plan.mix, plan.stages, refuse_b)
    assert caught.value.hint == "start it"


def test_a_targets_context_is_held_against_the_classes_that_go_to_it(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of(OPEN, REPLAY, class_targets=("a", "b"))
    [open_of_a, replay_of_a] = stages_of_target(plan.mix, plan.stages, 0)
    [open_of_b] = stages_of_target(plan.mix, plan.stages, 1)
    assert (open_of_a.class_weights, open_of_b.class_weights) == ([3.0, 0.0], [0.0, 1.0])
    assert replay_of_a.load == REPLAY
