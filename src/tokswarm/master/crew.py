"""The workers that take part in one run: who is ready, who has done its stage, who fell silent. Pure.

Times are the master's monotonic seconds, passed in.
"""

from collections.abc import Iterable

import msgspec

from tokswarm.master.merge import PATIENCE_S
from tokswarm.measure.window import WorkerSecond
from tokswarm.worker.messages import Ack, Final, Second


class Member(msgspec.Struct, kw_only=True):
    """One worker in the run. `client` is its process: a restarted worker of the same name is another one."""

    worker: str
    client: str
    index: int
    heard_s: float
    """When any message of it came last."""
    window_s: float
    """When its last window came, or from when on windows are due."""
    ack: Ack | None = None
    drained: int | None = None
    """Index of the stage it drained last."""
    final: Final | None = None
    gone: str = ""
    """Why it takes part no longer; empty: it does."""
    in_flight: int = 0
    """In its last window."""
    health: WorkerSecond | None = None


class Crew:
    """The members of a run by process, and the questions the run asks about all of them."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._members = {member.client: member for member in members}

    def __len__(self) -> int:
        return len(self._members)

    def member(self, client: str) -> Member | None:
        """The member that is this process; None for a stranger to the run."""
        return self._members.get(client)

    def all(self) -> list[Member]:
        """Everyone, in the order of their shards."""
        return list(self._members.values())

    def present(self) -> list[Member]:
        """Those who still take part."""
        return [member for member in self._members.values() if not member.gone]

    def present_names(self) -> list[str]:
        """Their names."""
        return [member.worker for member in self.present()]

    def without_ack(self) -> list[Member]:
        """Those whose answer to the plan is still out."""
        return [member for member in self.present() if member.ack is None]

    def behind(self, index: int) -> list[Member]:
        """Those who have not drained this stage yet, the one under way."""
        return [member for member in self.present() if member.drained != index]

    def without_final(self) -> list[Member]:
        """Those whose last word is still out."""
        return [member for member in self.present() if member.final is None]

    def silent(self, *, now_s: float, windows_due: bool) -> list[Member]:
        """Those who said nothing for too long, or, while windows are due, delivered none."""
        return [
            member
            for member in self.present()
            if member.final is None
            and (now_s - member.heard_s > PATIENCE_S or (windows_due and now_s - member.window_s > PATIENCE_S))
        ]

    def take_second(self, member: Member, second: Second, *, now_s: float) -> None:
        """The newest second of a worker: its health, and what it has open."""
        member.window_s = now_s
        member.health = second.health
        member.in_flight = sum(row.in_flight for row in second.window.rows)

    def expect_windows_from(self, now_s: float) -> None:
        """Windows are due from this instant on; silence before it does not count."""
        for member in self._members.values():
            member.window_s = max(member.window_s, now_s)

    def in_flight(self) -> int:
        """Open requests of those who still take part, by their last windows."""
        return sum(member.in_flight for member in self.present())
