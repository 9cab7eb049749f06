"""Golden values: what each query of each board gives from the database is what the run's Parquet tables hold.

The run is made in virtual time by the real parser, recorder and merge; the real writer brings its logs to a real
influxd, and the same logs become the tables.
"""

import html
import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
from board_expectations import Expectation
from board_goldens import EXPECTED_QUERIES, GOLDENS, SHIPPED_QUERIES, disagreements
from board_queries import BOARDS, choices_of
from board_run import STAGE_S, STAGES, Plan, virtual_run
from board_tables import Chosen, Rows, Seen, cells_of_frame
from databases import Influxd, influxd
from grafana_macros import TimeRange, fill_in

from tokswarm.grafana.alerts import RULES, AlertRule
from tokswarm.sink.influx import export_run
from tokswarm.sink.settings import InfluxSettings

START_S = int(time.time()) // 60 * 60 - 600
OTHER = Plan("20261201-115500-before", START_S - 300, seed=8, slowness=1.15)
RUN = Plan("20261201-120000-golden", START_S, seed=7)
SPAN = TimeRange((OTHER.start_s - 60) * 1000, (START_S + STAGE_S * len(STAGES) + 60) * 1000)

CHOSEN = [
    pytest.param(Chosen(1), id="all-1s"),
    pytest.param(Chosen(10), id="all-10s"),
    pytest.param(
        Chosen(1, {"class": ["chat"], "stage": ["c8"], "worker": ["node-2"], "target": ["there:8000"]}),
        id="one-of-each-1s",
    ),
    pytest.param(
        Chosen(60, {"class": ["chat", "long.report"], "stage": ["c4", "c8"], "worker": ["node-1", "node-2"]}),
        id="several-60s",
    ),
    # From the middle of a step of the run to the middle of another, as a browser that looks at the last minutes asks.
    pytest.param(Chosen(10, during=TimeRange((START_S + 7) * 1000, (START_S + 33) * 1000 + 999)), id="middle-10s"),
    pytest.param(Chosen(1, during=TimeRange((START_S + 7) * 1000, (START_S + 33) * 1000 + 999)), id="middle-1s"),
]


LOUD = Plan("20261201-114500-loud", START_S - 900, seed=3, trouble=0.3, verdict="invalid", backlog_bytes=128 << 20)
QUIET = Plan("20261201-114000-quiet", START_S - 1200, seed=4, slowness=0.5, trouble=0.0, verdict="valid")


class Kept(NamedTuple):
    """The runs' folders, and the database that has them."""

    folder: Path
    database: Influxd

    @property
    def run(self) -> Path:
        return self.folder / RUN.run_id

    @property
    def other(self) -> Path:
        return self.folder / OTHER.run_id


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder = tmp_path_factory.mktemp("runs")
    with influxd() as database:
        settings = InfluxSettings.from_environ(database.environ())
        assert settings is not None
        for plan in (RUN, OTHER, LOUD, QUIET):
            delivery = export_run(virtual_run(plan, folder / plan.run_id), settings)
            assert (delivery.dropped_points, delivery.backlog_bytes, delivery.error) == (0, 0, None)
        yield Kept(folder, database)


def test_every_panel_has_an_expectation_and_every_expectation_its_panel() -> None:
    assert EXPECTED_QUERIES == SHIPPED_QUERIES


@pytest.mark.parametrize("chosen", CHOSEN)
@pytest.mark.parametrize(("target", "expectation"), GOLDENS)
def test_a_panel_shows_what_the_tables_hold(
    target: dict[str, Any], expectation: Expectation, chosen: Chosen, kept: Kept
) -> None:
    seen = Seen(kept.run, chosen, other=kept.other)
    more = {
        "run": RUN.run_id,
        "other": OTHER.run_id,
        "step": f"{chosen.step_s}s",
        "request": str(seen.request_id),
    }
    want = expectation(seen)
    # A class may have no limit to draw; with everything chosen there is something on every panel.
    assert chosen.picked or chosen.during or (want.rows if isinstance(want, Rows) else cells_of_frame(want)), (
        "nothing is expected"
    )
    assert disagreements(kept.database.query, target, expectation, seen, chosen.during or SPAN, more) == []


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_can_be_drawn(name: str, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    pictures = importlib.import_module("board_pictures")
    board, ask = BOARDS[name], kept.database.query
    seen = Seen(kept.run, Chosen(1))
    chosen = {
        **choices_of(board, ask, SPAN),
        **{"run": RUN.run_id, "other": OTHER.run_id, "request": str(seen.request_id)},
    }
    text, _ = pictures.page(board, pictures.Shown(ask, chosen, SPAN, pictures.marks_of(board, ask, chosen, SPAN)))
    assert all(html.escape(panel["title"]) in text for panel in board["panels"])
    assert "no data" not in text


# --- alert rules ------------------------------------------------------------------------------------


def watched(seen: Seen, rule: AlertRule, span: TimeRange) -> dict[tuple[str, ...], float]:
    """What a rule watches, from the tables: by run and what else it is grouped by."""
    in_range = pl.col("time_ns").is_between(span.from_ms * 1_000_000, span.to_ms * 1_000_000)
    match rule.uid:
        case "tokswarm-slo-burn":
            known = seen.requests.filter(in_range & pl.col("slo_met").is_not_null())
            frame = known.group_by("class").agg(1 - pl.col("slo_met").sum() / pl.len())
        case "tokswarm-error-share":
            seconds = seen.fleet.filter(in_range)
            frame = seconds.select(pl.col("failed_per_s").sum() / pl.col("finished_per_s").sum())
        case "tokswarm-sink-backlog":
            frame = seen.workers.filter(in_range).group_by("worker").agg(pl.col("sink_backlog_bytes").min())
        case _:
            count = sum(event["title"] == "the run is invalid" for event in seen.events)
            frame = pl.DataFrame({"verdicts": [count] if count else []})
    return {(seen.folder.name, *row[:-1]): row[-1] for row in frame.iter_rows()}


@pytest.mark.parametrize(
    ("plan", "fires"), [pytest.param(LOUD, True, id="loud"), pytest.param(QUIET, False, id="quiet")]
)
@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.uid) for rule in RULES])
def test_an_alert_rule_fires_on_trouble_only_and_its_values_are_the_tables(
    rule: AlertRule, plan: Plan, fires: bool, kept: Kept
) -> None:
    now_ms = (plan.start_s + STAGE_S * len(STAGES) + 2) * 1000
    met: dict[tuple[str, ...], list[bool]] = {}
    for watch in rule.watches:
        span = TimeRange(now_ms - watch.range_s * 1000, now_ms)
        series = kept.database.query(fill_in(watch.query, {}, span))
        # Other runs are in the range of the longer watches; Grafana would see them as instances of their own.
        got = {
            (one["tags"]["run"], *(v for k, v in sorted(one["tags"].items()) if k != "run")): one["values"][-1][1]
            for one in series
            if one["tags"]["run"] == plan.run_id
        }
        want = watched(Seen(kept.folder / plan.run_id, Chosen(1)), rule, span)
        assert got == pytest.approx(want)
        for labels, value in got.items():
            met.setdefault(labels, []).append(value > rule.above)
    assert any(all(each) for each in met.values()) is fires
