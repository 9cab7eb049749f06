"""The line in front of the batch: by arrival, or by priority and then arrival."""

from bisect import insort
from collections import deque
from typing import Protocol

from tokswarm.simulator.progress import Progress


class WaitingLine(Protocol):
    """Requests that hold no blocks: not yet admitted, or preempted."""

    def __len__(self) -> int: ...

    def add(self, sequence: Progress) -> None:
        """Queue one that has just been submitted."""
        ...

    def put_back(self, sequence: Progress) -> None:
        """Queue one that was preempted."""
        ...

    def first(self, now_ns: int) -> Progress | None:
        """Who is next among those that have arrived by now; it stays."""
        ...

    def remove(self, sequence: Progress) -> None:
        """Let one leave."""
        ...

    def find(self, request_id: int) -> Progress | None:
        """The one with this id."""
        ...

    def arrivals_ns(self) -> list[int]:
        """When those that wait arrived, earliest first."""
        ...


class ByArrival:
    """First come, first served; the preempted go to the front."""

    def __init__(self) -> None:
        self._line: deque[Progress] = deque()

    def __len__(self) -> int:
        return len(self._line)

    def add(self, sequence: Progress) -> None:
        """At the end."""
        self._line.append(sequence)

    def put_back(self, sequence: Progress) -> None:
        """At the front."""
        self._line.appendleft(sequence)

    def first(self, now_ns: int) -> Progress | None:
        """Mostly the front: a request may be known before the step it can join."""
        return next((one for one in self._line if one.request.arrival_ns <= now_ns), None)

    def remove(self, sequence: Progress) -> None:
        """Mostly the front."""
        if self._line[0] is sequence:
            self._line.popleft()
        else:
            self._line.remove(sequence)

    def find(self, request_id: int) -> Progress | None:
        """The one with this id."""
        return next((one for one in self._line if one.request.request_id == request_id), None)

    def arrivals_ns(self) -> list[int]:
        """Sorted: requests handed over late may stand out of order."""
        return sorted(one.request.arrival_ns for one in self._line)


class ByPriority:
    """The lowest priority value first, among equals the earliest, whether preempted or new."""

    def __init__(self) -> None:
        self._line: list[Progress] = []

    def __len__(self) -> int:
        return len(self._line)

    def add(self, sequence: Progress) -> None:
        """At its rank."""
        insort(self._line, sequence, key=lambda one: one.rank)

    put_back = add

    def first(self, now_ns: int) -> Progress | None:
        """The first that has arrived: a request may be known before the step it can join."""
        return next((one for one in self._line if one.request.arrival_ns <= now_ns), None)

    def remove(self, sequence: Progress) -> None:
        """Wherever it stands."""
        self._line.remove(sequence)

    def find(self, request_id: int) -> Progress | None:
        """The one with this id."""
        return next((one for one in self._line if one.request.request_id == request_id), None)

    def arrivals_ns(self) -> list[int]:
        """Sorted by time, not by rank."""
        return sorted(one.request.arrival_ns for one in self._line)
