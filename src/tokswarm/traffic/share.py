"""Which requests of a stage are a worker's, also when the crew changes while the stage goes on. Pure.

A stage is shared out in parts. The first one begins with it; each time a worker is lost or a late one
joins, another begins at an instant that is the same for all. A request that is due belongs to the part
it is due in, so that each is sent once, whoever came and went. In a closed loop, where nothing is due,
each part has indices of its own.
"""

from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

import msgspec

KEPT_NS = 10_000_000_000
"""How far back arrivals are remembered: an order to share out anew may come late, and losses are noticed late."""

PART_BITS = 40
"""Below these bits an index counts within its part."""

_TRIM_AT = 1024


class Share(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One worker's share of a stage from an instant on."""

    worker_index: int
    worker_count: int
    from_ns: int = 0
    """From the start of the stage; until the next part begins."""
    part: int = 0
    """0 at the start of the stage; one more each time the crew changes."""

    def has(self, index: int) -> bool:
        """Whether the arrival of this index is in it."""
        return index % self.worker_count == self.worker_index


class Unsent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a lost worker should have sent before the others took over, and was not heard to send."""

    worker_index: int
    worker_count: int
    from_ns: int
    to_ns: int


class Arrival(NamedTuple):
    """A request that is due, whoever sends it."""

    number: int
    """Its place in the stage's global schedule."""
    due_ns: int
    """From the start of the stage."""
    cached_blocks: tuple[int, ...] = ()
    """Of a replay: for each target that it goes to, how many leading blocks an unlimited cache has by then."""


_due_ns = attrgetter("due_ns")


def concurrency_share(total: int, worker_index: int, worker_count: int) -> int:
    """A worker's part of a global number in flight; the parts add up to it."""
    share, rest = divmod(total, worker_count)
    return share + (worker_index < rest)


class SharedArrivals:
    """One worker's arrivals of a stage, in their order, by the share it has when they are due."""

    def __init__(self, arrivals: Iterator[Arrival], share: Share) -> None:
        """`arrivals`: those of the whole fleet, by their due times."""
        self._arrivals = arrivals
        self._shares = [share]
        self._kept: list[Arrival] = []
        self._at = 0
        """Place in `_kept` of the next one to be looked at."""
        self._given: set[int] = set()
        self._skipping = share.from_ns > 0

    @property
    def share(self) -> Share:
        """The newest."""
        return self._shares[-1]

    def skip(self, *, most: int) -> bool:
        """Pass over what was due before the first share; False after `most`, when there may be more of it."""
        for _ in range(most if self._skipping else 0):
            if self._look() is None or self._kept[-1].due_ns >= self._shares[0].from_ns:
                self._skipping = False
                break
            self._kept.clear()
        return not self._skipping

    def next(self, *, now_ns: int) -> Arrival | None:
        """The next one that is this worker's and was not given yet; None: there is none, as things are."""
        if self._at > _TRIM_AT:
            self._trim(now_ns - KEPT_NS)
        while (arrival := self._look()) is not None:
            self._at += 1
            if self._has(arrival) and arrival.number not in self._given:
                self._given.add(arrival.number)
                return arrival
        return None

    def put_back(self, arrival: Arrival) -> None:
        """It was not sent, and may by now be another's: it will be given again if it is not."""
        self._given.discard(arrival.number)
        self._at = min(self._at, self._place(arrival.due_ns))

    def reshare(self, share: Share) -> int:
        """Another part begins; how many were given that are another's by this order, because it came late."""
        if share.part <= self._shares[-1].part:
            return 0
        self._shares.append(share)
        place = self._place(share.from_ns)
        self._at = min(self._at, place)
        return sum(arrival.number in self._given and not self._has(arrival) for arrival in self._kept[place:])

    def unsent(self, unsent: Unsent) -> list[Arrival]:
        """The arrivals of a lost worker that nobody sends."""
        while not self._kept or self._kept[-1].due_ns < unsent.to_ns:
            if not self._fetch():
                break
        lost = Share(worker_index=unsent.worker_index, worker_count=unsent.worker_count)
        window = self._kept[self._place(unsent.from_ns) : self._place(unsent.to_ns)]
        return [arrival for arrival in window if lost.has(arrival.number)]

    def _look(self) -> Arrival | None:
        if self._at == len(self._kept) and not self._fetch():
            return None
        return self._kept[self._at]

    def _fetch(self) -> bool:
        arrival = next(self._arrivals, None)
        if arrival is None:
            return False
        self._kept.append(arrival)
        return True

    def _has(self, arrival: Arrival) -> bool:
        for share in reversed(self._shares):
            if arrival.due_ns >= share.from_ns:
                return share.has(arrival.number)
        return False

    def _place(self, due_ns: int) -> int:
        return bisect_left(self._kept, due_ns, key=_due_ns)

    def _trim(self, before_ns: int) -> None:
        gone = min(self._place(before_ns), self._at)
        if gone > _TRIM_AT // 2:
            self._given.difference_update(arrival.number for arrival in self._kept[:gone])
            del self._kept[:gone]
            self._at -= gone
