"""`tokswarm worker`: a worker node. Loads nothing that only masters and reports need: many run on one machine."""

from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
import yaml

from tokswarm.errors import ConfigError
from tokswarm.worker.node import NodeSettings, run_node


@click.command(
    epilog="""\b
Examples:
  tokswarm worker --master-host 10.0.0.5
  tokswarm worker --config worker.yaml

Exit codes: 0 told to end, 1 the master was lost (start it again), 2 refused or bad input (do not)."""
)
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="YAML of these options.")
@click.option("--master-host", help="Host of the master.  [default: 127.0.0.1]")
@click.option("--master-port", type=click.IntRange(1, 65535), help="Port of the master.  [default: 5557]")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Where record logs are kept.")
@click.option("--name", help="Unique in the fleet; host and process id when not given.")
def worker(*, config: Path | None, **options: Any) -> int:
    """Join a master as a worker node and send what it plans."""
    values = {} if config is None else _config(config)
    values |= {name: value for name, value in options.items() if value is not None}
    values.setdefault("data_dir", Path("tokswarm-data"))
    settings = msgspec.convert(values, NodeSettings, dec_hook=_path)
    click.echo(f"worker for the master at {settings.master_host}:{settings.master_port}; Ctrl-C ends it", err=True)
    return run_node(settings)


def _config(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        msgspec.convert(content, _WorkerFile)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"{path}: {error}", hint="its keys are master_host, master_port, data_dir and name"
        ) from error
    return {name: value for name, value in content.items() if value is not None}


class _WorkerFile(msgspec.Struct, forbid_unknown_fields=True):
    master_host: str | None = None
    master_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None
    data_dir: str | None = None
    name: str | None = None


def _path(kind: type, value: object) -> object:
    return Path(str(value)) if issubclass(kind, Path) else value
