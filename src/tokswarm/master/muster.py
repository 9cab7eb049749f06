"""Who takes part in a run, from its start and while it goes on: shards given, late workers taken in, shares dealt."""

from tokswarm.master.account import Account
from tokswarm.master.clock import Clock
from tokswarm.master.crew import Crew, Member
from tokswarm.master.link import FleetLink
from tokswarm.master.run_record import RunRecord
from tokswarm.master.stage_shares import Orders, StageShares
from tokswarm.traffic.plan import Plan, Shard
from tokswarm.worker.messages import Ack, Message, PlanMessage, Reshared

ACK_TIMEOUT_S = 10.0
"""A plan of a long trace is a few MB, and its prompts' text is made before the ack."""
CLOCK_OFF_S = 0.25
"""A worker whose clock is further off has no part: what begins at one instant would not begin there."""


class Muster:
    """Speaks to the crew of one run. The course decides who is lost; this knows who has which share."""

    def __init__(
        self,
        crew: Crew,
        *,
        plan: Plan,
        deadline_s: float,
        fleet: FleetLink,
        clock: Clock,
        account: Account,
        record: RunRecord,
    ) -> None:
        """`deadline_s`: by when after its first stage a worker ends by itself."""
        self.now: StageShares | None = None
        """The stage under way."""
        self._crew = crew
        self._plan = plan
        self._deadline_s = deadline_s
        self._fleet = fleet
        self._clock = clock
        self._account = account
        self._record = record
        self._has_changed = False

    def send(self, member: Member, message: Message) -> None:
        """To this process of a worker; if another has its name by now, to nobody."""
        if self._crew.is_newest(member):
            self._fleet.send(member.fleet_name, message)

    def send_all(self, orders: Orders) -> None:
        """Each message to its member."""
        for member, message in orders:
            self.send(member, message)

    def give_shard(self, member: Member) -> None:
        """The whole plan, and which part of it is this worker's."""
        shard = Shard(
            plan=self._plan,
            worker_index=member.index,
            worker_count=max(len(self._crew), member.index + 1),
            joins_late=member.joins_late,
        )
        name = "" if member.worker == member.fleet_name else member.worker
        message = PlanMessage(run_id=self._plan.run_id, shard=shard, name=name, deadline_s=self._deadline_s)
        self.send(member, message)

    def begin(self, stage: StageShares) -> None:
        """A stage is shared out among those who are there."""
        self.now = stage
        self._has_changed = False
        self.send_all(stage.begin(self._crew.present()))

    def lose(self, member: Member) -> None:
        """Somebody takes part no longer: the others are to have its share."""
        if self.now is not None:
            self.now.lose(member)
            self._has_changed = True

    def share_out(self) -> None:
        """Deal the shares out anew, if the crew has changed since."""
        if self._has_changed and self.now is not None:
            self.send_all(self.now.change(self._crew.present(), now_unix_ns=self._clock.unix_ns()))
        self._has_changed = False

    def look_for_others(self, now_s: float) -> None:
        """Give a part to workers that came after the start; give up those that do not answer."""
        self._give_up_the_silent(now_s)
        for worker in self._fleet.workers():
            known = self._crew.member(worker.client)
            if known is None and worker.state != "silent" and abs(worker.clock_ahead_s) <= CLOCK_OFF_S:
                self.give_shard(self._crew.add(worker, now_s=now_s))

    def take_ack(self, member: Member, ack: Ack) -> None:
        """The answer to a plan; one that comes late takes part from now on."""
        member.ack = ack
        if not member.joins_late:
            return
        if ack.error:
            member.gone = ack.error
            self._account.note(f"worker {member.worker} came during the run and cannot take part: {ack.error}")
            return
        member.window_s = self._clock.monotonic_s()
        others = len(self._crew.present()) - 1
        self._account.event("worker", f"worker {member.worker} joined", f"it takes its share beside {others} others")
        self._account.note(f"worker {member.worker} joined while the run went on")
        self._account.change(workers=len(self._crew.all()))
        self._has_changed = True

    def take_reshared(self, member: Member, reshared: Reshared) -> None:
        """A worker goes by its new share; what it found out on the way."""
        if reshared.doubled:
            self._account.note(
                f"worker {member.worker} heard late that the load was shared out anew: {reshared.doubled} requests "
                "were sent twice"
            )
        for worker, unsent in self.now.counted(reshared) if self.now is not None else ():
            if unsent:
                self._record.add_unsent(worker, unsent)
                self._account.note(
                    f"worker {worker} was lost with {unsent} arrivals that were due before the others took over: they "
                    "count as dropped"
                )

    def _give_up_the_silent(self, now_s: float) -> None:
        for member in self._crew.joining():
            if now_s - member.told_s > ACK_TIMEOUT_S:
                member.gone = "no answer to the plan"
                self._account.note(f"worker {member.worker} came during the run and did not answer to its plan")
