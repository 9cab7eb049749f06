"""The workers that take part in one run: who is ready, who has done its stage, who fell silent. Pure.

Times are the master's monotonic seconds, passed in.
"""

from collections.abc import Iterable
from itertools import count

import msgspec

from tokswarm.master.link import FleetWorker
from tokswarm.master.merge import PATIENCE_S
from tokswarm.measure.window import WorkerSecond
from tokswarm.traffic.share import Share
from tokswarm.worker.messages import Ack, Final, Second


class Member(msgspec.Struct, kw_only=True):
    """One worker in the run. `client` is its process: a restarted worker of the same name is another one."""

    worker: str
    """Its name in the run."""
    fleet_name: str
    """Its name in the fleet; another process may have had it before, in this run."""
    client: str
    index: int
    """Its place among all that ever took part; request ids are told apart by it."""
    heard_s: float
    """When any message of it came last."""
    window_s: float
    """When its last window came, or from when on windows are due."""
    joins_late: bool = False
    """It was given its shard while the run went on, and takes part once it has answered."""
    told_s: float = 0.0
    """When it was given its shard."""
    ack: Ack | None = None
    share: Share | None = None
    """Of the stage under way, as it was told last; None: it has no part in it, or none yet."""
    drained: int | None = None
    """Index of the stage it drained last."""
    final: Final | None = None
    gone: str = ""
    """Why it takes part no longer; empty: it does."""
    in_flight: int = 0
    """In its last window."""
    health: WorkerSecond | None = None
    second_unix: int | None = None
    """Of its last window."""

    @property
    def is_joining(self) -> bool:
        """Whether it is only about to take part."""
        return self.joins_late and self.ack is None and not self.gone


class Crew:
    """The members of a run by process, and the questions the run asks about all of them."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._members = {member.client: member for member in members}

    def __len__(self) -> int:
        return len(self._members)

    def member(self, client: str) -> Member | None:
        """The member that is this process; None for a stranger to the run."""
        return self._members.get(client)

    def add(self, worker: FleetWorker, *, now_s: float) -> Member:
        """A worker that comes while the run goes on. Its name in the run is one that no other process there had."""
        names = {member.worker for member in self._members.values()}
        name = worker.worker
        for number in count(2):
            if name not in names:
                break
            name = f"{worker.worker}_{number}"
        member = member_of(worker, len(self._members), now_s=now_s, name=name)
        member.joins_late = True
        self._members[worker.client] = member
        return member

    def all(self) -> list[Member]:
        """Everyone who took part so far, in the order they came."""
        return [member for member in self._members.values() if not member.joins_late or _took_part(member)]

    def present(self) -> list[Member]:
        """Those who take part."""
        return [member for member in self._members.values() if not member.gone and not member.is_joining]

    def joining(self) -> list[Member]:
        """Those who were given their shard while the run goes on, and have not answered."""
        return [member for member in self._members.values() if member.is_joining]

    def is_newest(self, member: Member) -> bool:
        """Whether no other process has come under its name in the fleet."""
        same = [other for other in self._members.values() if other.fleet_name == member.fleet_name]
        return same[-1] is member

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

    def soonest_silence_s(self, *, windows_due: bool) -> float | None:
        """When the first of them will have been silent for too long, if nothing comes; None: nobody is there."""
        last = [
            min(member.heard_s, member.window_s) if windows_due else member.heard_s
            for member in self.present()
            if member.final is None
        ]
        return min(last) + PATIENCE_S if last else None

    def take_second(self, member: Member, second: Second, *, now_s: float) -> None:
        """The newest second of a worker: its health, and what it has open."""
        member.window_s = now_s
        member.second_unix = second.window.second_unix
        member.health = second.health
        member.in_flight = sum(row.in_flight for row in second.window.rows)

    def expect_windows_from(self, now_s: float) -> None:
        """Windows are due from this instant on; silence before it does not count."""
        for member in self._members.values():
            member.window_s = max(member.window_s, now_s)

    def in_flight(self) -> int:
        """Open requests of those who still take part, by their last windows."""
        return sum(member.in_flight for member in self.present())


def member_of(worker: FleetWorker, index: int, *, now_s: float, name: str | None = None) -> Member:
    """A worker of the fleet as a member of the crew."""
    return Member(
        worker=name or worker.worker,
        fleet_name=worker.worker,
        client=worker.client,
        index=index,
        heard_s=now_s,
        window_s=now_s,
        told_s=now_s,
    )


def _took_part(member: Member) -> bool:
    return member.ack is not None and not member.ack.error
