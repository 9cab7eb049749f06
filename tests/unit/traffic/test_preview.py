"""A preview says what the run will send: the very schedule, and means that theory gives."""

from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest

from tokswarm.traffic.mix import Distribution, Mix, Session, TraceSource
from tokswarm.traffic.plan import ClosedLoop, Load, OpenLoop, Plan, RateSegment
from tokswarm.traffic.preview import StagePreview, class_previews, stage_previews
from tokswarm.traffic.replay import cut_replay
from tokswarm.traffic.schedule import TicketSource
from tokswarm.traffic.trace import TraceRow

ROWS = [
    TraceRow(offset_ns=0, prompt_tokens=1200, output_tokens=5, blocks=(0, 1, 2)),
    TraceRow(offset_ns=10**9, prompt_tokens=1600, output_tokens=6, blocks=(0, 1, 3)),
    TraceRow(offset_ns=2 * 10**9, prompt_tokens=100, output_tokens=7),
]


@pytest.fixture(scope="session")
def preview(sample_plan: Callable[..., Plan]) -> Callable[[Load], StagePreview]:
    """The preview of one load of the sample mix."""

    def made(load: Load) -> StagePreview:
        plan = sample_plan(load)
        return stage_previews(plan.mix, plan.stages)[0]

    return made


def test_classes_are_drawn_with_their_means_and_shared_prefixes(sample_mix: Callable[..., Mix]) -> None:
    chat, report = class_previews(sample_mix())
    assert (report.prompt_tokens[0], report.prompt_tokens[-1], report.shared_ratio) == (200, 200, 0)
    assert sum(chat.max_tokens) / len(chat.max_tokens) == pytest.approx(0.75 * 16 + 0.25 * 64, rel=0.03)
    assert chat.prompt_tokens[0] == 60
    assert chat.prompt_tokens[len(chat.prompt_tokens) // 2] == pytest.approx(120, rel=0.05)
    assert chat.shared_ratio == pytest.approx(40 * len(chat.prompt_tokens) / sum(chat.prompt_tokens))
    assert all(sooner <= later for sooner, later in pairwise(chat.prompt_tokens))


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(OpenLoop(40, "gamma", cv=3.0), id="gamma"),
        pytest.param(OpenLoop(40, "poisson", course=[RateSegment(5, 5, 75)]), id="ramp"),
    ],
)
def test_the_requests_of_an_open_loop_are_those_of_the_run(
    preview: Callable[[Load], StagePreview], sample_plan: Callable[..., Plan], load: Load
) -> None:
    shown = preview(load)
    sent = list(TicketSource(sample_plan(load), 0, 1).tickets(0))
    assert shown.requests == len(sent) == sum(shown.arrivals)
    assert shown.arrivals[0] == sum((ticket.due_ns or 0) < 5e9 / 60 for ticket in sent)
    assert shown.prompt_tokens == pytest.approx(sum(ticket.prompt_tokens for ticket in sent), rel=0.2)


def test_sessions_are_counted_turn_by_turn_with_what_was_said_before(sample_plan: Callable[..., Plan]) -> None:
    plan = sample_plan(OpenLoop(rate_per_s=10, arrivals="constant"), duration_s=4)
    report = msgspec.structs.replace(
        plan.mix.classes[1],
        session=Session(turns=Distribution(fixed=3), turn_tokens=Distribution(fixed=50), history="server"),
    )
    mix = msgspec.structs.replace(plan.mix, classes=[report])
    [one] = class_previews(mix)
    lengths = (200, 200 + 300 + 50, 200 + 2 * (300 + 50))
    assert sorted(set(one.prompt_tokens)) == list(lengths)
    assert one.turns_mean == pytest.approx(3, rel=0.001)
    assert one.shared_ratio == pytest.approx((500 + 850) / sum(lengths), rel=0.001)
    [stage] = stage_previews(mix, plan.stages)
    assert stage.requests == 120
    assert stage.prompt_tokens_mean == pytest.approx(sum(lengths) / 3, rel=0.001)


def test_a_closed_loop_has_means_and_no_number_of_requests(preview: Callable[[Load], StagePreview]) -> None:
    shown = preview(ClosedLoop(concurrency=3))
    assert (shown.load, shown.requests, shown.prompt_tokens, shown.arrivals) == ("3 in flight", None, None, [])
    assert shown.max_tokens_mean == pytest.approx(0.75 * 28 + 0.25 * 300, rel=0.03)


def test_a_trace_is_counted_with_what_a_cache_could_have(preview: Callable[[Load], StagePreview]) -> None:
    shown = preview(cut_replay(ROWS, TraceSource(file="t"), duration_ns=None))
    assert (shown.requests, shown.prompt_tokens, shown.max_tokens) == (3, 2900, 18)
    assert shown.shared_ratio == pytest.approx(1024 / 2900)
