"""Where the database is and who we are to it: the official client's own environment variables."""

import re
from collections.abc import Mapping
from typing import final
from urllib.parse import urlsplit

import msgspec

from tokswarm.errors import ConfigError

DEFAULT_BUCKET = "tokswarm"
NO_ORG = "-"
"""InfluxDB 1.8 and 3 ignore the organisation, but the API wants one to be named."""


@final
class Secret:
    """A value that no repr, log or report shows; `reveal` gives it to what must send it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)" if self._value else "Secret()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


class InfluxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A database that takes `/api/v2/write`: InfluxDB 1.8, 2, 3, or a server that is compatible."""

    url: str
    token: Secret = Secret("")
    """Empty: none is sent. `user:password` for InfluxDB 1.8."""
    org: str = NO_ORG
    bucket: str = DEFAULT_BUCKET
    """InfluxDB 1.8: the database, or `database/retention policy`."""
    token_points: bool = True
    """Write a point for every token arrival, beside the packed gaps of each request."""
    token_points_per_s: float | None = None
    """The most of them a worker writes: beyond it whole requests are drawn; None: no limit."""

    @property
    def database(self) -> str:
        """Which database it is, without what is secret."""
        return f"{self.url}/{self.bucket}"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "InfluxSettings | None":
        """The settings in these variables (docs/influxdb.md#settings); None without INFLUXDB_V2_URL. ConfigError."""
        url = environ.get("INFLUXDB_V2_URL", "").strip().rstrip("/")
        if not url:
            return None
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname)
            _ = parts.port
        except ValueError:
            usable = False
        if not usable:
            raise ConfigError(
                f"INFLUXDB_V2_URL is {url.rpartition('@')[2]!r}, expected http://HOST:PORT or https://HOST:PORT",
                hint="for a database on this machine: INFLUXDB_V2_URL=http://127.0.0.1:8086",
            )
        if parts.username or parts.password:
            raise ConfigError(
                f"INFLUXDB_V2_URL for {parts.hostname} holds a user or a password",
                hint="put them into INFLUXDB_V2_TOKEN, for InfluxDB 1.8 as user:password",
            )
        token_points, points_per_s = _token_points(environ)
        return cls(
            url=url,
            token=Secret(environ.get("INFLUXDB_V2_TOKEN", "").strip()),
            org=environ.get("INFLUXDB_V2_ORG", "").strip() or NO_ORG,
            bucket=environ.get("INFLUXDB_V2_BUCKET", "").strip() or DEFAULT_BUCKET,
            token_points=token_points,
            token_points_per_s=points_per_s,
        )


LOG_LIMIT = "TOKSWARM_RECORD_LOG_LIMIT"
SMALLEST_LOG_LIMIT_BYTES = 1 << 20
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMG])B?")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(k?)\s*/\s*s")
_TIMES = {"k": 10**3, "M": 10**6, "G": 10**9}


def log_limit_bytes(environ: Mapping[str, str]) -> int | None:
    """The most that one record log may take on the disk, by TOKSWARM_RECORD_LOG_LIMIT; None: no limit. ConfigError."""
    written = environ.get(LOG_LIMIT, "").strip()
    if not written:
        return None
    match = _SIZE.fullmatch(written)
    limit_bytes = 0 if match is None else int(float(match[1]) * _TIMES[match[2]])
    if limit_bytes < SMALLEST_LOG_LIMIT_BYTES:
        raise ConfigError(
            f"{LOG_LIMIT} is {written!r}, expected a size as 500M or 20G, of at least 1.1M",
            hint="leave it away for logs that may fill the disk",
        )
    return limit_bytes


def _token_points(environ: Mapping[str, str]) -> tuple[bool, float | None]:
    """Whether token points are written, and how many a second at most."""
    written = environ.get("TOKSWARM_TOKEN_POINTS", "").strip().lower()
    if written in ("", "on"):
        return True, None
    if written == "off":
        return False, None
    match = _RATE.fullmatch(written)
    points_per_s = 0.0 if match is None else float(match[1]) * _TIMES.get(match[2], 1)
    if points_per_s <= 0:
        raise ConfigError(
            f"TOKSWARM_TOKEN_POINTS is {environ['TOKSWARM_TOKEN_POINTS']!r}, expected on, off, or at most so many "
            "a second as 20k/s"
        )
    return True, points_per_s
