"""Where the servers behind a target may tell of themselves, by what the mix says. Pure."""

import urllib.parse
from typing import NamedTuple

from tokswarm.traffic.mix import NamedTarget, Target
from tokswarm.traffic.units import Duration

AUTO, OFF = "auto", "off"
USUAL_PATHS = ("/metrics", "/prometheus/metrics", "/v1/metrics")
"""Of nearly all, of TensorRT-LLM (whose /metrics is JSON) and of NIM."""
TIMEOUT_S = 5.0
"""A server under load answers late; it is asked again in the second after."""


class MetricsSource(NamedTuple):
    """One server, or a gateway for all: the addresses to try, the likeliest first."""

    target: str
    """Name of the target as records and tags have it."""
    named: bool
    """Whether the mix names the address; else nobody misses what is not there."""
    addresses: tuple[Target, ...]
    """To be asked like a target: the path of `base_url` is that of the metrics."""


def metrics_sources(target: Target) -> list[MetricsSource]:
    """What to ask for this target; empty: nothing."""
    if target.metrics == OFF:
        return []
    name = target.name if isinstance(target, NamedTarget) else _place(target.base_url)
    if target.metrics == AUTO:
        root = _root(target.base_url)
        return [MetricsSource(name, False, tuple(_asked(target, f"{root}{path}") for path in USUAL_PATHS))]
    urls = [target.metrics] if isinstance(target.metrics, str) else target.metrics
    return [MetricsSource(name, True, tuple(_asked(target, each) for each in _candidates(url))) for url in urls]


def _candidates(url: str) -> list[str]:
    if urllib.parse.urlsplit(url).path in {"", "/"}:
        return [f"{url.rstrip('/')}{path}" for path in USUAL_PATHS]
    return [url]


def _root(base_url: str) -> str:
    """The address without the API's prefix."""
    return base_url.rstrip("/").removesuffix("/v1")


def _place(base_url: str) -> str:
    """Host and port, as the records of a target without a name have them."""
    url = urllib.parse.urlsplit(base_url)
    if url.scheme == "http+unix":
        return urllib.parse.unquote(url.netloc)
    return f"{url.hostname}:{url.port or (443 if url.scheme == 'https' else 80)}"


def _asked(target: Target, url: str) -> Target:
    """Neither the key nor the headers of the load go there: a metrics address may be somebody else's."""
    timeout = Duration.parse(f"{TIMEOUT_S:g}s")
    return Target(
        base_url=url,
        key=target.metrics_key,
        tls=target.tls,
        connections="new",
        connect_timeout=timeout,
        first_byte_timeout=timeout,
        gap_timeout=timeout,
        timeout=timeout,
    )
