"""What a run needs of the fleet, whatever carries it: the workers there are, and a way to reach them."""

from typing import Protocol

import msgspec

from tokswarm.worker.messages import Message


class FleetWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process the master hears from."""

    worker: str
    """Its name: a tag in the database, the name of its log."""
    client: str
    """This process of it; a restarted worker has another."""
    host: str
    state: str
    """ready, running or silent."""
    clock_ahead_s: float
    """How far its clock is ahead of the master's, by the quickest of its last pings (behind: negative)."""
    pings: int
    """How many pings that rests on."""


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A message from a worker, with the master's monotonic clock when it came."""

    worker: str
    client: str
    received_s: float
    message: Message


class FleetLink(Protocol):
    """The fleet as a run sees it."""

    def workers(self) -> list[FleetWorker]:
        """Those heard from lately, by name."""
        ...

    def send(self, worker: str, message: Message) -> None:
        """Hand a message over for this worker; it may get lost with the worker. Never raises."""
        ...

    def begin_load(self) -> None:
        """Show the fleet as running (in Locust: one placeholder user per worker)."""
        ...

    def end_load(self) -> None:
        """Show the fleet as stopped; returns at once."""
        ...

    def drop(self, client: str) -> None:
        """This process is lost: forget it until it speaks again."""
        ...
