"""What stands around the panels of a board: variables, events, links to its sisters, rows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import dashboard as model

from tokswarm.grafana import queries
from tokswarm.grafana.panels import DATA_SOURCE, AnyPanel
from tokswarm.measure.schema import FLEET, REQUEST, WINDOW, WORKER

BOARD_TAG = "tokswarm"


class Section(NamedTuple):
    """Panels under a heading; without one they follow on, which saves a line of a screen."""

    heading: str | None
    panels: Sequence[AnyPanel]


class InfluxAnnotation(Dataquery, Builder[Dataquery]):
    """An InfluxQL annotation query. Grafana 11 and later name its columns `measurement.column`."""

    def __init__(self, text: str, *, has_end: bool) -> None:
        self._text = text
        self._has_end = has_end

    def build(self) -> Dataquery:
        """The target itself: it has nothing left to set."""
        return self

    def to_json(self) -> dict[str, object]:
        """As Grafana keeps it."""
        payload: dict[str, object] = {
            "refId": "events",
            "datasource": DATA_SOURCE,
            "rawQuery": True,
            "fromAnnotations": True,
            "query": self._text,
            "titleColumn": "llm_event.title",
            "textColumn": "llm_event.text",
            "tagsColumn": "llm_event.kind",
        }
        if self._has_end:
            payload["timeEndColumn"] = "llm_event.end_ms"
        return payload


def _choice(name: str, label: str, description: str, query: str) -> Any:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(DATA_SOURCE)
        .query(query)
        .definition(query)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def _run_variable(time: str) -> Any:
    """Run ids begin with the time of their start, so the newest comes first and is chosen without a click."""
    return _choice(
        "run",
        "Run",
        "The run to look at; the newest in the time range comes first.",
        queries.tag_values(FLEET.name, "run", of_run=False, time=time),
    ).sort(model.VariableSort.ALPHABETICAL_DESC)


def _several(name: str, label: str, description: str, measurement: str) -> Any:
    return (
        _choice(name, label, description, queries.tag_values(measurement, name, of_run=True))
        .sort(model.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(model.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def _annotation(name: str, color: str, text: str, *, has_end: bool) -> Any:
    return (
        dashboard.AnnotationQuery()
        .name(name)
        .datasource(DATA_SOURCE)
        .enable(True)
        .icon_color(color)
        .target(InfluxAnnotation(text, has_end=has_end))
    )


def other_run() -> Builder[model.VariableModel]:
    """The run that the first one is compared with, whenever it was; the oldest is chosen without a click."""
    chosen: Builder[model.VariableModel] = _choice(
        "other",
        "Run B",
        "The run it is compared with, of the last 90 days.",
        queries.tag_values(FLEET.name, "run", of_run=False, time=queries.PAST),
    ).sort(model.VariableSort.ALPHABETICAL_ASC)
    return chosen


def typed(name: str, label: str, description: str, value: str) -> Builder[model.VariableModel]:
    """A text that is typed in, or put in by a link."""
    return dashboard.TextBoxVariable(name).label(label).description(description).default_value(value)


def one_of(name: str, label: str, description: str, values: Sequence[str], chosen: str) -> Builder[model.VariableModel]:
    """One of a few values."""
    options = [model.VariableOption(selected=value == chosen, text=value, value=value) for value in values]
    return (
        dashboard.CustomVariable(name)
        .label(label)
        .description(description)
        .values(",".join(values))
        .options(options)
        .current(model.VariableOption(selected=True, text=chosen, value=chosen))
    )


def board(
    *,
    uid: str,
    title: str,
    description: str,
    sections: Sequence[Section],
    more_variables: Sequence[Builder[model.VariableModel]] = (),
    run_of_any_time: bool = False,
    refresh: str = "5s",
) -> model.Dashboard:
    """A whole board: variables, events, links to its sisters, and the panels.

    `run_of_any_time` offers runs of the last 90 days, whatever time range is chosen. `refresh` is empty for a board
    that reads every token of its time range: it is asked when somebody asks.
    """
    built = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([BOARD_TAG, "llm", "load-test"])
        .timezone("browser")
        .editable()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-15m", "now")
        .refresh(refresh)
        .timepicker(dashboard.TimePicker().refresh_intervals(["5s", "10s", "30s", "1m", "5m"]))
        .with_variable(
            dashboard.DatasourceVariable("ds")
            .label("Data source")
            .description("An InfluxDB data source in InfluxQL mode.")
            .type("influxdb")
        )
        .with_variable(_run_variable(queries.PAST if run_of_any_time else queries.TIME))
        .with_variable(_several("class", "Class", "Traffic classes of the mix.", WINDOW.name))
        .with_variable(_several("stage", "Stage", "Load stages of the run.", WINDOW.name))
        .with_variable(
            _several(
                "target",
                "Target",
                "Endpoints of the run, for requests and servers; the fleet's seconds are of all of them.",
                REQUEST.name,
            )
        )
        .with_variable(_several("worker", "Worker", "Load-generator processes.", WORKER.name))
    )
    for variable in more_variables:
        built.with_variable(variable)
    built.annotation(_annotation("Stages", "blue", queries.STAGE_EVENTS, has_end=True))
    built.annotation(_annotation("Cliffs", "red", queries.CLIFF_EVENTS, has_end=False))
    built.annotation(_annotation("Events", "orange", queries.OTHER_EVENTS, has_end=False))
    built.link(
        dashboard.DashboardLink("tokswarm boards")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags([BOARD_TAG])
        .icon("external link")
        .tooltip("The other boards, with the same time and choices")
        .as_dropdown(False)
        .include_vars(True)
        .keep_time(True)
        .target_blank(False)
    )
    panel_id = 0
    for heading, panels in sections:
        if heading is not None:
            panel_id += 1
            built.with_row(dashboard.Row(heading).id(panel_id))
        for panel in panels:
            panel_id += 1
            built.with_panel(panel.id(panel_id))  # type: ignore[attr-defined]
    result = built.build()
    # The schema of our choice: Grafana 11 to 13 take 41 as it is, and lift it where they need to.
    result.schema_version = 41
    return result
