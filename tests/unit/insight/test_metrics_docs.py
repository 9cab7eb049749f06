"""The pages on metrics and summary are whole: whatever the code names has its place in them."""

import re
from pathlib import Path

import msgspec
import pytest

from tokswarm.insight import verdict
from tokswarm.insight.bend import Bend, BendCause, BendPoint, Visible
from tokswarm.insight.comparison import Comparison, Ratio
from tokswarm.insight.failure import Failure
from tokswarm.insight.fallbacks import Fallbacks
from tokswarm.insight.measures import Goodput, Measures
from tokswarm.insight.percentiles import Percentiles
from tokswarm.insight.queue_wait import UnloadedTtft
from tokswarm.insight.stage import StageSummary
from tokswarm.insight.summary import Summary, Totals
from tokswarm.insight.target_summary import TargetSummary
from tokswarm.insight.verdict import Cause, Reason, State, Verdict
from tokswarm.measure.record import Outcome, QueueWaitSource, TokenSource

ROOT = Path(__file__).parents[3]
METRICS = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
SUMMARY = (ROOT / "docs" / "summary.md").read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """The text under a heading, down to the next one of the same depth."""
    match = re.search(rf"^(#+) {re.escape(heading)}$(.*?)(?=^\1 |\Z)", page, re.MULTILINE | re.DOTALL)
    assert match is not None, f"no heading {heading!r}"
    return match[2]


def anchors(page: str) -> set[str]:
    """Headings as GitHub addresses them."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_its_row(outcome: Outcome) -> None:
    assert re.search(rf"^\| `{outcome.value}` \| \w", section(METRICS, "Outcomes"), re.MULTILINE)


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_of_a_verdict_has_its_row(cause: Cause) -> None:
    assert f"| `{cause.value}` |" in section(METRICS, "Verdict")


@pytest.mark.parametrize(
    ("cause", "limits"),
    [
        ("lost_worker", [f"{verdict.LOST_WORKER_INVALID_RATIO:.0%}"]),
        ("records_lost", [f"{verdict.LOG_LOST_INVALID_RATIO:.0%}"]),
        ("loop_lag", [f"{verdict.LOOP_LAG_P99_SUSPECT_MS:g} ms", f"{verdict.LOOP_LAG_P99_INVALID_MS:g} ms"]),
        ("loop_lag", [f"{verdict.BAD_SECONDS_RATIO:.0%}"]),
        ("loop_stall", [f"{verdict.LOOP_STALL_SUSPECT_MS:g} ms", f"{verdict.LOOP_STALL_INVALID_MS / 1000:g} s"]),
        ("cpu", [f"{verdict.CPU_SUSPECT_RATIO:.0%}", f"{verdict.CPU_INVALID_RATIO:.0%}"]),
        ("schedule_lag", [f"{verdict.SCHEDULE_LAG_SUSPECT_MS:g} ms", f"{verdict.SCHEDULE_LAG_INVALID_MS:g} ms"]),
        ("dropped", [f"{verdict.DROPPED_SUSPECT_RATIO:.1%}", f"{verdict.DROPPED_INVALID_RATIO:.0%}"]),
        ("client_limit", [f"{verdict.CLIENT_LIMIT_INVALID_RATIO:.0%}"]),
        ("unstamped", [f"{verdict.UNSTAMPED_SUSPECT_RATIO:.0%}"]),
        ("merged", [f"{verdict.MERGED_SUSPECT_RATIO:.0%}"]),
        ("coalesced", [f"{verdict.COALESCED_SUSPECT_RATIO:.0%}"]),
        ("failed", [f"{verdict.FAILED_SUSPECT_RATIO:.0%}"]),
        ("aborted", [f"{verdict.ABORTED_SUSPECT_RATIO:.0%}"]),
    ],
)
def test_the_limits_of_a_verdict_are_those_of_the_code(cause: str, limits: list[str]) -> None:
    row = re.search(rf"^\| `{cause}` \|(.*)$", section(METRICS, "Verdict"), re.MULTILINE)
    assert row is not None
    assert [limit for limit in limits if limit.replace("%", " %") not in row[1]] == []


@pytest.mark.parametrize("cause", list(BendCause))
def test_every_cause_of_a_bend_has_its_row(cause: BendCause) -> None:
    assert f"| `{cause.value}` |" in section(METRICS, "Bend")


@pytest.mark.parametrize("name", [*State, *QueueWaitSource, *TokenSource])
def test_every_state_and_source_is_named(name: str) -> None:
    assert f"`{name}`" in METRICS


IDENTITY = {"name", "load", "warmup", "started_unix_ns", "planned_s", "classes", "requests"}
"""Keys of a stage that measure nothing."""


@pytest.mark.parametrize("name", [n for n in StageSummary.__struct_fields__ if n not in IDENTITY])
def test_every_measured_key_of_a_stage_is_a_metric(name: str) -> None:
    assert f"`{name}`" in METRICS


@pytest.mark.parametrize(
    ("kind", "heading"),
    [
        (Summary, "The run"),
        (UnloadedTtft, "The run"),
        (StageSummary, "Stages"),
        (Measures, "Stages"),
        (Failure, "Stages"),
        (Fallbacks, "Stages"),
        (TargetSummary, "Stages"),
        (Comparison, "Stages"),
        (Ratio, "Stages"),
        (Goodput, "Stages"),
        (Bend, "Bend"),
        (BendPoint, "Bend"),
        (Visible, "Bend"),
        (Verdict, "Verdict"),
        (Reason, "Verdict"),
        (Totals, "Totals"),
    ],
)
def test_every_key_of_the_summary_is_documented_where_it_stands(kind: type[msgspec.Struct], heading: str) -> None:
    text = section(SUMMARY, heading)
    assert [field for field in kind.__struct_fields__ if f"`{field}`" not in text] == []


def test_percentiles_are_documented() -> None:
    assert "`{" + ", ".join(Percentiles.__struct_fields__) + "}`" in SUMMARY


def test_links_lead_somewhere() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src" / "tokswarm").rglob("*.py")]
    wanted = {anchor for text in [SUMMARY, *sources] for anchor in re.findall(r"metrics\.md#([\w-]+)", text)}
    wanted |= set(re.findall(r"\(#([\w-]+)\)", METRICS))
    assert wanted - anchors(METRICS) == set()
    assert set(re.findall(r"\(#([\w-]+)\)", SUMMARY)) - anchors(SUMMARY) == set()
