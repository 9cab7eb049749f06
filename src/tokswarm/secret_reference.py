"""Secrets by reference: `env:NAME` or `file:PATH`, looked up where the secret is used and never stored or quoted."""

import re
from collections.abc import Mapping
from pathlib import Path

from tokswarm.errors import ConfigError

_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")


def resolve_reference(reference: str, where: str, environ: Mapping[str, str]) -> str:
    """The secret behind a reference, blanks around it removed; `where` names the setting in messages.

    ConfigError when it is not there, is empty, or cannot stand in a request head. No message, and no error
    behind one, holds any part of the secret.
    """
    kind, _, name = reference.partition(":")
    if kind == "env" and name:
        value = environ.get(name, "").strip()
        what = f"the environment variable {name}"
        if not value:
            raise ConfigError(
                f"{where} refers to {what}, which is not set here", hint=f"export {name}=… where it is needed"
            )
    elif kind == "file" and name:
        what = f"the file {name}"
        value = _content(Path(name), f"{where} refers to {what}").strip()
        if not value:
            raise ConfigError(f"{where} refers to {what}, which is empty", hint="write the key into it, and no more")
    else:
        raise ConfigError(
            f"{where} is not a reference", hint="write env:NAME or file:PATH; a key itself is never stored"
        )
    check_header_value(value, f"{where}: {what}")
    return value


def check_header_value(value: str, what: str) -> None:
    """ConfigError for a value that would break a request head; `what` names it, since it is never quoted."""
    if _HEADER_VALUE.fullmatch(value) is None:
        raise ConfigError(
            f"{what} holds a line break or another character that no HTTP header can carry",
            hint="printable ASCII on one line; quotes and dashes of a word processor are none",
        )


def _content(path: Path, said: str) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{said}: {error.strerror}") from error
    # Not decoded strictly: that error would carry the secret. What is no ASCII is refused by name above.
    return data.decode("latin-1")
