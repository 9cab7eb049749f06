"""`tokswarm up`, `master`: the service."""

from pathlib import Path
from typing import Any

import click

from tokswarm.commands.run import data_dir_option
from tokswarm.master.service import JOIN_FILE, Service, ServiceSettings

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
    help="Address where workers connect; encrypted, and only for those with the join string.",
)
_join_host_option = click.option(
    "--join-host", help="By which host workers reach this master; the address bound, or this machine's name."
)
_join_file_option = click.option(
    "--join-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the join string into this file, which only its owner can read, instead of printing it.",
)
_unencrypted_option = click.option(
    "--unencrypted", is_flag=True, help="No encryption and no join string; on loopback only."
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
@_join_host_option
@_join_file_option
@_unencrypted_option
@_web_host_option
@_web_port_option
@_host_option
@_mixes_option
def up(*, workers: int, **options: Any) -> int:
    """Serve the page with a master and workers on this machine."""
    return _serve(_settings(workers, **options))


@click.command(
    epilog="\b\nExamples:\n  tokswarm master\n  tokswarm master --bind 10.0.0.5   # workers on other machines"
)
@data_dir_option
@_bind_option
@_port_option
@_join_host_option
@_join_file_option
@_unencrypted_option
@_web_host_option
@_web_port_option
@_host_option
@_mixes_option
def master(**options: Any) -> int:
    """Serve the page with a master; workers connect from wherever they run."""
    return _serve(_settings(0, **options))


def _settings(workers: int, **options: Any) -> ServiceSettings:
    return ServiceSettings(
        data_dir=options["data_dir"],
        bind_host=options["bind"],
        bind_port=options["port"],
        encrypted=not options["unencrypted"],
        join_host=options["join_host"],
        join_file=options["join_file"],
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
        click.echo(_how_to_join(service, settings), err=True)
        service.serve()
    finally:
        service.stop()
    return 0


def _how_to_join(service: Service, settings: ServiceSettings) -> str:
    join = service.join_string
    if join is None:
        port = service.fleet.port
        return f"join from this machine, unencrypted: tokswarm worker --unencrypted --master-port {port}"
    if settings.join_file is not None:
        return f"join with: tokswarm worker --join file:{settings.join_file}"
    if settings.local_workers:  # it has its workers: no secret on the terminal unasked
        return f"more workers join with: tokswarm worker --join file:{settings.data_dir / JOIN_FILE}"
    return f"join with (a secret): tokswarm worker --join {join}"
