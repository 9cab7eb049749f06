"""Draw each board once with data of our own runs, as docs/boards.md shows them: `make board-pictures`.

Runs three loads against the simulated endpoint into a real influxd (Debian's), asks every query of every board as
Grafana would, draws the answers with plotly in the board's own layout, and takes a picture with Chromium. The look is
ours; layout, queries, series, units, thresholds and marks are the boards'. Takes about five minutes.
"""

import argparse
import html
import sys
import tempfile
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from small_png import small_png

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

from board_queries import BOARDS, choices_of  # noqa: E402 - our tests know how Grafana fills queries in
from databases import influxd  # noqa: E402
from endpoints import simulator  # noqa: E402
from grafana_macros import Choice, TimeRange, fill_in, interval_s, parse_interval_s, targets  # noqa: E402
from product import RunFolder, tokswarm  # noqa: E402

CHROMIUM = "/usr/bin/chromium"
WIDTH_PX = 1320
COLUMNS, ROW_PX, GAP_PX, TITLE_PX = 24, 34, 6, 22
POINTS = 400
COLORS = ("#3274d9", "#e0a800", "#299c46", "#b877d9", "#e0752d", "#1aa5b8", "#c4162a", "#6e7076", "#8f3bb8", "#56a64b")
SHADES = {"green": "#1a7f37", "orange": "#c2620a", "red": "#c4162a", "blue": "#1f60c4"}
LARGEST_BYTES = 150 * 1024

Ask = Callable[[str], list[dict[str, Any]]]


class Shown(NamedTuple):
    """What a board is drawn with."""

    ask: Ask
    chosen: Mapping[str, Choice]
    span: TimeRange
    marks: list[dict[str, Any]]
    """Shapes for stages and events."""

    def answer(self, panel: Mapping[str, Any], target: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The series of one query."""
        step = interval_s(self.span, max_data_points=POINTS, minimum_s=parse_interval_s(panel["interval"]))
        return self.ask(fill_in(target["query"], self.chosen, self.span, step))


# --- values ---------------------------------------------------------------------------------------


def said(value: Any, unit: str) -> str:
    """A value as people read it."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    match unit:
        case "percentunit":
            return f"{100 * value:.3g} %"
        case "ms":
            return f"{value / 1000:.3g} s" if abs(value) >= 1000 else f"{value:.3g} ms"
        case "µs" if value >= 1000:
            return f"{value / 1000:.3g} ms"
        case "bytes":
            return f"{value / 2**20:.3g} MiB" if value >= 2**20 else f"{value / 2**10:.3g} KiB"
        case "none":
            return str(value)
    text = (
        f"{value / 1e6:.3g}M" if abs(value) >= 1e6 else f"{value / 1e3:.4g}k" if abs(value) >= 1e4 else f"{value:.4g}"
    )
    suffix = {"reqps": " req/s", "cps": " /s", "µs": " µs", "s": " s"}.get(unit, unit.removeprefix("suffix:"))
    return text if unit == "short" else f"{text}{suffix}"


def overridden(panel: Mapping[str, Any], name: str, key: str, default: Any) -> Any:
    """A property of one series or column, from the panel's overrides."""
    for override in panel["fieldConfig"]["overrides"]:
        matcher = override["matcher"]
        is_ours = matcher["options"] == name if matcher["id"] == "byName" else name.endswith("limit")
        if is_ours:
            for each in override["properties"]:
                if each["id"] == key:
                    return each["value"]
    return default


def unit_of(panel: Mapping[str, Any], name: str) -> str:
    return str(overridden(panel, name, "unit", panel["fieldConfig"]["defaults"]["unit"]))


def named(target: Mapping[str, Any], tags: Mapping[str, str], column: str) -> str:
    """A series as its alias calls it."""
    name = str(target.get("alias") or "$col").replace("$col", column)
    for tag, value in tags.items():
        name = name.replace(f"$tag_{tag}", value)
    return name


# --- panels ---------------------------------------------------------------------------------------


def figure(panel: Mapping[str, Any], height: int) -> go.Figure:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    made = go.Figure()
    made.update_layout(
        template="none",
        height=height,
        margin={"l": 52, "r": 12, "t": 4, "b": 44},
        font={"size": 10, "family": "DejaVu Sans, sans-serif", "color": "#333"},
        legend={"orientation": "h", "y": 0, "yref": "container", "yanchor": "bottom", "x": 0, "font": {"size": 9}},
        barmode="stack",
        bargap=0,
        paper_bgcolor="#fff",
        plot_bgcolor="#fff",
    )
    grid = {"gridcolor": "#eee", "zerolinecolor": "#ddd", "linecolor": "#ddd", "nticks": 6}
    made.update_xaxes(**grid)
    made.update_yaxes(**grid, rangemode="tozero", **_ticks(unit))
    return made


def _ticks(unit: str) -> dict[str, Any]:
    match unit:
        case "percentunit":
            return {"tickformat": ".0%"}
        case "ms":
            return {"ticksuffix": " ms", "tickformat": ".4~r"}
        case "bytes" | "short" | "reqps" | "cps":
            return {"tickformat": ".4~s"}
    return {"tickformat": ".4~s", "ticksuffix": " s" if unit == "s" else ""}


def _times(span: TimeRange) -> dict[str, Any]:
    return {"type": "date", "range": [span.from_ms, span.to_ms], "tickformat": "%H:%M:%S"}


def draw_lines(panel: Mapping[str, Any], shown: Shown, height: int) -> str:
    made = figure(panel, height)
    custom = panel["fieldConfig"]["defaults"]["custom"]
    is_stacked = custom.get("stacking", {}).get("mode") == "normal"
    colors = iter(COLORS * 9)
    for target in targets(panel):
        for series in shown.answer(panel, target):
            for place, column in enumerate(series["columns"][1:], 1):
                name = named(target, series.get("tags", {}), column)
                points = [(row[0] / 1e6, row[place]) for row in series["values"]]
                if all(value is None for _, value in points):
                    continue
                x, y = zip(*points, strict=True)
                is_right = overridden(panel, name, "custom.axisPlacement", "") == "right"
                is_limit = name.endswith(" limit")
                if custom.get("drawStyle") == "bars":
                    made.add_bar(x=x, y=y, name=name, marker_color=next(colors))
                    continue
                made.add_scatter(
                    x=x,
                    y=y,
                    name=name,
                    mode="lines" if sum(value is not None for value in y) > 2 else "markers",
                    line={
                        "width": 1.8 if is_limit else 1.2,
                        "color": SHADES["red"] if is_limit else next(colors),
                        "dash": "dot" if is_limit else "dash" if is_right else "solid",
                    },
                    yaxis="y2" if is_right else "y",
                    stackgroup="one" if is_stacked and not is_right else None,
                    connectgaps=False,
                )
                if is_right:
                    axis = {"overlaying": "y", "side": "right", "rangemode": "tozero", "showgrid": False, "nticks": 6}
                    if not any(y):
                        axis["range"] = [0, 1]
                    made.update_layout(yaxis2={**axis, **_ticks(unit_of(panel, name))}, margin_r=48)
    if not any(value for trace in made.data for value in trace.y):
        made.update_yaxes(range=[0, 1])
    made.update_layout(shapes=shown.marks, margin_b=44 + 15 * ((len(made.data) - 1) // 3))
    made.update_xaxes(**_times(shown.span))
    return made.to_html(full_html=False, include_plotlyjs=False, config={"staticPlot": True}) if made.data else _empty()


def draw_plane(panel: Mapping[str, Any], shown: Shown, height: int) -> str:
    made = figure(panel, height)
    x_unit = "short"
    for target, series, color in zip(targets(panel), panel["options"]["series"], COLORS, strict=False):
        x_name, y_name = series["x"]["matcher"]["options"], series["y"]["matcher"]["options"]
        x_unit = unit_of(panel, x_name)
        rows = [
            dict(zip(one["columns"], row, strict=True)) for one in shown.answer(panel, target) for row in one["values"]
        ]
        rows = [row for row in rows if row.get(y_name) is not None]
        is_joined = panel["fieldConfig"]["defaults"]["custom"]["show"] == "lines"
        if rows:
            made.add_scatter(
                x=[row[x_name] for row in rows],
                y=[row[y_name] for row in rows],
                name=y_name,
                mode="lines" if is_joined else "markers",
                line={"width": 1.2, "color": color},
                marker={"size": 6, "color": color, "opacity": 0.7},
            )
            made.update_xaxes(title={"text": x_name, "font": {"size": 9}, "standoff": 4}, rangemode="tozero")
    made.update_xaxes(**_ticks(x_unit))
    made.update_layout(showlegend=True, margin_b=54)
    return made.to_html(full_html=False, include_plotlyjs=False, config={"staticPlot": True}) if made.data else _empty()


def draw_heat(panel: Mapping[str, Any], shown: Shown, height: int) -> str:
    [target] = targets(panel)
    found = shown.answer(panel, target)
    if not found:
        return _empty()
    [series] = found
    columns = series["columns"][1:]
    counts = [[row[place] or None for row in series["values"]] for place, _ in enumerate(columns, 1)]
    used = [place for place, row in enumerate(counts) if any(row)]
    kept = range(used[0], used[-1] + 1)
    made = figure(panel, height)
    made.add_heatmap(
        x=[row[0] / 1e6 for row in series["values"]],
        y=[f"≤ {columns[place]} ms" for place in kept],
        z=[counts[place] for place in kept],
        colorscale="Spectral",
        reversescale=True,
        showscale=False,
    )
    made.update_layout(margin_l=66)
    made.update_xaxes(**_times(shown.span))
    made.update_yaxes(tickformat="", ticksuffix="", type="category")
    return made.to_html(full_html=False, include_plotlyjs=False, config={"staticPlot": True})


def draw_number(panel: Mapping[str, Any], shown: Shown) -> str:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    parts = []
    for target in targets(panel):
        for series in shown.answer(panel, target):
            for place, column in enumerate(series["columns"][1:], 1):
                values = [row[place] for row in series["values"] if row[place] is not None]
                if values:
                    parts.append((named(target, series.get("tags", {}), column), values[-1]))
    if not parts:
        return f'<div class="number" style="color:#888">{panel["fieldConfig"]["defaults"].get("noValue", "")}</div>'
    kind = "number one-of-many" if len(parts) > 1 else "number"
    return (
        '<div class="numbers">'
        + "".join(
            f'<div class="{kind}" style="color:{_shade(panel, value)}">{html.escape(said(value, unit))}'
            + (f"<small>{html.escape(name)}</small>" if len(parts) > 1 else "")
            + "</div>"
            for name, value in parts
        )
        + "</div>"
    )


def _shade(panel: Mapping[str, Any], value: Any) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    for mapping in defaults.get("mappings", []):
        if value in mapping["options"]:
            return SHADES[mapping["options"][value]["color"]]
    steps = defaults.get("thresholds", {}).get("steps", [])
    if isinstance(value, str):
        return "#333"
    reached = [step for step in steps if step["value"] is None or value >= step["value"]]
    return SHADES.get(reached[-1]["color"], "#333") if reached else "#333"


def draw_table(panel: Mapping[str, Any], shown: Shown, height: int) -> str:
    rows: list[dict[str, Any]] = []
    for target in targets(panel):
        for series in shown.answer(panel, target):
            rows += [
                {**series.get("tags", {}), **{k: v for k, v in zip(series["columns"], row, strict=True) if k != "time"}}
                for row in series["values"]
            ]
    if not rows:
        return _empty()
    for sorting in panel["options"].get("sortBy", []):
        rows.sort(key=lambda row: row[sorting["displayName"]] or 0, reverse=sorting["desc"])
    rows = rows[: max((height - 24) // 20, 1)]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(said(v, unit_of(panel, k)))}</td>" for k, v in row.items()) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _empty() -> str:
    return '<div class="number" style="color:#aaa">no data</div>'


def draw(panel: Mapping[str, Any], shown: Shown) -> str:
    """One panel at its place."""
    box = panel["gridPos"]
    left = box["x"] * WIDTH_PX / COLUMNS
    width = box["w"] * WIDTH_PX / COLUMNS - GAP_PX
    at = f"left:{left:.0f}px;top:{box['y'] * ROW_PX}px;width:{width:.0f}px;height:{box['h'] * ROW_PX - GAP_PX}px"
    if panel["type"] == "row":
        return f'<div class="row" style="{at}">{html.escape(panel["title"])}</div>'
    height = box["h"] * ROW_PX - GAP_PX - TITLE_PX
    match panel["type"]:
        case "timeseries":
            inner = draw_lines(panel, shown, height)
        case "xychart":
            inner = draw_plane(panel, shown, height)
        case "heatmap":
            inner = draw_heat(panel, shown, height)
        case "table":
            inner = draw_table(panel, shown, height)
        case _:
            inner = draw_number(panel, shown)
    return f'<div class="panel" style="{at}"><h3>{html.escape(panel["title"])}</h3>{inner}</div>'


STYLE = """
body { margin: 0; background: #f4f5f5; font: 11px "DejaVu Sans", sans-serif; color: #333; }
#board { position: relative; margin: 6px; }
.panel { position: absolute; background: #fff; border: 1px solid #e3e4e6; border-radius: 2px; overflow: hidden; }
.row { position: absolute; font-weight: bold; padding-top: 8px; }
h3 { font-size: 11px; margin: 4px 8px 0; height: 18px; white-space: nowrap; overflow: hidden; }
.numbers { display: flex; justify-content: space-around; height: calc(100% - 26px); align-items: center; }
.number { font-size: 24px; font-weight: bold; text-align: center; }
.panel > .number { padding-top: 10%; font-size: 15px; }
.one-of-many { font-size: 16px; }
.number small { display: block; font-size: 10px; font-weight: normal; color: #666; }
table { border-collapse: collapse; width: 100%; font-size: 10px; }
th { text-align: left; color: #1f60c4; padding: 2px 8px; border-bottom: 1px solid #ddd; }
td { padding: 2px 8px; border-bottom: 1px solid #f0f0f0; white-space: nowrap; max-width: 420px; overflow: hidden; }
"""


def page(board: Mapping[str, Any], shown: Shown) -> tuple[str, int]:
    """The board as a page, and how high it is."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    panels = "".join(draw(panel, shown) for panel in board["panels"])
    text = (
        f"<!doctype html><meta charset=utf-8><style>{STYLE}</style><script>{get_plotlyjs()}</script>"
        f'<div id="board" style="height:{rows * ROW_PX}px">{panels}</div>'
    )
    return text, rows * ROW_PX + 12


def marks_of(board: Mapping[str, Any], ask: Ask, chosen: Mapping[str, Choice], span: TimeRange) -> list[dict[str, Any]]:
    """The board's annotations as shapes: stages as regions, the rest as lines in their colors."""
    shapes: list[dict[str, Any]] = []
    for annotation in board["annotations"]["list"]:
        for series in ask(fill_in(annotation["target"]["query"], chosen, span)):
            for row in series["values"]:
                event = dict(zip(series["columns"], row, strict=True))
                start = event["time"] / 1e6
                line = {"width": 1, "color": SHADES.get(annotation["iconColor"], "#888"), "dash": "dot"}
                shape = {"type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "x0": start, "x1": start}
                if "end_ms" in event:
                    fill = {"type": "rect", "x1": event["end_ms"], "fillcolor": SHADES["blue"], "opacity": 0.06}
                    shape = {**shape, **fill, "line": {"width": 0}}
                else:
                    shape["line"] = line if annotation["name"] == "Cliffs" else {**line, "color": "#dba86a"}
                shapes.append(shape)
    return shapes


# --- the runs -------------------------------------------------------------------------------------


class Recorded(NamedTuple):
    """The runs the pictures are of, by what they are called here."""

    runs: Mapping[str, RunFolder]

    def span(self, name: str) -> TimeRange:
        summary = self.runs[name].summary
        return TimeRange(summary["started_unix_ns"] // 1_000_000 - 2_000, summary["ended_unix_ns"] // 1_000_000 + 8_000)


LOADS = {"demo": ("demo", "demo"), "tight": ("demo", "tight"), "storm": ("eviction-storm", "eviction-storm")}
"""Name to the mix and the simulated server; `tight` has a smaller cache than `demo`."""

RUN_OF = {"cache-churn.json": "storm"}
"""The run each board is drawn with, where it is not the first."""


def loads_of(boards: Sequence[str]) -> set[str]:
    """The loads whose runs these boards are drawn with."""
    return {RUN_OF.get(name, "demo") for name in boards} | ({"tight"} if "compare.json" in boards else set())


def record(folder: Path, settings: Mapping[str, str], loads: Container[str]) -> Recorded:
    """Run these loads, one after the other."""
    runs = {}
    for name, (mix, profile) in LOADS.items():
        if name not in loads:
            continue
        with simulator(profile, model=None) as base_url:
            data_dir = folder / name
            end = tokswarm("run", mix, "--data-dir", data_dir, "--base-url", base_url, settings=settings)
            if end.code not in (0, 4):
                raise SystemExit(f"the run {name} ended with {end.code}: {end.err[-2000:]}")
            [run] = (data_dir / "runs").iterdir()
            runs[name] = RunFolder(run)
            print(f"{name}: {run.name}", file=sys.stderr)
    return Recorded(runs)


def shown_on(name: str, recorded: Recorded, ask: Ask) -> Shown:
    board = BOARDS[name]
    run = RUN_OF.get(name, "demo")
    span = recorded.span(run)
    chosen = {**choices_of(board, ask, span), "run": recorded.runs[run].run_id}
    if name == "compare.json":
        chosen["other"] = recorded.runs["tight"].run_id
    if name == "one-request.json":
        query = f"SELECT top(ttft_ms, 1), request, e2e_ms FROM llm_request WHERE run = '{chosen['run']}'"
        ended_ns, _, request, stay_ms = ask(query)[0]["values"][0]
        chosen["request"] = str(request)
        span = TimeRange(int(ended_ns / 1e6 - stay_ms) - 500, int(ended_ns / 1e6) + 500)
    return Shown(ask, chosen, span, marks_of(board, ask, chosen, span))


def take_pictures(recorded: Recorded, ask: Ask, out: Path, boards: Sequence[str]) -> None:
    """A PNG of each of these boards."""
    from playwright.sync_api import sync_playwright

    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in boards:
            text, height = page(BOARDS[name], shown_on(name, recorded, ask))
            view = browser.new_page(viewport={"width": WIDTH_PX + 12, "height": height})
            view.set_content(text)
            path = out / f"{name.removesuffix('.json')}.png"
            path.write_bytes(small_png(view, view.screenshot()))
            view.close()
            size = path.stat().st_size
            print(f"{path.name}: {size / 1024:.0f} KiB", file=sys.stderr)
            if size > LARGEST_BYTES:
                print(f"  larger than {LARGEST_BYTES // 1024} KiB", file=sys.stderr)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "boards", help="where the pictures go")
    parser.add_argument("boards", nargs="*", metavar="BOARD", help="such as latency; without any, all are drawn")
    arguments = parser.parse_args()
    boards = [f"{name}.json" for name in arguments.boards] or list(BOARDS)
    if unknown := sorted(set(boards) - set(BOARDS)):
        parser.error(f"no such boards: {', '.join(unknown)}; there are {', '.join(BOARDS)}")
    with tempfile.TemporaryDirectory(prefix="tokswarm-boards-") as folder, influxd() as database:
        recorded = record(Path(folder), database.environ(), loads_of(boards))
        take_pictures(recorded, database.query, arguments.out, boards)


if __name__ == "__main__":
    main()
