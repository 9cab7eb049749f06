"""Small numbers that tell apart the requests a worker has open at one time."""

from collections import deque

SLOT_COUNT = 10_000
"""Also the bound on a worker's open requests."""


class Slots:
    """Numbers 0 to SLOT_COUNT - 1; the one freed longest ago is given next."""

    def __init__(self) -> None:
        self._free = deque(range(SLOT_COUNT))

    def take(self) -> int | None:
        """A free number; None when all are taken."""
        return self._free.popleft() if self._free else None

    def give_back(self, slot: int) -> None:
        """Free a number that was taken."""
        self._free.append(slot)
