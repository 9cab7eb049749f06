"""Which requests meet a wire fault: those that ask for it by a header, and a share of all others.

`x-sim-fault: kind[=argument][,kind…]` is always obeyed: this is a simulator.
"""

import random
from collections.abc import Callable, Sequence

import msgspec

from tokswarm.errors import ConfigError
from tokswarm.simulator.api import error_body
from tokswarm.simulator.faults import plan_faults
from tokswarm.simulator.faulty_exchange import FaultyExchange
from tokswarm.simulator.http1 import Connection, Exchange, HttpRequest

HEADER = "x-sim-fault"


class FaultShare(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault that a share of the generation requests meets."""

    fault: str
    """As in the header: `kind[=argument][,kind…]`."""
    share: float
    """0 to 1."""

    def __post_init__(self) -> None:
        """Refuse what could not be planned."""
        try:
            plan_faults(self.fault)
        except ValueError as error:
            raise ConfigError(f"faults: {error}", hint="docs/simulator.md#wire-faults lists them all") from error
        if not 0 <= self.share <= 1:
            raise ConfigError(f"faults: the share of {self.fault!r} is {self.share:g}, expected 0 to 1")


class FaultGate:
    """Opens exchanges, faulty ones where asked for, and passes them on to who answers them."""

    def __init__(self, handle: Callable[[Exchange], None], shares: Sequence[FaultShare], seed: int) -> None:
        if sum(one.share for one in shares) > 1 + 1e-9:
            raise ConfigError("faults: the shares add up to more than 1", hint="a request meets one of them at most")
        self._handle = handle
        self._shares = shares
        self._random = random.Random(f"{seed} faults")  # noqa: S311 - a simulation, not a secret

    def open(self, connection: Connection, request: HttpRequest) -> Exchange:
        """The exchange for a request."""
        text = request.headers.get(HEADER)
        if text is None:
            text = self._drawn(request)
        if not text:
            return Exchange(connection, request)
        try:
            return FaultyExchange(connection, request, plan_faults(text))
        except ValueError:
            return Exchange(connection, request)  # `handle` says why

    def handle(self, exchange: Exchange) -> None:
        """Have a request answered."""
        if isinstance(exchange, FaultyExchange):
            if exchange.replaced:
                exchange.replace()
                return
        elif (text := exchange.request.headers.get(HEADER)) is not None:
            try:
                plan_faults(text)
            except ValueError as error:
                exchange.send(400, error_body(400, f"{HEADER}: {error}", HEADER))
                return
        self._handle(exchange)

    def _drawn(self, request: HttpRequest) -> str | None:
        if not self._shares or request.method != "POST" or not request.path.startswith("/v1/"):
            return None
        draw = self._random.random()
        for one in self._shares:
            draw -= one.share
            if draw < 0:
                return one.fault
        return None
