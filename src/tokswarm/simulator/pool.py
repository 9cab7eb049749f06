"""The replicas of one provider: who is up, who joins when, growing and shrinking, and whether a request is refused."""

import random
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Protocol

from tokswarm.simulator.alarm import Alarm
from tokswarm.simulator.api import ApiError
from tokswarm.simulator.autoscaler import Autoscaler
from tokswarm.simulator.deployment import ProviderPlan
from tokswarm.simulator.lifecycle import UP, EventLog, ReplicaState
from tokswarm.simulator.limits import Limiter
from tokswarm.simulator.replica import Replica
from tokswarm.simulator.router import Router
from tokswarm.simulator.truth import TruthLog

_TICK_S = 0.05
"""How often load is looked at for autoscaling."""


class Cancellable(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Do not call."""
        ...


class Clockwork(Protocol):
    """What an event loop offers."""

    def time(self) -> float:
        """Seconds of a monotonic clock."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Cancellable:
        """Call back once in so many seconds."""
        ...


class Pool:
    """One provider of one model."""

    def __init__(
        self,
        plan: ProviderPlan,
        *,
        model: str,
        prefix: str,
        seed: int,
        truth: TruthLog,
        events: EventLog,
        open_alarm: Callable[[Callable[[], None]], Alarm],
        clockwork: Clockwork,
    ) -> None:
        self.plan = plan
        self._clockwork = clockwork
        self._router = Router(plan.router, plan.load_guard)
        self._random = random.Random(f"{seed} {model} {plan.name}")  # noqa: S311 - a simulation, not a secret
        groups = [group for group in plan.groups for _ in range(group.count)]
        spare = plan.most_replicas - len(groups)
        self.replicas = [
            Replica(
                f"{prefix}-{number}",
                plan.profile,
                model=model,
                provider=plan.name,
                region=group.region,
                state=ReplicaState.SERVING
                if group.joins_after_s is None and number < len(groups)
                else ReplicaState.STOPPED,
                truth=truth,
                events=events,
                open_alarm=open_alarm,
                seed=seed,
            )
            for number, group in enumerate([*groups, *groups[:1] * spare])
        ]
        self._joining = [
            (group.joins_after_s, replica)
            for group, replica in zip(groups, self.replicas, strict=False)
            if group.joins_after_s is not None
        ]
        self._pending: dict[Replica, Cancellable] = {}
        self._limiter = Limiter(plan.limits, time.monotonic_ns) if plan.limits.on else None
        self._autoscaler = None if plan.autoscale is None else Autoscaler(plan.autoscale)
        self._tick: Cancellable | None = None
        if self._autoscaler is not None:
            self._tick = clockwork.call_later(_TICK_S, self._watch)

    def begin(self) -> None:
        """The model's first request has come: those that join later are counted from now."""
        for after_s, replica in self._joining:
            self._later(replica, after_s, partial(self._boot, replica, "joins"))
        self._joining = []

    def refusal(self, tokens: int) -> ApiError | None:
        """Why it does not take a request that has just reached it; None: it takes it.

        `tokens` are those of the prompt and the most of the answer, which limits count.
        """
        plan = self.plan
        if plan.error_share and self._random.random() < plan.error_share:
            return ApiError(plan.error_status, f"provider {plan.name} failed (error_share {plan.error_share:g})")
        if not any(replica.state in UP for replica in self.replicas):
            return ApiError(503, f"no replica of provider {plan.name} is up", headers=("retry-after: 1",))
        if self._limiter is None:
            return None
        return self._limiter.refusal(
            tokens=tokens,
            in_flight=sum(replica.in_flight for replica in self.replicas),
            waiting=sum(replica.waiting for replica in self.replicas),
        )

    def limit_lines(self) -> list[str]:
        """What is left of its limits, as header lines."""
        return [] if self._limiter is None else self._limiter.headers()

    def choose(self, block_keys: tuple[Hashable, ...], region: str | None) -> Replica:
        """The replica for a request that is not refused."""
        return self._router.choose([one for one in self.replicas if one.state in UP], block_keys, region)

    def close(self) -> None:
        """Stop the clockwork."""
        if self._tick is not None:
            self._tick.cancel()
        for pending in self._pending.values():
            pending.cancel()
        for replica in self.replicas:
            replica.close()

    # --- coming and going --------------------------------------------------------------------------

    def _later(self, replica: Replica, delay_s: float, action: Callable[[], None]) -> None:
        """At most one thing is due for each replica at a time."""
        if replica in self._pending:
            self._pending[replica].cancel()
        self._pending[replica] = self._clockwork.call_later(delay_s, action)

    def _boot(self, replica: Replica, reason: str) -> None:
        replica.empty_cache()
        replica.slow_down(1.0)
        replica.move(ReplicaState.BOOTING, reason)
        self._later(replica, self.plan.cold_start.boot_s, partial(self._booted, replica))

    def _booted(self, replica: Replica) -> None:
        cold = self.plan.cold_start
        if not cold.warmup_s:
            replica.move(ReplicaState.SERVING, "booted")
            return
        replica.slow_down(cold.warmup_factor)
        replica.move(ReplicaState.WARMING, "booted")
        self._later(replica, cold.warmup_s, partial(self._warm, replica))

    def _warm(self, replica: Replica) -> None:
        replica.slow_down(1.0)
        if replica.state is ReplicaState.WARMING:  # it may have begun to drain
            replica.move(ReplicaState.SERVING, "warm")

    def _watch(self) -> None:
        self._tick = self._clockwork.call_later(_TICK_S, self._watch)
        for replica in self.replicas:
            if replica.state is ReplicaState.DRAINING and not replica.in_flight:
                replica.move(ReplicaState.STOPPED, "drained")
        counted = [one for one in self.replicas if one.state in (*UP, ReplicaState.BOOTING)]
        if self._autoscaler is None:
            return
        step = self._autoscaler.decide(
            round(self._clockwork.time() * 1e9),
            waiting=sum(one.waiting for one in counted),
            in_flight=sum(one.in_flight for one in counted),
            replicas=len(counted),
        )
        if step > 0:
            self._grow()
        elif step < 0:
            self._shrink()

    def _grow(self) -> None:
        """Keep one that drains, else boot one that is stopped."""
        for state in (ReplicaState.DRAINING, ReplicaState.STOPPED):
            for replica in self.replicas:
                if replica.state is state:
                    if state is ReplicaState.DRAINING:
                        replica.move(ReplicaState.SERVING, "load")
                    else:
                        self._boot(replica, "load")
                    return

    def _shrink(self) -> None:
        """Drain the least loaded, of equals the last."""
        up = [one for one in self.replicas if one.state in UP]
        if len(up) > 1:
            min(reversed(up), key=lambda one: one.in_flight).move(ReplicaState.DRAINING, "idle")
