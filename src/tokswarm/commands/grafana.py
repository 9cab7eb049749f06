"""`tokswarm grafana`: put the boards into a Grafana, and print links to them for a run."""

import os
from pathlib import Path

import click

from tokswarm.commands.run import data_dir_option
from tokswarm.errors import ConfigError, UnknownRunError
from tokswarm.grafana.data_source import DATA_SOURCE_UID, DataSource
from tokswarm.grafana.link import around_run, board_links
from tokswarm.grafana.publish import Action, Source, Step, publish
from tokswarm.grafana.server import GrafanaServer, grafana_address
from tokswarm.grafana.shipped import Span, of_one_run, shipped_boards
from tokswarm.master.run import RunInfo
from tokswarm.master.service import STORE_FILE
from tokswarm.master.store import Store

CHANGES_SHOWN = 20
"""Lines of what differs in one board."""

_url_option = click.option("--url", envvar="GRAFANA_URL", show_envvar=True, help="Address of Grafana.")

_PUBLISH_EPILOG = """\b
Examples:
  GRAFANA_URL=https://grafana.example.org GRAFANA_TOKEN=... tokswarm grafana publish --dry-run
  tokswarm grafana publish --url http://127.0.0.1:3000 --datasource-uid tokswarm-influxdb --alerts
"""

_LINK_EPILOG = """\b
Examples:
  tokswarm grafana link 20261202-101500-demo-1a2b --url http://127.0.0.1:3000
"""


@click.group("grafana")
def grafana() -> None:
    """Put the boards into Grafana, and link to them."""


@grafana.command("publish", epilog=_PUBLISH_EPILOG)
@_url_option
@click.option("--folder", default="tokswarm", show_default=True, help="Folder for the boards; made if missing.")
@click.option("--datasource-uid", metavar="UID", help="Data source the boards open with; must speak InfluxQL.")
@click.option(
    "--pin-datasource",
    metavar="UID",
    help="Write this data source into the boards, which then offer no other: for boards shared externally.",
)
@click.option(
    "--pin-run",
    metavar="RUN",
    help="Publish boards of this run alone, with nothing to choose: they can be shared externally.",
)
@data_dir_option
@click.option(
    "--create-datasource",
    is_flag=True,
    help=f"Create or update the data source {DATA_SOURCE_UID} from INFLUXDB_V2_URL, _TOKEN and _BUCKET.",
)
@click.option("--alerts", is_flag=True, help="Publish the alert rules, too; they ask the data source named.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done, and what differs.")
def publish_command(
    url: str | None,
    folder: str,
    datasource_uid: str | None,
    pin_datasource: str | None,
    pin_run: str | None,
    *,
    data_dir: Path,
    create_datasource: bool,
    alerts: bool,
    dry_run: bool,
) -> None:
    """Put the boards into Grafana; doing it again changes nothing that is as it should be.

    The token of a service account is read from GRAFANA_TOKEN.
    """
    if datasource_uid is not None and pin_datasource is not None:
        raise ConfigError(
            "--datasource-uid and --pin-datasource are both given, expected one of them",
            hint="--pin-datasource if the boards are to offer no other data source, else --datasource-uid",
        )
    if pin_run is not None and pin_datasource is None:
        raise ConfigError(
            "--pin-run is given without a data source, expected --pin-datasource UID beside it",
            hint="a board with nothing to choose has its data source written into it",
        )
    uid = datasource_uid if pin_datasource is None else pin_datasource
    boards = shipped_boards()
    if pin_run is not None:
        info = _run(pin_run, data_dir)
        span = around_run(_span(info))
        boards = [made for board in boards if (made := of_one_run(board, info.run_id, span)) is not None]
    steps = publish(
        GrafanaServer(_address(url), os.environ.get("GRAFANA_TOKEN", "")),
        boards=boards,
        folder=folder,
        source=None if uid is None else Source(uid, is_pinned=pin_datasource is not None),
        create=DataSource.from_environ(os.environ) if create_datasource else None,
        alerts=alerts,
        dry_run=dry_run,
    )
    for step in steps:
        _say(step, dry_run=dry_run)


@grafana.command("link", epilog=_LINK_EPILOG)
@click.argument("run")
@data_dir_option
@_url_option
@click.option("--datasource-uid", metavar="UID", help="Data source the boards open with.")
def link_command(run: str, url: str | None, datasource_uid: str | None, *, data_dir: Path) -> None:
    """Print a link to each board with a RUN (its id, or its folder) and its time range in it."""
    info = _run(run, data_dir)
    address = grafana_address(_address(url))
    links = board_links(shipped_boards(), address, info.run_id, _span(info), data_source_uid=datasource_uid)
    for title, link in links:
        click.echo(f"{title}: {link}")


def _span(info: RunInfo) -> Span:
    ended_ms = None if info.ended_unix_ns is None else info.ended_unix_ns // 1_000_000
    return Span(info.started_unix_ns // 1_000_000, ended_ms)


def _address(url: str | None) -> str:
    if not url:
        raise ConfigError("no address of Grafana", hint="set GRAFANA_URL or --url")
    return url


def _run(run: str, data_dir: Path) -> RunInfo:
    folder = Path(run)
    if (folder / "logs").is_dir():
        run, data_dir = folder.absolute().name, folder.absolute().parents[1]
    if not (data_dir / STORE_FILE).is_file():
        raise UnknownRunError(f"no run has been kept in {data_dir}", hint="name the right --data-dir")
    store = Store(data_dir / STORE_FILE)
    store.open()
    try:
        return store.run(run)[0]
    finally:
        store.close()


def _say(step: Step, *, dry_run: bool) -> None:
    would = "would be " if dry_run and step.action is not Action.UNCHANGED else ""
    click.echo(f"{step.kind} {step.name!r}: {would}{step.action}" + (f"  {step.url}" if step.url else ""))
    if dry_run:
        for change in step.changes[:CHANGES_SHOWN]:
            click.echo(f"  {change}")
        if len(step.changes) > CHANGES_SHOWN:
            click.echo(f"  and {len(step.changes) - CHANGES_SHOWN} more")
