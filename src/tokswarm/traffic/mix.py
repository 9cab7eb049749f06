"""The traffic mix: what to send, to whom and how fast, as frozen values.

`mixfile` reads them from YAML; `schedule` turns them into tickets.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tokswarm.traffic.units import Duration, Rate

Positive = Annotated[int, Meta(ge=1)]


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every part of a mix: an unknown key is an error."""


# --- distributions: a mapping with one key, e.g. {lognormal: {p50: 100, p99: 900}} ---------------


class Uniform(Spec):
    low: float
    high: float


class Normal(Spec):
    mean: float
    sd: Annotated[float, Meta(ge=0)]


class Lognormal(Spec):
    """By median and 99th percentile, or by mean and standard deviation."""

    p50: float | None = None
    p99: float | None = None
    mean: float | None = None
    sd: float | None = None


class Exponential(Spec):
    mean: float


class Distribution(Spec):
    """A distribution of whole numbers ≥ 1: exactly one kind, with optional bounds."""

    fixed: int | None = None
    uniform: Uniform | None = None
    normal: Normal | None = None
    lognormal: Lognormal | None = None
    exponential: Exponential | None = None
    choice: dict[int, float] | None = None
    """Value to weight."""
    min: int | None = None
    max: int | None = None


# --- classes ------------------------------------------------------------------------------------


class Popularity(Spec):
    zipf: Annotated[float, Meta(ge=0)] = 0.0
    """Exponent of the groups' popularity; 0: all alike."""


class SharedPrefix(Spec):
    groups: Positive
    tokens: Positive
    popularity: Popularity = Popularity()


class Prompt(Spec):
    tokens: Distribution
    """Length of the whole prompt, shared prefix included."""
    shared_prefix: SharedPrefix | None = None


class Output(Spec):
    max_tokens: Distribution
    ignore_eos: bool = False


class Limit(Spec):
    """A service-level objective: the quantile that must stay below, e.g. {p99: 800ms}."""

    p50: Duration | None = None
    p90: Duration | None = None
    p95: Duration | None = None
    p99: Duration | None = None


class Slo(Spec):
    ttft: Limit | None = None
    itl: Limit | None = None
    e2e: Limit | None = None


class TrafficClass(Spec):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    weight: Annotated[float, Meta(gt=0)] = 1.0
    prompt: Prompt
    output: Output
    slo: Slo | None = None


# --- target -------------------------------------------------------------------------------------


class Target(Spec):
    base_url: str
    model: str | None = None
    """None: the first model the endpoint lists."""
    api: Literal["chat", "completions"] = "chat"
    key: str | None = None
    """A reference, `env:NAME` or `file:PATH`, resolved on the worker; None: no key is sent."""
    headers: dict[str, str] = {}
    connect_timeout: Duration = Duration.parse("10s")
    first_byte_timeout: Duration = Duration.parse("120s")
    gap_timeout: Duration = Duration.parse("60s")
    timeout: Duration = Duration.parse("600s")
    """For the whole request."""


# --- load ---------------------------------------------------------------------------------------


class Poisson(Spec):
    pass


class Constant(Spec):
    pass


class Arrivals(Spec):
    """Exactly one kind."""

    poisson: Poisson | None = None
    constant: Constant | None = None


class TraceSource(Spec):
    file: str
    """Relative to the mix; also found among the traces that ship with tokswarm."""
    format: Literal["auto", "mooncake", "azure"] = "auto"
    speed: Annotated[float, Meta(gt=0)] = 1.0
    rows: Positive | None = None
    """Only the first rows."""
    max_prompt_tokens: Positive | None = None
    """Longer prompts are cut to this, and counted."""
    max_output_tokens: Positive | None = None


class Stage(Spec):
    """One step of the load: exactly one of concurrency, rate and trace. A list is a sweep of stages."""

    name: str | None = None
    concurrency: Positive | list[Positive] | None = None
    rate: Rate | list[Rate] | None = None
    arrivals: Arrivals | None = None
    trace: TraceSource | None = None
    for_: Duration | None = msgspec.field(name="for", default=None)
    """How long new requests are sent; a trace may leave it out and runs to its end."""
    drain: Duration = Duration.parse("30s")
    """How long the stage waits for open requests at its end before it abandons them."""
    warmup: bool = False
    """Kept out of results."""


class Mix(Spec):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    description: str = ""
    seed: int = 1
    target: Target
    classes: Annotated[list[TrafficClass], Meta(min_length=1)]
    load: Annotated[list[Stage], Meta(min_length=1)]
