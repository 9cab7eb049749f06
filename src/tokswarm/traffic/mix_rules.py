"""What a mix must obey beyond the types of its keys: every rule broken, with the path it concerns."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from urllib.parse import SplitResult, urlsplit

from tokswarm.traffic.arrivals import LARGEST_CV, SMALLEST_CV
from tokswarm.traffic.distribution import LARGEST_DRAW
from tokswarm.traffic.mix import (
    Abort,
    Arrivals,
    Budget,
    Bursts,
    Distribution,
    Empirical,
    Find,
    Limit,
    Lognormal,
    Mix,
    Prompt,
    PromptRows,
    Session,
    Slo,
    Stage,
    Target,
    TimeDistribution,
    Tls,
    TraceSource,
    TrafficClass,
)
from tokswarm.traffic.planning import stage_names
from tokswarm.traffic.prompt_template import SUFFIXES, template_of
from tokswarm.traffic.rates import Diurnal, RateCourse
from tokswarm.traffic.routing import places_of_class
from tokswarm.traffic.session import SESSION_HEADER
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
_KINDS = ("fixed", "uniform", "normal", "lognormal", "exponential", "geometric", "choice", "empirical")
_TIMES = ("fixed", "uniform", "exponential", "lognormal")
_ARRIVALS = ("poisson", "constant", "gamma", "weibull")
_LOADS = ("concurrency", "rate", "trace", "find")
_ABORT_RULES = ("error_share", "ttft_p99", "itl_p99", "e2e_p99")
_SHORTEST_STEP_NS = 4_000_000_000
_SHORTEST_KNEE_STEP_NS = 15_000_000_000
_SHORTEST_ABORT_NS = 1_000_000_000
_OWN_FIELDS = {"model", "messages", "prompt", "input", "max_tokens", "max_output_tokens", "stream"}
MAX_METRICS_ADDRESSES = 64
"""Each is asked once a second by the master."""
_TIMEOUTS = ("connect_timeout", "first_byte_timeout", "gap_timeout", "timeout")


def broken_rules(mix: Mix) -> Iterator[Problem]:
    """Every rule that a mix breaks, in the order of the file."""
    yield from _targets(mix)
    seen: dict[str, int] = {}
    for index, one in enumerate(mix.classes):
        path = f"classes[{index}]"
        if one.name in seen:
            yield Problem(f"{path}.name", f"{one.name!r} is the name of classes[{seen[one.name]}] too")
        seen.setdefault(one.name, index)
        yield from _class(one, path)
        yield from _class_targets(one, mix, f"{path}.target")
        reached = [mix.all_targets[place] for place in places_of_class(mix, one)]
        if one.slo is not None and not all(target.stream for target in reached):
            yield from _slo_without_stream(one.slo, f"{path}.slo")
        if one.prompt.rows is not None and any(target.prompt_format == "token_ids" for target in reached):
            yield Problem(f"{path}.prompt.rows", "does not go with `prompt_format: token_ids`")
        if one.session is not None:
            for target in reached:
                yield from _sticky(one.session.sticky, target, f"{path}.session.sticky")
    yield from _load(mix.load, [one.name for one in mix.classes])
    for index, stage in enumerate(mix.load):
        if stage.find is not None:
            yield from _find_among(mix.classes, stage.find, f"load[{index}].find")
    if mix.abort is not None:
        yield from _abort(mix.abort, stream=all(target.stream for target in mix.all_targets))
    if mix.budget is not None:
        yield from _budget(mix.budget)


def _find_among(classes: Sequence[TrafficClass], find: Find, path: str) -> Iterator[Problem]:
    """What a search needs of the classes."""
    if find.goal == "slo" and all(one.slo is None for one in classes):
        yield Problem(f"{path}.goal", "is slo, but no class has limits", "give a class an slo, or write goal: errors")
    if any(one.prompt.rows is not None and not one.prompt.rows.repeat for one in classes):
        hint = "write repeat: true beside the file of the rows"
        yield Problem(path, "would run out of prompts of rows that are not repeated", hint)


# --- target -------------------------------------------------------------------------------------


def _targets(mix: Mix) -> Iterator[Problem]:
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


def _class_targets(one: TrafficClass, mix: Mix, path: str) -> Iterator[Problem]:
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


# --- classes ------------------------------------------------------------------------------------


def _class(one: TrafficClass, path: str) -> Iterator[Problem]:
    yield from _prompt(one, f"{path}.prompt")
    yield from _prefix(one.prompt, f"{path}.prompt")
    yield from _distribution(one.output.max_tokens, f"{path}.output.max_tokens")
    if one.session is not None:
        yield from _session(one.session, f"{path}.session")
    if one.slo is not None:
        yield from _slo(one.slo, f"{path}.slo")


def _session(session: Session, path: str) -> Iterator[Problem]:
    yield from _distribution(session.turns, f"{path}.turns")
    yield from _times(session.think_time, f"{path}.think_time")
    if session.turn_tokens is not None:
        yield from _distribution(session.turn_tokens, f"{path}.turn_tokens")


def _times(times: TimeDistribution, path: str) -> Iterator[Problem]:
    kinds = [kind for kind in _TIMES if getattr(times, kind) is not None]
    if len(kinds) != 1:
        came = " and ".join(kinds) or "none"
        yield Problem(path, f"expected exactly one of {', '.join(_TIMES)}, came {came}")
    if times.uniform is not None and times.uniform.low > times.uniform.high:
        yield Problem(f"{path}.uniform", f"expected low ≤ high, came {times.uniform.low} and {times.uniform.high}")
    if times.exponential is not None and times.exponential.mean.nanoseconds == 0:
        yield Problem(f"{path}.exponential.mean", "must be longer than 0s")
    if times.lognormal is not None:
        p50, p99 = times.lognormal.p50, times.lognormal.p99
        if p50.nanoseconds == 0 or p50 > p99:
            yield Problem(f"{path}.lognormal", f"expected 0s < p50 ≤ p99, came {p50} and {p99}")


def _sticky(sticky: str, target: Target, path: str) -> Iterator[Problem]:
    if sticky == "none":
        return
    if target.client != "native":
        yield Problem(path, f"{sticky} goes with `client: native` only")
    elif sticky == "connection" and target.connections == "new":
        yield Problem(path, "a session cannot keep its connection where target.connections is new")
    elif sticky == "header" and any(name.lower() == SESSION_HEADER for name in target.headers):
        yield Problem(path, f"target.headers sets {SESSION_HEADER} already", "leave one of them out")


def _prompt(one: TrafficClass, path: str) -> Iterator[Problem]:
    prompt = one.prompt
    if prompt.tokens is not None:
        yield from _distribution(prompt.tokens, f"{path}.tokens")
    if prompt.rows is None:
        if prompt.tokens is None:
            yield Problem(path, "the key 'tokens' is missing", "or write rows: with a file of prompts of your own")
        return
    yield from _rows(prompt.rows, f"{path}.rows")
    for name, what in (("tokens", prompt.tokens), ("shared_prefix", prompt.shared_prefix)):
        if what is not None:
            yield Problem(f"{path}.{name}", "does not go with rows, whose prompts are sent as they are")
    if one.session is not None:
        yield Problem(f"{path}.rows", "does not go with a session", "leave one of them out")


def _rows(rows: PromptRows, path: str) -> Iterator[Problem]:
    if not rows.file.endswith(SUFFIXES):
        yield Problem(f"{path}.file", f"expected a name ending in {', '.join(SUFFIXES)}, came {rows.file!r}")
    if rows.field is not None and rows.template is not None:
        yield Problem(path, "expected at most one of field, template, came both", "name the column in the template")
    try:
        template_of(rows)
    except ValueError as error:
        yield Problem(f"{path}.template", str(error))
    if rows.lengths is not None:
        yield from _distribution(rows.lengths, f"{path}.lengths")


def _prefix(prompt: Prompt, path: str) -> Iterator[Problem]:
    if prompt.shared_prefix is None or prompt.tokens is None:
        return
    tokens = prompt.tokens
    longest = min((most for most in (tokens.fixed, tokens.max) if most is not None), default=None)
    if longest is not None and prompt.shared_prefix.tokens > longest:
        yield Problem(
            f"{path}.shared_prefix.tokens",
            f"is {prompt.shared_prefix.tokens}, more than the longest whole prompt, {longest}",
            "prompt.tokens is the length of the whole prompt, shared prefix included",
        )
    if prompt.shared_prefix.groups > LARGEST_DRAW:
        yield Problem(f"{path}.shared_prefix.groups", f"expected at most {LARGEST_DRAW}")


def _distribution(distribution: Distribution, path: str) -> Iterator[Problem]:
    kinds = [kind for kind in _KINDS if getattr(distribution, kind) is not None]
    if len(kinds) != 1:
        came = " and ".join(kinds) or "none"
        yield Problem(path, f"expected exactly one of {', '.join(_KINDS)}, came {came}")
    yield from _bounds(distribution, path)
    if distribution.uniform is not None:
        low, high = distribution.uniform.low, distribution.uniform.high
        if not 1 <= low <= high <= LARGEST_DRAW or int(high) < low:
            yield Problem(
                f"{path}.uniform", f"expected 1 ≤ low ≤ high with a whole number between, came {low:g}, {high:g}"
            )
    if distribution.normal is not None and distribution.normal.mean <= 0:
        yield Problem(f"{path}.normal.mean", f"expected a number > 0, came {distribution.normal.mean:g}")
    if distribution.exponential is not None and distribution.exponential.mean <= 0:
        yield Problem(f"{path}.exponential.mean", f"expected a number > 0, came {distribution.exponential.mean:g}")
    if distribution.geometric is not None and distribution.geometric.mean < 1:
        yield Problem(f"{path}.geometric.mean", f"expected a number ≥ 1, came {distribution.geometric.mean:g}")
    if distribution.empirical is not None:
        yield from _empirical(distribution.empirical, f"{path}.empirical")
    if distribution.lognormal is not None:
        yield from _lognormal(distribution.lognormal, f"{path}.lognormal")
    if distribution.choice is not None:
        yield from _choice(distribution.choice, f"{path}.choice")


def _bounds(distribution: Distribution, path: str) -> Iterator[Problem]:
    for name in ("fixed", "min", "max"):
        value = getattr(distribution, name)
        if value is not None and not 1 <= value <= LARGEST_DRAW:
            yield Problem(f"{path}.{name}", f"expected a whole number from 1 to {LARGEST_DRAW}, came {value}")
    if distribution.min is not None and distribution.max is not None and distribution.min > distribution.max:
        yield Problem(f"{path}.min", f"is {distribution.min}, more than max, {distribution.max}")


def _lognormal(lognormal: Lognormal, path: str) -> Iterator[Problem]:
    given = {name for name in ("p50", "p99", "mean", "sd") if getattr(lognormal, name) is not None}
    if given not in ({"p50", "p99"}, {"mean", "sd"}):
        came = ", ".join(sorted(given)) or "nothing"
        yield Problem(path, f"expected p50 and p99, or mean and sd, came {came}")
    elif lognormal.p50 is not None and lognormal.p99 is not None:
        if not 0 < lognormal.p50 <= lognormal.p99:
            yield Problem(path, f"expected 0 < p50 ≤ p99, came {lognormal.p50:g} and {lognormal.p99:g}")
    elif lognormal.mean is not None and lognormal.sd is not None and not (lognormal.mean > 0 and lognormal.sd >= 0):
        yield Problem(path, f"expected mean > 0 and sd ≥ 0, came {lognormal.mean:g} and {lognormal.sd:g}")


def _choice(choice: dict[int, float], path: str) -> Iterator[Problem]:
    for value, weight in choice.items():
        if not 1 <= value <= LARGEST_DRAW:
            yield Problem(f"{path}.{value}", f"expected values from 1 to {LARGEST_DRAW}, came {value}")
        if weight < 0:
            yield Problem(f"{path}.{value}", f"expected a weight ≥ 0, came {weight:g}")
    if not any(weight > 0 for weight in choice.values()):
        yield Problem(path, "expected at least one value with a weight > 0")


def _empirical(empirical: Empirical, path: str) -> Iterator[Problem]:
    edges, weights = empirical.edges, empirical.weights
    if empirical.file is not None:
        if edges is not None or weights is not None:
            yield Problem(path, "expected edges and weights, or a file, came both")
        return
    if empirical.column is not None:
        yield Problem(f"{path}.column", "goes with a file only")
    if edges is None or weights is None:
        yield Problem(path, "expected edges and weights, or a file", "edges: [1, 100, 1000] has weights for two bins")
        return
    if not weights or len(edges) != len(weights) + 1:
        yield Problem(path, f"expected one more edge than weights, came {len(edges)} edges and {len(weights)} weights")
    if any(later <= sooner for sooner, later in pairwise(edges)):
        yield Problem(f"{path}.edges", "expected each edge above the one before")
    if edges and not 1 <= min(edges) <= max(edges) <= LARGEST_DRAW + 1:
        yield Problem(f"{path}.edges", f"expected whole numbers from 1 to {LARGEST_DRAW}")
    if any(weight < 0 for weight in weights) or not any(weight > 0 for weight in weights):
        yield Problem(f"{path}.weights", "expected weights ≥ 0, at least one of them > 0")


def _slo(slo: Slo, path: str) -> Iterator[Problem]:
    limits = {name: getattr(slo, name) for name in ("ttft", "itl", "e2e")}
    if all(limit is None for limit in limits.values()):
        yield Problem(path, "expected at least one of ttft, itl, e2e", "leave slo out when the class has no limits")
    for name, limit in limits.items():
        if isinstance(limit, Limit):
            durations = {q: getattr(limit, q) for q in ("p50", "p90", "p95", "p99")}
            if all(duration is None for duration in durations.values()):
                yield Problem(f"{path}.{name}", "expected at least one of p50, p90, p95, p99")
            for q, duration in durations.items():
                if duration is not None and duration.nanoseconds == 0:
                    yield Problem(f"{path}.{name}.{q}", "must be longer than 0s")


def _slo_without_stream(slo: Slo, path: str) -> Iterator[Problem]:
    for name in ("ttft", "itl"):
        if getattr(slo, name) is not None:
            hint = "limit e2e, or let target.stream be true"
            yield Problem(f"{path}.{name}", "limits token times, which answers that are not streamed do not have", hint)


# --- load ---------------------------------------------------------------------------------------


def _load(stages: list[Stage], class_names: list[str]) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, stage in enumerate(stages):
        path = f"load[{index}]"
        problems = [*_stage(stage, path), *_stage_classes(stage, class_names, f"{path}.classes")]
        yield from problems
        if problems:
            continue
        for name in stage_names(stage):
            if name in seen:
                yield Problem(
                    f"{path}.name" if stage.name else path,
                    f"this becomes a stage {name!r}, and load[{seen[name]}] does too",
                    "give each stage a name of its own, and each sweep different values",
                )
                break
            seen[name] = index


def _stage(stage: Stage, path: str) -> Iterator[Problem]:
    kinds = [kind for kind in _LOADS if getattr(stage, kind) is not None]
    if len(kinds) != 1:
        came = " and ".join(kinds) or "none"
        yield Problem(path, f"expected exactly one of {', '.join(_LOADS)}, came {came}")
    if stage.concurrency == []:
        yield Problem(f"{path}.concurrency", "expected at least one value, came an empty list")
    if stage.find is not None:
        yield from _find(stage, stage.find, path)
    if stage.for_ is None and stage.trace is None and stage.find is None:
        yield Problem(path, "the key 'for' is missing", "say how long the stage sends, e.g. for: 30s")
    if stage.for_ is not None and stage.for_.nanoseconds == 0:
        yield Problem(f"{path}.for", "must be longer than 0s")
    if stage.trace is not None:
        yield from _trace(stage.trace, f"{path}.trace")
    if stage.rate is not None and stage.rate.course is not None:
        yield from _course(stage.rate.course, f"{path}.rate")
    if stage.arrivals is not None:
        yield from _arrivals(stage, stage.arrivals, f"{path}.arrivals")
    if stage.bursts is not None:
        yield from _bursts(stage, stage.bursts, f"{path}.bursts")


def _trace(source: TraceSource, path: str) -> Iterator[Problem]:
    if source.until is not None and source.until <= source.from_:
        yield Problem(f"{path}.until", f"is {source.until}, not after from, {source.from_}")
    if source.max_gap is not None and source.max_gap.nanoseconds == 0:
        yield Problem(f"{path}.max_gap", "must be longer than 0s")


def _find(stage: Stage, find: Find, path: str) -> Iterator[Problem]:
    if stage.for_ is not None:
        yield Problem(f"{path}.for", "goes with the other loads; a search has find.step_for")
    if (find.rate is None) == (find.concurrency is None):
        yield Problem(f"{path}.find", "expected exactly one of rate, concurrency")
    if find.step_for.nanoseconds < _SHORTEST_STEP_NS:
        yield Problem(f"{path}.find.step_for", f"is {find.step_for}; requests are counted each second, so at least 4s")
    elif find.goal == "knee" and find.step_for.nanoseconds < _SHORTEST_KNEE_STEP_NS:
        yield Problem(f"{path}.find.step_for", f"is {find.step_for}; a knee is judged by parts of it, so at least 15s")
    if find.goal == "knee" and find.share is not None:
        yield Problem(f"{path}.find.share", "does not go with goal: knee, which judges no requests")
    for name in ("rate", "concurrency"):
        searched = getattr(find, name)
        if searched is not None and searched.to < searched.from_:
            yield Problem(f"{path}.find.{name}.to", f"is {searched.to}, less than from, {searched.from_}")
    if stage.warmup:
        yield Problem(f"{path}.warmup", "does not go with find, which is there for its result")


def _arrivals(stage: Stage, arrivals: Arrivals, path: str) -> Iterator[Problem]:
    if stage.rate is None and (stage.find is None or stage.find.rate is None):
        yield Problem(path, "goes with a rate only")
    kinds = [kind for kind in _ARRIVALS if getattr(arrivals, kind) is not None]
    if len(kinds) != 1:
        came = " and ".join(kinds) or "none"
        yield Problem(path, f"expected exactly one of {', '.join(_ARRIVALS)}, came {came}")
    for kind in ("gamma", "weibull"):
        varied = getattr(arrivals, kind)
        if varied is not None and not SMALLEST_CV <= varied.cv <= LARGEST_CV:
            yield Problem(
                f"{path}.{kind}.cv",
                f"expected a number from {SMALLEST_CV:g} to {LARGEST_CV:g}, came {varied.cv:g}",
                "for equal gaps write constant: {}" if varied.cv < SMALLEST_CV else "",
            )


def _bursts(stage: Stage, bursts: Bursts, path: str) -> Iterator[Problem]:
    if stage.rate is None:
        yield Problem(path, "goes with a rate only")
    for name in ("on", "off"):
        if getattr(bursts, name).nanoseconds == 0:
            yield Problem(f"{path}.{name}", "must be longer than 0s")
    if bursts.factor is not None and bursts.on.nanoseconds:
        most = (bursts.on.nanoseconds + bursts.off.nanoseconds) / bursts.on.nanoseconds
        if bursts.factor > most:
            yield Problem(
                f"{path}.factor",
                f"expected at most (on + off) / on, which is {most:.6g}, came {bursts.factor:g}",
                "rate is the mean over on and off together",
            )


def _course(course: RateCourse, path: str) -> Iterator[Problem]:
    kinds = []
    if course.from_ is not None or course.to is not None:
        kinds.append("from and to")
        if course.from_ is None or course.to is None:
            yield Problem(path, "a ramp needs both from and to")
    kinds += [kind for kind in ("steps", "diurnal") if getattr(course, kind) is not None]
    if len(kinds) != 1:
        yield Problem(path, f"expected exactly one of from and to, steps, diurnal, came {', '.join(kinds) or 'none'}")
    if course.steps == []:
        yield Problem(f"{path}.steps", "expected at least one rate, came an empty list")
    if course.diurnal is not None:
        yield from _diurnal(course.diurnal, f"{path}.diurnal")


def _diurnal(diurnal: Diurnal, path: str) -> Iterator[Problem]:
    if len(diurnal.levels) < 2 or not any(level > 0 for level in diurnal.levels):
        yield Problem(f"{path}.levels", "expected at least two levels, one of them > 0")
    if (diurnal.peak is None) == (diurnal.mean is None):
        yield Problem(path, "expected exactly one of peak, mean", "the levels only say how the rates compare")
    if diurnal.period is not None and diurnal.period.nanoseconds == 0:
        yield Problem(f"{path}.period", "must be longer than 0s")


def _stage_classes(stage: Stage, class_names: list[str], path: str) -> Iterator[Problem]:
    if stage.classes is None:
        return
    if stage.trace is not None:
        yield Problem(path, "goes with concurrency or rate only; the requests of a trace are of the mix's first class")
    for name, weight in stage.classes.items():
        if name not in class_names:
            yield Problem(f"{path}.{name}", f"unknown class{suggestion(name, class_names)}")
        if weight < 0:
            yield Problem(f"{path}.{name}", f"expected a weight ≥ 0, came {weight:g}")
    if not any(weight > 0 for weight in stage.classes.values()):
        yield Problem(path, "expected at least one class with a weight > 0", "leave classes out to send all of them")


# --- when to end early ----------------------------------------------------------------------------


def _abort(abort: Abort, *, stream: bool) -> Iterator[Problem]:
    rules = {name: rule for name in _ABORT_RULES if (rule := getattr(abort, name)) is not None}
    if not rules:
        yield Problem("abort", f"expected at least one of {', '.join(_ABORT_RULES)}", "leave abort out to have no rule")
    for name, rule in rules.items():
        if rule.for_.nanoseconds < _SHORTEST_ABORT_NS:
            yield Problem(f"abort.{name}.for", f"is {rule.for_}; rules are looked at each second, so at least 1s")
        if name != "error_share" and rule.over.nanoseconds == 0:
            yield Problem(f"abort.{name}.over", "must be longer than 0s")
        if name in {"ttft_p99", "itl_p99"} and not stream:
            yield Problem(
                f"abort.{name}",
                "is about token times, which answers that are not streamed do not have",
                "take e2e_p99, or let target.stream be true",
            )


def _budget(budget: Budget) -> Iterator[Problem]:
    if budget.output_tokens is None and budget.usd is None and budget.price is None:
        yield Problem("budget", "expected at least one of output_tokens, usd, price")
    if budget.usd is not None and budget.price is None:
        yield Problem("budget.usd", "needs a price", "write price: {input: 0.15/M, output: 0.60/M}")
    price = budget.price
    if price is not None and price.cached is not None and price.cached.usd_per_million > price.input.usd_per_million:
        yield Problem("budget.price.cached", f"is {price.cached}, more than input, {price.input}")
