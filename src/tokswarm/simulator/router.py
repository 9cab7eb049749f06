"""Which replica a request goes to. Pure: what is known of the replicas is asked of them."""

from collections.abc import Hashable, Sequence
from typing import Protocol, TypeVar

from tokswarm.simulator.deployment import Routing


class Candidate(Protocol):
    """A replica as a router sees it."""

    @property
    def region(self) -> str | None:
        """Where it is."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests it has taken and not answered."""
        ...

    def cached_blocks(self, block_keys: tuple[Hashable, ...]) -> int:
        """How many blocks of this prefix it holds."""
        ...


_C = TypeVar("_C", bound=Candidate)


class Router:
    """Chooses by one policy; equals take turns."""

    def __init__(self, routing: Routing, load_guard: int) -> None:
        self._routing = routing
        self._load_guard = load_guard
        self._turn = 0

    def choose(self, candidates: Sequence[_C], block_keys: tuple[Hashable, ...], region: str | None) -> _C:
        """One of the candidates (there is at least one); those of the asked region are preferred."""
        near = [one for one in candidates if one.region == region] if region is not None else []
        return self._among(near or candidates, block_keys)

    def _among(self, candidates: Sequence[_C], block_keys: tuple[Hashable, ...]) -> _C:
        start = self._turn % len(candidates)
        self._turn += 1
        in_turn = (*candidates[start:], *candidates[:start])
        if self._routing is Routing.ROUND_ROBIN:
            return in_turn[0]
        least = min(in_turn, key=lambda one: one.in_flight)
        if self._routing is Routing.LEAST_LOADED:
            return least
        best = max(in_turn, key=lambda one: (one.cached_blocks(block_keys), -one.in_flight))
        return least if best.in_flight - least.in_flight > self._load_guard else best
