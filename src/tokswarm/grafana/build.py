"""`python -m tokswarm.grafana.build DIR`: write the boards and the alert rules, the same bytes each time.

Needs the extra `boards` (grafana-foundation-sdk). What it writes is kept in `dashboards/` and ships with
tokswarm, so that using the boards needs neither.
"""

import json
import sys
from pathlib import Path

import click
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tokswarm.grafana.alerts import provisioning_file
from tokswarm.grafana.cache_churn import cache_churn
from tokswarm.grafana.compare import compare
from tokswarm.grafana.data_source import DATA_SOURCE_UID
from tokswarm.grafana.generator import generator
from tokswarm.grafana.latency import latency
from tokswarm.grafana.one_request import one_request
from tokswarm.grafana.overview import overview
from tokswarm.grafana.queue_wait import queue_wait
from tokswarm.grafana.throughput import throughput

BOARDS = {
    "overview.json": overview,
    "throughput.json": throughput,
    "latency.json": latency,
    "queue-wait.json": queue_wait,
    "cache-churn.json": cache_churn,
    "one-request.json": one_request,
    "generator.json": generator,
    "compare.json": compare,
}
"""File name to the function that builds it."""


def render(dashboard: Dashboard) -> str:
    """The board as text: `id` is null, because Grafana gives it, and keys keep the SDK's order."""
    payload = {"id": None, **dashboard.to_json()}
    return json.dumps(payload, cls=JSONEncoder, indent=2, ensure_ascii=False) + "\n"


ALERTS = "provisioning/alerting/tokswarm.yaml"
FOLDER = "tokswarm"
"""As the other provisioning files name it."""


def build_all() -> dict[str, str]:
    """File name to content, for every board and the alert rules."""
    boards = {name: render(build()) for name, build in BOARDS.items()}
    return {**boards, ALERTS: provisioning_file(data_source_uid=DATA_SOURCE_UID, folder=FOLDER)}


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; end with 1 when a file is missing or differs.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def main(directory: Path, *, check: bool) -> None:
    """Write every board and the alert rules into DIRECTORY.

    \b
    python -m tokswarm.grafana.build dashboards
    python -m tokswarm.grafana.build --check dashboards
    """
    stale = []
    for name, text in build_all().items():
        path = directory / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale:
        click.echo(f"{'differs' if check else 'written'}: {', '.join(stale)}", err=True)
    if stale and check:
        sys.exit(1)


if __name__ == "__main__":
    main()
