"""What response headers say about limits and about the server's own time."""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import NamedTuple

_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|s|m|h|d)")
_MS_PER = {"us": 0.001, "µs": 0.001, "ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6, "d": 8.64e7}

_MOST = 1e15
"""A figure beyond it is none."""

PROCESSING_HEADERS = ("openai-processing-ms", "x-litellm-response-duration-ms", "x-envoy-upstream-service-time")
SERVED_BY_HEADERS = ("x-inference-pod", "x-served-by", "x-litellm-model-api-base", "x-litellm-model-id", "x-replica")


FALLBACK_HEADERS = ("x-fallback", "x-litellm-attempted-fallbacks")
"""A yes or no, or how many other providers were asked."""


class ServerWord(NamedTuple):
    """What a response's headers say; None: nothing."""

    served_by: str | None
    retry_after_ms: float | None
    processing_ms: float | None
    """The server's or gateway's own time; of a stream, to the head."""
    remaining_requests: int | None
    remaining_tokens: int | None
    """Of the rate limit."""
    fell_back: bool | None = None
    """Another provider or model than the first answered."""


NOTHING = ServerWord(None, None, None, None, None)


def server_word(headers: Mapping[str, str]) -> ServerWord:
    """Read the headers (names in lower case)."""
    served_by = next((headers[name] for name in SERVED_BY_HEADERS if name in headers), None)
    processing = next((headers[name] for name in PROCESSING_HEADERS if name in headers), None)
    return ServerWord(
        served_by=served_by,
        retry_after_ms=retry_after_ms(headers),
        processing_ms=None if processing is None else _number(processing),
        remaining_requests=_whole(headers.get("x-ratelimit-remaining-requests")),
        remaining_tokens=_whole(headers.get("x-ratelimit-remaining-tokens")),
        fell_back=_fell_back(headers),
    )


def _fell_back(headers: Mapping[str, str]) -> bool | None:
    value = next((headers[name].strip().lower() for name in FALLBACK_HEADERS if name in headers), None)
    if value in ("true", "false"):
        return value == "true"
    times = None if value is None else _number(value)
    return None if times is None else times > 0


def retry_after_ms(headers: Mapping[str, str]) -> float | None:
    """How long to wait: by `retry-after-ms`, or by `Retry-After` in any of its forms.

    Seconds, a duration (`12ms`), or a date against the response's own `Date`.
    """
    exact = _number(headers.get("retry-after-ms", ""))
    if exact is not None:
        return exact
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    seconds = _number(value)
    if seconds is not None:
        return seconds * 1e3
    parts = _DURATION_PART.findall(value)
    if parts and "".join(number + unit for number, unit in parts) == value:
        whole_ms = sum(float(number) * _MS_PER[unit] for number, unit in parts)
        return whole_ms if whole_ms < _MOST else None
    try:
        until_s = parsedate_to_datetime(value).timestamp()
        now_s = parsedate_to_datetime(headers.get("date", "")).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0.0, (until_s - now_s) * 1e3)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < _MOST else None


def _whole(text: str | None) -> int | None:
    """A count; Azure's responses API sends -1 for unknown."""
    value = _number(text) if text is not None else None
    return None if value is None else int(value)
