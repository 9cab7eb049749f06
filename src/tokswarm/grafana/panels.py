"""Panels in our house style, over grafana-foundation-sdk: one function for each kind.

The SDK is needed to build the boards, not to use them: nothing an installed tokswarm runs imports this.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, heatmap, stat, table, timeseries, xychart
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models import xychart as xy_model

from tokswarm.grafana import queries
from tokswarm.grafana.queries import Query

DATA_SOURCE = common_model.DataSourceRef(type_val="influxdb", uid="${ds}")
"""The board's variable: works in every way of importing, where `__inputs` works in one."""

TOK_PER_S = "suffix: tok/s"
REQ_PER_S = "reqps"
MS = "ms"
RATIO = "percentunit"
COUNT = "short"
BYTES = "bytes"
SECONDS = "s"
WORDS = "none"

Thresholds = Sequence[tuple[float | None, str]]
AnyPanel = Builder[model.Panel]
_Value = TypeVar("_Value")


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


class Overlay(NamedTuple):
    """A series of a panel that has its own unit, and so the right axis."""

    name: str
    unit: str


class Link(NamedTuple):
    """What a click on a value of a column leads to."""

    column: str
    title: str
    url: str


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
    limits: bool = False,
) -> AnyPanel:
    """Lines over time. `interval` is the shortest step; it overrides the data source's, whose default is 10 s.

    With `limits`, series whose names end in `limit` are drawn as what must not be crossed.
    """
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
    if limits:
        panel.override_by_regexp(
            "/limit$/",
            [
                model.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": "red"}),
                model.DynamicConfigValue("custom.fillOpacity", 0),
                model.DynamicConfigValue("custom.lineWidth", 2),
                model.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [4, 4]}),
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


def word(
    title: str,
    description: str,
    target: Query,
    *,
    column: str,
    colors: Mapping[str, str],
    no_value: str,
    width: int = 4,
    height: int = 4,
) -> AnyPanel:
    """The newest text of a column, in the color that goes with it."""
    known = {
        text: model.ValueMappingResult(color=color, index=place) for place, (text, color) in enumerate(colors.items())
    }
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .unit(WORDS)
        .span(width)
        .height(height)
        .interval("1s")
        .no_value(no_value)
        .mappings([model.ValueMap(options=known)])
        .color_mode(common_model.BigValueColorMode.BACKGROUND)
        .graph_mode(common_model.BigValueGraphMode.NONE)
        .text_mode(common_model.BigValueTextMode.VALUE)
        .justify_mode(common_model.BigValueJustifyMode.AUTO)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False).fields(f"/^{column}$/"))
    )
    return _with_targets(panel, [target])  # type: ignore[no-any-return]


class Curve(NamedTuple):
    """One series of a plane: a column of one query over another column of it."""

    x: str
    y: str


def plane(
    title: str,
    x_unit: str,
    y_unit: str,
    description: str,
    curves: Sequence[tuple[Query, Curve]],
    *,
    joined: bool,
    width: int = 12,
    height: int = 8,
) -> AnyPanel:
    """Values over something else than time; each query's rows are a series, joined by lines or not."""
    panel = (
        xychart.Panel()
        .title(title)
        .description(description)
        .unit(y_unit)
        .span(width)
        .height(height)
        .interval("1s")
        .min(0)
        .mapping(xy_model.SeriesMapping.MANUAL)
        .series([_series(place, curve) for place, (_, curve) in enumerate(curves)])
        .show(xy_model.XYShowMode.LINES if joined else xy_model.XYShowMode.POINTS)
        .line_width(1)
        .point_size(_Built(xy_model.XychartFieldConfigPointSize(fixed=6)))
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(common_model.LegendDisplayMode.LIST)
            .placement(common_model.LegendPlacement.BOTTOM)
            .calcs([])
        )
        .tooltip(
            common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.SINGLE).sort(common_model.SortOrder.NONE)
        )
    )
    for name in dict.fromkeys(curve.x for _, curve in curves):
        panel.override_by_name(name, [model.DynamicConfigValue("unit", x_unit)])
    return _with_targets(panel, [query for query, _ in curves])  # type: ignore[no-any-return]


def _series(place: int, curve: Curve) -> Any:
    def named(name: str) -> xy_model.MatcherConfig:
        return xy_model.MatcherConfig("byName", name)

    return _Built(
        xy_model.XYSeriesConfig(
            frame=xy_model.XychartXYSeriesConfigFrame(xy_model.MatcherConfig("byIndex", place)),
            x=xy_model.XychartXYSeriesConfigX(named(curve.x)),
            y=xy_model.XychartXYSeriesConfigY(named(curve.y)),
        )
    )


class _Built(Builder[_Value]):
    """A value of the SDK where it asks for a builder."""

    def __init__(self, value: _Value) -> None:
        self._value = value

    def build(self) -> _Value:
        """The value itself."""
        return self._value


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
    link: Link | None = None,
    highest_first: str | None = None,
) -> AnyPanel:
    """A table; `units` for the columns that are not in `unit`, `highest_first` names the column it is sorted by."""
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
    if link is not None:
        to = {"title": link.title, "url": link.url, "targetBlank": False}
        panel.override_by_name(link.column, [model.DynamicConfigValue("links", [to])])
    if highest_first is not None:
        panel.sort_by([common.TableSortByFieldState().display_name(highest_first).desc(True)])
    if hide_time:
        panel.with_transformation(
            model.DataTransformerConfig(
                id_val="organize", options={"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": {}}
            )
        )
    return _with_targets(panel, [target])  # type: ignore[no-any-return]
