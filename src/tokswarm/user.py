"""Scripted flows in plain Locust style, measured by the same client as a mix.

    class Shopper(LLMUser):
        model = "tiny"

        @task
        def shop(self):
            reply = self.llm.chat([{"role": "user", "content": "What fits a rainy day?"}], max_tokens=60)
            self.llm.chat([*reply.messages, {"role": "user", "content": "And cheaper?"}], max_tokens=60)

Run with Locust's own options: `locust -f shopper.py --host http://127.0.0.1:8100/v1`. Each request
fires Locust's request event once, named by the caller, with its E2E time.
"""

import itertools
from typing import Any, NamedTuple

import msgspec
from gevent.hub import Waiter
from locust import User

from tokswarm.errors import ConfigError
from tokswarm.measure.record import Outcome, RequestRecord
from tokswarm.traffic.mix import Distribution, Output, Prompt, Target, TrafficClass
from tokswarm.traffic.ticket import Ticket
from tokswarm.wire.answer import LiveRow
from tokswarm.wire.client import Call, LoadClient
from tokswarm.wire.exchange import Exchange
from tokswarm.wire.kept_answer import KeptChatAnswer
from tokswarm.wire.target import ResolvedTarget
from tokswarm.worker.record_of import record_of

STAGE = "script"


class RequestFailedError(Exception):
    """What Locust's statistics show for a request that did not end ok."""


class Reply(NamedTuple):
    """What came back: the text so far, the record, and the conversation with the answer appended."""

    text: str
    record: RequestRecord
    messages: list[dict[str, Any]]

    @property
    def ok(self) -> bool:
        """Whether the request ended ok."""
        return self.record.outcome is Outcome.OK


class _Planned(msgspec.Struct):
    ticket: Ticket
    slot: int
    planned_ns: int
    stage: str


class LLM:
    """One process's client to one target, shared by its users."""

    def __init__(self, client: LoadClient, model: str, environment: Any) -> None:
        self._client = client
        self._model = model
        self._environment = environment
        self._ids = itertools.count()
        target = client.target
        self._head = target.head("POST", f"{target.path}/chat/completions{target.query}", accept="text/event-stream")

    def chat(self, messages: list[dict[str, Any]], *, max_tokens: int, name: str = "chat", **fields: Any) -> Reply:
        """Send a conversation, wait for the whole answer. `fields` go into the request as they are.

        A failed request raises nothing: look at `Reply.ok`; Locust counts it as a failure.
        """
        body = msgspec.json.encode(
            {
                "model": self._model,
                "messages": messages,
                "max_tokens": max_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
                **fields,
            }
        )
        call = Call(b"%s%d\r\n\r\n%s" % (self._head, len(body), body), KeptChatAnswer)
        exchange = self._exchange(call)
        record = self._record(exchange, name, max_tokens)
        answer = exchange.answer
        assert isinstance(answer, KeptChatAnswer)
        text = answer.text()
        self._fire(record, name)
        return Reply(text, record, [*messages, {"role": "assistant", "content": text}])

    def _exchange(self, call: Call) -> Exchange:
        waiter: Waiter[Exchange] = Waiter()
        started = self._client.start(call, LiveRow(), waiter.switch, None)
        try:
            exchange: Exchange = waiter.get()
        except BaseException:  # killed by Locust, or by a timeout of the script's own
            started.abort("the user was stopped")
            raise
        return exchange

    def _record(self, exchange: Exchange, name: str, max_tokens: int) -> RequestRecord:
        ticket = Ticket(
            index=0,
            class_index=0,
            due_ns=None,
            prompt=b"",
            prompt_tokens=0,
            max_tokens=max_tokens,
            ideal_cached_tokens=0,
        )
        any_length = Distribution(fixed=1)
        return record_of(
            exchange,
            _Planned(ticket, 0, exchange.begun_ns, STAGE),
            request_id=next(self._ids),
            traffic_class=TrafficClass(
                name=name, prompt=Prompt(tokens=any_length), output=Output(max_tokens=any_length)
            ),
            target_name=self._client.target.name,
            wall_offset_ns=self._client.clock.offset_ns,
        )

    def _fire(self, record: RequestRecord, name: str) -> None:
        failure = None if record.outcome is Outcome.OK else RequestFailedError(f"{record.outcome}: {record.error}")
        self._environment.events.request.fire(
            request_type="LLM",
            name=name,
            response_time=record.e2e_ms,
            response_length=record.output_tokens,
            exception=failure,
            context={"record": record},
        )


class LLMUser(User):
    """A Locust user with `self.llm`. `host` (or `--host`) is the base URL; `model` must be named."""

    abstract = True
    model: str = ""
    key: str | None = None
    """A reference, env:NAME or file:PATH."""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        if not self.host:
            raise ConfigError(
                "no endpoint is named", hint="give --host http://HOST:PORT/v1, or set `host` on the class"
            )
        if not self.model:
            raise ConfigError(f"{type(self).__name__}.model is empty", hint="set `model` on the class")
        self.llm = _shared_llm(environment, self.host, self.model, self.key)


def _shared_llm(environment: Any, base_url: str, model: str, key: str | None) -> LLM:
    """One client per target, kept with Locust's environment."""
    shared: dict[tuple[str, str, str | None], LLM] = environment.__dict__.setdefault("tokswarm_clients", {})
    place = (base_url, model, key)
    if place not in shared:
        client = LoadClient(ResolvedTarget(Target(base_url=base_url, model=model, key=key)))
        shared[place] = LLM(client, model, environment)
    return shared[place]
