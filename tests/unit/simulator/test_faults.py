"""Kinds of wire fault: how they are asked for, what they do to events, and that the docs list them all."""

import re
from pathlib import Path

import pytest

from tokswarm.errors import ConfigError
from tokswarm.measure.record import Outcome
from tokswarm.simulator import event_faults as events
from tokswarm.simulator.event_faults import Act, After, Change, Coalesce, End, Item, Reset, Tear, Transform
from tokswarm.simulator.fault_gate import FaultGate, FaultShare
from tokswarm.simulator.faults import KINDS, plan_faults
from tokswarm.simulator.http1 import Exchange

DOCS = Path(__file__).parents[3] / "docs" / "simulator.md"

ROLE = b'data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
TOKEN = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
LAST = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":" end"},"finish_reason":"length"}]}\n\n'
USAGE = b'data: {"id":"x","choices":[],"usage":{"completion_tokens":3},"metrics":{"queue_time_ms":1.5}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = [ROLE, TOKEN, TOKEN, LAST, USAGE, DONE]


def through(transform: Transform) -> list[Item]:
    """What comes out of a transform up to the first act that ends the answer."""
    made: list[Item] = []
    for event in STREAM:
        for item in transform.feed(event):
            made.append(item)
            if isinstance(item, End | Reset | Tear):
                return made
    return made + list(transform.flush())


def table() -> str:
    """The table of the docs, made from the kinds."""
    rows = ["| kind | argument | what it does | reported |", "| --- | --- | --- | --- |"]
    for kind in KINDS.values():
        outcomes: dict[str, list[str]] = {}
        for spec, outcome in kind.reported:
            outcomes.setdefault(outcome, []).append(f"`{spec}`")
        only = len(outcomes) == 1
        reported = "; ".join(name if only else f"{name} ({', '.join(specs)})" for name, specs in outcomes.items())
        rows.append(f"| `{kind.name}` | {kind.argument} | {kind.effect} | {reported} |")
    return "\n".join(rows)


def test_docs_have_the_table_of_all_kinds_as_the_code_has_them() -> None:
    assert table() in DOCS.read_text(encoding="utf-8")


def test_every_kind_has_examples_that_can_be_planned_and_a_known_outcome() -> None:
    for kind in KINDS.values():
        assert kind.reported
        for spec, outcome in kind.reported:
            assert any(part.partition("=")[0] == kind.name for part in spec.split(","))
            plan_faults(spec)
            assert outcome in set(Outcome)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rest", "there is no fault 'rest'; there are crlf, "),
        ("reset=-1", "fault reset: '-1' is no whole number"),
        ("reset=x", "fault reset: 'x' is no whole number"),
        ("crlf=2", "fault crlf: it takes no argument, came '2'"),
        ("stall=never", "fault stall: 'never' is no number of seconds"),
        ("stall=nan", "fault stall: 'nan' is no number of seconds"),
        ("stall=1:x", "fault stall: 'x' is no whole number"),
        ("split=0", "pieces of 0 bytes never end"),
        ("keep_alive=0", "comments need a millisecond"),
        ("status=200", "fault status: 200 is none of 400, 401"),
        ("error_event=loud", "'loud' is none of openai, named"),
        ("content_type=a\r\nb", "cannot stand in a header"),
    ],
)
def test_what_cannot_be_planned_is_said(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        plan_faults(text)
    with pytest.raises(ConfigError):
        FaultShare(fault=text, share=0.5)


def test_several_faults_act_in_the_order_given() -> None:
    plan = plan_faults(" no_space , crlf,split=3 ")
    assert [type(transform) for transform in plan.transforms] == [Change, Change]
    assert plan.cut is not None
    assert list(plan.cut(b"abcdefg")) == [b"abc", b"def", b"g"]
    assert plan_faults("split=odd").cut is not None
    assert plan_faults("").transforms == []


def test_odd_pieces_are_of_growing_odd_sizes() -> None:
    cut = plan_faults("split=odd").cut
    assert cut is not None
    assert [len(piece) for piece in cut(bytes(20))] == [1, 3, 5, 7, 4]


@pytest.mark.parametrize(("tokens", "place"), [(0, 0), (1, 2), (2, 3), (3, 4)])
def test_an_act_comes_once_after_so_many_tokens(tokens: int, place: int) -> None:
    made = through(After(tokens, Reset()))
    assert made == [*STREAM[:place], Reset()]


def test_an_act_after_more_tokens_than_there_are_never_comes() -> None:
    assert through(After(4, Reset())) == STREAM


def test_an_event_is_torn_in_place_of_being_sent() -> None:
    assert through(events.TearAfter(2)) == [ROLE, TOKEN, TOKEN, Tear(LAST)]


def test_usage_moves_onto_the_last_token_and_leaves_no_event_behind() -> None:
    made = through(events.UsageInLast())
    assert len(made) == len(STREAM) - 1
    last = made[3]
    assert isinstance(last, bytes)
    value = events.read(last)
    assert value["usage"] == {"completion_tokens": 3}
    assert value["choices"][0]["finish_reason"] == "length"
    assert made[4] == DONE


def test_usage_that_does_not_come_keeps_nothing_back() -> None:
    transform = events.UsageInLast()
    assert [item for event in (ROLE, TOKEN, LAST, DONE) for item in transform.feed(event)] == [ROLE, TOKEN, LAST, DONE]
    assert list(transform.feed(LAST)) == []
    assert list(transform.flush()) == [LAST]


@pytest.mark.parametrize(("size", "groups"), [(None, [6]), (1, [1] * 6), (4, [4, 2]), (6, [6])])
def test_events_are_held_back_in_groups(size: int | None, groups: list[int]) -> None:
    made = through(Coalesce(size))
    assert b"".join(item for item in made if isinstance(item, bytes)) == b"".join(STREAM)
    assert [item.count(b"\n\n") for item in made if isinstance(item, bytes)] == groups


def test_changes_of_events_keep_what_they_do_not_name() -> None:
    assert list(events.without_done(TOKEN)) == [TOKEN]
    assert list(events.without_done(DONE)) == []
    assert list(events.usage_twice(USAGE)) == [USAGE, USAGE]
    assert list(events.without_usage(USAGE)) == []
    assert [b'"usage":null' in event for each in STREAM for event in events.usage_null(each)] == [True] * 4 + [
        False
    ] * 2
    assert [event for each in STREAM for event in events.without_tokens(each)] == [ROLE, DONE]
    assert list(events.with_crlf(DONE)) == [b"data: [DONE]\r\n\r\n"]
    assert list(events.unterminated_done(DONE)) == [b"data: [DONE]"]
    assert list(events.in_lines(b'data: {"a":1,"b":2}\n\n')) == [b'data: {"a":1,\ndata: "b":2}\n\n']
    assert len(events.inflated(1_000)(TOKEN)) > 1_000 + len(TOKEN)


def test_shares_must_leave_room_for_each_other() -> None:
    def handle(exchange: Exchange) -> None:
        raise AssertionError(exchange)

    with pytest.raises(ConfigError, match="add up to more than 1"):
        FaultGate(handle, [FaultShare(fault="crlf", share=0.6), FaultShare(fault="cr", share=0.5)], seed=1)
    with pytest.raises(ConfigError, match="expected 0 to 1"):
        FaultShare(fault="crlf", share=1.5)


def test_acts_are_told_from_events() -> None:
    assert not isinstance(TOKEN, Act)
    assert isinstance(Reset(), Act)
