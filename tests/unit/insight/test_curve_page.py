"""What the page says and where it gets it; how it looks is seen by eyes."""

import json
import re
from html.parser import HTMLParser

import msgspec
import pytest
from plotly.offline import get_plotlyjs
from synthetic_run import bent_sweep, health, planned, request, requests_table, run_of, sweep, workers_table

from tokswarm.insight import tables
from tokswarm.insight.curve_page import curve_page
from tokswarm.insight.summary import Summary, summarise
from tokswarm.traffic.plan import ClosedLoop, OpenLoop

HEALTHY = workers_table([health(second=s) for s in range(100)])


def bent() -> Summary:
    run, rows = bent_sweep()
    return summarise(run, requests_table(rows), HEALTHY)


def without_library(page: str) -> str:
    """The page without plotly.js, which names addresses of its own that it does not load."""
    return page.replace(get_plotlyjs(), "")


def traces(page: str, chart: str) -> dict[str, tuple[list[float], list[float]]]:
    """Name to x and y of each line of a chart."""
    call = re.search(rf'Plotly\.newPlot\(\s*"{chart}",\s*(\[.*?\]),\s*\{{"', page, re.DOTALL)
    assert call is not None, f"no chart {chart}"
    return {trace["name"]: (trace["x"], trace["y"]) for trace in json.loads(call[1])}


class Tags(HTMLParser):
    """Checks that elements close in order, and keeps addresses that a browser would load."""

    VOID = frozenset({"meta", "br", "img", "link", "hr", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def read(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    return tags


def test_the_page_carries_all_it_needs() -> None:
    page = curve_page(bent())
    assert get_plotlyjs() in page
    assert read(without_library(page)).loads == []


def test_the_curve_stands_beside_linear_scaling_with_its_bend_marked() -> None:
    lines = traces(curve_page(bent()), "closed-throughput")
    assert lines["measured"] == ([1, 2, 4, 8, 16], [10, 20, 40, 40, 40])
    assert lines["linear scaling"] == ([1, 2, 4, 8, 16], [10, 20, 40, 80, 160])
    assert lines["bend"] == ([4], [40])


def test_linear_scaling_is_drawn_from_the_first_stage_whatever_its_concurrency() -> None:
    run, rows = bent_sweep((2, 4, 8))
    lines = traces(curve_page(summarise(run, requests_table(rows), HEALTHY)), "closed-throughput")
    assert lines["linear scaling"] == ([2, 4, 8], [20, 40, 80])


def test_latencies_and_the_rate_per_stream_are_drawn_from_the_summary() -> None:
    page = curve_page(bent())
    assert traces(page, "closed-per-stream")["per stream"][1] == [10, 10, 10, 5, 2.5]
    assert traces(page, "closed-ttft")["TTFT p50"][1] == [100, 100, 100, 1100, 3100]
    assert traces(page, "closed-itl")["ITL p99"][1] == [100] * 5
    assert traces(page, "closed-queue-wait")["queue wait p99"][1] == [0, 0, 0, 1000, 3000]
    assert "Queue wait, server (ms)" in page


def test_verdict_bend_and_table_are_on_the_page() -> None:
    summary = bent()
    page = without_library(curve_page(summary))
    assert '<div class="verdict valid"><b>Valid.</b>' in page
    assert summary.bend.line[1:] in page
    rows = read(page).cells
    assert rows[:7] == ["sweep-1", "1", "10.0", "100 %", "10.0", "100 / 100", "100 / 100"]
    assert len(rows) == 5 * 10


def test_open_loop_stages_are_drawn_against_their_rate() -> None:
    stages = [planned(f"rate-{r}", OpenLoop(rate_per_s=r, arrivals="poisson")) for r in (4, 2)]
    rows = [request(stage=f"rate-{r}", sent_s=15 * i + n / r) for i, r in enumerate((4, 2)) for n in range(r * 10)]
    page = curve_page(summarise(run_of(stages), requests_table(rows), HEALTHY))
    xs, ys = traces(page, "open-throughput")["measured"]
    assert xs == [2, 4]
    assert ys == [pytest.approx(6, rel=0.05), pytest.approx(12, rel=0.05)]
    assert "linear scaling" not in without_library(page)
    assert "<h2>Open loop, by rate</h2>" in page


def test_warm_up_is_in_the_table_but_on_no_curve() -> None:
    stages = [planned("warm-up", ClosedLoop(3), warmup=True), *sweep(4)]
    rows = [request(stage="warm-up"), request(stage="sweep-4", sent_s=16)]
    page = without_library(curve_page(summarise(run_of(stages), requests_table(rows), HEALTHY)))
    assert traces(page, "closed-throughput")["measured"][0] == [4]
    assert "<tr class=warmup><td>warm-up</td><td>3</td>" in page


def test_a_run_without_stages_is_a_page_of_words() -> None:
    summary = summarise(run_of(sweep(1), begun=0), tables.empty(tables.REQUESTS), tables.empty(tables.WORKERS))
    page = curve_page(summary)
    read(page)
    assert "No stage began." in page
    assert "stage sweep-1 never began" in page
    assert "<script" not in page


def test_a_stage_without_a_single_token_draws_no_empty_chart() -> None:
    page = without_library(curve_page(summarise(run_of(sweep(1)), tables.empty(tables.REQUESTS), HEALTHY)))
    assert "nothing measured" in page
    assert "closed-ttft" not in page


def test_what_others_named_is_text_and_never_markup() -> None:
    evil = "</script><script>alert(1)</script><img src=x>"
    summary = bent()
    stages = [msgspec.structs.replace(stage, name=evil) for stage in summary.stages]
    summary = msgspec.structs.replace(summary, model=evil, notes=[evil], missing=[evil], stages=stages, error=evil)
    page = without_library(curve_page(summary))
    assert evil not in page
    assert "<img" not in page
    assert page.count("&lt;/script&gt;") == 2 * (2 + 2 + 5)  # title and heading, two lists, five rows
