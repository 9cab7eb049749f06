"""What a mix must obey beyond the types of its keys: every rule broken, with the path it concerns."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tokswarm.traffic.distribution import LARGEST_DRAW
from tokswarm.traffic.load_rules import broken_load_rules
from tokswarm.traffic.mix import (
    Abort,
    Budget,
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
    Target,
    TimeDistribution,
    TrafficClass,
)
from tokswarm.traffic.prompt_template import SUFFIXES, template_of
from tokswarm.traffic.routing import places_of_class
from tokswarm.traffic.session import SESSION_HEADER
from tokswarm.traffic.strict_yaml import Problem
from tokswarm.traffic.target_rules import broken_routing_rules, broken_target_rules

_KINDS = ("fixed", "uniform", "normal", "lognormal", "exponential", "geometric", "choice", "empirical")
_TIMES = ("fixed", "uniform", "exponential", "lognormal")
_ABORT_RULES = ("error_share", "ttft_p99", "itl_p99", "e2e_p99")
_SHORTEST_ABORT_NS = 1_000_000_000


def broken_rules(mix: Mix) -> Iterator[Problem]:
    """Every rule that a mix breaks, in the order of the file."""
    yield from broken_target_rules(mix)
    seen: dict[str, int] = {}
    for index, one in enumerate(mix.classes):
        path = f"classes[{index}]"
        if one.name in seen:
            yield Problem(f"{path}.name", f"{one.name!r} is the name of classes[{seen[one.name]}] too")
        seen.setdefault(one.name, index)
        yield from _class(one, path)
        yield from broken_routing_rules(one, mix, f"{path}.target")
        reached = [mix.all_targets[place] for place in places_of_class(mix, one)]
        if one.slo is not None and not all(target.stream for target in reached):
            yield from _slo_without_stream(one.slo, f"{path}.slo")
        if one.prompt.rows is not None and any(target.prompt_format == "token_ids" for target in reached):
            yield Problem(f"{path}.prompt.rows", "does not go with `prompt_format: token_ids`")
        if one.session is not None:
            for target in reached:
                yield from _sticky(one.session.sticky, target, f"{path}.session.sticky")
    yield from broken_load_rules(mix.load, [one.name for one in mix.classes])
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
