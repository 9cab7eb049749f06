"""Groups of shared prefixes are replaced at the rate the mix asks for, alike on every worker."""

import random
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
import pytest

from tokswarm.traffic.mix import Mix, Popularity, SharedPrefix
from tokswarm.traffic.plan import ClosedLoop, Load, OpenLoop, Plan
from tokswarm.traffic.prefix_groups import PrefixGroups, stage_begins_ns
from tokswarm.traffic.schedule import TicketSource
from tokswarm.traffic.ticket import Ticket
from tokswarm.traffic.units import ShareRate

MINUTE_NS = 60_000_000_000
OPEN = OpenLoop(rate_per_s=40, arrivals="constant")


def groups(count: int, churn: str | None, seed: int = 3) -> PrefixGroups:
    rate = None if churn is None else ShareRate.parse(churn)
    return PrefixGroups(SharedPrefix(groups=count, tokens=40, churn=rate), seed)


def generations(of: PrefixGroups, count: int, at_ns: int) -> list[int]:
    return [of.generation(group, at_ns) for group in range(count)]


@pytest.mark.parametrize("minute", [0, 1, 7, 23])
def test_the_share_of_the_groups_that_the_mix_asks_for_is_replaced_each_minute(minute: int) -> None:
    churned = groups(200, "10%/m")
    before, after = (generations(churned, 200, (minute + k) * MINUTE_NS) for k in (0, 1))
    assert sum(after) - sum(before) == 20
    assert all(0 <= new - old <= 1 for old, new in zip(before, after, strict=True))


def test_replacements_are_spread_evenly_over_time_in_an_order_of_the_seed() -> None:
    churned = groups(60, "100%/m")
    replaced = [sum(generations(churned, 60, second * 1_000_000_000)) for second in range(0, 61)]
    assert replaced == list(range(0, 61))
    first = [group for group in range(60) if churned.generation(group, MINUTE_NS // 2)]
    assert first != list(range(30))
    assert first != [group for group in range(60) if groups(60, "100%/m", 4).generation(group, MINUTE_NS // 2)]


def test_every_group_has_its_first_text_at_the_start_and_for_ever_without_churn() -> None:
    assert not any(generations(groups(50, "100%/s"), 50, 0))
    assert not any(generations(groups(50, None), 50, 1000 * MINUTE_NS))


def test_no_two_texts_of_any_group_have_the_same_number() -> None:
    churned = groups(7, "50%/m")
    texts = {(group, churned.generation(group, at * MINUTE_NS)) for group in range(7) for at in range(20)}
    numbers = {
        churned.text_number(churned.draw(_Always(group), at * MINUTE_NS)) for group in range(7) for at in range(20)
    }
    assert len(numbers) == len(texts) > 60


class _Always(random.Random):
    """In the place of chance: the middle of a group's part of the draws."""

    def __init__(self, group: int) -> None:
        super().__init__(0)
        self._group = group

    def random(self) -> float:
        return (self._group + 0.5) / 7


# --- tickets --------------------------------------------------------------------------------------


@pytest.fixture
def churning(sample_plan: Callable[..., Plan]) -> Callable[..., Plan]:
    """Makes a plan of two stages of 5 s whose prefixes are replaced four times in that time."""

    def made(load: Load, churn: str | None = "80%/s") -> Plan:
        plan = sample_plan(load, load)
        prefix = SharedPrefix(
            groups=5,
            tokens=40,
            popularity=Popularity(zipf=1.0),
            churn=None if churn is None else ShareRate.parse(churn),
        )
        mix: Mix = plan.mix
        chat = msgspec.structs.replace(
            mix.classes[0], prompt=msgspec.structs.replace(mix.classes[0].prompt, shared_prefix=prefix)
        )
        return msgspec.structs.replace(plan, mix=msgspec.structs.replace(mix, classes=[chat, mix.classes[1]]))

    return made


def prefixes(tickets: Iterator[Ticket] | list[Ticket]) -> list[tuple[int, bytes]]:
    return [(ticket.index, ticket.prompt[:60]) for ticket in tickets if ticket.class_index == 0]


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_sends_the_same_texts_at_the_same_times(
    churning: Callable[..., Plan], workers: int
) -> None:
    plan = churning(OPEN)
    alone = [prefixes(TicketSource(plan, 0, 1).tickets(stage)) for stage in (0, 1)]
    for stage in (0, 1):
        parts = [prefixes(TicketSource(plan, k, workers).tickets(stage)) for k in range(workers)]
        assert sorted(one for part in parts for one in part) == alone[stage]


def test_a_replaced_text_never_comes_back_in_any_stage(churning: Callable[..., Plan]) -> None:
    plan = churning(OPEN)
    source = TicketSource(plan, 0, 1)
    seen = [text for stage in (0, 1) for _, text in prefixes(source.tickets(stage))]
    kept = [text for _, text in prefixes(TicketSource(churning(OPEN, churn=None), 0, 1).tickets(0))]
    # 5 groups, replaced 0.8 times a second for 10 s, some between two uses.
    assert len(set(kept)) == 5
    assert 30 < len(set(seen)) <= 45
    for text in set(seen):
        places = [place for place, one in enumerate(seen) if one == text]
        # A text lives 1.25 s: 50 requests.
        assert places[-1] - places[0] <= 50


def test_the_ideal_cache_forgets_a_prefix_when_it_is_replaced(churning: Callable[..., Plan]) -> None:
    used: set[bytes] = set()
    for ticket in TicketSource(churning(OPEN), 0, 1).tickets(0):
        if ticket.class_index == 0:
            start = ticket.prompt[:60]
            assert ticket.ideal_cached_tokens == (40 if start in used else 0)
            used.add(start)
    assert len(used) > 15


def test_each_text_is_paid_for_once_by_the_fleet(churning: Callable[..., Plan]) -> None:
    plan = churning(OPEN)
    parts = [list(TicketSource(plan, k, 2).tickets(0)) for k in range(2)]
    unpaid = [ticket.prompt[:60] for part in parts for ticket in part if not ticket.ideal_cached_tokens]
    firsts = [text for text in unpaid if any(text == start for part in parts for _, start in prefixes(part))]
    assert len(firsts) == len(set(firsts)) > 10


def test_a_closed_loop_goes_by_the_time_of_sending(churning: Callable[..., Plan]) -> None:
    source = TicketSource(churning(ClosedLoop(concurrency=1)), 0, 1)
    now_ns = [0]
    tickets = source.tickets(0, lambda: now_ns[0])
    early = {text for _, text in prefixes(list(islice(tickets, 100)))}
    now_ns[0] = 2_500_000_000
    late = {text for _, text in prefixes(list(islice(tickets, 100)))}
    assert (len(early), len(late)) == (5, 5)
    assert not early & late


def test_the_time_of_stages_goes_on_from_one_to_the_next(churning: Callable[..., Plan]) -> None:
    plan = churning(OPEN)
    assert [stage_begins_ns(plan.stages, index) for index in (0, 1)] == [0, 5_000_000_000]
