"""Users' own prompts are sent once each over all workers, in an order of the seed, and over again only when asked."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
import pytest

from tokswarm.traffic.mix import Distribution, NamedTarget, Prompt, PromptRows
from tokswarm.traffic.own_prompts import OwnPrompts, once_notes, pack_prompts
from tokswarm.traffic.plan import ClosedLoop, Endpoint, Load, OpenLoop, Plan
from tokswarm.traffic.schedule import TicketSource
from tokswarm.traffic.share import Share
from tokswarm.traffic.ticket import Ticket

TEXTS = [f'row {number}, with "quotes",\na line break and ü' for number in range(40)]
FOREVER = OpenLoop(rate_per_s=40, arrivals="constant")


def dealt(worker: int, workers: int, *, repeat: bool = False, late: bool = False, seed: int = 1) -> OwnPrompts:
    packed = pack_prompts(0, TEXTS, repeat=repeat)
    return OwnPrompts(packed, seed, worker_index=worker, worker_count=workers, joins_late=late)


def taken(prompts: OwnPrompts, count: int = 1000, taker: int = 0) -> list[str]:
    found = (prompts.take(taker) for _ in range(count))
    return [msgspec.json.decode(b'"' + one.text + b'"') for one in found if one is not None]


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 50])
def test_each_row_is_sent_once_over_all_workers(workers: int) -> None:
    assert sorted(text for k in range(workers) for text in taken(dealt(k, workers))) == sorted(TEXTS)


def test_the_order_is_that_of_the_seed() -> None:
    assert taken(dealt(0, 1)) == taken(dealt(0, 1)) != taken(dealt(0, 1, seed=2))
    assert taken(dealt(0, 1)) != TEXTS


@pytest.mark.parametrize("workers", [1, 3, 50])
def test_repeated_rows_come_equally_often_in_another_order_each_time(workers: int) -> None:
    each = 3 * len(TEXTS)
    texts = [taken(dealt(k, workers, repeat=True), each) for k in range(workers)]
    assert Counter(text for part in texts for text in part) == dict.fromkeys(TEXTS, 3 * workers)
    if workers == 1:
        first, second = texts[0][:40], texts[0][40:80]
        assert sorted(first) == sorted(second)
        assert first != second


def test_a_late_worker_finds_repeated_rows_only() -> None:
    assert taken(dealt(2, 3, late=True)) == []
    late = dealt(2, 3, repeat=True, late=True)
    found = [late.take(0) for _ in range(30)]
    assert all(one is not None and one.is_again for one in found)


def test_takers_are_dealt_the_same_rows_whatever_their_pace() -> None:
    prompts = dealt(1, 2, repeat=True)
    fast = taken(prompts, 200, taker=0)
    assert taken(prompts, 200, taker=1) == fast


# --- tickets --------------------------------------------------------------------------------------


@pytest.fixture
def own(sample_plan: Callable[..., Plan]) -> Callable[..., Plan]:
    """Makes a plan whose class `report` has its own prompts."""

    def made(*loads: Load, repeat: bool = False) -> Plan:
        plan = sample_plan(*loads)
        prompt = Prompt(rows=PromptRows(file="a.jsonl", repeat=repeat, lengths=Distribution(fixed=200)))
        report = msgspec.structs.replace(plan.mix.classes[1], prompt=prompt)
        mix = msgspec.structs.replace(plan.mix, classes=[plan.mix.classes[0], report])
        return msgspec.structs.replace(plan, mix=mix, prompts=[pack_prompts(1, TEXTS, repeat=repeat)])

    return made


def reports(tickets: Iterator[Ticket] | list[Ticket]) -> list[Ticket]:
    return [ticket for ticket in tickets if ticket.class_index == 1]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("load", [FOREVER, ClosedLoop(concurrency=2)], ids=["open", "closed"])
def test_the_rows_are_sent_once_over_all_stages_and_then_nothing(
    own: Callable[..., Plan], load: Load, workers: int
) -> None:
    plan = own(load, load)
    sent: list[Ticket] = []
    for worker in range(workers):
        source = TicketSource(plan, worker, workers)
        for stage in (0, 1):
            tickets = list(islice(source.tickets(stage), 5000))
            assert len(tickets) < 400
            sent += reports(tickets)
    texts = [msgspec.json.decode(b'"' + ticket.prompt + b'"') for ticket in sent]
    assert len(set(texts)) == len(texts)
    # An open loop of 10 s is due for about 100 of the class; a closed one goes on until it has no more.
    assert len(texts) == len(TEXTS)
    assert {ticket.ideal_cached_tokens for ticket in sent} == {0}


def test_repeated_rows_are_known_to_the_cache_the_second_time(own: Callable[..., Plan]) -> None:
    source = TicketSource(own(ClosedLoop(concurrency=1), repeat=True), 0, 1)
    first, again = (list(islice(reports_of(source), 40)) for _ in range(2))
    assert not any(ticket.ideal_cached_tokens for ticket in first)
    assert all(ticket.ideal_cached_tokens == ticket.prompt_tokens for ticket in again)


def reports_of(source: TicketSource) -> Iterator[Ticket]:
    return (ticket for ticket in source.tickets(0) if ticket.class_index == 1)


def test_the_planned_length_is_about_that_of_the_words(own: Callable[..., Plan]) -> None:
    [ticket, *_] = reports(list(islice(TicketSource(own(FOREVER), 0, 1).tickets(0), 20)))
    # 8 words of 1.3 tokens and a template of 11.
    assert ticket.prompt_tokens == round(8 * 1.3 + 11)


def test_all_but_the_texts_is_as_without_rows_for_any_number_of_workers(own: Callable[..., Plan]) -> None:
    def requests(workers: int) -> list[tuple[int, int, int | None, int]]:
        parts = (TicketSource(own(FOREVER, repeat=True), k, workers).tickets(0) for k in range(workers))
        return sorted((t.index, t.class_index, t.due_ns, t.max_tokens) for part in parts for t in part)

    assert requests(1) == requests(3)
    assert len(requests(1)) == 200


def test_an_arrival_without_a_prompt_has_no_ticket_and_a_class_to_count_it_for(own: Callable[..., Plan]) -> None:
    plan = own(FOREVER, FOREVER)
    source = TicketSource(plan, 0, 1)
    for stage in (0, 1):
        arrivals = list(source.arrivals(stage))
        counts = [len(list(source.tickets_of(stage, arrival))) for arrival in arrivals]
        assert all(source.classes_of(stage, arrival) in ([0], [1]) for arrival in arrivals)
    # The stage goes on in which the class has no weight; one with it has ended for good.
    assert not any(counts[-20:])


def test_stages_without_the_class_go_on(own: Callable[..., Plan]) -> None:
    plan = own(ClosedLoop(concurrency=1), ClosedLoop(concurrency=1))
    plan.stages[1] = msgspec.structs.replace(plan.stages[1], class_weights=[1.0, 0.0])
    source = TicketSource(plan, 0, 1)
    assert len(list(islice(source.tickets(0), 5000))) < 400
    assert len(list(islice(source.tickets(1), 500))) == 500


def test_each_target_of_mirrored_traffic_gets_every_row(own: Callable[..., Plan]) -> None:
    plan = own(ClosedLoop(concurrency=1))
    targets = [NamedTarget(name=name, base_url="http://127.0.0.1:8100/v1") for name in ("old", "new")]
    mix = msgspec.structs.replace(plan.mix, target=None, targets=targets, split="mirror")
    further = [Endpoint(model="tiny", fit=plan.fit)]
    plan = msgspec.structs.replace(plan, mix=mix, further_endpoints=further)
    source = TicketSource(plan, 0, 1)
    lanes = source.lanes(0, Share(worker_index=0, worker_count=1), lambda: 0)
    texts = [[ticket.prompt for ticket in reports(list(islice(lane, 60)))] for lane in lanes]
    assert texts[0] == texts[1]
    assert len(texts[0]) == len(set(texts[0])) > 5


def test_the_notes_tell_of_prompts_that_are_sent_once(own: Callable[..., Plan]) -> None:
    once, repeated = own(FOREVER), own(FOREVER, repeat=True)
    [note] = once_notes(once.mix, once.prompts)
    assert note.startswith("class report: 40 prompts of its own, each sent once;")
    assert once_notes(repeated.mix, repeated.prompts) == []
