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
from tokswarm.simulator.answers import Accepted, Api
from tokswarm.simulator.api import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    ResponsesRequest,
    TokenizeRequest,
    decode,
    error_body,
)
from tokswarm.simulator.deployment import Deployment, ModelPlan, outline, replica_prefix, single
from tokswarm.simulator.dialects import answer_for
from tokswarm.simulator.exposition import Exposition
from tokswarm.simulator.fault_gate import FaultGate
from tokswarm.simulator.gateway import Call, Gateway
from tokswarm.simulator.http1 import Connection, Exchange
from tokswarm.simulator.lifecycle import EventLog
from tokswarm.simulator.metrics import CONTENT_TYPE
from tokswarm.simulator.pool import Clockwork, Pool
from tokswarm.simulator.profile import PRESETS
from tokswarm.simulator.truth import TruthLog
from tokswarm.simulator.words import draw_answer, names

log = logging.getLogger(__name__)


class SimSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to run one simulated endpoint."""

    host: str = "127.0.0.1"
    port: int = 8100
    """0: any free port."""
    deployment: Deployment = single(PRESETS["demo"])
    """Which models it serves, and by what."""
    api_key: str | None = None
    """A reference to the key it asks for, `env:NAME` or `file:PATH`; None: it asks for none."""
    seed: int = 1
    """Decides lengths and words of the answers, together with each prompt."""
    port_file: Path | None = None
    """Written with the port once it is open; for programs that start one on port 0."""


class Endpoint:
    """One server's routes and state. Lives on one event loop."""

    def __init__(
        self,
        settings: SimSettings,
        key: str | None,
        *,
        open_alarm: Callable[[Callable[[], None]], Alarm],
        clockwork: Clockwork,
    ) -> None:
        self._settings = settings
        self._key = None if key is None else key.encode()
        self._truth = TruthLog()
        self._events = EventLog()
        deployment = settings.deployment
        self._gateways = {
            plan.name: Gateway(
                plan,
                [
                    Pool(
                        provider,
                        model=plan.name,
                        prefix=replica_prefix(deployment, plan, provider),
                        seed=settings.seed,
                        truth=self._truth,
                        events=self._events,
                        open_alarm=open_alarm,
                        clockwork=clockwork,
                    )
                    for provider in plan.providers
                ],
                self._truth,
                clockwork,
            )
            for plan in deployment.models
        }
        self._exposition = Exposition(list(self._gateways.values()))
        self._next_id = 0
        self._routes: dict[str, tuple[str, Callable[[Exchange], None]]] = {
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/completions": ("POST", self._completions),
            "/v1/responses": ("POST", self._responses),
            "/v1/models": ("GET", self._models),
            "/tokenize": ("POST", self._tokenize),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._render_metrics),
            "/sim/truth": ("GET", self._render_truth),
            "/sim/events": ("GET", self._render_events),
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

    def _responses(self, exchange: Exchange) -> None:
        self._generate(exchange, Api.RESPONSES, decode(exchange.request.body, ResponsesRequest))

    def _models(self, exchange: Exchange) -> None:
        models = [
            {
                "id": plan.name,
                "object": "model",
                "created": 0,
                "owned_by": "tokswarm",
                "root": plan.name,
                "parent": None,
                "max_model_len": plan.max_model_len,
            }
            for plan in self._settings.deployment.models
        ]
        exchange.send(200, msgspec.json.encode({"object": "list", "data": models}))

    def _tokenize(self, exchange: Exchange) -> None:
        asked = decode(exchange.request.body, TokenizeRequest)
        gateway = self._gateway(asked.model)
        tokens = asked.tokens().tolist()
        body = {
            "count": len(tokens),
            "max_model_len": gateway.plan.max_model_len,
            "tokens": tokens,
            "token_strs": names(asked.prompt) if asked.return_token_strs and asked.prompt is not None else None,
        }
        exchange.send(200, msgspec.json.encode(body))

    def _health(self, exchange: Exchange) -> None:
        exchange.send(200, b"")

    def _render_metrics(self, exchange: Exchange) -> None:
        name = parse_qs(exchange.request.query).get("replica", [None])[-1]
        if name is None:
            exchange.send(200, self._exposition.render(), CONTENT_TYPE)
            return
        replica = self._exposition.replica(name)
        if replica is None:
            raise ApiError(404, f"there is no replica {name!r}", param="replica")
        exchange.send(200, replica.metrics.render(), CONTENT_TYPE)

    def _render_truth(self, exchange: Exchange) -> None:
        exchange.send(200, self._truth.lines(_since(exchange)), "application/x-ndjson")

    def _render_events(self, exchange: Exchange) -> None:
        exchange.send(200, self._events.lines(_since(exchange)), "application/x-ndjson")

    # --- generation --------------------------------------------------------------------------------

    def _generate(self, exchange: Exchange, api: Api, asked: GenerationRequest) -> None:
        arrival_ns = time.monotonic_ns()
        gateway = self._gateway(asked.model)
        if asked.n not in (None, 1):
            raise ApiError(400, f"n is {asked.n}; one answer a request is all that is simulated", param="n")
        prompt = asked.prompt()
        if not prompt:
            raise ApiError(400, "the prompt has no tokens", param=api.prompt_field)
        max_tokens = self._limit(gateway.plan, api, len(prompt), asked.limit_tokens())
        answer = draw_answer(
            prompt,
            limit_tokens=max_tokens,
            mean_tokens=gateway.eos_mean_tokens,
            ignore_eos=bool(asked.ignore_eos),
            seed=self._settings.seed + (asked.seed or 0),
        )
        request_id = self._next_id
        self._next_id += 1
        stream_options = asked.stream_options
        accepted = Accepted(
            request_id=request_id,
            api=api,
            public_id=f"{api.id_prefix}{request_id:016x}",
            model=gateway.plan.name,
            created_unix=int(time.time()),
            prompt_tokens=len(prompt),
            answer=answer,
            max_tokens=max_tokens,
            include_usage=bool(stream_options and stream_options.include_usage),
            continuous_usage=bool(
                stream_options and stream_options.include_usage and stream_options.continuous_usage_stats
            ),
        )
        prompt.extend(answer.token_ids())
        call = Call(
            gateway,
            answer_for(accepted, exchange, stream=bool(asked.stream)),
            arrival_ns=arrival_ns,
            tokens=prompt,
            region=exchange.request.headers.get("x-region"),
            priority=asked.priority or 0,
        )
        gateway.take(call)

    def _gateway(self, model: str | None) -> Gateway:
        """Of this model; of the first when none is named."""
        name = self._settings.deployment.models[0].name if model is None else model
        gateway = self._gateways.get(name)
        if gateway is None:
            raise ApiError(404, f"The model `{model}` does not exist.", param="model")
        return gateway

    def _limit(self, plan: ModelPlan, api: Api, prompt_tokens: int, asked: int | None) -> int:
        """How many tokens the answer may have. ApiError when prompt and answer exceed the context."""
        longest = plan.max_model_len
        room = longest - prompt_tokens
        if room < 1 or (asked is not None and asked > room):
            wanted = "" if asked is None else f" and {asked} for the answer"
            raise ApiError(
                400,
                f"This model's maximum context length is {longest} tokens. However, you requested {prompt_tokens}"
                f" tokens in the prompt{wanted}. Please reduce the length of the prompt or of the answer.",
                param=api.limit_field if room >= 1 else api.prompt_field,
                code="context_length_exceeded",
            )
        return room if asked is None else asked

    def close(self) -> None:
        """Stop the clockwork."""
        for gateway in self._gateways.values():
            gateway.close()


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
    endpoint = Endpoint(settings, key, open_alarm=partial(open_alarm, loop), clockwork=loop)
    gate = FaultGate(endpoint.handle, settings.deployment.faults, settings.seed)
    connections: set[Connection] = set()
    try:
        server = await loop.create_server(
            lambda: Connection(gate.handle, error_body, connections, gate.open),
            settings.host,
            settings.port,
            backlog=4096,
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
    log.info("simulated endpoint at http://%s:%d/v1 (%s)", host, port, outline(settings.deployment))
    gc.set_threshold(20_000, 20, 50)  # requests leave no cycles; a full collection would delay a step by milliseconds
    gc.freeze()  # what lives as long as the process need not be walked in the middle of a step
    await ended.wait()
    server.close()
    endpoint.close()
    for connection in list(connections):
        if connection.transport is not None:
            connection.transport.abort()
    await server.wait_closed()
    log.info("simulated endpoint ended")


def _since(exchange: Exchange) -> int:
    since = parse_qs(exchange.request.query).get("since", ["0"])[-1]
    if not since.isascii() or not since.isdecimal():
        raise ApiError(400, f"since is {since!r}, expected a whole number ≥ 0", param="since")
    return int(since)


def _write_whole(path: Path, text: str) -> None:
    """Write so that a reader sees all of it or nothing."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
