"""What the targets of a mix must obey, and the classes that name them."""

import re
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

from tokswarm.traffic.mix import Mix, Target, Tls, TrafficClass
from tokswarm.traffic.strict_yaml import Problem, suggestion

_KEY_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:.+")
_HEADER_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
_SECRET_HEADER = re.compile(
    r"(^|[-_])(auth|authorization|token|secret|password|cookie|credentials?|api[-_]?key|apikey|access[-_]?key|key)$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"\s*(bearer|basic)\s|\s*(sk|pk|gsk|hf|nvapi)[-_]\w", re.IGNORECASE)
_OWN_HEADERS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "content-encoding", "connection", "accept-encoding"}
)
_OWN_FIELDS = {"model", "messages", "prompt", "input", "max_tokens", "max_output_tokens", "stream"}
MAX_METRICS_ADDRESSES = 64
"""Each is asked once a second by the master."""
_TIMEOUTS = ("connect_timeout", "first_byte_timeout", "gap_timeout", "timeout")


def broken_target_rules(mix: Mix) -> Iterator[Problem]:
    """What is wrong with the mix's target, or its targets."""
    if mix.target is not None:
        yield from _target(mix.target, "target")
        if mix.targets is not None:
            yield Problem("targets", "expected exactly one of target, targets, came both")
    elif mix.targets is None:
        yield Problem("", "the key 'target' is missing", "or write targets: with several, each with a name")
    seen: dict[str, int] = {}
    for index, target in enumerate(mix.targets or ()):
        path = f"targets[{index}]"
        if target.name in seen:
            yield Problem(f"{path}.name", f"{target.name!r} is the name of targets[{seen[target.name]}] too")
        seen.setdefault(target.name, index)
        yield from _target(target, path)
    if mix.split == "mirror":
        yield from _mirror(mix)


def _mirror(mix: Mix) -> Iterator[Problem]:
    if mix.targets is None or len(mix.targets) < 2:
        yield Problem("split", "mirror needs at least two targets", "write targets: with a name for each")
    for index, target in enumerate(mix.targets or ()):
        if target.weight != 1:
            yield Problem(f"targets[{index}].weight", "goes with split: weights only; mirror sends each request to all")
    for index, stage in enumerate(mix.load):
        if stage.find is not None:
            yield Problem(f"load[{index}].find", "goes with split: weights only", "search one target at a time")


def broken_routing_rules(one: TrafficClass, mix: Mix, path: str) -> Iterator[Problem]:
    """What is wrong with the targets that a class names."""
    if one.target is None:
        return
    known = [target.name for target in mix.targets or ()]
    names = [one.target] if isinstance(one.target, str) else one.target
    if not known:
        yield Problem(path, "names a target, but the mix has no targets", "write targets: with a name for each")
        return
    if not names:
        yield Problem(path, "expected at least one target, came an empty list", "leave it out to go to all")
    for name in names:
        if name not in known:
            yield Problem(path, f"unknown target {name!r}{suggestion(name, known)}")


def _target(target: Target, path: str) -> Iterator[Problem]:
    if what := _bad_url(target.base_url):
        yield Problem(f"{path}.base_url", what, "write it as http://host:port/v1")
    if target.tls != Tls() and target.base_url.startswith("http://"):
        yield Problem(f"{path}.tls", "goes with an https address only")
    if target.model is not None and not target.model.strip():
        yield Problem(f"{path}.model", "is empty", "leave it out to take the first model that the endpoint lists")
    if target.key is not None and not _KEY_REFERENCE.fullmatch(target.key):
        yield Problem(
            f"{path}.key",
            "is not a reference but perhaps the key itself; a mix is stored and sent around, so it must not hold one",
            "write env:NAME or file:PATH; each worker reads the key from there",
        )
    for name, value in target.headers.items():
        yield from _header(name, value, f"{path}.headers.{name}", has_key=target.key is not None)
    yield from _metrics(target, path)
    if target.prompt_format == "token_ids" and target.api != "completions":
        yield Problem(f"{path}.prompt_format", "token_ids goes with `api: completions` only")
    if target.tokenizer is not None and target.prompt_format == "token_ids":
        yield Problem(f"{path}.tokenizer", "has nothing to count where prompt_format is token_ids")
    for name in target.extra_body:
        if name in _OWN_FIELDS:
            yield Problem(f"{path}.extra_body.{name}", "is a field that tokswarm sets itself")
    for name in _TIMEOUTS:
        if getattr(target, name).nanoseconds == 0:
            yield Problem(f"{path}.{name}", "must be longer than 0s")


def _metrics(target: Target, path: str) -> Iterator[Problem]:
    """What is wrong with where the server's metrics are."""
    if isinstance(target.metrics, str):
        named = {} if target.metrics in {"auto", "off"} else {f"{path}.metrics": target.metrics}
    else:
        named = {f"{path}.metrics[{index}]": url for index, url in enumerate(target.metrics)}
    for where, url in named.items():
        if what := _bad_url(url):
            yield Problem(where, what, "write auto, off, or addresses such as http://host:8000/metrics")
    if len(named) > MAX_METRICS_ADDRESSES:
        yield Problem(f"{path}.metrics", f"has {len(named)} addresses, at most {MAX_METRICS_ADDRESSES} are read")
    if target.metrics_key is None:
        return
    if not _KEY_REFERENCE.fullmatch(target.metrics_key):
        what = "is not a reference but perhaps the key itself; a mix is stored, so it must not hold one"
        yield Problem(f"{path}.metrics_key", what, "write env:NAME or file:PATH; the master reads the key from there")
    elif target.metrics == "off":
        yield Problem(f"{path}.metrics_key", "goes with metrics that are read; here they are off")


def _bad_url(url: str) -> str:
    """What is wrong with an endpoint's address; empty when nothing is. Quotes nothing that may hold a password."""
    try:
        parts: SplitResult = urlsplit(url)
        host, has_user = parts.hostname, parts.username is not None or parts.password is not None
        port_is_zero = parts.port == 0
    except ValueError as error:
        return f"is no address: {error}" if "@" not in url else "is no address"
    if has_user:
        return "holds a user or password; use target.key or target.headers with a reference"
    if parts.scheme not in {"http", "https", "http+unix"} or not host:
        came = repr(url) if not re.search("[@?#]", url) else "something else"
        return f"expected an http:// or https:// address, came {came}"
    if port_is_zero or re.search(r"[\s\x00-\x1f\x7f]", url) or not url.isascii():
        return f"is no address that can be connected to: {url!r}"
    if parts.query or parts.fragment:
        return "must end with the path of the API, without ? or #; a query goes into target.query"
    return ""


def _header(name: str, value: str, path: str, *, has_key: bool) -> Iterator[Problem]:
    if not _HEADER_NAME.fullmatch(name):
        yield Problem(path, "is not a name an HTTP header can have")
    elif name.lower() in _OWN_HEADERS:
        yield Problem(path, "is a header that tokswarm sets itself")
    elif name.lower() == "authorization" and has_key:
        yield Problem(path, "is set by target.key already", "leave one of them out")
    if _HEADER_REFERENCE.fullmatch(value):
        return
    if _SECRET_HEADER.search(name) or _SECRET_VALUE.match(value):
        yield Problem(
            path,
            "holds what looks like a secret; a mix is stored and sent around, so it must not hold one",
            "write env:NAME; each worker reads the value from there",
        )
    elif not _HEADER_VALUE.fullmatch(value):
        yield Problem(path, "holds characters that are not printable ASCII")
