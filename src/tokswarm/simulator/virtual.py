"""Virtual time: the driver with a clock that is a number, so a run takes only as long as deciding it.

The same driver and the same engine as behind the HTTP side; what ends up in a request's stamps is what
the server would have wanted on the wire. `open_loop` takes arrivals that stand fixed, `closed_loop`
clients of which each asks again when its last answer has ended. Both give requests in the order in which
they end, as they are asked for: stop iterating, and the rest is never computed.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

import msgspec

from tokswarm.simulator.driver import Driver
from tokswarm.simulator.engine import Engine, Progress, Request, Step


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was answered to its end. Times are of the run's own clock."""

    request: Request
    admitted_ns: int
    """Start of the first step that served it."""
    token_ns: "array[int]"
    """End of the step each token came out of, in order."""
    cached_tokens: int
    recomputed_tokens: int
    preemptions: int

    @property
    def first_token_ns(self) -> int:
        """When its first token came out."""
        return self.token_ns[0]

    @property
    def ended_ns(self) -> int:
        """When its last token came out."""
        return self.token_ns[-1]

    @property
    def queue_ns(self) -> int:
        """Arrival to the first step that served it."""
        return self.admitted_ns - self.request.arrival_ns


def open_loop(
    engine: Engine, requests: Iterable[Request], on_step: Callable[[Step], None] | None = None
) -> Iterator[Served]:
    """Serve requests whatever becomes of those before. ValueError when they are not in order of arrival."""
    bench = _Bench(engine, on_step)
    for request in requests:
        if request.arrival_ns < bench.now_ns:
            raise ValueError(f"request {request.request_id} arrives at {request.arrival_ns} ns, before one ahead of it")
        while bench.alarm_ns is not None and bench.alarm_ns < request.arrival_ns:
            yield from bench.ring()
        bench.submit(request)
    while bench.alarm_ns is not None:
        yield from bench.ring()


def closed_loop(
    engine: Engine,
    clients: int,
    draw: Callable[[int, int], Request | None],
    *,
    think_ns: int = 0,
    start_ns: int = 0,
    on_step: Callable[[Step], None] | None = None,
) -> Iterator[Served]:
    """Keep every client at one request; the next arrives `think_ns` after its last token.

    `draw(client, arrival_ns)` gives a client's next request, to arrive then; None: the client leaves.
    Without think time the next request is there before the next step starts. Clients that are due at the
    same instant ask in the order in which their answers ended.
    """
    due: list[tuple[int, int, int]] = [(start_ns, client, client) for client in range(clients)]
    client_of: dict[int, int] = {}
    turns = clients

    def ask(client: int, arrival_ns: int) -> None:
        request = draw(client, arrival_ns)
        if request is not None:
            client_of[request.request_id] = client
            bench.submit(request)

    def follow(served: Served) -> None:
        nonlocal turns
        client = client_of.pop(served.request.request_id)
        if think_ns == 0:
            ask(client, served.ended_ns)
        else:
            heappush(due, (served.ended_ns + think_ns, turns, client))
            turns += 1

    bench = _Bench(engine, on_step, follow)
    while True:
        if due and (bench.alarm_ns is None or due[0][0] <= bench.alarm_ns):
            arrival_ns, _, client = heappop(due)
            ask(client, arrival_ns)
        elif bench.alarm_ns is not None:
            yield from bench.ring()
        else:
            return


class _Bench:
    """A driver whose clock stands where it is put and whose alarm is kept, not waited for."""

    def __init__(
        self,
        engine: Engine,
        on_step: Callable[[Step], None] | None,
        on_served: Callable[[Served], None] | None = None,
    ) -> None:
        self.now_ns = 0
        self.alarm_ns: int | None = None
        self._driver = Driver(engine, lambda: self.now_ns, self._deliver)
        self._driver.attach(self)
        self._on_step = on_step
        self._on_served = on_served
        self._tokens_ns: dict[Progress, array[int]] = {}
        self._served: list[Served] = []

    def set(self, at_ns: int) -> None:
        """As an alarm."""
        self.alarm_ns = at_ns

    def close(self) -> None:
        """As an alarm."""
        self.alarm_ns = None

    def submit(self, request: Request) -> None:
        """Let a request arrive, at its time."""
        self.now_ns = request.arrival_ns
        self._driver.submit(request)

    def ring(self) -> list[Served]:
        """Go to the instant the alarm is set for; who was served by then."""
        if self.alarm_ns is None:
            raise RuntimeError("nothing is due")
        self.now_ns, self.alarm_ns = self.alarm_ns, None
        self._driver.ring()
        served, self._served = self._served, []
        return served

    def _deliver(self, step: Step) -> None:
        tokens_ns, end_ns = self._tokens_ns, step.end_ns
        for progress, tokens in step.emitted:
            # hot: once a token (benchmarks/virtual_time.py)
            stamps = tokens_ns.get(progress)
            if stamps is None:
                stamps = tokens_ns[progress] = array("q")
            stamps.append(end_ns)
            if tokens > 1:
                stamps.extend([end_ns] * (tokens - 1))
        if self._on_step is not None:
            self._on_step(step)
        for progress in step.finished:
            served = _served(progress, tokens_ns.pop(progress))
            self._served.append(served)
            if self._on_served is not None:
                self._on_served(served)


def _served(progress: Progress, token_ns: "array[int]") -> Served:
    if progress.admitted_ns is None:
        raise ValueError(f"request {progress.request.request_id} ended without a step")
    return Served(
        request=progress.request,
        admitted_ns=progress.admitted_ns,
        token_ns=token_ns,
        cached_tokens=progress.cached_tokens,
        recomputed_tokens=progress.recomputed_tokens,
        preemptions=progress.preemptions,
    )
