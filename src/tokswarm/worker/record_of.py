"""A finished request as its record: what was seen, joined with what was planned."""

from array import array
from collections.abc import Mapping
from typing import Protocol

from tokswarm.measure.record import Outcome, QueueWaitSource, RequestRecord, TokenSource
from tokswarm.traffic.mix import Limit, Slo, TrafficClass
from tokswarm.traffic.ticket import Ticket
from tokswarm.wire.answer import Answer
from tokswarm.wire.response_headers import NOTHING, server_word

COALESCED_ARRIVALS = 8


class Ended(Protocol):
    """A request that is over, whichever client sent it. Times monotonic ns."""

    answer: Answer
    outcome: Outcome | None
    sent_ns: int
    done_ns: int
    headers_ns: int | None
    connect_ns: int | None
    error: str | None

    @property
    def status(self) -> int | None:
        """HTTP status; None before the head."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Response headers, names in lower case."""
        ...


class Planned(Protocol):
    """What the schedule and the worker said of the request."""

    ticket: Ticket
    slot: int
    planned_ns: int
    stage: str


def record_of(
    ended: Ended,
    planned: Planned,
    *,
    request_id: int,
    traffic_class: TrafficClass,
    target_name: str,
    wall_offset_ns: int,
) -> RequestRecord:
    """The record of a request that is over."""
    ticket, answer = planned.ticket, ended.answer
    sent_ns = ended.sent_ns
    stamps_ns = answer.stamps_ns
    usage = answer.usage
    outcome = ended.outcome
    assert outcome is not None
    output_tokens, source = _output_tokens(answer)
    word = server_word(ended.headers) if ended.headers else NOTHING
    return RequestRecord(
        request_id=request_id,
        slot=planned.slot,
        class_name=traffic_class.name,
        stage=planned.stage,
        target=target_name,
        outcome=outcome,
        planned_ns=planned.planned_ns,
        sent_ns=sent_ns,
        sent_unix_ns=sent_ns + wall_offset_ns,
        done_ns=ended.done_ns,
        headers_ns=ended.headers_ns,
        first_token_ns=answer.first_token_ns,
        first_output_ns=answer.first_output_ns,
        last_token_ns=answer.last_token_ns,
        connect_ms=None if ended.connect_ns is None else ended.connect_ns / 1e6,
        status=ended.status,
        error=ended.error,
        served_by=word.served_by,
        retry_after_ms=word.retry_after_ms,
        processing_ms=word.processing_ms,
        remaining_requests=word.remaining_requests,
        remaining_tokens=word.remaining_tokens,
        prompt_tokens_planned=ticket.prompt_tokens,
        prompt_tokens=None if usage is None else usage.prompt,
        max_tokens=ticket.max_tokens,
        output_tokens=output_tokens,
        output_tokens_source=source,
        reasoning_tokens=None if usage is None else usage.reasoning,
        cached_tokens=None if usage is None else usage.cached,
        ideal_cached_tokens=ticket.ideal_cached_tokens,
        queue_wait_ms=answer.queue_wait_ms,
        queue_wait_source=None if answer.queue_wait_ms is None else QueueWaitSource.SERVER,
        finish_reason=answer.finish_reason,
        slo_met=meets(traffic_class.slo, ended, output_tokens),
        merged_arrivals=answer.merged_arrivals,
        unstamped_arrivals=answer.unstamped_arrivals,
        arrivals=array("q", [stamp - sent_ns for stamp in stamps_ns]).tobytes(),
        arrival_tokens=_arrival_tokens(answer, output_tokens),
        coalesced=is_coalesced(len(stamps_ns), answer.merged_arrivals),
        session=None if ticket.turn is None else ticket.index,
        turn=ticket.turn,
        model=answer.model,
        fell_back=word.fell_back,
    )


def _output_tokens(answer: Answer) -> tuple[int, TokenSource]:
    """Output tokens and where the count is from."""
    counts = answer.counts()
    stated = None if answer.usage is None else answer.usage.output
    if counts is not None and stated is not None and sum(counts) == stated:
        return stated, TokenSource.CONTINUOUS_USAGE
    if stated is not None:
        return stated, TokenSource.USAGE
    return len(answer.stamps_ns), TokenSource.CHUNKS


def _arrival_tokens(answer: Answer, output_tokens: int) -> bytes:
    counts = answer.counts()
    if counts is not None and sum(counts) == output_tokens:
        return b"" if set(counts) == {1} else counts.tobytes()
    return apportion(output_tokens, len(answer.stamps_ns))


def is_coalesced(arrivals: int, merged_arrivals: int) -> bool:
    """Whether a proxy delivered the answer in a few bursts: at least 8 arrivals in at most an eighth as many reads.

    The gaps between its tokens, and its first token, then say nothing of the server.
    """
    return arrivals >= COALESCED_ARRIVALS and (arrivals - merged_arrivals) * COALESCED_ARRIVALS <= arrivals


def apportion(tokens: int, arrivals: int) -> bytes:
    """Tokens of each arrival, uint32, when the server counted other than one each; else empty.

    The whole number is shared out evenly; what is left over falls to the last arrivals (an
    end-of-text token that shows no text is counted by servers and belongs to the last).
    """
    if tokens == arrivals or not arrivals:
        return b""
    each, rest = divmod(tokens, arrivals)
    return array("I", [each] * (arrivals - rest) + [each + 1] * rest).tobytes()


def meets(slo: Slo | None, ended: Ended, output_tokens: int) -> bool | None:
    """Whether a request met its class's limits, each the limit of the highest quantile named; None without limits.

    The limit on ITL holds for the request's mean (TPOT); one without a second token has none to miss.
    """
    if slo is None:
        return None
    if ended.outcome is not Outcome.OK:
        return False
    answer = ended.answer
    if slo.ttft is not None:
        limit_ns = _limit_ns(slo.ttft)
        if answer.first_token_ns is None or answer.first_token_ns - ended.sent_ns > limit_ns:
            return False
    if slo.itl is not None and output_tokens > 1 and answer.first_token_ns is not None:
        assert answer.last_token_ns is not None
        if (answer.last_token_ns - answer.first_token_ns) / (output_tokens - 1) > _limit_ns(slo.itl):
            return False
    return slo.e2e is None or ended.done_ns - ended.sent_ns <= _limit_ns(slo.e2e)


def _limit_ns(limit: Limit) -> float:
    chosen = next(value for value in (limit.p99, limit.p95, limit.p90, limit.p50) if value is not None)
    return chosen.seconds * 1e9
