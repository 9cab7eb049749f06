"""`tokswarm runs`, `report`, `export`: looking at what there is, without a master."""

import os
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from tokswarm.commands.run import data_dir_option
from tokswarm.errors import BusyError, ConfigError, SinkError, UnknownRunError
from tokswarm.insight.report import SUMMARY_FILE, read_summary
from tokswarm.insight.table import end_table
from tokswarm.master.broken_off import take_left_logs
from tokswarm.master.finish import finish_in_child
from tokswarm.master.run import RunInfo
from tokswarm.master.service import STORE_FILE, master_is_there
from tokswarm.master.store import Store
from tokswarm.sink.influx import export_run
from tokswarm.sink.settings import InfluxSettings


@click.command(epilog="\b\nExamples:\n  tokswarm runs\n  tokswarm runs --json | head")
@data_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def runs(*, data_dir: Path, as_json: bool) -> int:
    """List the runs, newest first."""
    if not (data_dir / STORE_FILE).is_file():
        raise ConfigError(f"no run has been kept in {data_dir}", hint="name the right --data-dir, or start a run")
    infos = _infos(data_dir)
    if as_json:
        for info in infos:
            click.echo(msgspec.json.encode(info).decode())
        return 0
    table = Table(box=None, pad_edge=False)
    table.add_column("run", no_wrap=True)  # to be copied whole
    for head in ("state", "mix", "workers", "output tokens", "peak tok/s", "verdict"):
        table.add_column(head)
    for info in infos:
        peak = "–" if info.peak_tok_per_s is None else f"{info.peak_tok_per_s:,.0f}"
        table.add_row(
            info.run_id,
            info.state,
            info.mix_name,
            str(info.workers),
            f"{info.output_tokens:,}",
            peak,
            info.verdict or "–",
        )
    Console().print(table)
    return 0


@click.command(
    epilog="\b\nExamples:\n  tokswarm report 20261202-101500-demo-1a2b\n  tokswarm report ./runs/RUN --again"
)
@click.argument("run")
@data_dir_option
@click.option("--again", is_flag=True, help="Make the report anew from the run's logs.")
@click.option("--json", "as_json", is_flag=True, help="Print summary.json.")
def report(*, run: str, data_dir: Path, again: bool, as_json: bool) -> int:
    """Show the report of a RUN (its id, or its folder)."""
    run_dir = find_run(run, data_dir)
    if take_left_logs(run_dir) or again or not (run_dir / SUMMARY_FILE).is_file():
        finish_in_child(run_dir)
    if as_json:
        click.echo((run_dir / SUMMARY_FILE).read_text(encoding="utf-8"), nl=False)
    else:
        Console().print(end_table(read_summary(run_dir)))
        click.echo(f"page: {run_dir / 'curve.html'}")
    return 0


@click.command(
    epilog="\b\nExamples:\n  INFLUXDB_V2_URL=http://127.0.0.1:8086 INFLUXDB_V2_BUCKET=tokswarm tokswarm export RUN"
)
@click.argument("run")
@data_dir_option
@click.option("--from-start", is_flag=True, help="Send everything again, not only what is still undelivered.")
def export(*, run: str, data_dir: Path, from_start: bool) -> int:
    """Send a RUN's records to InfluxDB: what an outage left undelivered, or all of it."""
    settings = InfluxSettings.from_environ(os.environ)
    if settings is None:
        raise ConfigError("no InfluxDB is named", hint="set INFLUXDB_V2_URL, _TOKEN, _ORG and _BUCKET")
    run_dir = find_run(run, data_dir)
    take_left_logs(run_dir)
    delivery = export_run(run_dir, settings, from_start=from_start)
    click.echo(f"{delivery.written_points:,} points written, {delivery.dropped_points:,} refused by the database")
    if delivery.backlog_bytes:
        raise SinkError(
            f"{delivery.backlog_bytes:,} bytes of records are undelivered: {delivery.error}",
            hint="run the same command again; it goes on where it stopped",
        )
    return 0


def find_run(run: str, data_dir: Path) -> Path:
    """The folder of a run given by id or by path. UnknownRunError; BusyError while it goes on."""
    for candidate in (data_dir / "runs" / run, Path(run)):
        if (candidate / "logs").is_dir():
            _refuse_under_way(candidate.absolute())
            return candidate.absolute()
    raise UnknownRunError(f"no run {run!r} in {data_dir / 'runs'}", hint="`tokswarm runs` lists them")


def _refuse_under_way(run_dir: Path) -> None:
    data_dir = run_dir.parent.parent
    states = {info.run_id: info.state for info in _infos(data_dir)} if (data_dir / STORE_FILE).is_file() else {}
    state = states.get(run_dir.name)
    if state is not None and not state.is_over:
        raise BusyError(f"run {run_dir.name} is {state}", hint="wait for its end, or stop it on its page")


def _infos(data_dir: Path) -> list[RunInfo]:
    """The runs of a data directory; one whose master was killed is marked so once no master is there."""
    store = Store(data_dir / STORE_FILE)
    store.open()
    try:
        if not master_is_there(data_dir):
            store.end_interrupted_runs()
        return store.runs()
    finally:
        store.close()
