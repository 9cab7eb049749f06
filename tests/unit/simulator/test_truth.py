"""The record of what truly happened."""

import json
from array import array
from types import SimpleNamespace
from typing import cast

import pytest
from virtual_engine import request

from tokswarm.simulator import truth
from tokswarm.simulator.answers import Accepted, Api, OpenAnswer
from tokswarm.simulator.engine import Progress
from tokswarm.simulator.http1 import Exchange
from tokswarm.simulator.truth import Passage, Refused, TruthLog
from tokswarm.simulator.words import Answer


def ended(number: int, stamps_ns: list[int]) -> tuple[Progress, OpenAnswer, Passage]:
    progress = Progress(request(number, prompt=20, output=5, arrival_ns=1_000_000))
    progress.admitted_ns = 3_500_000 if stamps_ns else None
    accepted = Accepted(
        request_id=number,
        api=Api.CHAT,
        public_id=f"chatcmpl-{number}",
        model="tiny",
        created_unix=0,
        prompt_tokens=20,
        answer=Answer((0,) * 5, stopped=False),
        max_tokens=5,
        include_usage=False,
        continuous_usage=False,
    )
    answer = OpenAnswer(accepted, cast(Exchange, SimpleNamespace(streaming=False)))
    answer.stamps_ns = array("q", stamps_ns)
    answer.due_ns = array("q", [stamp - 7 for stamp in stamps_ns])
    passage = Passage(
        model="tiny",
        provider="main",
        replica="replica-1",
        arrival_ns=900_000,
        refused=(Refused(provider="first", status=429),),
        priority=3,
    )
    return progress, answer, passage


def lines(log: TruthLog, since: int) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.lines(since).splitlines()]


def test_line_says_when_each_thing_happened() -> None:
    log = TruthLog()
    log.add(*ended(4, [9_000_000, 12_000_000]), outcome="length", ended_ns=12_000_000)
    (line,) = lines(log, 0)
    assert line["id"] == "chatcmpl-4"
    assert (line["queue_ms"], line["prefill_ms"]) == (2.5, 5.5)
    assert line["emitted_ns"] == [9_000_000, 12_000_000]
    assert line["due_ns"] == [8_999_993, 11_999_993]
    assert (line["output_tokens"], line["outcome"]) == (2, "length")
    assert (line["model"], line["provider"], line["replica"]) == ("tiny", "main", "replica-1")
    assert (line["refused"], line["priority"]) == ([{"provider": "first", "status": 429}], 3)
    assert (line["status"], line["arrival_ns"], line["routed_ns"]) == (200, 900_000, 1_000_000)


def test_request_that_never_ran_has_no_times() -> None:
    log = TruthLog()
    log.add(*ended(1, []), outcome="abort", ended_ns=5)
    (line,) = lines(log, 0)
    assert line["status"] is None
    assert (line["admitted_ns"], line["queue_ms"], line["first_token_ns"], line["emitted_ns"]) == (None, None, None, [])


def test_reading_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth, "PAGE_REQUESTS", 3)
    log = TruthLog()
    assert log.lines(0) == b""
    for number in range(5):
        log.add(*ended(number, [9_000_000]), outcome="length", ended_ns=0)
    assert [line["sequence"] for line in lines(log, 0)] == [0, 1, 2]
    assert [line["sequence"] for line in lines(log, 3)] == [3, 4]
    assert lines(log, 5) == []


def test_oldest_are_dropped_beyond_the_bounds_and_the_gap_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth, "MAX_REQUESTS", 4)
    monkeypatch.setattr(truth, "MAX_TOKENS", 5)
    log = TruthLog()
    for number in range(6):
        log.add(*ended(number, [9_000_000]), outcome="length", ended_ns=0)
    assert [line["sequence"] for line in lines(log, 0)] == [2, 3, 4, 5]
    log.add(*ended(6, [1, 2, 3]), outcome="length", ended_ns=0)
    assert [line["sequence"] for line in lines(log, 0)] == [4, 5, 6]
