"""The line that shows a run while it goes on."""

import msgspec
import pytest

from tokswarm.commands.progress import cliff_lines, status_line
from tokswarm.master.run import LiveTick, RunInfo, RunState
from tokswarm.measure.window import ALL_CLASSES, Event, FleetSecond

RUN = RunInfo(
    run_id="r",
    state=RunState.RUNNING,
    mix_name="m",
    base_url="http://h/v1",
    model="tiny",
    started_unix_ns=1,
    stage="sweep-8",
    stages_total=3,
    stages_done=1,
)
SECOND = FleetSecond(
    second_unix=10,
    class_name=ALL_CLASSES,
    stage="sweep-8",
    workers=2,
    output_tok_per_s=1234,
    prompt_tok_per_s=0,
    offered_per_s=4,
    started_per_s=4,
    finished={"ok": 3, "timeout": 1, "rate_limited": 2, "reset": 0},
    in_flight=8,
    dropped=0,
    late=0,
    goodput_per_s=None,
    goodput_ratio=None,
    cached_ratio=None,
    ideal_cached_ratio=None,
    ttft_p50_ms=1500.4,
    itl_p50_ms=12.34,
)


def line(seconds: list[FleetSecond], **changes: object) -> str:
    run = msgspec.structs.replace(RUN, **changes)
    return status_line(LiveTick(run=run, seconds=seconds, workers=[], events=[]))


def test_a_line_says_where_the_run_is_and_what_the_newest_second_showed() -> None:
    old = msgspec.structs.replace(SECOND, second_unix=9, output_tok_per_s=1)
    one_class = msgspec.structs.replace(SECOND, second_unix=11, class_name="chat", output_tok_per_s=2)
    assert line([SECOND, old, one_class]) == (
        "running stage 2/3 sweep-8  1,234 tok/s · 8 in flight · TTFT p50 1,500 ms · ITL p50 12.3 ms"
        " · failed: 2 rate_limited, 1 timeout"
    )


def test_a_cliff_has_a_line_of_its_own_when_it_begins() -> None:
    cliff = Event(unix_ns=1, kind="cliff", title="cliff: cache churn", text="348 tok/s after 887")
    others = [msgspec.structs.replace(cliff, end_unix_ns=2), Event(unix_ns=1, kind="stage", title="s", text="")]
    tick = LiveTick(run=RUN, seconds=[], workers=[], events=[cliff, *others])
    assert cliff_lines(tick) == ["cliff: cache churn: 348 tok/s after 887"]


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        pytest.param({"state": RunState.PREPARING, "stage": "", "stages_done": 0}, "preparing", id="preparing"),
        pytest.param({"stage": ""}, "running", id="between stages"),
        pytest.param(
            {"stage": "", "stages_done": 3},
            "all stages are done; workers close their logs and deliver what is left",
            id="after the last stage",
        ),
        pytest.param({"state": RunState.REPORTING, "stage": "", "stages_done": 3}, "reporting", id="reporting"),
    ],
)
def test_without_a_second_there_are_no_figures(changes: dict[str, object], want: str) -> None:
    assert line([], **changes) == want
