"""The way of a request to a replica: providers are asked in their order until one does not refuse.

A fallback saves the request and costs time: the way to the provider that refused, then the way to the next.
"""

import logging
import time
from array import array
from functools import partial

from tokswarm.simulator.answers import OpenAnswer
from tokswarm.simulator.api import ApiError, error_body
from tokswarm.simulator.deployment import ModelPlan
from tokswarm.simulator.engine import Request
from tokswarm.simulator.kv import block_keys
from tokswarm.simulator.pool import Cancellable, Clockwork, Pool
from tokswarm.simulator.truth import Passage, Refused, TruthLog

log = logging.getLogger(__name__)


class Gateway:
    """One model's providers."""

    def __init__(self, plan: ModelPlan, pools: list[Pool], truth: TruthLog, clockwork: Clockwork) -> None:
        self.plan = plan
        self.pools = pools
        self.truth = truth
        self.clockwork = clockwork
        self.attempts: dict[tuple[str, int], int] = {(pool.plan.name, 200): 0 for pool in pools}
        """How often a provider was asked, by name and by the status it took or refused the request with."""
        self.fallbacks = 0
        """Requests that another provider than the first answered."""
        self._begun = False

    @property
    def eos_mean_tokens(self) -> float:
        """Mean length of answers that end by themselves: one model, whoever serves it."""
        return self.plan.providers[0].profile.eos_mean_tokens

    def take(self, call: "Call") -> None:
        """Bring a request on its way."""
        if not self._begun:
            self._begun = True
            for pool in self.pools:
                pool.begin()
        call.start()

    def close(self) -> None:
        """Stop the clockwork."""
        for pool in self.pools:
            pool.close()


class Call:
    """A request until a replica has taken it, or all providers have refused it."""

    def __init__(
        self,
        gateway: Gateway,
        answer: OpenAnswer,
        *,
        arrival_ns: int,
        tokens: "array[int]",
        region: str | None,
        priority: int,
    ) -> None:
        self._gateway = gateway
        self._answer = answer
        self._arrival_ns = arrival_ns
        self._tokens = tokens
        """Of prompt and answer."""
        self._region = region
        self._priority = priority
        self._refused: list[Refused] = []
        self._timer: Cancellable | None = None

    def start(self) -> None:
        """Approach the first provider."""
        self._approach()

    def _approach(self) -> None:
        """Go to the next provider, which takes its latency."""
        pool = self._gateway.pools[len(self._refused)]
        if not pool.plan.latency_ms:
            self._ask(pool)
            return
        self._answer.exchange.on_disconnect = self._abandon
        self._timer = self._gateway.clockwork.call_later(pool.plan.latency_ms / 1e3, partial(self._reach, pool))

    def _reach(self, pool: Pool) -> None:
        self._timer = None
        self._answer.exchange.on_disconnect = None  # it refers to this call: without it, nothing is left to collect
        try:
            self._ask(pool)
        except Exception:  # the root of a request: it runs from a timer
            log.exception("request %s failed on its way", self._answer.accepted.public_id)
            self._answer.exchange.send(500, error_body(500, "internal error"))

    def _ask(self, pool: Pool) -> None:
        gateway = self._gateway
        accepted = self._answer.accepted
        refusal = pool.refusal(accepted.prompt_tokens + accepted.max_tokens)
        outcome = (pool.plan.name, 200 if refusal is None else refusal.status)
        gateway.attempts[outcome] = gateway.attempts.get(outcome, 0) + 1
        if refusal is None:
            self._hand_over(pool)
            return
        self._refused.append(Refused(provider=pool.plan.name, status=refusal.status))
        if len(self._refused) < len(gateway.pools):
            self._approach()
        else:
            self._refuse(pool, refusal)

    def _hand_over(self, pool: Pool) -> None:
        answer, exchange, gateway = self._answer, self._answer.exchange, self._gateway
        keys = block_keys(self._tokens, pool.plan.profile.block_tokens)
        accepted = answer.accepted
        replica = pool.choose(keys[: accepted.prompt_tokens // pool.plan.profile.block_tokens], self._region)
        self._name(pool, fell_back=bool(self._refused))
        exchange.headers.append(f"x-served-by: {replica.name}")
        if replica.region is not None:
            exchange.headers.append(f"x-region: {replica.region}")
        if self._refused:
            gateway.fallbacks += 1
        answer.open()
        exchange.on_disconnect = partial(replica.abort, accepted.request_id)
        handed_ns = time.monotonic_ns() if pool.plan.latency_ms or self._refused else self._arrival_ns
        request = Request(
            request_id=accepted.request_id,
            arrival_ns=handed_ns + round(pool.plan.profile.request_overhead_us * 1e3),
            prompt_tokens=accepted.prompt_tokens,
            output_tokens=len(accepted.answer.words),
            block_keys=keys,
            priority=self._priority,
        )
        replica.submit(request, answer, self._passage(pool, replica.name))

    def _refuse(self, pool: Pool, refusal: ApiError) -> None:
        """Answer with what the last provider said."""
        self._name(pool, fell_back=False)
        accepted = self._answer.accepted
        self._gateway.truth.add_unserved(
            accepted, self._passage(pool, None), outcome="rejected", status=refusal.status, ended_ns=time.monotonic_ns()
        )
        self._answer.exchange.send(refusal.status, refusal.body(), headers=refusal.headers)

    def _abandon(self) -> None:
        """The client has left on the way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pool = self._gateway.pools[len(self._refused)]
        passage = self._passage(pool, None)
        self._gateway.truth.add_unserved(
            self._answer.accepted, passage, outcome="abort", status=None, ended_ns=time.monotonic_ns()
        )

    def _name(self, pool: Pool, *, fell_back: bool) -> None:
        """Say in the answer's head whose it is when there is a choice, and what is left of limits."""
        self._answer.exchange.headers += pool.limit_lines()
        if len(self._gateway.pools) == 1:
            return
        tried = len(self._refused) + (1 if fell_back or not self._refused else 0)
        self._answer.exchange.headers += [
            f"x-provider: {pool.plan.name}",
            f"x-attempts: {tried}",
            f"x-fallback: {'true' if fell_back else 'false'}",
        ]

    def _passage(self, pool: Pool, replica: str | None) -> Passage:
        return Passage(
            model=self._answer.accepted.model,
            provider=pool.plan.name,
            replica=replica,
            arrival_ns=self._arrival_ns,
            refused=tuple(self._refused),
            priority=self._priority,
        )
