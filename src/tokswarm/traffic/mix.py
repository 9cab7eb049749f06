"""The traffic mix: what to send, to whom and how fast, as frozen values.

`mixfile` reads them from YAML; `schedule` turns them into tickets. The texts below the fields are the
descriptions that editors show: `mix_schema` reads them.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tokswarm.traffic.rates import Rates
from tokswarm.traffic.units import Duration, Rate, ShareRate, TokenPrice

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


class Geometric(Spec, frozen=True, kw_only=True):
    """Whole numbers from 1 on, each 1 - 1/mean times as likely as the one before."""

    mean: float


class Empirical(Spec, frozen=True, kw_only=True):
    """What was measured: a histogram of `edges` and `weights`, or a `file`."""

    edges: list[int] | None = None
    """Bounds of the bins: one holds the whole numbers from its lower edge up to, but without, its upper."""
    weights: list[float] | None = None
    """One for each bin; within a bin all whole numbers are alike."""
    file: str | None = None
    """Relative to the mix: a number a line, a CSV, or JSON (numbers, value to weight, or edges and weights)."""
    column: str | None = None
    """Of a CSV with a header."""


class Distribution(Spec, frozen=True, kw_only=True):
    """A distribution of whole numbers ≥ 1: exactly one kind, with optional bounds."""

    fixed: int | None = None
    """Always this."""
    uniform: Uniform | None = None
    normal: Normal | None = None
    lognormal: Lognormal | None = None
    exponential: Exponential | None = None
    geometric: Geometric | None = None
    choice: dict[int, float] | None = None
    """Value to weight."""
    empirical: Empirical | None = None
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
    churn: ShareRate | None = None
    """Share of the groups that is replaced by new ones in a time, e.g. 10%/m; None: they stay."""


class PromptRows(Spec, frozen=True, kw_only=True):
    """Prompts of your own: each row of a file becomes one."""

    file: str
    """JSON lines, CSV or Parquet, in the mix's folder or below."""
    field: str | None = None
    """The column that is the prompt; None: `prompt`, unless there is a template."""
    template: str | None = None
    """Text with columns in braces, such as `Answer briefly: {question}`."""
    repeat: bool = False
    """Whether the rows are sent over again when all were sent, in another order."""
    lengths: Distribution | None = None
    """Of the prompts in tokens, for what is planned; None: estimated from the file as it is read."""


class Prompt(Spec, frozen=True, kw_only=True):
    """What is asked: exactly one of tokens and rows."""

    tokens: Distribution | None = None
    """Length of the whole prompt, shared prefix included."""
    rows: PromptRows | None = None
    """Prompts out of a file instead of text of tokswarm's."""
    shared_prefix: SharedPrefix | None = None
    text: Literal["mixed", "english", "german", "spanish", "french", "chinese", "code", "words"] = "mixed"
    """What it is written in; mixed: paragraphs of all these, code among them; words: sentences of common words."""

    @property
    def lengths(self) -> Distribution:
        """Of the whole prompt in tokens; of rows about."""
        if self.tokens is not None:
            return self.tokens
        if self.rows is None or self.rows.lengths is None:
            raise ValueError("neither tokens nor rows that have been read")
        return self.rows.lengths


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


class TimeUniform(Spec, frozen=True, kw_only=True):
    """From low to high, all alike."""

    low: Duration
    high: Duration


class TimeExponential(Spec, frozen=True, kw_only=True):
    """By its mean."""

    mean: Duration


class TimeLognormal(Spec, frozen=True, kw_only=True):
    """By median and 99th percentile."""

    p50: Duration
    p99: Duration


class TimeDistribution(Spec, frozen=True, kw_only=True):
    """A distribution of times: exactly one kind, with an optional bound."""

    fixed: Duration | None = None
    """Always this."""
    uniform: TimeUniform | None = None
    exponential: TimeExponential | None = None
    lognormal: TimeLognormal | None = None
    max: Duration | None = None
    """A longer draw becomes this."""


class Session(Spec, frozen=True, kw_only=True):
    """A conversation: each turn sends all that was said before it."""

    turns: Distribution
    """How many requests it has."""
    think_time: TimeDistribution = TimeDistribution(fixed=Duration(0))
    """From the end of an answer to the next turn."""
    turn_tokens: Distribution | None = None
    """What a later turn adds of its own; None: as the first turn, without the shared prefix."""
    history: Literal["own", "server"] = "own"
    """What stands for earlier answers: text of ours as long as they were, or what the server really said."""
    sticky: Literal["none", "connection", "header"] = "none"
    """What ties its turns together for a router: one connection, or a header x-session-id."""


class TrafficClass(Spec, frozen=True, kw_only=True):
    """One kind of request; `weight` is its share against the other classes."""

    name: Name
    weight: Annotated[float, Meta(gt=0)] = 1.0
    target: Name | list[Name] | None = None
    """Which of the mix's `targets` it goes to, one or several of them; None: all."""
    prompt: Prompt
    output: Output
    session: Session | None = None
    """Requests come as conversations; the weight is then that of a whole one. None: each by itself."""
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
    tokenizer: str | None = None
    """A tokenizer.json on the master, or its folder, to count prompts by; needs the package tokenizers."""
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
    metrics: str | Annotated[list[str], Meta(min_length=1)] = "auto"
    """Where the server's own metrics are, read once a second: auto, off, an address, or one for each replica."""
    metrics_key: str | None = None
    """A reference to the key of those addresses, resolved on the master; None: they get no key."""
    connect_timeout: Duration = Duration.parse("10s")
    first_byte_timeout: Duration = Duration.parse("120s")
    gap_timeout: Duration = Duration.parse("60s")
    timeout: Duration = Duration.parse("600s")
    """For the whole request."""


class NamedTarget(Target, frozen=True, kw_only=True):
    """One of several endpoints."""

    name: Name
    """Names its results."""
    weight: Annotated[float, Meta(gt=0)] = 1.0
    """Its share of the requests against the other targets that a class goes to."""


# --- load ---------------------------------------------------------------------------------------


class Poisson(Spec, frozen=True, kw_only=True):
    """Arrivals that know nothing of each other."""


class Constant(Spec, frozen=True, kw_only=True):
    """Arrivals with equal gaps."""


class Varied(Spec, frozen=True, kw_only=True):
    """Independent gaps of a given variation."""

    cv: Annotated[float, Meta(gt=0)]
    """Standard deviation of the gaps over their mean; 1 is as Poisson, more comes in clusters, less more evenly."""


class Arrivals(Spec, frozen=True, kw_only=True):
    """Exactly one kind."""

    poisson: Poisson | None = None
    constant: Constant | None = None
    gamma: Varied | None = None
    """Gaps of a gamma distribution."""
    weibull: Varied | None = None
    """Gaps of a Weibull distribution."""


class Bursts(Spec, frozen=True, kw_only=True):
    """The rate goes up for a while, down for a while, and so on; its mean over both stays the stage's."""

    on: Duration
    """How long it is up; the stage begins with this."""
    off: Duration
    """How long it is down."""
    factor: Annotated[float, Meta(ge=1)] | None = None
    """Times the stage's rate while up, at most (on + off) / on, which is the default: nothing comes while down."""


class TraceSource(Spec, frozen=True, kw_only=True):
    """A recorded trace to replay."""

    file: str
    """Relative to the mix; also found among the traces that ship with tokswarm."""
    format: Literal["auto", "mooncake", "bailian", "tokswarm", "azure", "burstgpt", "servegen"] = "auto"
    from_: Duration = msgspec.field(name="from", default=Duration.parse("0s"))
    """Leaves out what is earlier in the trace."""
    until: Duration | None = None
    """Leaves out what is later in the trace."""
    keep: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Share of the requests that is kept, drawn by the mix's seed."""
    max_gap: Duration | None = None
    """Longer pauses between requests become this, in the trace's time."""
    speed: Annotated[float, Meta(gt=0)] = 1.0
    """2 replays an hour in half an hour."""
    rows: Positive | None = None
    """Only the first rows."""
    max_prompt_tokens: Positive | None = None
    """Longer prompts are cut to this, and counted."""
    max_output_tokens: Positive | None = None
    """Longer answers are cut to this, and counted."""


class RateRange(Spec, frozen=True, kw_only=True):
    """Rates to search through."""

    from_: Rate = msgspec.field(name="from")
    """The first that is tried."""
    to: Rate
    """None above this is tried."""


class ConcurrencyRange(Spec, frozen=True, kw_only=True):
    """Numbers in flight to search through."""

    from_: Positive = msgspec.field(name="from")
    """The first that is tried."""
    to: Positive
    """None above this is tried."""


class Find(Spec, frozen=True, kw_only=True):
    """A search for the highest load that meets a goal: exactly one of rate and concurrency."""

    goal: Literal["slo", "errors", "knee"] = "slo"
    """slo: enough requests within the limits of their class; errors: enough requests end ok; knee: the most tok/s
    times tok/s of each request."""
    rate: RateRange | None = None
    concurrency: ConcurrencyRange | None = None
    step_for: Duration
    """How long each load is tried."""
    precision: Annotated[float, Meta(gt=0, le=0.5)] = 0.05
    """The search ends when the load found and the lowest that misses the goal are this close."""
    share: Annotated[float, Meta(gt=0, le=1)] | None = None
    """How many of the requests must do so; None: the quantile of the classes' limits, or 99 % for errors. Not for
    a knee."""


class Stage(Spec, frozen=True, kw_only=True):
    """One step of the load: exactly one of concurrency, rate, trace and find. A list is a sweep of stages."""

    name: Name | None = None
    concurrency: Positive | list[Positive] | None = None
    rate: Rates | None = None
    arrivals: Arrivals | None = None
    """Of a rate, also of one that is searched; None: poisson."""
    bursts: Bursts | None = None
    """Of a rate."""
    trace: TraceSource | None = None
    find: Find | None = None
    """Searches for the highest load."""
    classes: dict[str, float] | None = None
    """Which classes it sends, each with its weight here; None: all, by their own weights."""
    for_: Duration | None = msgspec.field(name="for", default=None)
    """How long new requests are sent; a trace may leave it out and runs to its end, a find has `step_for`."""
    drain: Duration = Duration.parse("30s")
    """How long the stage waits for open requests at its end before it abandons them."""
    warmup: bool = False
    """Kept out of results."""


# --- when to end early ----------------------------------------------------------------------------


class AbortShare(Spec, frozen=True, kw_only=True):
    """Too many, for too long."""

    over: Annotated[float, Meta(gt=0, le=0.99)]
    """A second with a larger share is bad."""
    for_: Duration = msgspec.field(name="for")
    """How long it must be bad."""


class AbortLatency(Spec, frozen=True, kw_only=True):
    """Too slow, for too long."""

    over: Duration
    """A second above this is bad."""
    for_: Duration = msgspec.field(name="for")
    """How long it must be bad."""


class Abort(Spec, frozen=True, kw_only=True):
    """When to give the run up: the first rule that is broken ends it."""

    error_share: AbortShare | None = None
    """Share of the requests that ended in a second and did not end ok."""
    ttft_p99: AbortLatency | None = None
    itl_p99: AbortLatency | None = None
    e2e_p99: AbortLatency | None = None


class Price(Spec, frozen=True, kw_only=True):
    """What the endpoint costs."""

    input: TokenPrice
    """Prompt tokens."""
    cached: TokenPrice | None = None
    """Prompt tokens that the endpoint says it had cached; None: as input."""
    output: TokenPrice


class Budget(Spec, frozen=True, kw_only=True):
    """What the whole run may use up, warm-up included."""

    output_tokens: Positive | None = None
    usd: Annotated[float, Meta(gt=0)] | None = None
    """Needs a price."""
    price: Price | None = None
    """Also gives the results their cost."""


class Mix(Spec, frozen=True, kw_only=True):
    """The whole of it."""

    name: Name
    description: str = ""
    seed: int = 1
    """Draws arrivals, classes and lengths; not the text."""
    target: Target | None = None
    """The endpoint; exactly one of `target` and `targets`."""
    targets: Annotated[list[NamedTarget], Meta(min_length=1)] | None = None
    """Several endpoints in one run."""
    split: Literal["weights", "mirror"] = "weights"
    """weights: a request goes to one of the targets; mirror: to each of them, to compare them under the same load."""
    classes: Annotated[list[TrafficClass], Meta(min_length=1)]
    load: Annotated[list[Stage], Meta(min_length=1)]
    abort: Abort | None = None
    """When to give the run up."""
    budget: Budget | None = None
    """What it may use up."""

    @property
    def all_targets(self) -> Sequence[Target]:
        """The target, or the targets, in their order."""
        return self.targets or ([] if self.target is None else [self.target])


class SharedClasses(Spec, frozen=True, kw_only=True):
    """A file that mixes include."""

    description: str = ""
    classes: Annotated[list[TrafficClass], Meta(min_length=1)]


class MixDocument(Mix, frozen=True, kw_only=True):
    """A mix as it is written: some of its classes may be in other files."""

    include: str | list[str] = []
    """Files with shared classes, beside the mix or below; a class of the mix takes the place of one of its name."""
    classes: Annotated[list[TrafficClass], Meta(min_length=1)] = []
