"""Join strings: the one thing a worker needs to find its master, to know it, and to be let in.

A master has two secrets, kept in one file of its data directory for as long as the fleet lives: its own
CURVE key, and that of its workers. A join string holds the public half of the first and the second, so a
worker cannot pose as the master, and who has no join string cannot speak to either.
"""

import base64
import binascii
import hashlib
import ipaddress
import os
import secrets
import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec
import zmq
from zmq.utils import z85

from tokswarm.errors import ConfigError
from tokswarm.secret_reference import resolve_reference

PREFIX = "tsw1_"
KEY_BYTES = 32
_CHECK_BYTES = 4
_PORT = struct.Struct(">H")
_GET_ANOTHER = "copy the whole string again, as `tokswarm master` printed it or wrote it with --join-file"


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """What a join string says."""

    host: str
    port: int
    server_public: bytes
    """By this the worker knows the master."""
    client_secret: bytes
    """By this the master knows its workers."""

    def __repr__(self) -> str:
        return f"Join({self.host}:{self.port})"

    def text(self) -> str:
        """The join string; a secret."""
        body = self.server_public + self.client_secret + _PORT.pack(self.port) + self.host.encode()
        return PREFIX + base64.urlsafe_b64encode(body + _check(body)).decode().rstrip("=")


class FleetKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The secrets of a master."""

    server_secret: bytes
    client_secret: bytes

    def __repr__(self) -> str:
        return "FleetKeys(...)"

    @property
    def client_public(self) -> bytes:
        """What the master compares a worker's key with, 32 bytes."""
        return public_key(self.client_secret)

    def join(self, host: str, port: int) -> Join:
        """What workers are given that reach the master there."""
        return Join(
            host=host, port=port, server_public=public_key(self.server_secret), client_secret=self.client_secret
        )


def public_key(secret: bytes) -> bytes:
    """The public half of a CURVE key, both of 32 bytes."""
    return bytes(z85.decode(zmq.curve_public(z85.encode(secret))))


def parse_join(text: str) -> Join:
    """What a join string says. ConfigError, which does not quote it, when it is none or not whole."""
    text = text.strip()
    if not text.startswith(PREFIX):
        raise ConfigError(f"the join string does not begin with {PREFIX}", hint=_GET_ANOTHER)
    data = text.removeprefix(PREFIX)
    try:
        body = base64.b64decode(data + "=" * (-len(data) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        body = b""
    body, check = body[:-_CHECK_BYTES], body[-_CHECK_BYTES:]
    fixed_bytes = 2 * KEY_BYTES + _PORT.size
    if len(body) <= fixed_bytes or not secrets.compare_digest(check, _check(body)):
        raise ConfigError("the join string is cut off or mistyped", hint=_GET_ANOTHER)
    return Join(
        server_public=body[:KEY_BYTES],
        client_secret=body[KEY_BYTES : 2 * KEY_BYTES],
        port=_PORT.unpack_from(body, 2 * KEY_BYTES)[0],
        host=body[fixed_bytes:].decode(),
    )


def resolve_join(given: str, environ: Mapping[str, str]) -> Join:
    """The join string itself, or where it is: `env:NAME` or `file:PATH`. ConfigError."""
    if given.startswith(("env:", "file:")):
        given = resolve_reference(given, "join", environ)
    return parse_join(given)


def fleet_keys(path: Path) -> FleetKeys:
    """The keys kept in this file, made when there is none. ConfigError when they cannot be kept or used."""
    if not path.exists():
        write_secret(path, (secrets.token_bytes(KEY_BYTES) + secrets.token_bytes(KEY_BYTES)).hex())
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"others can read {path}, the fleet's keys", hint=f"chmod 600 {path}")
        data = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        data = b""
    if len(data) != 2 * KEY_BYTES:
        raise ConfigError(
            f"{path} holds no keys of a fleet", hint="remove it: new keys are made, and workers need a new join string"
        )
    return FleetKeys(server_secret=data[:KEY_BYTES], client_secret=data[KEY_BYTES:])


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner can read, in one step. ConfigError when that cannot be."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{text}\n")
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}", hint="check the rights of its folder"
        ) from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:_CHECK_BYTES]
