"""Looks at the endpoint before any load: does it answer, which model, and how do our words become its tokens.

Everything goes the way the load will go: same address, headers, key and parser.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import msgspec

from tokswarm.errors import PreflightError
from tokswarm.master.calibration import (
    LONG_WORDS,
    SHORT_WORDS,
    TOKEN_ID_FIT,
    Calibration,
    Probed,
    calibrate,
    probe_words,
    server_token_ends,
)
from tokswarm.measure.record import Outcome
from tokswarm.traffic.json_text import json_text
from tokswarm.traffic.mix import Mix, Target
from tokswarm.traffic.plan import TokenFit
from tokswarm.traffic.prompt import PromptWriter
from tokswarm.wire.api import RequestWriter, plain_call
from tokswarm.wire.client import LoadClient
from tokswarm.wire.exchange import Exchange
from tokswarm.wire.target import ResolvedTarget

ANSWER_TIMEOUT_S = 30.0
"""For each probe; a cold endpoint may compile for a while."""

PROBE_TOKENS = 4

OPTIONAL_FIELDS = ("stream_options", "ignore_eos", "max_tokens")
"""What we send and can do without; instead of max_tokens goes its newer name."""

_KEY_HINT = "set target.key to env:NAME or file:PATH of a key that the endpoint accepts"


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, and what the run should say about it."""

    model: str
    fit: TokenFit
    dropped_fields: list[str]
    """Optional request fields that the endpoint refuses."""
    context_tokens: int | None
    """Longest prompt and answer together; None: the list of models does not say (vLLM's does)."""
    notes: list[str]


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """How the endpoint answered when asked for its models."""

    tried: str
    status: int
    error: str | None
    models: dict[str, int | None]
    """Name to tokens of context, where said; empty: there was no list."""

    @property
    def names(self) -> str:
        """The first few."""
        return ", ".join(list(self.models)[:5])


def preflight(mix: Mix, spec: Target) -> Preflight:
    """Probe a target of the mix. PreflightError says what was tried and what came; ConfigError for a bad key."""
    target = ResolvedTarget(spec)
    with _client(target) as client:
        notes: list[str] = []
        listing = _listing(client)
        model = _model(listing, spec)
        if listing.models and model not in listing.models:
            notes.append(f"the endpoint does not list the model {model!r}; it lists {listing.names}")
        short, long = _first_prompts(spec)
        dropped = _refused_fields(client, model, mix, short)
        if dropped:
            notes.append(f"the endpoint refuses {', '.join(dropped)}: requests are sent without")
        if not spec.tls.verify:
            notes.append("the endpoint's certificate is not verified (target.tls.verify: false)")
        writer = RequestWriter(target, model, dropped)

        prompt_tokens = [_prompt_tokens(_probe(client, writer, mix, text), spec, listing) for text in (short, long)]

        def reported(text: str) -> int | None:
            usage = _probe(client, writer, mix, json_text(text)).answer.usage
            return None if usage is None else usage.prompt

        calibration = _calibration(client, model, mix, prompt_tokens=prompt_tokens, reported=reported)
        return Preflight(
            model=model,
            fit=calibration.fit,
            dropped_fields=dropped,
            context_tokens=listing.models.get(model),
            notes=[*notes, *calibration.notes],
        )


def _first_prompts(spec: Target) -> tuple[bytes, bytes]:
    """A short and a long one, which show that the endpoint answers and what it charges for."""
    if spec.prompt_format == "token_ids":
        writer = PromptWriter(TOKEN_ID_FIT, content_seed=0, kind="token_ids")
        return writer.unique(SHORT_WORDS, (0, 0)), writer.unique(LONG_WORDS, (0, 1))
    return json_text(probe_words(SHORT_WORDS)), json_text(probe_words(LONG_WORDS))


def _calibration(
    client: LoadClient,
    model: str,
    mix: Mix,
    *,
    prompt_tokens: Sequence[int | None],
    reported: Callable[[str], int | None],
) -> Calibration:
    """How texts become tokens here, from what the endpoint charges for prompts, and tokenizers where there are any."""
    spec = client.target.spec
    short, long = prompt_tokens
    if spec.prompt_format == "token_ids":
        return Calibration(fit=TOKEN_ID_FIT, notes=[])
    return calibrate(
        {one.prompt.text for one in mix.classes},
        Probed(probe_words(SHORT_WORDS), probe_words(LONG_WORDS), short, long),
        usage=reported,
        server=server_token_ends(client, model),
        tokenizer=spec.tokenizer,
    )


@contextlib.contextmanager
def _client(target: ResolvedTarget) -> Iterator[LoadClient]:
    client = LoadClient(target)
    try:
        yield client
    finally:
        client.close()


def _listing(client: LoadClient) -> Listing:
    """The models that the endpoint lists. PreflightError when it does not answer or refuses the key."""
    path = f"{client.target.path}/models"
    answer = client.ask(plain_call(client.target, "GET", path), timeout_s=ANSWER_TIMEOUT_S)
    tried = f"GET {client.target.spec.base_url.rstrip('/')}/models"
    if answer.status is None:
        raise PreflightError(
            f"the endpoint does not answer: {tried}: {answer.error}",
            hint="start the endpoint, or correct target.base_url (or OPENAI_BASE_URL)",
        )
    if answer.status in (401, 403):
        raise PreflightError(
            f"the endpoint refuses {_key(client.target.spec)}: {tried}: {answer.error}", hint=_KEY_HINT
        )
    models: dict[str, int | None] = {}
    with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
        models = {each.id: each.max_model_len for each in msgspec.json.decode(answer.raw_body, type=_Models).data}
    return Listing(tried=tried, status=answer.status, error=answer.error, models=models)


def _model(listing: Listing, spec: Target) -> str:
    """The target's model, or the first that the endpoint lists."""
    if spec.model is not None:
        return spec.model
    if not listing.models:
        raise PreflightError(
            f"no model to ask for: {listing.tried} answered {listing.status} without a list of models",
            hint="name the model as target.model; or is target.base_url missing its /v1?"
            if listing.status in (200, 404)
            else f"does the endpoint refuse {_key(spec)}? {_KEY_HINT}",
        )
    return next(iter(listing.models))


def _refused_fields(client: LoadClient, model: str, mix: Mix, text: bytes) -> list[str]:
    """Optional fields that the endpoint names when it refuses a probe, each dropped once."""
    dropped: list[str] = []
    while True:
        answer = _probe(client, RequestWriter(client.target, model, dropped), mix, text)
        words = (answer.error or "").lower()
        named = [field for field in OPTIONAL_FIELDS if field in words and field not in dropped]
        if answer.status not in (400, 422) or not named:
            return dropped
        dropped.append(named[0])


def _probe(client: LoadClient, writer: RequestWriter, mix: Mix, text: bytes) -> Exchange:
    """One small generation, as the load sends them."""
    ignore_eos = any(each.output.ignore_eos for each in mix.classes)
    return client.ask(writer.write(text, max_tokens=PROBE_TOKENS, ignore_eos=ignore_eos), timeout_s=ANSWER_TIMEOUT_S)


def _prompt_tokens(answer: Exchange, spec: Target, listing: Listing) -> int | None:
    """The prompt tokens a probe reports. PreflightError when it did not end well."""
    if answer.outcome is not Outcome.OK:
        raise PreflightError(
            f"a probe of {PROBE_TOKENS} tokens to {spec.base_url} ended as {answer.outcome}: {answer.error}",
            hint=hint(answer.status, answer.outcome, spec, listing),
        )
    return None if answer.answer.usage is None else answer.answer.usage.prompt


def hint(status: int | None, outcome: Outcome | None, target: Target, listing: Listing) -> str:
    """What to do about a probe that failed, by how it failed and what the endpoint lists."""
    if status in (401, 403):
        return _KEY_HINT
    if outcome is Outcome.RATE_LIMITED:
        return "the endpoint sheds load already; wait, or ask for a higher limit"
    if status in (400, 404, 422) and listing.models and target.model not in (None, *listing.models):
        return f"set target.model to one that the endpoint lists: {listing.names}"
    if status == 404:
        lacks_v1 = not listing.models and not target.base_url.rstrip("/").endswith("/v1")
        usual = ", usually in /v1" if lacks_v1 else ""
        return f"check that target.base_url ends where /models and /chat/completions follow{usual}"
    if status is not None and listing.status != 200:  # gateways refuse keys with other statuses, too
        return f"{listing.tried} fails as well ({listing.error}): does the endpoint refuse {_key(target)}? {_KEY_HINT}"
    return "send the same request with curl to see what the endpoint needs"


def _key(target: Target) -> str:
    return "requests without a key" if target.key is None else f"the key of {target.key}"
