"""`tokswarm up`, `master`, `worker`: the service and its nodes."""

from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
import yaml

from tokswarm.commands.run import data_dir_option
from tokswarm.errors import ConfigError
from tokswarm.master.service import Service, ServiceSettings
from tokswarm.worker.node import NodeSettings, run_node

_host_option = click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    help="A further name by which browsers reach the page (may be given again).",
)
_bind_option = click.option(
    "--bind",
    default="127.0.0.1",
    show_default=True,
    help="Address where workers connect; the channel is not encrypted.",
)
_port_option = click.option(
    "--port", type=click.IntRange(0, 65535), default=5557, show_default=True, help="Port where workers connect."
)
_web_host_option = click.option("--web-host", default="127.0.0.1", show_default=True, help="Address of the page.")
_web_port_option = click.option(
    "--web-port", type=click.IntRange(0, 65535), default=8089, show_default=True, help="Port of the page."
)
_mixes_option = click.option(
    "--mixes",
    "mixes_dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the mixes to choose from; those that ship when not given.",
)


@click.command(epilog="\b\nExamples:\n  tokswarm up\n  tokswarm up --workers 4 --web-port 9000 --mixes ./mixes")
@click.option("--workers", type=click.IntRange(0, 64), default=2, show_default=True, help="Worker processes here.")
@data_dir_option
@_bind_option
@_port_option
@_web_host_option
@_web_port_option
@_host_option
@_mixes_option
def up(*, workers: int, **options: Any) -> int:
    """Serve the page with a master and workers on this machine."""
    return _serve(_settings(workers, **options))


@click.command(
    epilog="\b\nExamples:\n  tokswarm master\n  tokswarm master --bind 10.0.0.5   # workers on a private network"
)
@data_dir_option
@_bind_option
@_port_option
@_web_host_option
@_web_port_option
@_host_option
@_mixes_option
def master(**options: Any) -> int:
    """Serve the page with a master; workers connect from wherever they run."""
    return _serve(_settings(0, **options))


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


def _settings(workers: int, **options: Any) -> ServiceSettings:
    return ServiceSettings(
        data_dir=options["data_dir"],
        bind_host=options["bind"],
        bind_port=options["port"],
        web_host=options["web_host"],
        web_port=options["web_port"],
        allowed_hosts=tuple(options["allowed_hosts"]),
        local_workers=workers,
        mixes_dir=options["mixes_dir"],
    )


def _serve(settings: ServiceSettings) -> int:
    service = Service(settings)
    try:
        service.start()
        click.echo(f"page: {service.web_url}   workers connect to {settings.bind_host}:{service.fleet.port}", err=True)
        service.serve()
    finally:
        service.stop()
    return 0


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
