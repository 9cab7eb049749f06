"""`tokswarm worker`: a worker node. Loads nothing that only masters and reports need: many run on one machine."""

import os
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
import yaml

from tokswarm.errors import ConfigError
from tokswarm.worker.join import is_loopback, resolve_join
from tokswarm.worker.node import NodeSettings, run_node


@click.command(
    epilog="""\b
Examples:
  tokswarm worker --join tsw1_…
  tokswarm worker --join file:/etc/tokswarm/fleet.join --master-host 10.0.0.5
  tokswarm worker --config worker.yaml

Exit codes: 0 told to end, 1 the master was lost (start it again), 2 refused or bad input (do not)."""
)
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="YAML of these options.")
@click.option("--join", help="The join string that `tokswarm master` printed, or where it is: env:NAME or file:PATH.")
@click.option(
    "--unencrypted/--encrypted", default=None, help="No join string: for a master on this machine with --unencrypted."
)
@click.option("--master-host", help="Host of the master, when the join string's cannot be reached from here.")
@click.option("--master-port", type=click.IntRange(1, 65535), help="Port of the master, likewise.")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Where record logs are kept.")
@click.option("--name", help="Unique in the fleet; host and process id when not given.")
def worker(*, config: Path | None, **options: Any) -> int:
    """Join a master as a worker node and send what it plans."""
    values = {} if config is None else _config(config)
    values |= {name: value for name, value in options.items() if value is not None}
    values.setdefault("data_dir", Path("tokswarm-data"))
    settings = _settings(values)
    click.echo(f"worker for the master at {settings.master_host}:{settings.master_port}; Ctrl-C ends it", err=True)
    return run_node(settings)


def _settings(values: dict[str, Any]) -> NodeSettings:
    given, unencrypted = values.pop("join", None), values.pop("unencrypted", False)
    data_dir = Path(values.pop("data_dir"))
    if unencrypted and given is None:
        settings = NodeSettings(data_dir=data_dir, **values)
        if not is_loopback(settings.master_host):
            raise ConfigError(
                f"the master at {settings.master_host} would be joined without encryption",
                hint="only a master on this machine can be; give its join string with --join",
            )
        return settings
    if given is None or unencrypted:
        raise ConfigError(
            "a worker takes a join string or is unencrypted, not both" if given else "a worker needs a join string",
            hint="give what `tokswarm master` printed: --join tsw1_…, env:NAME or file:PATH",
        )
    join = resolve_join(given, os.environ)
    return NodeSettings(data_dir=data_dir, join=join, **{"master_host": join.host, "master_port": join.port, **values})


def _config(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        msgspec.convert(content, _WorkerFile)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"{path}: {error}", hint="its keys are join, unencrypted, master_host, master_port, data_dir and name"
        ) from error
    return {name: value for name, value in content.items() if value is not None}


class _WorkerFile(msgspec.Struct, forbid_unknown_fields=True):
    join: str | None = None
    unencrypted: bool | None = None
    master_host: str | None = None
    master_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None
    data_dir: str | None = None
    name: str | None = None
