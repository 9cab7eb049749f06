"""The traffic mix: what to send, to whom and how fast, as frozen values.

`mixfile` reads them from YAML; `schedule` turns them into tickets.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tokswarm.traffic.units import Duration, Rates

Positive = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""Safe as a tag, a label and a file name."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every part of a mix: an unknown key is an error, and what is at its default is not written out."""


# --- distributions: a mapping with one key, e.g. {lognormal: {p50: 100, p99: 900}} ---------------


class Uniform(Spec, frozen=True, kw_only=True):
    """Whole numbers from low to high, both included, all alike."""

    low: float
    high: float


class Normal(Spec, frozen=True, kw_only=True):
    """By mean and standard deviation."""

    mean: float
    sd: Annotated[float, Meta(ge=0)]


class Lognormal(Spec, frozen=True, kw_only=True):
    """By median and 99th percentile, or by mean and standard deviation."""

    p50: float | None = None
    p99: float | None = None
    mean: float | None = None
    sd: float | None = None


class Exponential(Spec, frozen=True, kw_only=True):
    """By its mean."""

    mean: float


class Distribution(Spec, frozen=True, kw_only=True):
    """A distribution of whole numbers ≥ 1: exactly one kind, with optional bounds."""

    fixed: int | None = None
    uniform: Uniform | None = None
    normal: Normal | None = None
    lognormal: Lognormal | None = None
    exponential: Exponential | None = None
    choice: dict[int, float] | None = None
    """Value to weight."""
    min: int | None = None
    """A smaller draw becomes this."""
    max: int | None = None
    """A larger draw becomes this."""


# --- classes ------------------------------------------------------------------------------------


class Popularity(Spec, frozen=True, kw_only=True):
    """How often each group is drawn: group k (from 1) with weight k to the power of -zipf."""

    zipf: Annotated[float, Meta(ge=0)] = 0.0
    """Exponent of the groups' popularity; 0: all alike."""


class SharedPrefix(Spec, frozen=True, kw_only=True):
    """A common start of prompts: every request belongs to one of `groups`, each with a text of its own."""

    groups: Positive
    tokens: Positive
    popularity: Popularity = Popularity()


class Prompt(Spec, frozen=True, kw_only=True):
    """What is asked."""

    tokens: Distribution
    """Length of the whole prompt, shared prefix included."""
    shared_prefix: SharedPrefix | None = None


class Output(Spec, frozen=True, kw_only=True):
    """What may be answered."""

    max_tokens: Distribution
    ignore_eos: bool = False
    """Ask the server to go on to max_tokens (a vLLM extension)."""


class Limit(Spec, frozen=True, kw_only=True):
    """A service-level objective: the quantile that must stay below, e.g. {p99: 800ms}."""

    p50: Duration | None = None
    p90: Duration | None = None
    p95: Duration | None = None
    p99: Duration | None = None


class Slo(Spec, frozen=True, kw_only=True):
    """The limits a request of the class should meet."""

    ttft: Limit | None = None
    itl: Limit | None = None
    e2e: Limit | None = None


class TrafficClass(Spec, frozen=True, kw_only=True):
    """One kind of request; `weight` is its share against the other classes."""

    name: Name
    weight: Annotated[float, Meta(gt=0)] = 1.0
    prompt: Prompt
    output: Output
    slo: Slo | None = None


# --- target -------------------------------------------------------------------------------------


class Tls(Spec, frozen=True, kw_only=True):
    """Whom to trust behind an https address."""

    verify: bool = True
    """False is said in the run's notes."""
    ca_file: str | None = None
    """Certificates to trust instead of the system's."""


class Target(Spec, frozen=True, kw_only=True):
    """The endpoint."""

    base_url: str
    """With the API's prefix, e.g. http://127.0.0.1:8000/v1."""
    model: str | None = None
    """None: the first model the endpoint lists."""
    api: Literal["chat", "completions", "responses"] = "chat"
    prompt_format: Literal["text", "token_ids"] = "text"
    """token_ids: prompts as lists of token ids, of exact length; for the completions API."""
    client: Literal["native", "openai"] = "native"
    """openai: the same requests through the official SDK, to see what an application on it sees."""
    stream: bool = True
    """False: answers in one piece, which have no token times."""
    connections: Literal["pooled", "new"] = "pooled"
    """new: one for each request, as clients without keep-alive do."""
    query: dict[str, str] = {}
    """Query of every address, e.g. {api-version: 2024-10-21}."""
    extra_body: dict[str, Any] = {}
    """Further fields of each request, e.g. {temperature: 0}."""
    key: str | None = None
    """A reference, `env:NAME` or `file:PATH`, resolved on the worker; None: no key is sent."""
    headers: dict[str, str] = {}
    """Sent with every request; a value `env:NAME` is resolved on the worker."""
    tls: Tls = Tls()
    """For https targets."""
    connect_timeout: Duration = Duration.parse("10s")
    first_byte_timeout: Duration = Duration.parse("120s")
    gap_timeout: Duration = Duration.parse("60s")
    timeout: Duration = Duration.parse("600s")
    """For the whole request."""


# --- load ---------------------------------------------------------------------------------------


class Poisson(Spec, frozen=True, kw_only=True):
    """Arrivals that know nothing of each other."""


class Constant(Spec, frozen=True, kw_only=True):
    """Arrivals with equal gaps."""


class Arrivals(Spec, frozen=True, kw_only=True):
    """Exactly one kind."""

    poisson: Poisson | None = None
    constant: Constant | None = None


class TraceSource(Spec, frozen=True, kw_only=True):
    """A recorded trace to replay."""

    file: str
    """Relative to the mix; also found among the traces that ship with tokswarm."""
    format: Literal["auto", "mooncake", "azure"] = "auto"
    speed: Annotated[float, Meta(gt=0)] = 1.0
    """2 replays an hour in half an hour."""
    rows: Positive | None = None
    """Only the first rows."""
    max_prompt_tokens: Positive | None = None
    """Longer prompts are cut to this, and counted."""
    max_output_tokens: Positive | None = None
    """Longer answers are cut to this, and counted."""


class Stage(Spec, frozen=True, kw_only=True):
    """One step of the load: exactly one of concurrency, rate and trace. A list is a sweep of stages."""

    name: Name | None = None
    concurrency: Positive | list[Positive] | None = None
    rate: Rates | None = None
    arrivals: Arrivals | None = None
    """Of a rate; None: poisson."""
    trace: TraceSource | None = None
    classes: dict[str, float] | None = None
    """Which classes it sends, each with its weight here; None: all, by their own weights."""
    for_: Duration | None = msgspec.field(name="for", default=None)
    """How long new requests are sent; a trace may leave it out and runs to its end."""
    drain: Duration = Duration.parse("30s")
    """How long the stage waits for open requests at its end before it abandons them."""
    warmup: bool = False
    """Kept out of results."""


class Mix(Spec, frozen=True, kw_only=True):
    """The whole of it."""

    name: Name
    description: str = ""
    seed: int = 1
    """Draws arrivals, classes and lengths; not the text."""
    target: Target
    classes: Annotated[list[TrafficClass], Meta(min_length=1)]
    load: Annotated[list[Stage], Meta(min_length=1)]
