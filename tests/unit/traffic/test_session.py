"""Sessions: drawn by the seed alone, their history grows, and what a cache could have is known."""

import math
import random
from collections.abc import Callable
from itertools import islice, pairwise
from statistics import fmean

import msgspec
import pytest
from kolmogorov import critical_distance, distance

from tokswarm.traffic.distribution import Sampler
from tokswarm.traffic.mix import (
    Distribution,
    Geometric,
    Session,
    TimeDistribution,
    TimeExponential,
    TimeLognormal,
    TimeUniform,
)
from tokswarm.traffic.plan import ClosedLoop, Plan
from tokswarm.traffic.schedule import TicketSource
from tokswarm.traffic.session import SessionDraws, draw_time_ns
from tokswarm.traffic.ticket import Ticket
from tokswarm.traffic.units import Duration

S = 1_000_000_000
SPEC = Session(
    turns=Distribution(choice={1: 1, 3: 1, 6: 1}),
    think_time=TimeDistribution(exponential=TimeExponential(mean=Duration(5 * S))),
    turn_tokens=Distribution(fixed=90),
)


@pytest.fixture
def session_plan(sample_plan: Callable[..., Plan]) -> Callable[..., Plan]:
    """Makes the sample plan with sessions in its first class, `chat`; `report` stays without."""

    def made(spec: Session = SPEC, **options: int) -> Plan:
        plan = sample_plan(ClosedLoop(concurrency=3), **options)
        chat, report = plan.mix.classes
        classes = [msgspec.structs.replace(chat, session=spec), report]
        return msgspec.structs.replace(plan, mix=msgspec.structs.replace(plan.mix, classes=classes))

    return made


def conversation(source: TicketSource, first: Ticket, *, answer: bytes | None = None) -> list[tuple[Ticket, int]]:
    """All turns of the session that a ticket begins, with the thinking before each; answers are of 40 tokens."""
    session = source.session(0, first)
    if session is None:
        return [(first, 0)]
    turns = [(first, 0)]
    while session.left:
        think_ns = session.think_ns()
        session.answered(prompt_tokens=turns[-1][0].prompt_tokens, answer_tokens=40, answer=answer)
        turns.append((session.next_ticket(), think_ns))
    return turns


def conversations(plan: Plan, worker: int, workers: int, count: int) -> list[list[tuple[Ticket, int]]]:
    source = TicketSource(plan, worker, workers)
    return [conversation(source, first) for first in islice(source.tickets(0), count)]


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_sessions_are_the_same_over_any_number_of_workers(session_plan: Callable[..., Plan], workers: int) -> None:
    plan = session_plan()
    alone = conversations(plan, 0, 1, 6 * workers)
    parts = [conversations(plan, worker, workers, 6) for worker in range(workers)]
    together = [parts[index % workers][index // workers] for index in range(6 * workers)]
    for one, other in zip(alone, together, strict=True):
        assert [(turn.prompt, turn.history, turn.max_tokens, think) for turn, think in one] == [
            (turn.prompt, turn.history, turn.max_tokens, think) for turn, think in other
        ]
    assert len({len(one) for one in alone}) > 1


def test_a_class_without_sessions_and_the_first_turns_are_as_if_there_were_none(
    sample_plan: Callable[..., Plan], session_plan: Callable[..., Plan]
) -> None:
    source = TicketSource(session_plan(), 0, 1)
    with_sessions = list(islice(source.tickets(0), 50))
    without = list(islice(TicketSource(sample_plan(ClosedLoop(concurrency=3)), 0, 1).tickets(0), 50))
    assert [msgspec.structs.replace(ticket, turn=None) for ticket in with_sessions] == without
    assert {(ticket.class_index, ticket.turn) for ticket in with_sessions} == {(0, 1), (1, None)}
    assert all((source.session(0, ticket) is None) == (ticket.class_index == 1) for ticket in with_sessions)


def test_each_turn_carries_everything_said_before(session_plan: Callable[..., Plan]) -> None:
    for turns in conversations(session_plan(), 0, 1, 30):
        for number, ((before, _), (after, _)) in enumerate(pairwise(turns), start=1):
            assert after.turn == number + 1
            assert after.history[:-2] == before.history
            assert after.history[-2] == before.prompt
            assert (after.index, after.class_index) == (before.index, before.class_index)
            assert after.prompt_tokens == before.prompt_tokens + 40 + 90
            # of our own text only what was asked is in a cache: the server said something else
            assert after.ideal_cached_tokens == before.prompt_tokens


def test_the_servers_own_words_go_into_the_history_and_count_as_known(session_plan: Callable[..., Plan]) -> None:
    source = TicketSource(session_plan(), 0, 1)
    turns = next(
        found for first in source.tickets(0) if len(found := conversation(source, first, answer=b"as I said")) == 3
    )
    assert turns[2][0].history[1::2] == (b"as I said", b"as I said")
    assert turns[2][0].ideal_cached_tokens == turns[1][0].prompt_tokens + 40


def words(text: bytes) -> list[bytes]:
    """Of a text as it stands in JSON."""
    return text.replace(rb"\n", b" ").split()


def test_stand_ins_and_later_turns_have_the_length_asked_for_and_are_never_said_twice(
    session_plan: Callable[..., Plan],
) -> None:
    plan = session_plan()
    starts: list[list[bytes]] = []
    for turns in conversations(plan, 0, 1, 40):
        if len(turns) > 1:
            last = turns[-1][0]
            # 1.3 tokens a word, and 11 for the template around what a user says
            assert {len(words(text)) for text in last.history[1::2]} == {round(40 / 1.3)}
            assert len(words(last.prompt)) == round((90 - 11) / 1.3)
            starts += [text.split()[:7] for text in (*last.history[1:], last.prompt)]
    assert len(starts) > 50
    assert len({tuple(start) for start in starts}) == len(starts)


def test_another_run_says_other_things_for_the_same_lengths(session_plan: Callable[..., Plan]) -> None:
    one, other = (conversations(session_plan(content_seed=seed), 0, 1, 20) for seed in (1, 2))
    flat_one, flat_other = ([ticket for turns in each for ticket, _ in turns] for each in (one, other))
    assert [ticket.prompt_tokens for ticket in flat_one] == [ticket.prompt_tokens for ticket in flat_other]
    assert all(a.prompt != b.prompt for a, b in zip(flat_one, flat_other, strict=True))


def test_every_session_has_a_name_of_its_own(session_plan: Callable[..., Plan]) -> None:
    names = set()
    for seed in (1, 2):
        source = TicketSource(session_plan(content_seed=seed), 0, 1)
        firsts = [ticket for ticket in islice(source.tickets(0), 100) if ticket.turn]
        sessions = [session for first in firsts if (session := source.session(0, first))]
        names |= {session.name for session in sessions}
    assert len(names) == 2 * len(firsts)


def test_without_turn_tokens_later_turns_are_as_the_first_without_the_prefix(
    session_plan: Callable[..., Plan],
) -> None:
    chat = session_plan().mix.classes[0]
    spec = Session(turns=Distribution(fixed=2))
    draws = SessionDraws(chat, spec)
    whole = Sampler(chat.prompt.lengths)
    ours, theirs = random.Random(5), random.Random(5)
    assert [draws.turn_tokens(ours) for _ in range(200)] == [whole.draw(theirs) - 40 for _ in range(200)]


def test_the_mean_number_of_turns_is_the_one_asked_for(session_plan: Callable[..., Plan]) -> None:
    plan = session_plan(Session(turns=Distribution(geometric=Geometric(mean=3))))
    source = TicketSource(plan, 0, 1)
    turns = [session.turns for first in islice(source.tickets(0), 8000) if (session := source.session(0, first))]
    assert fmean(turns) == pytest.approx(3, rel=0.05)
    assert turns.count(1) / len(turns) == pytest.approx(1 / 3, rel=0.08)


def lognormal_cdf(x: float) -> float:
    sigma = math.log(30 / 4) / 2.3263478740408408
    return 0.5 * (1 + math.erf((math.log(x) - math.log(4)) / sigma / math.sqrt(2)))


@pytest.mark.parametrize(
    ("spec", "cdf"),
    [
        pytest.param(
            TimeDistribution(exponential=TimeExponential(mean=Duration(5 * S))),
            lambda s: 1 - math.exp(-s / 5),
            id="exponential",
        ),
        pytest.param(
            TimeDistribution(uniform=TimeUniform(low=Duration(2 * S), high=Duration(6 * S))),
            lambda s: (s - 2) / 4,
            id="uniform",
        ),
        pytest.param(
            TimeDistribution(lognormal=TimeLognormal(p50=Duration(4 * S), p99=Duration(30 * S))),
            lognormal_cdf,
            id="lognormal",
        ),
    ],
)
def test_thinking_follows_its_distribution(spec: TimeDistribution, cdf: Callable[[float], float]) -> None:
    rng = random.Random(11)
    draws = [draw_time_ns(spec, rng) / 1e9 for _ in range(4000)]
    assert distance(draws, cdf) < critical_distance(4000, alpha=0.001)


def test_a_bound_on_thinking_is_kept() -> None:
    spec = TimeDistribution(exponential=TimeExponential(mean=Duration(5 * S)), max=Duration(6 * S))
    rng = random.Random(1)
    draws = [draw_time_ns(spec, rng) for _ in range(500)]
    assert max(draws) == 6 * S
    assert draws.count(6 * S) / 500 == pytest.approx(math.exp(-6 / 5), abs=0.06)
