"""Panels in our house style, over grafana-foundation-sdk: one function for each kind, and the board around them.

The SDK is needed to build the boards, not to use them: nothing an installed tokswarm runs imports this.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, heatmap, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model

from tokswarm.grafana import queries
from tokswarm.grafana.queries import Query
from tokswarm.measure.schema import FLEET, WINDOW, WORKER

DATA_SOURCE = common_model.DataSourceRef(type_val="influxdb", uid="${ds}")
"""The board's variable: works in every way of importing, where `__inputs` works in one."""

TOK_PER_S = "suffix: tok/s"
REQ_PER_S = "reqps"
MS = "ms"
RATIO = "percentunit"
COUNT = "short"

BOARD_TAG = "tokswarm"

Thresholds = Sequence[tuple[float | None, str]]
AnyPanel = Builder[model.Panel]


class InfluxTarget(Dataquery, Builder[Dataquery]):
    """A raw InfluxQL query; the SDK has no type for it."""

    def __init__(self, query: Query, ref_id: str) -> None:
        self._query = query
        self._ref_id = ref_id

    def build(self) -> Dataquery:
        """The target itself: it has nothing left to set."""
        return self

    def to_json(self) -> dict[str, object]:
        """As Grafana keeps it."""
        payload: dict[str, object] = {
            "refId": self._ref_id,
            "datasource": DATA_SOURCE,
            "rawQuery": True,
            "query": self._query.text,
            "resultFormat": "table" if self._query.table else "time_series",
        }
        if not self._query.table:
            payload["alias"] = self._query.alias
        return payload


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


class Overlay(NamedTuple):
    """A series of a panel that has its own unit, and so the right axis."""

    name: str
    unit: str


def _with_targets(panel: Any, targets: Sequence[Query]) -> Any:
    for place, query in enumerate(targets):
        panel.with_target(InfluxTarget(query, chr(ord("A") + place)))
    return panel.datasource(DATA_SOURCE)


def _thresholds(steps: Thresholds) -> Builder[model.ThresholdsConfig]:
    return (
        dashboard.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value, color) for value, color in steps])
    )


def lines(
    title: str,
    unit: str,
    description: str,
    *targets: Query,
    width: int = 12,
    height: int = 8,
    stacked: bool = False,
    bars: bool = False,
    interval: str = "1s",
    right: Overlay | None = None,
) -> AnyPanel:
    """Lines over time. `interval` is the shortest step; it overrides the data source's, whose default is 10 s."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .span(width)
        .height(height)
        .interval(interval)
        .min(0)
        .draw_style(common_model.GraphDrawStyle.BARS if bars else common_model.GraphDrawStyle.LINE)
        .line_width(1)
        .fill_opacity(60 if bars else 25 if stacked else 8)
        .show_points(common_model.VisibilityMode.AUTO)
        .span_nulls(False)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(common_model.LegendDisplayMode.LIST)
            .placement(common_model.LegendPlacement.BOTTOM)
            .calcs([])
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_model.TooltipDisplayMode.MULTI)
            .sort(common_model.SortOrder.DESCENDING)
        )
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL).group("A"))
    if right is not None:
        panel.override_by_name(
            right.name,
            [
                model.DynamicConfigValue("unit", right.unit),
                model.DynamicConfigValue("custom.axisPlacement", "right"),
                model.DynamicConfigValue("custom.fillOpacity", 0),
                model.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}),
            ],
        )
    return _with_targets(panel, targets)  # type: ignore[no-any-return]


def number(
    title: str,
    unit: str,
    description: str,
    *targets: Query,
    width: int = 4,
    height: int = 4,
    decimals: int | None = None,
    thresholds: Thresholds = ((None, "blue"),),
    no_value: str = "no data",
    interval: str = "1s",
) -> AnyPanel:
    """The newest value of each series, large, with its course behind it."""
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .span(width)
        .height(height)
        .interval(interval)
        .no_value(no_value)
        .thresholds(_thresholds(thresholds))
        .color_mode(common_model.BigValueColorMode.VALUE)
        .graph_mode(common_model.BigValueGraphMode.AREA)
        .text_mode(common_model.BigValueTextMode.AUTO)
        .justify_mode(common_model.BigValueJustifyMode.AUTO)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False).fields(""))
    )
    if decimals is not None:
        panel.decimals(decimals)
    return _with_targets(panel, targets)  # type: ignore[no-any-return]


def heat(title: str, description: str, metric: str, *, width: int = 12, height: int = 8) -> AnyPanel:
    """Counts by time and coarse bucket, merged over workers; the buckets come from the database, none is guessed."""
    panel = (
        heatmap.Panel()
        .title(title)
        .description(description)
        .unit(COUNT)
        .span(width)
        .height(height)
        .interval("1s")
        .calculate(False)
        .rows_frame(heatmap.RowsHeatmapOptions().layout(common_model.HeatmapCellLayout.LE))
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_model.HeatmapColorMode.SCHEME)
            .scheme("Spectral")
            .reverse(True)
            .scale(heatmap_model.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
            .fill("dark-orange")
        )
        .y_axis(heatmap.YAxisConfig().axis_placement(common_model.AxisPlacement.LEFT).unit(MS))
        .cell_gap(1)
        .show_legend()
    )
    return _with_targets(panel, [queries.heatmap(metric)])  # type: ignore[no-any-return]


def rows(
    title: str,
    unit: str,
    description: str,
    target: Query,
    *,
    width: int = 12,
    height: int = 8,
    units: Mapping[str, str] | None = None,
    hide_time: bool = False,
) -> AnyPanel:
    """A table; `units` for the columns that are not in `unit`."""
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .span(width)
        .height(height)
        .interval("1s")
        .show_header(True)
    )
    for name, column_unit in (units or {}).items():
        panel.override_by_name(name, [model.DynamicConfigValue("unit", column_unit)])
    if hide_time:
        panel.with_transformation(
            model.DataTransformerConfig(
                id_val="organize", options={"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": {}}
            )
        )
    return _with_targets(panel, [target])  # type: ignore[no-any-return]


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


def _run_variable() -> Any:
    """Run ids begin with the time of their start, so the newest comes first and is chosen without a click."""
    return _choice(
        "run",
        "Run",
        "The run to look at; the newest in the time range comes first.",
        queries.tag_values(FLEET.name, "run", of_run=False),
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


def board(
    *, uid: str, title: str, description: str, sections: Sequence[tuple[str, Sequence[AnyPanel]]], with_worker: bool
) -> model.Dashboard:
    """A whole board: variables, events, links to its sisters, and the panels in rows."""
    built = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([BOARD_TAG, "llm", "load-test"])
        .timezone("browser")
        .editable()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-15m", "now")
        .refresh("5s")
        .timepicker(dashboard.TimePicker().refresh_intervals(["5s", "10s", "30s", "1m", "5m"]))
        .with_variable(
            dashboard.DatasourceVariable("ds")
            .label("Data source")
            .description("An InfluxDB data source in InfluxQL mode.")
            .type("influxdb")
        )
        .with_variable(_run_variable())
        .with_variable(_several("class", "Class", "Traffic classes of the mix.", WINDOW.name))
        .with_variable(_several("stage", "Stage", "Load stages of the run.", WINDOW.name))
    )
    if with_worker:
        built.with_variable(_several("worker", "Worker", "Load-generator processes.", WORKER.name))
    built.annotation(_annotation("Stages", "blue", queries.STAGE_EVENTS, has_end=True))
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
        panel_id += 1
        built.with_row(dashboard.Row(heading).id(panel_id))
        for panel in panels:
            panel_id += 1
            built.with_panel(panel.id(panel_id))  # type: ignore[attr-defined]
    result = built.build()
    # The schema of our choice: Grafana 11 to 13 take 41 as it is, and lift it where they need to.
    result.schema_version = 41
    return result
