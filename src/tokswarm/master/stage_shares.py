"""The stage under way, and who has which share of it: from its start, and anew when the crew changes. Pure.

Nothing here sends: messages are given back, for the course of the run to send.
"""

from collections.abc import Iterable, Sequence

import msgspec

from tokswarm.master.crew import Member
from tokswarm.traffic.plan import ClosedLoop, PlannedStage
from tokswarm.traffic.share import Share, Unsent
from tokswarm.worker.messages import EndStage, Message, Reshare, Reshared, StageGo

RESHARE_LEAD_S = 0.25
"""From the order to share out anew to the instant it holds from: it reaches every worker before."""

Orders = list[tuple[Member, Message]]
"""What to send to whom."""


class StageShares:
    """One stage while it goes on."""

    def __init__(
        self, run_id: str, index: int, stage: PlannedStage, *, start_unix_ns: int, is_planned: bool, extends_s: float
    ) -> None:
        """`is_planned`: the workers know it from their plan; `extends_s`: what it adds to their deadline."""
        self.index = index
        self.stage = stage
        self.start_unix_ns = start_unix_ns
        self.stop_unix_ns = start_unix_ns + round(stage.duration_s * 1e9)
        """When its last request is due."""
        self._run_id = run_id
        self._is_planned = is_planned
        self._extends_s = extends_s
        self._part = 0
        self._unsent: list[tuple[str, Unsent]] = []
        self._asked: dict[int, list[str]] = {}

    def begin(self, members: Sequence[Member]) -> Orders:
        """Share it out from its start."""
        for member in members:
            member.share = None
        return self._deal(members, from_ns=0)

    def lose(self, member: Member) -> None:
        """This worker sends no more; what it was not heard to send will be counted."""
        share = member.share
        if share is None or isinstance(self.stage.load, ClosedLoop):
            return
        heard_ns = share.from_ns
        if member.second_unix is not None:
            heard_ns = max(heard_ns, (member.second_unix + 1) * 1_000_000_000 - self.start_unix_ns)
        lost = Unsent(
            worker_index=share.worker_index, worker_count=share.worker_count, from_ns=heard_ns, to_ns=heard_ns
        )
        self._unsent.append((member.worker, lost))

    def change(self, members: Sequence[Member], *, now_unix_ns: int) -> Orders:
        """Share what is left out anew among these; nothing when it ends before that could hold."""
        from_unix_ns = max(now_unix_ns + round(RESHARE_LEAD_S * 1e9), self.start_unix_ns)
        if from_unix_ns >= self.stop_unix_ns:
            for member in members:
                if member.share is None:
                    member.drained = self.index  # it comes too late for this stage
            return []
        self._part += 1
        return self._deal(members, from_ns=from_unix_ns - self.start_unix_ns)

    def end(self, members: Iterable[Member], *, now_unix_ns: int) -> Orders:
        """End the sending early."""
        at_unix_ns = max(now_unix_ns + round(RESHARE_LEAD_S * 1e9), self.start_unix_ns)
        self.stop_unix_ns = min(self.stop_unix_ns, at_unix_ns)
        order = EndStage(run_id=self._run_id, index=self.index, at_unix_ns=self.stop_unix_ns)
        return [(member, order) for member in members]

    def counted(self, reshared: Reshared) -> list[tuple[str, int]]:
        """How many arrivals of which lost worker nobody sends, by this answer."""
        if reshared.index != self.index or not reshared.unsent:
            return []
        return list(zip(self._asked.pop(reshared.part, []), reshared.unsent, strict=False))

    def _deal(self, members: Sequence[Member], *, from_ns: int) -> Orders:
        orders: Orders = []
        for place, member in enumerate(members):
            share = Share(worker_index=place, worker_count=len(members), from_ns=from_ns, part=self._part)
            begins = member.share is None
            member.share = share
            orders.append((member, self._go(share) if begins else self._reshare(share)))
        return orders

    def _go(self, share: Share) -> StageGo:
        return StageGo(
            run_id=self._run_id,
            index=self.index,
            start_unix_ns=self.start_unix_ns,
            stage=None if self._is_planned else self.stage,
            share=share,
            extends_s=self._extends_s,
        )

    def _reshare(self, share: Share) -> Reshare:
        """The first one that is asked for counts what the lost ones left."""
        lost, self._unsent = self._unsent, []
        if lost:
            self._asked[share.part] = [worker for worker, _ in lost]
        unsent = [msgspec.structs.replace(each, to_ns=max(share.from_ns, each.from_ns)) for _, each in lost]
        return Reshare(run_id=self._run_id, index=self.index, share=share, unsent=unsent)
