"""The database over HTTP: blocks of lines through the official client, and what kind of server it is."""

import json
import time
from typing import Any

import urllib3.exceptions
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.rest import ApiException

from tokswarm.errors import SinkError
from tokswarm.redact import redact
from tokswarm.sink.bucket import create_command
from tokswarm.sink.settings import InfluxSettings
from tokswarm.sink.write_answer import Answer, Refused, Retry, Written, error_text, judge

CONNECT_TIMEOUT_MS = 5_000
ANSWER_TIMEOUT_MS = 40_000
"""Busy databases answer late and have written all the same; sending it again would make them busier."""

PROBE_TIMEOUT_MS = (3_000, 5_000)


class InfluxEndpoint:
    """One connection to `/api/v2/write`; blocks its greenlet, not the loop of a process that gevent patched."""

    def __init__(self, settings: InfluxSettings) -> None:
        self._settings = settings
        self._client = _client(settings)
        # Blocks come packed: packing 5,000 lines here would hold the loop for 5 ms.
        self._client.api_client.set_default_header("Content-Encoding", "gzip")
        self._write_api = self._client.write_api(write_options=SYNCHRONOUS)

    def write(self, packed: bytes) -> Answer:
        """Send one block of lines, joined and packed by gzip."""
        settings = self._settings
        try:
            self._write_api.write(settings.bucket, settings.org, packed, "ns")
        except ApiException as error:
            if not error.status:  # what the client makes of a failed TLS handshake
                return Refused(redact(f"{settings.url}: {error.reason}", secret=settings.token.reveal()))
            headers = dict(error.headers or {})
            answer = judge(
                error.status, headers, self._scrub(error.body), bucket=settings.bucket, now_unix_s=time.time()
            )
            return self._with_command(answer) if error.status == 404 else answer
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            return Retry(f"{settings.url} cannot be reached: {self._scrub(_cause(error))}")
        return Written()

    def _with_command(self, answer: Answer) -> Answer:
        """The answer to a write into a bucket that is not there, with the command that makes it."""
        if not isinstance(answer, Refused):
            return answer
        try:
            version, _ = self._version()
        except SinkError:
            return answer
        command = create_command(version, bucket=self._settings.bucket, org=self._settings.org)
        return answer if command is None else Refused(f"{answer.error}; to make it: {command}")

    def describe(self) -> str:
        """What answers at this address, by `/ping` and `/health`. SinkError when nothing usable does."""
        version, build = self._version()
        name = " ".join(part for part in ("InfluxDB" if version else "a compatible server", version, build) if part)
        return f"{name} at {self._settings.url}, bucket {self._settings.bucket!r}"

    def _version(self) -> tuple[str, str]:
        """Version and build, by `/ping` and `/health`; empty when the server does not say. SinkError."""
        status, headers, body = self._get("/ping")
        if status in (401, 403):
            raise SinkError(
                f"the database at {self._settings.url} refuses the token: {status} {error_text(headers, body)}",
                hint="check INFLUXDB_V2_TOKEN (for InfluxDB 1.8 it is user:password)",
            )
        if not 200 <= status < 300:
            raise SinkError(
                f"what answers at {self._settings.url} is no InfluxDB: GET /ping gave {status}",
                hint="check INFLUXDB_V2_URL; InfluxDB 1 and 2 listen on port 8086, InfluxDB 3 on 8181",
            )
        known = {name.lower(): value for name, value in headers.items()}
        version, build = known.get("x-influxdb-version", ""), known.get("x-influxdb-build", "")
        status, _, body = self._get("/health")
        try:
            health = json.loads(body) if 200 <= status < 300 else {}
        except ValueError:
            health = {}
        if isinstance(health, dict):
            version = version or str(health.get("version") or "")
        return version, build

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _get(self, path: str) -> tuple[int, dict[str, str], str]:
        api = self._client.api_client
        authorization = {name: value for name, value in api.default_headers.items() if name == "Authorization"}
        try:
            response = api.rest_client.GET(
                f"{self._settings.url}{path}", headers=authorization, _request_timeout=PROBE_TIMEOUT_MS
            )
        except ApiException as error:
            if error.status:
                return error.status, dict(error.headers or {}), self._scrub(error.body)
            raise self._unreachable(error.reason) from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise self._unreachable(_cause(error)) from error
        return response.status, dict(response.getheaders()), self._scrub(response.data)

    def _unreachable(self, cause: str) -> SinkError:
        return SinkError(
            f"the database at {self._settings.url} cannot be reached: {self._scrub(cause)}",
            hint="check INFLUXDB_V2_URL, and that the database runs",
        )

    def _scrub(self, text: str | None) -> str:
        secret = self._settings.token.reveal()
        return (text or "").replace(secret, "[secret]") if secret else text or ""


def _client(settings: InfluxSettings) -> Any:
    return InfluxDBClient(
        settings.url,
        token=settings.token.reveal(),
        org=settings.org,
        timeout=(CONNECT_TIMEOUT_MS, ANSWER_TIMEOUT_MS),
    )


def _cause(error: Exception) -> str:
    """The last part of a client's message: what the system said."""
    return str(error).rsplit(": ", 1)[-1].rstrip(")") or type(error).__name__
