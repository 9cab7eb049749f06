"""What a database's answer to a write means: all that is decided about it, and nothing done. Pure."""

import email.utils
import json
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from tokswarm.redact import redact

MAX_RETRY_AFTER_S = 300.0
"""A server that asks for more is asked again after this."""

_DROPPED = re.compile(r"\bdropped=(\d+)")


class Written(NamedTuple):
    """The block is in the database."""


class Retry(NamedTuple):
    """Not now: send the block again, after `after_s` when the server named it."""

    error: str
    after_s: float | None = None


class TooLarge(NamedTuple):
    """Send it in smaller blocks."""

    error: str


class Rejected(NamedTuple):
    """Some lines will never be taken. `dropped`: how many, when the rest is in; None: find them by halves."""

    error: str
    dropped: int | None = None


class Refused(NamedTuple):
    """Somebody has to change something first: the token, the bucket, the address."""

    error: str


Answer = Written | Retry | TooLarge | Rejected | Refused


def judge(status: int, headers: Mapping[str, str], body: str, *, bucket: str, now_unix_s: float) -> Answer:
    """What to do after an HTTP answer to a write, by InfluxDB 1.8, 2, 3 or a proxy before it."""
    if 200 <= status < 300:
        return Written()
    said = f"{status} {error_text(headers, body)}".strip()
    if status in (400, 422):
        dropped = _DROPPED.search(body) if "partial write" in body else None
        # dropped=0 means that lines could not be parsed, without their number.
        return Rejected(said, int(dropped[1]) or None if dropped else None)
    if status == 413:
        return TooLarge(said)
    if status in (408, 429) or status >= 500:
        return Retry(said, retry_after_s(headers, now_unix_s))
    hints = {
        401: f"is INFLUXDB_V2_TOKEN right, and may it write to {bucket!r}?",
        403: f"may INFLUXDB_V2_TOKEN write to {bucket!r}?",
        404: f"does the bucket {bucket!r} exist, and is INFLUXDB_V2_ORG right?",
    }
    return Refused(f"{said} ({hints.get(status, 'is INFLUXDB_V2_URL the address of an InfluxDB?')})")


def retry_after_s(headers: Mapping[str, str], now_unix_s: float) -> float | None:
    """The wait a server asks for, in seconds or as a date, within bounds; None when it asks for none."""
    value = next((text for name, text in headers.items() if name.lower() == "retry-after"), "").strip()
    if not value:
        return None
    try:
        wait_s = float(value)
    except ValueError:
        try:
            wait_s = email.utils.parsedate_to_datetime(value).timestamp() - now_unix_s
        except (ValueError, OverflowError):
            return None
    return None if math.isnan(wait_s) else min(max(wait_s, 0.0), MAX_RETRY_AFTER_S)


def error_text(headers: Mapping[str, str], body: str) -> str:
    """What the server said, on one short line, from either form of error document, a header, or plain text."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if isinstance(document, dict):
        for name in ("message", "error"):
            if isinstance(document.get(name), str) and document[name]:
                return redact(document[name])
    header = next((text for name, text in headers.items() if name.lower() == "x-influxdb-error"), "")
    return redact(header or body)
