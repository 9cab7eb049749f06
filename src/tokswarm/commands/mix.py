"""`tokswarm mix`: check a mix, draw it, describe its form to editors, and fit one to recorded traffic."""

import os
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from tokswarm.commands.run import mix_path
from tokswarm.errors import ConfigError
from tokswarm.traffic.beside import find_beside
from tokswarm.traffic.fit import FittedMix, fit_mix
from tokswarm.traffic.gateway_log import GatewayColumns, read_gateway_log
from tokswarm.traffic.mix import Mix, Stage, Target, TraceSource
from tokswarm.traffic.mix_schema import mix_schema
from tokswarm.traffic.mixfile import check_mix, load_mix, mix_to_yaml
from tokswarm.traffic.planning import plan_stages, read_source
from tokswarm.traffic.preview import ClassPreview, StagePreview, class_previews, stage_previews
from tokswarm.traffic.rates import Rates
from tokswarm.traffic.routing import places_line
from tokswarm.traffic.trace import BLOCK_TOKENS, TraceRow
from tokswarm.traffic.units import Duration, Rate

BARS = " ▁▂▃▄▅▆▇█"
BARS_WIDE = 24
PERCENTILES = (0.1, 0.5, 0.99)
_RIGHT_OF_LENGTHS = ("p10", "p50", "p99", "mean", "shared")
_RIGHT_OF_STAGES = ("requests", "prompt tokens", "output tokens", "shared")
_BASE_URL = "http://127.0.0.1:8000/v1"
_MILLION = 1_000_000


@click.group()
def mix() -> None:
    """Look at traffic mixes."""


@mix.command("check", epilog="\b\nExamples:\n  tokswarm mix check my-mix.yaml\n  tokswarm mix check demo")
@click.argument("name")
def mix_check(name: str) -> int:
    """Check a mix (a file, or the name of one that ships) and list its stages."""
    path = mix_path(name)
    loaded = load_mix(path, os.environ)
    stages = plan_stages(loaded, path.parent)
    against = places_line(loaded.all_targets)
    click.echo(f"{path}: {loaded.name}, {len(loaded.classes)} classes, {len(stages)} stages against {against}")
    for stage in stages:
        warm = ", warm-up" if stage.warmup else ""
        each = "" if stage.search is None else f"at most {stage.search.most_probes} loads of "
        click.echo(f"  {stage.name}: {each}{stage.duration_s:g} s, drain up to {stage.drain_s:g} s{warm}")
    return 0


# --- show -----------------------------------------------------------------------------------------


@mix.command(
    "show",
    epilog="\b\nExamples:\n  tokswarm mix show demo\n"
    "  tokswarm mix show open-loop --input-price 0.15 --output-price 0.6",
)
@click.argument("name")
@click.option("--input-price", type=click.FloatRange(min=0), help="USD for a million prompt tokens.")
@click.option("--output-price", type=click.FloatRange(min=0), help="USD for a million output tokens.")
def mix_show(name: str, *, input_price: float | None, output_price: float | None) -> int:
    """Draw what a mix sends: lengths, arrivals over time, expected tokens, cost and shared prefixes."""
    path = mix_path(name)
    loaded = load_mix(path, os.environ)
    stages = stage_previews(loaded, plan_stages(loaded, path.parent))
    price = loaded.budget.price if loaded.budget is not None else None
    if price is not None:
        input_price = price.input.usd_per_million if input_price is None else input_price
        output_price = price.output.usd_per_million if output_price is None else output_price
    console = Console()
    console.print(_class_table(loaded))
    console.print()
    console.print(_stage_table(stages, input_price, output_price))
    if any(one.arrivals for one in stages):
        console.print()
        console.print(_arrivals_table(stages))
    return 0


def _class_table(loaded: Mix) -> Table:
    table = _table("Lengths in tokens", "class", "of", *_RIGHT_OF_LENGTHS, "from smallest to largest")
    for one, written in zip(class_previews(loaded), loaded.classes, strict=True):
        text = written.prompt.text if written.prompt.rows is None else "mixed"
        prompt = "prompt" if text == "mixed" else f"{text} prompt"
        for what, drawn in (("prompt", one.prompt_tokens), ("max_tokens", one.max_tokens)):
            table.add_row(
                one.name if what == "prompt" else "",
                prompt if what == "prompt" else what,
                *(f"{drawn[int(q * len(drawn))]:,}" for q in PERCENTILES),
                f"{sum(drawn) / len(drawn):,.0f}",
                _shared(one) if what == "prompt" else "",
                bars(histogram(drawn, BARS_WIDE)),
            )
    return table


def _shared(one: ClassPreview) -> str:
    return f"{one.shared_ratio:.0%}" + (f", {one.churn} new" if one.churn else "")


def _stage_table(stages: Sequence[StagePreview], input_price: float | None, output_price: float | None) -> Table:
    priced = input_price is not None or output_price is not None
    table = _table("Stages", "stage", "load", "time", *_RIGHT_OF_STAGES, *(["USD at most"] if priced else []))
    for one in stages:
        prompt, output = one.prompt_tokens, one.max_tokens
        row = [
            one.name,
            one.load,
            f"{one.duration_s:g} s",
            "–" if one.requests is None else f"{one.requests:,}",
            f"{one.prompt_tokens_mean:,.0f} each" if prompt is None else f"{prompt:,.0f}",
            f"≤ {one.max_tokens_mean:,.0f} each" if output is None else f"≤ {output:,.0f}",
            f"{one.shared_ratio:.0%}",
        ]
        if priced:
            cost = (one.prompt_tokens_mean * (input_price or 0) + one.max_tokens_mean * (output_price or 0)) / _MILLION
            row.append(f"{cost * 1000:,.4f} per 1,000" if one.requests is None else f"{cost * one.requests:,.4f}")
        table.add_row(*row)
    return table


def _arrivals_table(stages: Sequence[StagePreview]) -> Table:
    table = _table("Requests over time", "stage", "over its time", "most/s")
    for one in stages:
        if one.arrivals:
            most = max(one.arrivals) * len(one.arrivals) / one.duration_s
            table.add_row(one.name, bars(one.arrivals), f"{most:.4g}")
    return table


def _table(title: str, *heads: str) -> Table:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for head in heads:
        right = head in {*_RIGHT_OF_LENGTHS, *_RIGHT_OF_STAGES, "most/s", "KS distance", "USD at most"}
        table.add_column(head, justify="right" if right else "left")
    return table


def histogram(values: Sequence[int], most: int) -> list[int]:
    """Counts of ascending values in equal parts of their range, at most one part for each whole number."""
    low, high = values[0], values[-1]
    parts = min(most, high - low + 1)
    counts = [0] * parts
    for value in values:
        counts[(value - low) * parts // (high - low + 1)] += 1
    return counts


def bars(counts: Sequence[int]) -> str:
    """A line of bars; what is not empty is seen."""
    most = max(counts, default=0)
    return "".join(BARS[-(-count * (len(BARS) - 1) // most)] if count else BARS[0] for count in counts)


# --- schema ---------------------------------------------------------------------------------------


@mix.command("schema", epilog="\b\nExamples:\n  tokswarm mix schema > mix.schema.json")
def schema() -> int:
    """Print the JSON Schema of mixes, for editors."""
    click.echo(msgspec.json.format(msgspec.json.encode(mix_schema()), indent=2).decode())
    return 0


# --- from-trace -----------------------------------------------------------------------------------


@mix.command(
    "from-trace",
    epilog="\b\nExamples:\n  tokswarm mix from-trace mooncake_conversation.jsonl > my-mix.yaml\n"
    "  tokswarm mix from-trace gateway.csv --time at --prompt tokens_in --output tokens_out --class route",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", default="fitted", show_default=True, help="Name of the mix.")
@click.option(
    "--classes",
    type=click.IntRange(1, 12),
    default=1,
    show_default=True,
    help="Classes to tell apart by their lengths.",
)
@click.option("--time", "time_column", help="CSV: column of the time (seconds, or date and time).")
@click.option("--prompt", "prompt_column", help="CSV: column of the prompt tokens.")
@click.option("--output", "output_column", help="CSV: column of the output tokens.")
@click.option("--class", "class_column", help="CSV: column of the class, instead of --classes.")
def from_trace(
    file: Path,
    *,
    name: str,
    classes: int,
    time_column: str | None,
    prompt_column: str | None,
    output_column: str | None,
    class_column: str | None,
) -> int:
    """Fit a mix to a trace, or to a CSV of a gateway's log; the mix to stdout, how well it fits to stderr."""
    named = (time_column, prompt_column, output_column)
    block_tokens = BLOCK_TOKENS
    class_names: list[str] | None = None
    rows: list[TraceRow]
    if time_column is not None and prompt_column is not None and output_column is not None:
        log = read_gateway_log(file, GatewayColumns(time_column, prompt_column, output_column, class_column))
        rows, class_names = log.rows, log.class_names
    elif any(column is not None for column in (*named, class_column)):
        raise click.UsageError("a CSV of a log needs --time, --prompt and --output")
    else:
        trace = read_source(_trace_path(file), TraceSource(file=file.name), seed=1)
        rows, block_tokens = trace.rows, trace.block_tokens
    if len(rows) < 2 or rows[-1].offset_ns == rows[0].offset_ns:
        raise ConfigError(f"{file}: too few requests, or all at one time: there is nothing to fit")
    fitted = fit_mix(rows, class_names=class_names, classes=classes, block_tokens=block_tokens)
    made = _mix_of(name, file, fitted)
    check_mix(made, source=str(file))
    text = mix_to_yaml(made).replace(f"base_url: {_BASE_URL}", f"base_url: ${{OPENAI_BASE_URL:-{_BASE_URL}}}", 1)
    click.echo(text, nl=False)
    _say_fit(fitted, len(rows))
    return 0


def _trace_path(file: Path) -> Path:
    return file if file.exists() else find_beside(str(file), Path(), what="trace")


def _mix_of(name: str, file: Path, fitted: FittedMix) -> Mix:
    rate = Rate(float(f"{fitted.rate_per_s:.4g}"))
    return Mix(
        name=name,
        description=f"Fitted to {file.name}.",
        target=Target(base_url=_BASE_URL),
        classes=fitted.classes,
        load=[
            Stage(name="warm-up", concurrency=1, for_=Duration.parse("10s"), warmup=True),
            Stage(
                name="fitted",
                rate=Rates((rate,), is_sweep=False),
                arrivals=fitted.arrivals,
                for_=Duration(max(1, round(fitted.duration_s)) * 1_000_000_000),
            ),
        ],
    )


def _say_fit(fitted: FittedMix, requests: int) -> None:
    table = _table(f"How well {requests:,} requests are fitted", "what", "by", "KS distance")
    for fit in fitted.fits:
        table.add_row(fit.what, fit.kind, f"{fit.distance:.3f}")
    console = Console(stderr=True)
    console.print(table)
    console.print(
        f"prompt tokens that a cache without limits would have: recorded {fitted.known_ratio:.1%}, "
        f"fitted {fitted.fitted_known_ratio:.1%}"
    )
