"""Plans that ask for more than the model's context."""

import msgspec
import pytest

from tokswarm.errors import PreflightError
from tokswarm.traffic.context import context_notes
from tokswarm.traffic.mix import (
    Distribution,
    Mix,
    Output,
    Prompt,
    Session,
    Stage,
    Target,
    TraceSource,
    TrafficClass,
    Uniform,
)
from tokswarm.traffic.plan import ClosedLoop, Load, PlannedStage
from tokswarm.traffic.replay import cut_replay
from tokswarm.traffic.trace import TraceRow


def traffic_class(name: str, prompt: Distribution, output: int) -> TrafficClass:
    return TrafficClass(name=name, prompt=Prompt(tokens=prompt), output=Output(max_tokens=Distribution(fixed=output)))


def mix(*classes: TrafficClass) -> Mix:
    return Mix(name="m", target=Target(base_url="http://h/v1"), classes=list(classes), load=[Stage()])


def stage(load: Load, name: str = "a") -> PlannedStage:
    return PlannedStage(name=name, load=load, duration_s=1, drain_s=1, warmup=False)


SHORT = traffic_class("short", Distribution(fixed=90), 10)
LONG = traffic_class("long", Distribution(fixed=91), 10)
CLOSED = stage(ClosedLoop(concurrency=1))
ROWS = [TraceRow(offset_ns=0, prompt_tokens=tokens, output_tokens=10, blocks=()) for tokens in (10, 90, 91, 500)]
REPLAY = stage(cut_replay(ROWS, TraceSource(file="t.jsonl"), duration_ns=None), "replay")


def test_a_plan_that_fits_to_the_last_token_is_not_spoken_of() -> None:
    assert context_notes(mix(SHORT), [CLOSED], 100) == []


def test_an_unknown_context_is_not_judged() -> None:
    assert context_notes(mix(LONG), [CLOSED], None) == []


def test_a_class_that_never_fits_beside_one_that_does_is_named_with_what_to_lower() -> None:
    assert context_notes(mix(SHORT, LONG), [CLOSED], 100) == [
        "long: all of the requests do not fit into the model's context of 100 tokens, and will be refused or cut "
        "short: lower the max of prompt.tokens or of output.max_tokens"
    ]


def test_the_share_of_a_distribution_that_is_too_long_is_told() -> None:
    wide = traffic_class("wide", Distribution(uniform=Uniform(low=1, high=100)), 80)
    (note,) = context_notes(mix(wide), [CLOSED], 100)
    assert 78 <= int(note.removeprefix("wide: about ").split()[0]) <= 82


def test_a_session_is_judged_turn_by_turn_with_answers_as_long_as_they_may_be() -> None:
    talk = msgspec.structs.replace(
        traffic_class("talk", Distribution(fixed=50), 10),
        session=Session(turns=Distribution(fixed=4), turn_tokens=Distribution(fixed=10)),
    )
    # 60, 80, 100 and 120 tokens with the answer: the last of four does not fit
    (note,) = context_notes(mix(talk), [CLOSED], 100)
    assert note.startswith("talk: about 25 % of the requests")
    assert note.endswith("or of session.turns")


def test_a_trace_is_judged_row_by_row_and_leaves_unused_classes_alone() -> None:
    (note,) = context_notes(mix(LONG), [REPLAY], 100)
    assert note.startswith("replay: about 50 % of the requests")
    assert note.endswith("lower the trace's max_prompt_tokens or max_output_tokens")


def test_a_plan_of_which_every_prompt_is_too_long_is_refused() -> None:
    longer = stage(cut_replay(ROWS[2:], TraceSource(file="t.jsonl"), duration_ns=None), "replay")
    with pytest.raises(PreflightError, match="every request would be refused: long and replay ask for") as caught:
        context_notes(mix(LONG), [CLOSED, longer], 91)
    assert "prompt.tokens" in caught.value.hint
    assert "max_prompt_tokens" in caught.value.hint


def test_an_answer_that_is_too_long_alone_is_refused_and_one_that_may_be_cut_short_is_not() -> None:
    with pytest.raises(PreflightError, match="every request would be refused: answer ask for"):
        context_notes(mix(traffic_class("answer", Distribution(fixed=1), 101)), [CLOSED], 100)
    assert len(context_notes(mix(traffic_class("answer", Distribution(fixed=1), 100)), [CLOSED], 100)) == 1


def test_a_class_that_no_stage_sends_is_not_judged() -> None:
    short_only = PlannedStage(
        name="a", load=ClosedLoop(concurrency=1), duration_s=1, drain_s=1, warmup=False, class_weights=[1.0, 0.0]
    )
    assert context_notes(mix(SHORT, LONG), [short_only], 100) == []
    assert len(context_notes(mix(SHORT, LONG), [short_only, CLOSED], 100)) == 1
