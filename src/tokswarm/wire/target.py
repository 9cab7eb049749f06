"""Where requests go: a target resolved once per run, with everything a request head needs."""

import base64
import os
import re
import socket
import ssl
import urllib.parse
from collections.abc import Mapping
from typing import NamedTuple

from tokswarm.errors import ConfigError, PreflightError
from tokswarm.secret_reference import check_header_value, resolve_reference
from tokswarm.traffic.mix import NamedTarget, Target
from tokswarm.version import VERSION
from tokswarm.wire.tls import TlsSettings

Address = tuple[int, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes] | str]
"""Address family and socket address."""


SCHEMES = ("http", "https", "http+unix")
_HEADER_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")


class Proxy(NamedTuple):
    """An HTTP proxy that opens tunnels."""

    host: str
    port: int
    authorization: str | None
    """Value of Proxy-Authorization; None: none is needed."""


class ResolvedTarget:
    """A target with its addresses and secrets at hand; its `repr` shows no secret."""

    def __init__(self, target: Target, environ: Mapping[str, str] = os.environ) -> None:
        url = urllib.parse.urlsplit(target.base_url)
        if url.scheme not in SCHEMES or not url.hostname:
            raise ConfigError(
                f"target.base_url is {target.base_url!r}, expected http://HOST:PORT/v1 or https://HOST/v1"
            )
        self.spec = target
        self.host = url.hostname
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self.unix_path = urllib.parse.unquote(url.netloc) if url.scheme == "http+unix" else None
        self.tls = _tls_settings(target, self.host) if url.scheme == "https" else None
        """None: plain HTTP."""
        self.proxy = https_proxy(self.host, environ) if self.tls is not None else None
        """The proxy that tunnels to the target; None: straight."""
        self.tunnel_request = None if self.proxy is None else _tunnel_request(self.host, self.port, self.proxy)
        """What opens the tunnel."""
        self.place = self.unix_path or f"{self.host}:{self.port}"
        self.name = target.name if isinstance(target, NamedTarget) else self.place
        self.path = url.path.rstrip("/")
        self.query = "?" + urllib.parse.urlencode(target.query) if target.query else ""
        self.secret = None if target.key is None else resolve_reference(target.key, "target.key", environ)
        self.headers = {name: resolve_header(name, value, environ) for name, value in target.headers.items()}
        """The mix's headers, references resolved."""
        lines = [
            f"Host: {'localhost' if self.unix_path else url.netloc.rpartition('@')[2]}",
            f"User-Agent: tokswarm/{VERSION}",
            "Accept-Encoding: identity",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        if self.secret is not None:
            lines.append(f"Authorization: Bearer {self.secret}")
        self._lines = "\r\n".join(lines)
        self.addresses: list[Address] = []

    def __repr__(self) -> str:
        return f"ResolvedTarget({self.spec.base_url!r})"

    def resolve(self) -> None:
        """Look the host up, once. PreflightError when it has no address."""
        if self.unix_path is not None:
            self.addresses = [(int(socket.AF_UNIX), self.unix_path)]
            return
        host, port = (self.host, self.port) if self.proxy is None else (self.proxy.host, self.proxy.port)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            what = "the host" if self.proxy is None else "the proxy (HTTPS_PROXY)"
            raise PreflightError(
                f"target.base_url {self.spec.base_url}: {what} {host!r} has no address ({error})",
                hint="check the spelling and this machine's DNS",
            ) from error
        self.addresses = list(dict.fromkeys((int(family), address) for family, _, _, _, address in found))

    def head(self, method: str, path: str, *, accept: str) -> bytes:
        """A request head up to the value of Content-Length, which the body's length and a blank line follow."""
        return (
            f"{method} {path} HTTP/1.1\r\n{self._lines}\r\nAccept: {accept}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode("latin-1")


def https_proxy(host: str, environ: Mapping[str, str]) -> Proxy | None:
    """The proxy that HTTPS_PROXY names for this host; None when it names none or NO_PROXY exempts the host.

    ConfigError when it cannot be understood.
    """
    value = environ.get("HTTPS_PROXY") or environ.get("https_proxy")
    if not value or _is_exempt(host, environ.get("NO_PROXY") or environ.get("no_proxy") or ""):
        return None
    url = urllib.parse.urlsplit(value if "://" in value else f"http://{value}")
    if url.scheme != "http" or not url.hostname:
        raise ConfigError(
            "HTTPS_PROXY is not an address of an HTTP proxy, like http://proxy:3128",
            hint=f"correct it, or exempt the target with NO_PROXY={host}",
        )
    authorization = None
    if url.username is not None:
        secret = f"{urllib.parse.unquote(url.username)}:{urllib.parse.unquote(url.password or '')}"
        authorization = "Basic " + base64.b64encode(secret.encode()).decode()
    return Proxy(url.hostname, url.port or 3128, authorization)


def _is_exempt(host: str, no_proxy: str) -> bool:
    """Loopback always is; else by the suffixes that NO_PROXY lists."""
    if host == "localhost" or host.startswith("127.") or host == "::1":
        return True
    suffixes = [each.strip().lstrip("*").lstrip(".") for each in no_proxy.split(",") if each.strip()]
    return "*" in no_proxy.split(",") or any(host == each or host.endswith(f".{each}") for each in suffixes if each)


def _tunnel_request(host: str, port: int, proxy: Proxy) -> bytes:
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    authorization = f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
    return f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{authorization}\r\n".encode("latin-1")


def _tls_settings(target: Target, host: str) -> TlsSettings:
    try:
        return TlsSettings(server_name=host, verify=target.tls.verify, ca_file=target.tls.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"target.tls.ca_file {target.tls.ca_file!r} cannot be used: {error}") from error


def resolve_header(name: str, value: str, environ: Mapping[str, str]) -> str:
    """A header's value, a reference `env:NAME` resolved. ConfigError for a value that would break the head."""
    where = f"target.headers.{name}"
    if _HEADER_REFERENCE.fullmatch(value):
        return resolve_reference(value, where, environ)
    check_header_value(value, where)
    return value
