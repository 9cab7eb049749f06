"""One replica: an engine with its driver, its memory, its metrics, and the answers it is writing."""

import logging
import time
from collections.abc import Callable, Hashable

from tokswarm.simulator.alarm import Alarm
from tokswarm.simulator.answers import OpenAnswer
from tokswarm.simulator.driver import Driver
from tokswarm.simulator.engine import Engine, Progress, Request, Step
from tokswarm.simulator.lifecycle import TRANSITIONS, EventLog, ReplicaState
from tokswarm.simulator.metrics import ServerMetrics
from tokswarm.simulator.profile import Profile
from tokswarm.simulator.truth import Passage, TruthLog

log = logging.getLogger(__name__)


class Replica:
    """One server of a pool. Lives on the event loop that rings its alarm."""

    def __init__(
        self,
        name: str,
        profile: Profile,
        *,
        model: str,
        provider: str,
        region: str | None,
        state: ReplicaState,
        truth: TruthLog,
        events: EventLog,
        open_alarm: Callable[[Callable[[], None]], Alarm],
        seed: int,
    ) -> None:
        self.name = name
        self.model = model
        self.provider = provider
        self.region = region
        self.state = state
        self.driver = Driver(Engine(profile, seed=seed), time.monotonic_ns, self._deliver)
        self.metrics = ServerMetrics(self.driver, model)
        self._truth = truth
        self._events = events
        self._alarm = open_alarm(self.driver.ring)
        self.driver.attach(self._alarm)
        self._answers: dict[int, OpenAnswer] = {}
        self._passages: dict[int, Passage] = {}

    @property
    def in_flight(self) -> int:
        """Requests it has taken and not answered: waiting, or in the batch."""
        return len(self._answers)

    @property
    def waiting(self) -> int:
        """Requests that wait for the batch."""
        return self.driver.engine.waiting_count

    def cached_blocks(self, block_keys: tuple[Hashable, ...]) -> int:
        """How many blocks of this prefix its memory holds."""
        return len(self.driver.engine.pool.find(block_keys, len(block_keys)))

    def submit(self, request: Request, answer: OpenAnswer, passage: Passage) -> None:
        """Take a request; its answer is written token by token from now on."""
        self._answers[request.request_id] = answer
        self._passages[request.request_id] = passage
        self.driver.submit(request)

    def abort(self, request_id: int) -> None:
        """Drop a request whose client has left; nothing happens when it has been answered."""
        answer = self._answers.pop(request_id, None)
        passage = self._passages.pop(request_id, None)
        progress = self.driver.abort(request_id)
        if answer is None or passage is None or progress is None:
            return
        self.metrics.on_aborted()
        self._truth.add(progress, answer, passage, outcome="abort", ended_ns=time.monotonic_ns())

    def move(self, state: ReplicaState, reason: str) -> None:
        """Change the state. ValueError when that is no change a replica can make."""
        if state not in TRANSITIONS[self.state]:
            raise ValueError(f"{self.name} is {self.state} and cannot become {state}")
        self.state = state
        self._events.add(
            at_ns=time.monotonic_ns(),
            model=self.model,
            provider=self.provider,
            replica=self.name,
            state=state,
            reason=reason,
        )
        log.info("%s is %s (%s)", self.name, state, reason)

    def empty_cache(self) -> None:
        """Forget all prefixes, as a process that is started anew. Nothing may be in flight."""
        self.driver.engine.pool.clear()

    def slow_down(self, factor: float) -> None:
        """Let steps take so many times longer from the next one on."""
        self.driver.engine.slowness = factor

    def close(self) -> None:
        """Stop the clockwork."""
        self._alarm.close()

    def _deliver(self, step: Step) -> None:
        self.metrics.on_step(step)
        answers, metrics, due_ns = self._answers, self.metrics, step.end_ns
        for progress, tokens in step.emitted:
            # hot: once a token
            answer = answers.get(progress.request.request_id)
            if answer is None:  # its client left during the step
                continue
            try:
                answer.emit(due_ns, tokens)
            except Exception:  # the root of a request: one must not stop the others
                log.exception("request %s failed", answer.accepted.public_id)
                answer.exchange.cut()
                self.abort(progress.request.request_id)
        # The tokens are out in time; what is left to do for each need not be.
        for progress, tokens in step.emitted:
            # hot: once a token
            answer = answers.get(progress.request.request_id)
            if answer is not None:
                metrics.on_tokens(progress, answer, tokens)
                answer.prepare()
        for progress in step.finished:
            answer = answers.pop(progress.request.request_id, None)
            if answer is None:
                continue
            try:
                self._finish(progress, answer)
            except Exception:  # the root of a request
                log.exception("request %s failed at its end", answer.accepted.public_id)
                answer.exchange.cut()

    def _finish(self, progress: Progress, answer: OpenAnswer) -> None:
        passage = self._passages.pop(progress.request.request_id)
        self.metrics.on_finished(progress, answer)
        self._truth.add(progress, answer, passage, outcome=answer.accepted.finish_reason, ended_ns=answer.stamps_ns[-1])
        answer.finish(progress)
