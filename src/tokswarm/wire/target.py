"""Where requests go: a target resolved once per run, with everything a request head needs."""

import os
import socket
import ssl
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

from tokswarm.errors import ConfigError, PreflightError
from tokswarm.traffic.mix import Target
from tokswarm.version import VERSION
from tokswarm.wire.tls import TlsSettings

Address = tuple[int, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
"""Address family and socket address."""


class ResolvedTarget:
    """A target with its addresses and secrets at hand; its `repr` shows no secret."""

    def __init__(self, target: Target, environ: Mapping[str, str] = os.environ) -> None:
        url = urllib.parse.urlsplit(target.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(
                f"target.base_url is {target.base_url!r}, expected http://HOST:PORT/v1 or https://HOST/v1"
            )
        self.spec = target
        self.host = url.hostname
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self.tls = _tls_settings(target, self.host) if url.scheme == "https" else None
        """None: plain HTTP."""
        self.tunnel_request: bytes | None = None
        """What opens a tunnel through a proxy; None: none is used."""
        self.name = f"{self.host}:{self.port}"
        self.path = url.path.rstrip("/")
        self.secret = resolve_reference(target.key, "target.key", environ)
        headers = {name: resolve_header(name, value, environ) for name, value in target.headers.items()}
        lines = [
            f"Host: {url.netloc.rpartition('@')[2]}",
            f"User-Agent: tokswarm/{VERSION}",
            "Accept-Encoding: identity",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        if self.secret is not None:
            lines.append(f"Authorization: Bearer {self.secret}")
        self._lines = "\r\n".join(lines)
        self.addresses: list[Address] = []

    def __repr__(self) -> str:
        return f"ResolvedTarget({self.spec.base_url!r})"

    def resolve(self) -> None:
        """Look the host up, once. PreflightError when it has no address."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise PreflightError(
                f"target.base_url {self.spec.base_url}: the host {self.host!r} has no address ({error})",
                hint="check the spelling and this machine's DNS",
            ) from error
        self.addresses = list(dict.fromkeys((int(family), address) for family, _, _, _, address in found))

    def head(self, method: str, path: str, *, accept: str) -> bytes:
        """A request head up to the value of Content-Length, which the body's length and a blank line follow."""
        return (
            f"{method} {path} HTTP/1.1\r\n{self._lines}\r\nAccept: {accept}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode("latin-1")


def _tls_settings(target: Target, host: str) -> TlsSettings:
    try:
        return TlsSettings(server_name=host, verify=target.tls.verify, ca_file=target.tls.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"target.tls.ca_file {target.tls.ca_file!r} cannot be used: {error}") from error


def resolve_reference(reference: str | None, where: str, environ: Mapping[str, str]) -> str | None:
    """The secret that `env:NAME` or `file:PATH` refers to; None for None. ConfigError when it is not there."""
    if reference is None:
        return None
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = environ.get(name)
        if not value:
            raise ConfigError(
                f"{where} refers to the environment variable {name}, which is not set here",
                hint=f"export {name}=… where the worker runs",
            )
        return value.strip()
    if kind == "file":
        try:
            return Path(name).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"{where} refers to the file {name}: {error.strerror}") from error
    raise ConfigError(f"{where} is not a reference", hint="write env:NAME or file:PATH; a key itself is never stored")


def resolve_header(name: str, value: str, environ: Mapping[str, str]) -> str:
    """A header's value, a reference resolved. ConfigError for a value that would break the head."""
    if value.startswith(("env:", "file:")):
        value = resolve_reference(value, f"target.headers.{name}", environ) or ""
    if "\r" in value or "\n" in value:
        raise ConfigError(f"target.headers.{name} holds a line break")
    return value
