"""The states of a replica, and the log of how they changed: GET /sim/events."""

from collections import deque
from enum import StrEnum
from itertools import islice

import msgspec

MAX_EVENTS = 10_000
"""Bound of what is kept; beyond, the oldest go."""
PAGE_EVENTS = 500
"""Most lines in one answer."""


class ReplicaState(StrEnum):
    """What a replica is doing."""

    STOPPED = "stopped"
    """Not started yet, or ended."""
    BOOTING = "booting"
    WARMING = "warming"
    """Serves, with slower steps."""
    SERVING = "serving"
    DRAINING = "draining"
    """Ends its last requests and takes no new ones."""


UP = (ReplicaState.WARMING, ReplicaState.SERVING)
"""The states in which a replica takes requests."""

TRANSITIONS: dict[ReplicaState, tuple[ReplicaState, ...]] = {
    ReplicaState.STOPPED: (ReplicaState.BOOTING,),
    ReplicaState.BOOTING: (ReplicaState.WARMING, ReplicaState.SERVING),
    ReplicaState.WARMING: (ReplicaState.SERVING, ReplicaState.DRAINING),
    ReplicaState.SERVING: (ReplicaState.DRAINING,),
    ReplicaState.DRAINING: (ReplicaState.SERVING, ReplicaState.STOPPED),
}


class ReplicaEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A replica changed its state. Those that serve from the beginning have no event for it."""

    sequence: int
    """Place in order, from 0."""
    at_ns: int
    """On the server's monotonic clock, as in the truth of requests."""
    model: str
    provider: str
    replica: str
    state: ReplicaState
    reason: str
    """Why: joins, load, idle, booted, warm, drained."""


class EventLog:
    """The latest changes."""

    def __init__(self) -> None:
        self._kept: deque[ReplicaEvent] = deque(maxlen=MAX_EVENTS)
        self._next = 0

    def add(self, *, at_ns: int, model: str, provider: str, replica: str, state: ReplicaState, reason: str) -> None:
        """Keep a change."""
        self._kept.append(
            ReplicaEvent(
                sequence=self._next,
                at_ns=at_ns,
                model=model,
                provider=provider,
                replica=replica,
                state=state,
                reason=reason,
            )
        )
        self._next += 1

    def lines(self, since: int) -> bytes:
        """JSON lines of the changes from `since` on, at most PAGE_EVENTS: ask again from the last + 1."""
        if not self._kept:
            return b""
        skip = max(0, since - self._kept[0].sequence)
        return msgspec.json.Encoder().encode_lines(islice(self._kept, skip, skip + PAGE_EVENTS))
