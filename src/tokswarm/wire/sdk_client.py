"""The same requests through the official openai SDK: what an application on the SDK sees.

One greenlet per request in a patched process; `max_retries=0`, raw streaming responses read to their
end, so that connections are kept. There are no kernel stamps here: arrivals are stamped by the user
clock when the SDK hands bytes over, and say so.
"""

import time
from collections.abc import Callable
from typing import Any

import gevent
import msgspec

from tokswarm.measure.record import Outcome
from tokswarm.redact import redact
from tokswarm.wire.answer import Answer, LiveRow, judge_answer, judge_refusal
from tokswarm.wire.client import Call
from tokswarm.wire.clock import ReceiveClock
from tokswarm.wire.connection import SessionConnection
from tokswarm.wire.receiver import Receiver
from tokswarm.wire.target import ResolvedTarget

SDK_FIELDS = ("model", "messages", "prompt", "input", "max_tokens", "max_completion_tokens", "max_output_tokens")
"""Fields the SDK's method takes by name; all others go as its `extra_body`."""

MAX_CONNECTIONS = 20_000
"""Above any concurrency of one worker: the SDK's own default makes request 1,001 wait unseen."""

RESOURCES = {"chat": "chat.completions", "completions": "completions", "responses": "responses"}


class SdkExchange:
    """One request through the SDK. All times monotonic ns."""

    __slots__ = (
        "answer",
        "begun_ns",
        "connect_ns",
        "done_ns",
        "error",
        "greenlet",
        "headers",
        "headers_ns",
        "outcome",
        "sent_ns",
        "status",
        "tag",
    )

    def __init__(self, answer: Answer, tag: object) -> None:
        self.answer = answer
        self.tag = tag
        self.begun_ns = self.sent_ns = time.monotonic_ns()
        self.done_ns = 0
        self.headers_ns: int | None = None
        self.connect_ns: int | None = None
        """The SDK does not tell."""
        self.outcome: Outcome | None = None
        self.error: str | None = None
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        """Names in lower case."""
        self.greenlet: gevent.Greenlet | None = None


class SdkClient:
    """Sends to one target through one SDK client; the same surface as `LoadClient`. The process must be patched."""

    def __init__(self, target: ResolvedTarget) -> None:
        import httpx2  # noqa: PLC0415 - half a second and 40 MB that only this mode needs
        import openai  # noqa: PLC0415

        self.target = target
        self.clock = ReceiveClock()
        self.reads = 0
        self._receiver = Receiver(self.clock)
        self._open: dict[SdkExchange, None] = {}
        self._openai = openai
        spec = target.spec
        http_client = openai.DefaultHttpxClient(
            limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS),
            verify=True if target.tls is None else target.tls.context,
        )
        self._sdk = openai.OpenAI(
            base_url=spec.base_url,
            api_key=target.secret or "none",
            max_retries=0,
            default_headers=target.headers,
            default_query=dict(spec.query),
            timeout=openai.Timeout(
                spec.timeout.seconds, connect=spec.connect_timeout.seconds, read=spec.gap_timeout.seconds
            ),
            http_client=http_client,
        )
        # Azure, with its key in a header of its own, refuses a bearer that means nothing.
        self._extra_headers = {"Authorization": openai.Omit()} if target.secret is None else {}
        resource: Any = self._sdk
        for name in RESOURCES[spec.api].split("."):
            resource = getattr(resource, name)
        self._create = resource.with_streaming_response.create

    @property
    def in_flight(self) -> int:
        """Requests begun and not over."""
        return len(self._open)

    @property
    def sockets(self) -> int:
        """Connections at least in use; the SDK keeps the number of idle ones to itself."""
        return len(self._open)

    def start(self, call: Call, live: LiveRow, on_done: Callable[[Any], None], tag: object) -> SdkExchange:
        """Send a request; `on_done` gets the exchange when it is over."""
        exchange = SdkExchange(call.dialect(live), tag)
        self._open[exchange] = None
        exchange.greenlet = gevent.spawn(self._run, exchange, call)
        # A link, and not the end of `_run`: one that is killed before its first step never runs.
        exchange.greenlet.rawlink(lambda _: self._over(exchange, on_done))
        return exchange

    def defer(self, action: Callable[[], None]) -> None:
        """Run this soon, in the loop's slices."""
        self._receiver.defer(action)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run this after a delay."""
        self._receiver.later(delay_s, action)

    def session_connection(self) -> SessionConnection:
        """None can be had: the SDK keeps its connections to itself, and a mix that asks for one is refused."""
        raise NotImplementedError

    def abort_all(self, reason: str) -> int:
        """Give up everything under way; how many that were."""
        open_now = list(self._open)
        for exchange in open_now:
            exchange.outcome, exchange.error = Outcome.ABORTED, reason
            if exchange.greenlet is not None:
                exchange.greenlet.kill(block=False)
        return len(open_now)

    def close(self) -> None:
        """Abort what is open and close the SDK's client."""
        self.abort_all("the client was closed")
        self._sdk.close()
        self._receiver.close()
        self.clock.close()

    def _run(self, exchange: SdkExchange, call: Call) -> None:
        """Root of one request's greenlet."""
        try:
            outcome, error = self._exchange(exchange, call)
        except gevent.GreenletExit:
            return  # `abort_all` has said what it is
        except Exception as failure:  # noqa: BLE001 - the root of a request; what the SDK raises becomes an outcome
            outcome, error = self._judge_failure(exchange, failure)
        exchange.outcome, exchange.error = outcome, error

    def _over(self, exchange: SdkExchange, on_done: Callable[[Any], None]) -> None:
        """The greenlet has ended, however it did."""
        exchange.done_ns = exchange.done_ns or time.monotonic_ns()
        if exchange.outcome is None:
            exchange.outcome, exchange.error = Outcome.ABORTED, "the request was given up"
        exchange.error = None if exchange.error is None else redact(exchange.error, secret=self.target.secret)
        del self._open[exchange]
        self._receiver.defer(lambda: on_done(exchange))

    def _exchange(self, exchange: SdkExchange, call: Call) -> tuple[Outcome, str | None]:
        fields: dict[str, Any] = msgspec.json.decode(call.request.partition(b"\r\n\r\n")[2])
        named = {name: fields.pop(name) for name in SDK_FIELDS if name in fields}
        answer = exchange.answer
        exchange.sent_ns = time.monotonic_ns()
        with self._create(**named, **self._options(fields)) as response:
            exchange.headers_ns = time.monotonic_ns()
            exchange.status = response.status_code
            exchange.headers = {name.lower(): value for name, value in response.headers.items()}
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                answer.read_body(response.read())
                return judge_answer(answer)
            for data in response.iter_bytes():
                at_ns = time.monotonic_ns()
                self.reads += 1
                answer.feed(data, at_ns, False)
                if answer.done and not exchange.done_ns:
                    exchange.done_ns = at_ns
            answer.end()
            return judge_answer(answer)

    def _options(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"stream": fields.pop("stream"), "extra_body": fields, "extra_headers": self._extra_headers}

    def _judge_failure(self, exchange: SdkExchange, failure: Exception) -> tuple[Outcome, str]:
        sdk = self._openai
        if isinstance(failure, sdk.APIStatusError):
            exchange.status = failure.status_code
            exchange.headers = {name.lower(): value for name, value in failure.response.headers.items()}
            return judge_refusal(failure.status_code, failure.response.content)
        if isinstance(failure, sdk.APITimeoutError):
            return Outcome.TIMEOUT, f"the SDK gave up waiting: {failure}"
        cause = failure.__cause__ or failure
        text = f"{type(cause).__name__}: {cause}"
        if isinstance(failure, sdk.APIConnectionError) or type(failure).__module__.startswith("httpx2"):
            if "CERTIFICATE" in text or "SSL" in text:
                return Outcome.TLS, text
            return Outcome.RESET, text
        return Outcome.PROTOCOL, text
