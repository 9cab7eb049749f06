"""The simulated endpoint as a server: routes, settings, and running it until a signal ends it."""

import asyncio
import gc
import hmac
import logging
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs

import msgspec
import uvloop

from tokswarm.errors import TokswarmError
from tokswarm.secret_reference import resolve_reference
from tokswarm.simulator.alarm import Alarm, open_alarm
from tokswarm.simulator.answers import Accepted, Api, OpenAnswer, StreamedAnswer, WholeAnswer
from tokswarm.simulator.api import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    TokenizeRequest,
    decode,
    error_body,
)
from tokswarm.simulator.engine import Request
from tokswarm.simulator.http1 import Connection, Exchange
from tokswarm.simulator.kv import block_keys
from tokswarm.simulator.metrics import CONTENT_TYPE
from tokswarm.simulator.profile import PRESETS, Profile
from tokswarm.simulator.replica import Replica
from tokswarm.simulator.truth import Passage, TruthLog
from tokswarm.simulator.words import draw_answer

log = logging.getLogger(__name__)


class SimSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to run one simulated endpoint."""

    host: str = "127.0.0.1"
    port: int = 8100
    """0: any free port."""
    profile: Profile = PRESETS["demo"]
    model: str = "tiny"
    """The model name it answers to."""
    api_key: str | None = None
    """A reference to the key it asks for, `env:NAME` or `file:PATH`; None: it asks for none."""
    seed: int = 1
    """Decides lengths and words of the answers, together with each prompt."""
    port_file: Path | None = None
    """Written with the port once it is open; for programs that start one on port 0."""


class Endpoint:
    """One server's routes and state. Lives on one event loop."""

    def __init__(
        self, settings: SimSettings, key: str | None, open_alarm: Callable[[Callable[[], None]], Alarm]
    ) -> None:
        self._settings = settings
        self._key = None if key is None else key.encode()
        self._truth = TruthLog()
        self._replica = Replica(
            "replica-0", settings.profile, model=settings.model, truth=self._truth, open_alarm=open_alarm
        )
        self._next_id = 0
        self._routes: dict[str, tuple[str, Callable[[Exchange], None]]] = {
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/completions": ("POST", self._completions),
            "/v1/models": ("GET", self._models),
            "/tokenize": ("POST", self._tokenize),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._render_metrics),
            "/sim/truth": ("GET", self._render_truth),
        }

    def handle(self, exchange: Exchange) -> None:
        """Answer one request, or take it up to be answered token by token."""
        try:
            self._authorize(exchange)
            self._route(exchange)
        except ApiError as error:
            exchange.send(error.status, error.body(), headers=error.headers)

    def _route(self, exchange: Exchange) -> None:
        request = exchange.request
        route = self._routes.get(request.path)
        if route is None:
            raise ApiError(404, f"there is no {request.path}")
        method, answer = route
        if request.method == method or (request.method == "HEAD" and method == "GET"):
            answer(exchange)
            return
        body = error_body(405, f"{request.path} takes {method}, not {request.method}")
        exchange.send(405, body, headers=(f"allow: {method}",))

    def _authorize(self, exchange: Exchange) -> None:
        request = exchange.request
        if self._key is None or not request.path.startswith("/v1/"):
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._key):
            raise ApiError(401, "a valid API key is needed: Authorization: Bearer KEY")

    # --- routes ------------------------------------------------------------------------------------

    def _chat(self, exchange: Exchange) -> None:
        self._generate(exchange, Api.CHAT, decode(exchange.request.body, ChatRequest))

    def _completions(self, exchange: Exchange) -> None:
        self._generate(exchange, Api.COMPLETIONS, decode(exchange.request.body, CompletionRequest))

    def _models(self, exchange: Exchange) -> None:
        model = {
            "id": self._settings.model,
            "object": "model",
            "created": 0,
            "owned_by": "tokswarm",
            "root": self._settings.model,
            "parent": None,
            "max_model_len": self._settings.profile.max_model_len,
        }
        exchange.send(200, msgspec.json.encode({"object": "list", "data": [model]}))

    def _tokenize(self, exchange: Exchange) -> None:
        asked = decode(exchange.request.body, TokenizeRequest)
        self._check_model(asked.model)
        tokens = asked.tokens().tolist()
        body = {
            "count": len(tokens),
            "max_model_len": self._settings.profile.max_model_len,
            "tokens": tokens,
            "token_strs": None,
        }
        exchange.send(200, msgspec.json.encode(body))

    def _health(self, exchange: Exchange) -> None:
        exchange.send(200, b"")

    def _render_metrics(self, exchange: Exchange) -> None:
        exchange.send(200, self._replica.metrics.render(), CONTENT_TYPE)

    def _render_truth(self, exchange: Exchange) -> None:
        since = parse_qs(exchange.request.query).get("since", ["0"])[-1]
        if not since.isascii() or not since.isdecimal():
            raise ApiError(400, f"since is {since!r}, expected a whole number ≥ 0", param="since")
        exchange.send(200, self._truth.lines(int(since)), "application/x-ndjson")

    # --- generation --------------------------------------------------------------------------------

    def _generate(self, exchange: Exchange, api: Api, asked: GenerationRequest) -> None:
        arrival_ns = time.monotonic_ns()
        self._check_model(asked.model)
        if asked.n not in (None, 1):
            raise ApiError(400, f"n is {asked.n}; one answer a request is all that is simulated", param="n")
        prompt = asked.prompt()
        if not prompt:
            raise ApiError(400, "the prompt has no tokens", param="prompt")
        max_tokens = self._limit(api, len(prompt), asked.limit_tokens())
        profile = self._settings.profile
        answer = draw_answer(
            prompt,
            limit_tokens=max_tokens,
            mean_tokens=profile.eos_mean_tokens,
            ignore_eos=bool(asked.ignore_eos),
            seed=self._settings.seed + (asked.seed or 0),
        )
        request_id = self._next_id
        self._next_id += 1
        stream_options = asked.stream_options
        accepted = Accepted(
            request_id=request_id,
            api=api,
            public_id=f"{'chatcmpl' if api is Api.CHAT else 'cmpl'}-{request_id:016x}",
            model=self._settings.model,
            created_unix=int(time.time()),
            prompt_tokens=len(prompt),
            answer=answer,
            max_tokens=max_tokens,
            include_usage=bool(stream_options and stream_options.include_usage),
            continuous_usage=bool(
                stream_options and stream_options.include_usage and stream_options.continuous_usage_stats
            ),
        )
        output_tokens = len(answer.words)
        prompt.extend(answer.token_ids())
        replica = self._replica
        exchange.headers.append(f"x-served-by: {replica.name}")
        opened: OpenAnswer
        if asked.stream:
            opened = StreamedAnswer(accepted, exchange)
            opened.open()
        else:
            opened = WholeAnswer(accepted, exchange)
        exchange.on_disconnect = lambda: replica.abort(request_id)
        replica.submit(
            Request(
                request_id=request_id,
                arrival_ns=arrival_ns,
                prompt_tokens=accepted.prompt_tokens,
                output_tokens=output_tokens,
                block_keys=block_keys(prompt, profile.block_tokens),
            ),
            opened,
            Passage(model=accepted.model, provider="main", replica=replica.name, arrival_ns=arrival_ns),
        )

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self._settings.model:
            raise ApiError(404, f"The model `{model}` does not exist.", param="model")

    def _limit(self, api: Api, prompt_tokens: int, asked: int | None) -> int:
        """How many tokens the answer may have. ApiError when prompt and answer exceed the context."""
        longest = self._settings.profile.max_model_len
        room = longest - prompt_tokens
        if room < 1 or (asked is not None and asked > room):
            prompt_field = "messages" if api is Api.CHAT else "prompt"
            wanted = "" if asked is None else f" and {asked} for the answer"
            raise ApiError(
                400,
                f"This model's maximum context length is {longest} tokens. However, you requested {prompt_tokens}"
                f" tokens in the prompt{wanted}. Please reduce the length of the prompt or of the answer.",
                param="max_tokens" if room >= 1 else prompt_field,
                code="context_length_exceeded",
            )
        return room if asked is None else asked

    def close(self) -> None:
        """Stop the clockwork."""
        self._replica.close()


def run(settings: SimSettings) -> None:
    """Serve until SIGINT or SIGTERM. TokswarmError when the address cannot be had, or the key is missing."""
    key = None if settings.api_key is None else resolve_reference(settings.api_key, "--api-key", os.environ)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, key))


async def _serve(settings: SimSettings, key: str | None) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    endpoint = Endpoint(settings, key, partial(open_alarm, loop))
    connections: set[Connection] = set()
    try:
        server = await loop.create_server(
            lambda: Connection(endpoint.handle, error_body, connections), settings.host, settings.port, backlog=4096
        )
    except OSError as error:
        endpoint.close()
        raise TokswarmError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}",
            hint="choose another port with --port; --port 0 takes any free one",
        ) from error
    port = server.sockets[0].getsockname()[1]
    if settings.port_file is not None:
        _write_whole(settings.port_file, f"{port}\n")
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    log.info(
        "simulated endpoint at http://%s:%d/v1 (model %s, profile %s)",
        host,
        port,
        settings.model,
        settings.profile.name,
    )
    gc.freeze()  # what lives as long as the process need not be walked in the middle of a step
    await ended.wait()
    server.close()
    endpoint.close()
    for connection in list(connections):
        if connection.transport is not None:
            connection.transport.abort()
    await server.wait_closed()
    log.info("simulated endpoint ended")


def _write_whole(path: Path, text: str) -> None:
    """Write so that a reader sees all of it or nothing."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
