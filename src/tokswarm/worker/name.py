"""Names of workers and runs: each is a file name and a database tag as it stands."""

import os
import re
import socket

from tokswarm.errors import ConfigError

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
RESERVED = "master"
"""The master's own name in logs and events."""


def is_file_name(text: str) -> bool:
    """Whether it is safe as the name of a file or directory, whoever sent it."""
    return _FILE_NAME.fullmatch(text) is not None


def check_name(name: str) -> None:
    """ConfigError for a worker's name that is no file name, or the master's."""
    if not is_file_name(name) or name == RESERVED:
        raise ConfigError(
            f"the worker's name is {name!r}, expected letters, digits, '.', '_' and '-', at most 80, and not 'master'",
            hint="give another --name, or none: host name and process id make one",
        )


def default_name() -> str:
    """Host name and process id, as a name."""
    host = re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname().split(".")[0]).strip("-._") or "worker"
    return f"{host[:60]}-{os.getpid()}"
