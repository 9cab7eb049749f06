"""The page of a run: its curves, its table and its verdict in one file that opens from disk, without a network."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from tokswarm.insight.bend import Bend
from tokswarm.insight.figures import counted, number, percent, spans
from tokswarm.insight.percentiles import Percentiles
from tokswarm.insight.stage import StageSummary, closed_curve
from tokswarm.insight.summary import Summary
from tokswarm.insight.table import (
    COMPARED_HEADS,
    TARGET_HEADS,
    comparison_rows,
    fallback_lines,
    stage_cells,
    target_rows,
)

MEASURED, IDEAL, TAIL, MARK = "#2f7ed8", "#9aa3ad", "#e4762b", "#c2185b"
GRID, WORDS = "rgba(128,128,128,0.22)", "#7b848f"
"""Grey words and a faint grid on no background: readable on the light and the dark page alike."""


class Sweep(NamedTuple):
    """Stages that differ in one number: the x axis of a row of charts."""

    key: str
    title: str
    axis: str
    points: list[tuple[float, StageSummary]]


def curve_page(summary: Summary) -> str:
    """The whole page as HTML."""
    sweeps = _sweeps(summary.stages)
    bend = summary.bend
    charts = "".join(_section(sweep, bend if sweep.key == "closed" else None) for sweep in sweeps)
    script = f"<script>{get_plotlyjs()}</script>" if sweeps else ""
    title = escape(f"{summary.mix['name']} on {summary.model}")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · tokswarm</title>
<style>{STYLE}</style>
{script}
</head>
<body>
<main>
<header>
<h1>{title}</h1>
<p class="quiet">{_origin(summary)}</p>
</header>
{_verdict(summary)}
<p class="bend">{escape(_capital(bend.line))}.</p>
{_tiles(summary)}
{charts}
<h2>Stages</h2>
{_table(summary)}
{_targets(summary)}
{_list("Missing from this run", summary.missing)}
{_list("Notes", summary.notes)}
<footer class="quiet">{_versions(summary)}</footer>
</main>
</body>
</html>
"""


def _sweeps(stages: list[StageSummary]) -> list[Sweep]:
    """The charts a run has points for; one point is a point all the same."""
    closed = [(float(point.concurrency), point.stage) for point in closed_curve(stages)]
    by_rate = sorted(
        ((s.rate_per_s, s) for s in stages if s.rate_per_s is not None and not s.warmup), key=lambda point: point[0]
    )
    candidates = [
        Sweep("closed", "Closed loop, by concurrency", "concurrency (requests in flight)", closed),
        Sweep("open", "Open loop, by rate", "offered rate (requests/s)", by_rate),
    ]
    return [sweep for sweep in candidates if sweep.points]


# --- charts -------------------------------------------------------------------------------------


def _section(sweep: Sweep, bend: Bend | None) -> str:
    ttft = _percentile_lines("TTFT", [(x, s.ttft_ms) for x, s in sweep.points])
    itl = _percentile_lines("ITL", [(x, s.itl_ms) for x, s in sweep.points])
    wait = _percentile_lines("queue wait", [(x, s.queue_wait_ms) for x, s in sweep.points])
    sources = {s.queue_wait_source for _, s in sweep.points if s.queue_wait_source is not None}
    wait_title = f"Queue wait, {' and '.join(sorted(sources))} (ms)" if sources else "Queue wait (ms)"
    charts = [
        ("throughput", "Output tokens per second (tok/s)", _throughput(sweep, bend), True),
        (
            "per-stream",
            "Output tokens per second and stream (tok/s)",
            [_line("per stream", _per_stream(sweep), MEASURED)],
            False,
        ),
        ("ttft", "Time to first token, TTFT (ms)", ttft, False),
        ("itl", "Gap between tokens, ITL (ms)", itl, False),
        ("queue-wait", wait_title, wait, False),
    ]
    drawn = "".join(_chart(sweep, *chart[:3], wide=chart[3]) for chart in charts)
    return f'<h2>{sweep.title}</h2><section class="charts">{drawn}</section>'


def _throughput(sweep: Sweep, bend: Bend | None) -> list[go.Scatter]:
    lines = [_line("measured", [(x, s.output_tok_per_s) for x, s in sweep.points], MEASURED)]
    first_x, first = sweep.points[0]
    if bend is not None and first.output_tok_per_s is not None:
        ideal = [(x, first.output_tok_per_s * x / first_x) for x, _ in sweep.points]
        lines.insert(0, _line("linear scaling", ideal, IDEAL, dash="dash"))
    if bend is not None and bend.found and bend.knee is not None:
        lines.append(
            go.Scatter(
                x=[bend.knee.concurrency],
                y=[bend.knee.output_tok_per_s],
                mode="markers",
                name="bend",
                marker={"size": 15, "color": MARK, "symbol": "circle-open", "line": {"width": 3}},
            )
        )
    return lines


def _per_stream(sweep: Sweep) -> list[tuple[float, float | None]]:
    return [(x, stage.tok_per_s_per_stream) for x, stage in sweep.points]


def _percentile_lines(name: str, points: list[tuple[float, Percentiles | None]]) -> list[go.Scatter]:
    known = [(x, values) for x, values in points if values is not None]
    if not known:
        return []
    return [
        _line(f"{name} p99", [(x, values.p99) for x, values in known], TAIL),
        _line(f"{name} p50", [(x, values.p50) for x, values in known], MEASURED),
    ]


def _line(name: str, points: list[tuple[float, Any]], color: str, *, dash: str | None = None) -> go.Scatter:
    return go.Scatter(
        x=[x for x, _ in points],
        y=[y for _, y in points],
        name=name,
        mode="lines" if dash else "lines+markers",
        line={"color": color, "width": 2.5, "dash": dash},
        marker={"size": 7},
        hovertemplate=f"{name}: %{{y:,.4~g}}<extra></extra>",
    )


def _chart(sweep: Sweep, key: str, title: str, lines: list[go.Scatter], *, wide: bool) -> str:
    shape = "chart wide" if wide else "chart"
    if not any(y is not None for line in lines for y in line.y):
        return f'<figure class="{shape}"><figcaption>{title}</figcaption><p class="quiet">nothing measured</p></figure>'
    xs = [x for x, _ in sweep.points]
    figure = go.Figure(lines)
    figure.update_layout(
        margin={"l": 62, "r": 14, "t": 8, "b": 48},
        height=420 if wide else 300,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": WORDS, "family": "system-ui, sans-serif", "size": 12},
        hovermode="x unified",
        hoverlabel={"bgcolor": "#20262e", "font": {"color": "#ffffff"}},
        showlegend=len(lines) > 1,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
    )
    figure.update_xaxes(
        title=sweep.axis,
        type="log",
        tickvals=xs,
        ticktext=[f"{x:g}" for x in xs],
        gridcolor=GRID,
        linecolor=GRID,
        zeroline=False,
    )
    figure.update_yaxes(gridcolor=GRID, linecolor=GRID, zerolinecolor=GRID, separatethousands=True, rangemode="tozero")
    if wide and sweep.key == "closed":
        # Log against log makes linear scaling a straight line, so that a bend is seen at any scale.
        ticks = _round_numbers([y for line in lines for y in line.y if y])
        figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:,g}" for tick in ticks])
    config = {"displayModeBar": False, "responsive": True}
    plot = figure.to_html(full_html=False, include_plotlyjs=False, div_id=f"{sweep.key}-{key}", config=config)
    return f'<figure class="{shape}"><figcaption>{escape(title)}</figcaption>{plot}</figure>'


def _round_numbers(values: list[float]) -> list[float]:
    """1, 2 and 5 times each power of ten around the values: ticks of a logarithmic axis."""
    if not values:
        return []
    powers = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    return [step * 10.0**power for power in powers for step in (1, 2, 5)]


# --- words and numbers --------------------------------------------------------------------------


def _origin(summary: Summary) -> str:
    started = datetime.fromtimestamp(summary.started_unix_ns // 1_000_000_000, UTC)
    length_s = (summary.ended_unix_ns - summary.started_unix_ns) / 1e9
    workers = counted(len(summary.workers), "worker")
    parts = [summary.run_id, summary.base_url, f"{started:%Y-%m-%d %H:%M:%S} UTC", f"{number(length_s)} s", workers]
    return escape(" · ".join(parts))


def _verdict(summary: Summary) -> str:
    verdict = summary.verdict
    reasons = "".join(
        f"<li><b>{reason.state.value}</b> {escape(reason.text)}"
        + (f' <span class="quiet">[{spans(reason.seconds, summary.started_unix_ns)}]</span>' if reason.seconds else "")
        + "</li>"
        for reason in verdict.reasons
    )
    said = {
        "valid": "The generator kept up and nothing was lost.",
        "suspect": "Read these numbers with what follows in mind.",
        "invalid": "These numbers do not measure the endpoint.",
    }[verdict.state.value]
    listed = f"<ul>{reasons}</ul>" if reasons else ""
    return f'<div class="verdict {verdict.state.value}"><b>{_capital(verdict.state.value)}.</b> {said}{listed}</div>'


def _tiles(summary: Summary) -> str:
    peak = summary.bend.peak
    best = max((s.output_tok_per_s or 0.0 for s in summary.stages if not s.warmup), default=None)
    requests = summary.totals.requests
    total = sum(requests.values())
    failed = (total - requests.get("ok", 0)) / total if total else None
    tiles = [
        (
            "peak",
            f"{number(best)} tok/s"
            + (f" <small>at concurrency {peak.concurrency}</small>" if peak is not None else ""),
        ),
        ("requests", f"{total:,}"),
        ("failed", percent(failed)),
        ("output tokens", f"{summary.totals.output_tokens:,}"),
    ]
    inner = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles)
    return f'<dl class="tiles">{inner}</dl>'


def _table(summary: Summary) -> str:
    heads = (
        "stage",
        "load",
        "tok/s",
        "of linear",
        "tok/s per stream",
        "TTFT p50 / p99, ms",
        "ITL p50 / p99, ms",
        "queue wait p50 / p99, ms",
        "cache hits",
        "failed",
    )
    rows = "".join(
        f"<tr{' class=warmup' if stage.warmup else ''}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in (stage.name, *stage_cells(stage)))
        + "</tr>"
        for stage in summary.stages
    )
    if not rows:
        return '<p class="quiet">No stage began.</p>'
    notes = []
    if any(stage.queue_wait_source == "estimated" for stage in summary.stages):
        notes.append("* estimated: TTFT beyond that of an unloaded server for the same prompt length.")
    if any(stage.warmup for stage in summary.stages):
        notes.append("Grey rows are warm-up and in no result.")
    head = "".join(f"<th>{name}</th>" for name in heads)
    note = f'<p class="quiet">{" ".join(notes)}</p>' if notes else ""
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}'


def _targets(summary: Summary) -> str:
    """Target by target, where the mix has several; who answered in another's place, where that is known."""
    measured = [stage for stage in summary.stages if not stage.warmup]
    parts = _rows_table("Targets", TARGET_HEADS, [row for stage in measured for row in target_rows(stage)])
    parts += _rows_table("Compared", COMPARED_HEADS, [row for stage in measured for row in comparison_rows(stage)])
    return parts + _list("Fallbacks", fallback_lines(measured))


def _rows_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{_lines(cell)}</td>' for cell in row)}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<h2>{title}</h2><div class="scroll">{table}</div>'


def _lines(text: str) -> str:
    return "<br>".join(map(escape, text.splitlines()))


def _list(title: str, items: list[str]) -> str:
    inner = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<h2>{title}</h2><ul>{inner}</ul>" if items else ""


def _versions(summary: Summary) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in summary.versions.items())
    return escape(f"seed {summary.seed} · {versions}" if versions else f"seed {summary.seed}")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1d232b; --quiet: #67707b; --line: #e1e5ea; }
@media (prefers-color-scheme: dark) {
  :root { --page: #12161b; --card: #1b2128; --ink: #e8ebef; --quiet: #97a1ac; --line: #2c343d; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 28px 0 6px; }
.quiet { color: var(--quiet); font-size: 13px; overflow-wrap: anywhere; }
header p { margin: 4px 0 18px; }
.verdict { border-left: 6px solid; border-radius: 6px; padding: 10px 16px; background: var(--card); }
.verdict ul { margin: 6px 0 0; padding-left: 20px; }
.valid { border-color: #2e9e5b; }
.suspect { border-color: #d99a1c; }
.invalid { border-color: #cf3b3b; }
.bend { font-size: 18px; font-weight: 600; margin: 20px 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 14px; margin: 0 0 16px; }
.tiles > div, .chart { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px; }
dt { color: var(--quiet); font-size: 13px; }
dd small { display: block; font-weight: 400; font-size: 13px; color: var(--quiet); }
dd { margin: 0; font-size: 21px; font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 14px; margin-bottom: 16px; }
.chart { margin: 0; }
.chart.wide { grid-column: 1 / -1; }
figcaption { font-weight: 600; margin-bottom: 4px; }
@media (max-width: 760px) { .charts { grid-template-columns: minmax(0, 1fr); } }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 7px 12px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 600; font-size: 13px; white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
tr:last-child td { border-bottom: 0; }
.warmup td { color: var(--quiet); }
footer { margin-top: 32px; }
"""
