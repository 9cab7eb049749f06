"""`tokswarm predict`: a simulated server fitted to a run, and what it says of loads that were not measured."""

from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokswarm.commands.results import find_run
from tokswarm.commands.run import data_dir_option
from tokswarm.errors import ConfigError
from tokswarm.insight.figures import number
from tokswarm.predict.fit import Compared, Fit, alternate, compare, fit_profile, predict
from tokswarm.predict.measured import Figures, read_measured
from tokswarm.simulator.profile import Profile, load_profile


@click.command(
    "predict",
    epilog="""\b
Examples:
  tokswarm predict RUN --server my-server.yaml
  tokswarm predict RUN --server my-server.yaml --at 64 --at 128
  tokswarm predict RUN --server my-server.yaml --save fitted.yaml

\b
docs/simulator.md#fit-to-a-real-server says what the profile of --server must say, and how good a fit is.""",
)
@click.argument("run")
@data_dir_option
@click.option(
    "--server",
    "source",
    required=True,
    help="A preset, or a YAML file, with the server's known settings: batch, step and memory. Its step times are only "
    "where the search begins.",
)
@click.option(
    "--at", "concurrencies", type=click.IntRange(1, 100_000), multiple=True, help="Predict this concurrency as well."
)
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="Write the fitted profile here.")
@click.option("--json", "as_json", is_flag=True, help="Print profile and figures as JSON.")
def command(
    *, run: str, data_dir: Path, source: str, concurrencies: tuple[int, ...], save: Path | None, as_json: bool
) -> int:
    """Fit a simulated server to a RUN and predict what was not measured.

    Every other load of the RUN is fitted; the others are predicted and compared, so that you see how far to trust it.
    """
    measured = read_measured(find_run(run, data_dir))
    seen = alternate(measured)
    if len(seen) < STAGES_MIN:
        raise ConfigError(
            f"run {measured.run_id} has {len(measured.points)} loads, a fit needs {2 * STAGES_MIN - 1} or more",
            hint="run a sweep: `concurrency: [1, 2, 4, 8, 16, 32]`",
        )
    profile = fit_profile(measured, load_profile(source), seen=seen, name=f"fit-{measured.run_id}")
    fit = Fit(profile=profile, loads=compare(measured, profile, seen))
    further = predict(measured, profile, concurrencies)
    if save is not None:
        save.write_text(_yaml(profile), encoding="utf-8")
    if as_json:
        content = {"fit": fit, "predicted": [{"concurrency": each, "figures": figures} for each, figures in further]}
        click.echo(msgspec.json.format(msgspec.json.encode(content), indent=2).decode())
        return 0
    console = Console()
    console.width = max(console.width, WIDTH_MIN)
    console.print(_table(fit.loads, further))
    console.print(_verdict(fit))
    if save is None:
        click.echo(_yaml(profile), nl=False)
    return 0


STAGES_MIN = 2
"""Fewer do not tell what a step costs from what a request adds to it."""


def _yaml(profile: Profile) -> str:
    return msgspec.yaml.encode(profile).decode()


HEADS = ("tok/s", "TTFT p50 ms", "ITL p50 ms", "queue wait mean ms")

WIDTH_MIN = 112
"""Columns of the table at its widest; narrower terminals wrap its lines rather than its words."""


def _table(loads: list[Compared], further: list[tuple[int, Figures]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("load", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for head in HEADS:
        table.add_column(f"{head}\nmeasured → predicted", justify="right", no_wrap=True)
    for load in loads:
        table.add_row(load.load, "fitted" if load.fitted else "held out", *_cells(load))
    for concurrency, figures in further:
        table.add_row(str(concurrency), "predicted", *(number(value) for value in figures.values))
    return table


def _cells(load: Compared) -> list[str]:
    return [
        f"{number(was)} → {number(said)}" + ("" if error is None else f" {error:+5.0%}")
        for was, said, error in zip(load.measured.values, load.predicted.values, load.errors, strict=True)
    ]


def _verdict(fit: Fit) -> Text:
    worst = max(fit.held_out, key=lambda load: load.worst_error)
    return Text(f"held-out loads are predicted within {worst.worst_error:.0%} (worst: {worst.load})", style="bold")
