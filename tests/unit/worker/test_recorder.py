"""Exchanges become records and counters; nothing is counted that was not logged."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokswarm.measure.record import Outcome, RequestRecord, TokenSource
from tokswarm.sink.token_budget import TokenBudget
from tokswarm.traffic.mix import Distribution, Limit, Output, Prompt, Slo, TrafficClass
from tokswarm.traffic.ticket import Ticket
from tokswarm.traffic.units import Duration
from tokswarm.wire.answer import LiveRow
from tokswarm.wire.chat_answer import ChatAnswer
from tokswarm.wire.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from tokswarm.worker.record_of import apportion, meets
from tokswarm.worker.recorder import Recorder, Sending
from tokswarm.worker.slots import SLOT_COUNT, Slots

MS = 1_000_000


class ListLog:
    """A record log in memory."""

    def __init__(self) -> None:
        self.entries: list[object] = []

    def append(self, entry: object) -> bool:
        self.entries.append(entry)
        return True


class EndedExchange:
    """An exchange as the recorder finds it: over."""

    def __init__(self, live: LiveRow, *, outcome: Outcome = Outcome.OK, sent_ms: int = 100) -> None:
        self.answer = ChatAnswer(live)
        self.outcome = outcome
        self.sent_ns = sent_ms * MS
        self.done_ns = self.sent_ns
        self.headers_ns = self.sent_ns + MS
        self.connect_ns = None
        self.status = 200
        self.error = None
        self.headers: dict[str, str] = {}

    def tokens(self, *at_ms: int) -> None:
        for at in at_ms:
            stamp = self.sent_ns + at * MS
            self.answer.feed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', stamp, True)
            self.done_ns = stamp


def traffic_class(slo: Slo | None = None) -> TrafficClass:
    one = Distribution(fixed=1)
    return TrafficClass(name="chat", prompt=Prompt(tokens=one), output=Output(max_tokens=one), slo=slo)


def recorder(log: ListLog, slo: Slo | None = None, token_budget: TokenBudget | None = None) -> Recorder:
    return Recorder(
        worker="w",
        worker_index=3,
        classes=[traffic_class(slo)],
        target_names=["t:1"],
        log=log,
        wall_offset_ns=lambda: 7,
        token_budget=token_budget,
    )


def send(made: Recorder, *, planned_ms: int = 100, sent_ms: int = 100) -> Sending:
    ticket = Ticket(
        index=0, class_index=0, due_ns=None, prompt=b"x", prompt_tokens=9, max_tokens=4, ideal_cached_tokens=2
    )
    sending = Sending(ticket, made.row(0, "s"), 5, planned_ms * MS)
    made.begun(sending, sent_ms * MS)
    return sending


def test_a_record_holds_what_was_seen_and_planned() -> None:
    log = ListLog()
    made = recorder(log)
    sending = send(made, planned_ms=90)
    exchange = EndedExchange(sending.row.live)
    exchange.tokens(10, 30)
    exchange.answer.usage = Usage(
        prompt_tokens=11,
        completion_tokens=2,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=8),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=1),
    )
    record = made.finished(exchange, sending)
    assert log.entries == [record]
    assert record == RequestRecord(
        request_id=3 << 40,
        slot=5,
        class_name="chat",
        stage="s",
        target="t:1",
        outcome=Outcome.OK,
        planned_ns=90 * MS,
        sent_ns=100 * MS,
        sent_unix_ns=100 * MS + 7,
        done_ns=130 * MS,
        headers_ns=101 * MS,
        first_token_ns=110 * MS,
        first_output_ns=110 * MS,
        last_token_ns=130 * MS,
        status=200,
        prompt_tokens_planned=9,
        prompt_tokens=11,
        max_tokens=4,
        output_tokens=2,
        output_tokens_source=TokenSource.USAGE,
        reasoning_tokens=1,
        cached_tokens=8,
        ideal_cached_tokens=2,
        arrivals=array("q", [10 * MS, 30 * MS]).tobytes(),
    )
    assert (record.ttft_ms, record.e2e_ms, record.schedule_lag_ms, record.tpot_ms) == (10.0, 30.0, 10.0, 20.0)


def test_the_time_to_open_a_connection_is_no_schedule_lag() -> None:
    log = ListLog()
    made = recorder(log)
    sending = send(made, planned_ms=40)
    exchange = EndedExchange(sending.row.live)
    exchange.connect_ns = 55 * MS  # type: ignore[assignment]
    exchange.tokens(10)
    record = made.finished(exchange, sending)
    assert (record.connect_ms, record.schedule_lag_ms) == (55.0, 5.0)


def test_without_usage_tokens_are_the_arrivals_and_say_so() -> None:
    made = recorder(ListLog())
    sending = send(made)
    exchange = EndedExchange(sending.row.live, outcome=Outcome.RESET)
    exchange.tokens(1, 2, 3)
    record = made.finished(exchange, sending)
    assert (record.output_tokens, record.output_tokens_source) == (3, TokenSource.CHUNKS)


def test_windows_add_up_to_the_records_tokens_whatever_usage_says() -> None:
    made = recorder(ListLog())
    sending = send(made)
    exchange = EndedExchange(sending.row.live)
    exchange.tokens(1, 2, 3)
    first = made.take(0)
    exchange.answer.usage = Usage(completion_tokens=5)
    record = made.finished(exchange, sending)
    second = made.take(1)
    assert record.output_tokens == 5
    assert [row.output_tokens for row in (*first.rows, *second.rows)] == [3, 2]
    assert list(record.token_counts()) == [1, 2, 2]


def test_a_surplus_of_events_over_usage_comes_off_later_seconds() -> None:
    made = recorder(ListLog())
    first, second = send(made), send(made)
    exchange = EndedExchange(first.row.live)
    exchange.tokens(1, 2, 3, 4)
    taken = [made.take(0)]
    exchange.answer.usage = Usage(completion_tokens=1)
    made.finished(exchange, first)
    taken.append(made.take(1))
    other = EndedExchange(second.row.live)
    other.tokens(*range(5))
    taken.append(made.take(2))
    made.finished(other, second)
    taken.append(made.take(3))
    assert [row.output_tokens for window in taken for row in window.rows] == [4, 0, 2, 0]


def test_a_window_counts_its_second_and_starts_again() -> None:
    made = recorder(ListLog())
    sendings = [send(made, sent_ms=100), send(made, sent_ms=150)]
    window = made.take(0)
    assert (window.sequence, len(window.rows)) == (0, 1)
    row = window.rows[0]
    assert (row.offered, row.started, row.late, row.in_flight) == (2, 2, 1, 2)
    for sending in sendings:
        exchange = EndedExchange(sending.row.live)
        exchange.tokens(1)
        made.finished(exchange, sending)
    row = made.take(1).rows[0]
    assert (row.finished, row.in_flight, row.output_tokens, sum(row.ttft.values())) == ({"ok": 2}, 0, 2, 2)
    assert made.take(2).rows == []


def test_stages_of_the_past_cost_a_window_nothing() -> None:
    made = recorder(ListLog())
    sending = send(made)
    made.take(0)
    assert made.row(0, "s") is sending.row  # its request is open
    exchange = EndedExchange(sending.row.live)
    exchange.tokens(1)
    made.finished(exchange, sending)
    assert [row.output_tokens for row in made.take(1).rows] == [1]
    assert made.take(2).rows == []
    assert made.row(0, "s") is not sending.row


def test_failures_enter_no_latency() -> None:
    made = recorder(ListLog())
    sending = send(made)
    exchange = EndedExchange(sending.row.live, outcome=Outcome.TRUNCATED)
    exchange.tokens(1, 2)
    made.finished(exchange, sending)
    row = made.take(0).rows[0]
    assert (row.ttft, row.e2e, row.finished) == ({}, {}, {"truncated": 1})


def test_a_dropped_arrival_was_offered_but_not_started() -> None:
    made = recorder(ListLog())
    made.dropped(made.row(0, "s"))
    row = made.take(0).rows[0]
    assert (row.offered, row.dropped, row.started) == (1, 1, 0)


@given(st.integers(0, 500), st.integers(0, 60))
def test_shared_out_tokens_add_up(tokens: int, arrivals: int) -> None:
    counts = array("I")
    counts.frombytes(apportion(tokens, arrivals))
    if tokens == arrivals or arrivals == 0:
        assert not counts
    else:
        assert sum(counts) == tokens
        assert len(counts) == arrivals
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("slo", "want"),
    [
        pytest.param(None, None, id="no-limits"),
        pytest.param(Slo(ttft=Limit(p99=Duration.parse("20ms"))), True, id="ttft-met"),
        pytest.param(Slo(ttft=Limit(p99=Duration.parse("9ms"))), False, id="ttft-missed"),
        pytest.param(Slo(ttft=Limit(p50=Duration.parse("1ms"), p99=Duration.parse("20ms"))), True, id="highest-counts"),
        pytest.param(Slo(itl=Limit(p99=Duration.parse("20ms"))), True, id="itl-met"),
        pytest.param(Slo(itl=Limit(p99=Duration.parse("19ms"))), False, id="itl-missed"),
        pytest.param(Slo(e2e=Limit(p90=Duration.parse("29ms"))), False, id="e2e-missed"),
    ],
)
def test_a_request_meets_its_limits_or_not(slo: Slo | None, *, want: bool | None) -> None:
    exchange = EndedExchange(LiveRow())
    exchange.tokens(10, 30)
    assert meets(slo, exchange, 2) is want


def test_a_failed_request_meets_no_limit() -> None:
    exchange = EndedExchange(LiveRow(), outcome=Outcome.TIMEOUT)
    exchange.tokens(1)
    assert meets(Slo(e2e=Limit(p99=Duration.parse("1h"))), exchange, 1) is False


def test_slots_are_unique_while_taken_and_the_oldest_freed_comes_first() -> None:
    slots = Slots()
    taken = [slots.take() for _ in range(SLOT_COUNT)]
    assert sorted(slot for slot in taken if slot is not None) == list(range(SLOT_COUNT))
    assert slots.take() is None
    slots.give_back(7)
    slots.give_back(3)
    assert [slots.take(), slots.take(), slots.take()] == [7, 3, None]


def test_what_was_asked_for_is_counted_when_sent_and_open_until_it_ends() -> None:
    made = recorder(ListLog())
    first, _ = send(made), send(made)
    (row,) = made.take(1).rows
    assert (row.asked_prompt_tokens, row.asked_max_tokens, row.open_max_tokens) == (18, 8, 8)
    made.finished(EndedExchange(first.row.live), first)
    (row,) = made.take(2).rows
    assert (row.asked_prompt_tokens, row.asked_max_tokens, row.open_max_tokens) == (0, 0, 4)


def test_beyond_a_budget_of_token_points_records_say_the_share_of_their_second() -> None:
    log = ListLog()
    made = recorder(log, token_budget=TokenBudget(4))

    def one() -> float | None:
        sending = send(made)
        exchange = EndedExchange(sending.row.live)
        exchange.tokens(10, 30)
        made.finished(exchange, sending)
        return log.entries[-1].token_share  # type: ignore[union-attr]

    assert [one() for _ in range(6)] == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    made.take(1)
    assert one() == 0.25
    made.take(2)
    assert one() == 1.0
