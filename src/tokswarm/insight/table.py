"""The end of a run in a terminal: the curve as a table, where it bends, and whether to believe it."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tokswarm.insight.comparison import Ratio
from tokswarm.insight.fallbacks import Fallbacks, pooled
from tokswarm.insight.figures import ABSENT, number, percent, spans
from tokswarm.insight.measures import Measures
from tokswarm.insight.percentiles import Percentiles
from tokswarm.insight.stage import StageSummary
from tokswarm.insight.summary import Summary
from tokswarm.insight.verdict import State

STATE_STYLES = {State.VALID: "bold green", State.SUSPECT: "bold yellow", State.INVALID: "bold red"}

SERVERS_SHOWN = 8
"""Those with the most requests; a fleet of replicas would fill the screen."""

COMPARED = {
    "ttft_p50_ms": "TTFT\np50",
    "ttft_p99_ms": "TTFT\np99",
    "itl_p50_ms": "ITL\np50",
    "e2e_p50_ms": "E2E\np50",
    "output_tok_per_s": "tok/s",
    "ok_ratio": "ok",
}
"""Figures of a comparison with their heads; the others are in summary.json."""

COMPARED_HEADS = ("stage", "ratio, 95 %", *COMPARED.values())

TARGET_HEADS = (
    *("stage", "target", "requests", "failed", "tok/s"),
    *(f"{name} ms\np50 / p99" for name in ("TTFT", "ITL", "E2E")),
    "good",
)

REASONS_SHOWN = 6
"""More than fit on a screen beside the table; the rest is in summary.json."""


def end_table(summary: Summary) -> RenderableType:
    """What a run prints at its end, for `rich.console.Console.print`."""
    measured = [stage for stage in summary.stages if not stage.warmup]
    parts: list[RenderableType] = []
    if measured:
        parts.append(_stages(measured))
        parts += [Text(note, style="dim") for note in _footnotes(measured)]
        if len({name for stage in measured for name in stage.served_by}) > 1:
            parts.append(_servers(measured))
        if any(stage.targets for stage in measured):
            parts.append(_targets(measured))
        if any(stage.comparisons for stage in measured):
            parts.append(_comparisons(measured))
        parts += [Text(line, style="yellow") for line in fallback_lines(measured)]
    parts.append(Text(summary.bend.line, style="bold"))
    parts += [Text(search.line, style="bold") for search in summary.searches]
    if summary.cost is not None:
        parts.append(Text(summary.cost.line))
    if summary.stop_reason:
        parts.append(Text(f"ended early: {summary.stop_reason}", style="bold yellow"))
    parts += _verdict(summary)
    parts += [Text(f"missing: {item}", style="yellow") for item in summary.missing]
    return Group(*parts)


def _stages(stages: list[StageSummary]) -> Table:
    closed = all(stage.concurrency is not None for stage in stages)
    heads = [
        "concur-\nrency" if closed else "load",
        "tok/s",
        "of\nlinear",
        "tok/s per\nstream",
        "TTFT ms\np50 / p99",
        "ITL ms\np50 / p99",
        "queue wait ms\np50 / p99",
        "cache\nhits",
    ]
    if any(failed_ratio(stage) for stage in stages):
        heads.append("failed")
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    for head in heads:
        table.add_column(head, justify="right")
    for stage in stages:
        table.add_row(*(Text(cell) for cell in stage_cells(stage)[: len(heads)]))
    return table


def _servers(stages: list[StageSummary]) -> Table:
    """What each replica or provider served, stage by stage."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    for head in ("stage", "served by", "requests", "of all", "TTFT ms\np50", "cache\nhits"):
        table.add_column(head, justify="left" if head == "served by" else "right")
    for stage in stages:
        named = sum(share.requests for share in stage.served_by.values())
        for name, share in list(stage.served_by.items())[:SERVERS_SHOWN]:
            cells = (f"{share.requests:,}", percent(share.requests / named), number(share.ttft_p50_ms))
            table.add_row(*(Text(cell) for cell in (stage.name, name, *cells, percent(share.cached_ratio))))
    return table


def _targets(stages: list[StageSummary]) -> Table:
    """What each target gave, stage by stage."""
    return _plain_table(TARGET_HEADS, [cells for stage in stages for cells in target_rows(stage)])


def _comparisons(stages: list[StageSummary]) -> Table:
    """Each later target against the first, stage by stage."""
    return _plain_table(COMPARED_HEADS, [cells for stage in stages for cells in comparison_rows(stage)])


def _plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place == 1 else "right")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def target_rows(stage: StageSummary) -> list[tuple[str, ...]]:
    """Under `TARGET_HEADS`, also on the page."""
    return [
        (
            stage.name,
            name,
            f"{sum(target.requests.values()):,}",
            percent(failed_ratio(target)),
            number(target.output_tok_per_s),
            *(_p50_p99(values) for values in (target.ttft_ms, target.itl_ms, target.e2e_ms)),
            percent(None if target.goodput is None else target.goodput.ratio),
        )
        for name, target in stage.targets.items()
    ]


def comparison_rows(stage: StageSummary) -> list[tuple[str, ...]]:
    """Under `COMPARED_HEADS`, also on the page."""
    return [
        (stage.name, f"{each.other} / {each.first}", *(_ratio(each.ratio(figure)) for figure in COMPARED))
        for each in stage.comparisons
    ]


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return ABSENT
    return f"{ratio.ratio:.2f}" + ("" if ratio.low is None else f"\n{ratio.low:.2f} to {ratio.high:.2f}")


def fallback_lines(stages: list[StageSummary]) -> list[str]:
    """Whose answers came from elsewhere, over these stages; nothing where none did."""
    by_target: dict[str, list[Fallbacks | None]] = {}
    for stage in stages:
        for name, target in stage.targets.items():
            by_target.setdefault(name, []).append(target.fallbacks)
        if not stage.targets:
            by_target.setdefault("", []).append(stage.fallbacks)
    together = {name: pooled(parts) for name, parts in by_target.items()}
    return [each.line(name) for name, each in together.items() if each is not None and each.requests]


def stage_cells(stage: StageSummary) -> tuple[str, ...]:
    """One row of the table, also that of the page."""
    return (
        stage.label,
        number(stage.output_tok_per_s),
        percent(stage.linear_ratio),
        number(stage.tok_per_s_per_stream),
        _p50_p99(stage.ttft_ms),
        _p50_p99(stage.itl_ms),
        _p50_p99(stage.queue_wait_ms) + ("*" if stage.queue_wait_source == "estimated" else ""),
        percent(stage.cached_ratio),
        percent(failed_ratio(stage)),
    )


def failed_ratio(stage: Measures) -> float | None:
    """Share of its requests that did not end ok; None when it had none."""
    total = sum(stage.requests.values())
    return (total - stage.requests.get("ok", 0)) / total if total else None


def _p50_p99(values: Percentiles | None) -> str:
    return ABSENT if values is None else f"{number(values.p50)} / {number(values.p99)}"


def _footnotes(stages: list[StageSummary]) -> list[str]:
    notes = []
    if any(stage.queue_wait_source == "estimated" for stage in stages):
        notes.append("* estimated: TTFT beyond that of an unloaded server for the same prompt length")
    return notes


def _verdict(summary: Summary) -> list[RenderableType]:
    verdict = summary.verdict
    style = STATE_STYLES[verdict.state]
    lines: list[RenderableType] = [Text.assemble(("verdict: ", "bold"), (verdict.state.value, style))]
    for reason in verdict.reasons[:REASONS_SHOWN]:
        when = f" [{spans(reason.seconds, summary.started_unix_ns)}]" if reason.seconds else ""
        line = Text.assemble((f"{reason.state.value}: ", STATE_STYLES[reason.state]), reason.text, (when, "dim"))
        lines.append(Padding(line, (0, 0, 0, 2)))
    if len(verdict.reasons) > REASONS_SHOWN:
        lines.append(Padding(f"and {len(verdict.reasons) - REASONS_SHOWN} more in summary.json", (0, 0, 0, 2)))
    return lines
