"""Every query of every board, filled in as Grafana does, asked of a real influxd; the real formatter wrote the data."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from board_data import CLASSES, STAGE_S, STAGES, WORKERS, Run, lines
from board_queries import BOARDS, PANELS, Ask, choices_of, values_of
from databases import influxd
from grafana_macros import (
    AllValues,
    Choice,
    TimeRange,
    fill_in,
    parse_interval_s,
    sorted_as_grafana,
    targets,
)

_NOW_S = int(time.time())
OLD = Run("20261202-080000-demo-aaaa", _NOW_S - 600)
NEW = Run("20261202-083000-demo-bbbb", _NOW_S - 120)
SPAN = TimeRange((NEW.start_s - 60) * 1000, (NEW.start_s + 100) * 1000)
LONG = TimeRange((OLD.start_s - 60) * 1000, (NEW.start_s + 100) * 1000)


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    with influxd() as server:
        for run in (OLD, NEW):
            server.write(lines(run))
        yield server.query


def asked(ask: Ask, board: str, title: str, place: int = 0, **changed: Choice) -> list[dict[str, Any]]:
    panel = next(panel for panel in BOARDS[board]["panels"] if panel["title"] == title)
    chosen = {**choices_of(BOARDS[board], ask, SPAN), **changed}
    return ask(fill_in(targets(panel)[place]["query"], chosen, SPAN, parse_interval_s(panel["interval"])))


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_opens_on_the_newest_run_with_everything_chosen(name: str, ask: Ask) -> None:
    chosen = choices_of(BOARDS[name], ask, SPAN)
    assert chosen["run"] == NEW.run_id
    assert chosen["class"] == chosen["stage"] == AllValues(".*")


@pytest.mark.parametrize(
    ("variable", "want"),
    [("run", [NEW.run_id, OLD.run_id]), ("class", list(CLASSES)), ("stage", list(STAGES)), ("worker", list(WORKERS))],
)
def test_a_variable_offers_the_values_of_the_tag(variable: str, want: list[str], ask: Ask) -> None:
    found = next(each for each in BOARDS["overview.json"]["templating"]["list"] if each["name"] == variable)
    rows = [value for series in ask(fill_in(found["query"], {"run": NEW.run_id}, LONG)) for value in series["values"]]
    assert sorted_as_grafana([value for _, value in rows], found["sort"]) == want


@pytest.mark.parametrize(("panel", "target"), PANELS)
def test_a_panel_shows_the_chosen_run_only(panel: dict[str, Any], target: dict[str, Any], ask: Ask) -> None:
    chosen: dict[str, Choice] = {
        **dict.fromkeys(("run", "other"), "no-such-run"),
        **dict.fromkeys(("class", "stage", "target", "worker"), AllValues(".*")),
        **{"request": "0", "step": "5s"},
    }
    assert ask(fill_in(target["query"], chosen, SPAN, 10)) == []


@pytest.mark.parametrize("name", BOARDS)
def test_events_come_whole_because_grafana_drops_rows_with_a_gap(name: str, ask: Ask) -> None:
    found = {}
    for annotation in BOARDS[name]["annotations"]["list"]:
        target = annotation["target"]
        series = ask(fill_in(target["query"], choices_of(BOARDS[name], ask, SPAN), SPAN))
        # Grafana names a column by measurement and field.
        columns = [f"{series[0]['name']}.{column}" for column in series[0]["columns"]]
        assert {target[key] for key in target if key.endswith("Column")} <= set(columns)
        assert all(None not in row for row in series[0]["values"])
        found[annotation["name"]] = values_of(series, "title")
        if "timeEndColumn" in target:
            assert values_of(series, "end_ms") == [(NEW.start_s + STAGE_S) * 1000, (NEW.start_s + 2 * STAGE_S) * 1000]
    assert found == {"Stages": ["c4", "c8"], "Cliffs": ["cliff: queueing"], "Events": ["run started", "valid"]}


def test_aggregate_throughput_is_the_fleets_at_every_zoom(ask: Ask) -> None:
    panel = next(panel for panel in BOARDS["overview.json"]["panels"] if panel["title"] == "Output tokens per second")
    for interval in (1, 10, 60):
        series = ask(
            fill_in(panel["targets"][0]["query"], choices_of(BOARDS["overview.json"], ask, SPAN), SPAN, interval)
        )
        assert {value for value in values_of(series, "tok/s") if value is not None} == {200}


def test_stages_that_share_a_second_add_up(ask: Ask) -> None:
    chosen = {**choices_of(BOARDS["overview.json"], ask, SPAN), "stage": ["c4"]}
    panel = next(
        panel for panel in BOARDS["throughput.json"]["panels"] if panel["title"] == "Output tokens per second by class"
    )
    series = ask(fill_in(panel["targets"][0]["query"], chosen, SPAN, 1))
    assert {one["tags"]["class"] for one in series} == set(CLASSES)
    seen = [value for value in values_of(series, "tok/s") if value is not None]
    assert seen == [100] * STAGE_S * len(CLASSES)


def test_littles_law_is_drawn_from_the_same_seconds(ask: Ask) -> None:
    series = asked(ask, "queue-wait.json", "Little's law: L beside λW")
    assert {value for value in values_of(series, "L in flight") if value is not None} == {8}
    assert values_of(asked(ask, "queue-wait.json", "Little's law: λW ÷ L"), "λW ÷ L") == [pytest.approx(1.0)]


def test_shares_are_over_all_requests_and_not_averages_of_shares(ask: Ask) -> None:
    assert values_of(asked(ask, "overview.json", "Failed share"), "failed") == [pytest.approx(0.5)]
    # 30 of 40 seconds repeat a prefix of 800 of 1,000 tokens, half of which is found.
    assert values_of(asked(ask, "cache-churn.json", "Cached share, ideal"), "ideal") == [pytest.approx(0.6)]
    assert values_of(asked(ask, "cache-churn.json", "Cached share, observed"), "observed") == [pytest.approx(0.3)]
    recomputed = asked(ask, "cache-churn.json", "Prompt tokens computed again")
    assert values_of(recomputed, "computed again") == [30 * len(WORKERS) * len(CLASSES) * 400]
    # A failed request did not meet its limits; of the others every second second's did.
    assert values_of(asked(ask, "overview.json", "Goodput share"), "within limits") == [pytest.approx(1 / 3)]


def test_outcomes_are_per_second_whatever_the_interval(ask: Ask) -> None:
    panel = next(
        panel for panel in BOARDS["overview.json"]["panels"] if panel["title"] == "Requests finished by outcome"
    )
    whole = TimeRange(NEW.start_s * 1000 // 10_000 * 10_000 + 10_000, NEW.start_s * 1000 // 10_000 * 10_000 + 29_999)
    for interval in (1, 2, 10):
        series = ask(
            fill_in(panel["targets"][0]["query"], choices_of(BOARDS["overview.json"], ask, SPAN), whole, interval)
        )
        means = {one["tags"]["outcome"]: sum(row[1] for row in one["values"]) / len(one["values"]) for one in series}
        assert means == {"ok": pytest.approx(4), "rate_limited": pytest.approx(2)}


def test_class_table_holds_exact_percentiles(ask: Ask) -> None:
    series = asked(ask, "latency.json", "Classes in the time range")
    by_class = {one["tags"]["class"]: dict(zip(one["columns"], one["values"][0], strict=True)) for one in series}
    assert by_class["chat"]["requests"] == 2 * STAGE_S * len(WORKERS)
    assert by_class["chat"]["output tokens"] == 5 * 2 * STAGE_S * len(WORKERS)
    assert (by_class["chat"]["TTFT p50"], by_class["chat"]["TTFT p99"]) == (pytest.approx(140), pytest.approx(190))
    assert by_class["long.report"]["TTFT p99"] == pytest.approx(240)
    assert by_class["chat"]["TPOT p50"] == pytest.approx(20)


def test_heatmap_rows_are_the_buckets_in_their_order(ask: Ask) -> None:
    series = asked(ask, "latency.json", "Time to first token, distribution")
    columns = series[0]["columns"][1:]
    assert columns[0] == "1"
    assert columns[-1] == "+Inf"
    assert [float(name) for name in columns] == sorted(float(name) for name in columns)
    counts = {name: sum(value or 0 for value in values_of(series, name)) for name in columns}
    # 100 ms and 150 ms in each window; the bucket up to 100 ms ends where the histogram's middle value lies.
    assert sum(counts.values()) == 2 * 2 * STAGE_S * len(WORKERS) * len(CLASSES)
    assert {name for name, count in counts.items() if count} <= {"100", "200"}


def test_failures_come_newest_first_with_their_reason(ask: Ask) -> None:
    series = asked(ask, "overview.json", "Last failures")
    assert len(series[0]["values"]) == 50
    assert set(values_of(series, "error")) == {"429: slow down"}
    times = values_of(series, "time")
    assert times == sorted(times, reverse=True)
