"""The engine in real time: each step's tokens are handed on when the step ends, not sooner, not drifting.

A step starts where the one before ended, by the model's clock, so a late wake-up delays one emission and
nothing after it. Only when the process is behind by more than `MAX_LAG_NS` (it was stopped, or the
machine cannot keep up) does the model's clock jump forward, and that is counted.
"""

from collections.abc import Callable

from tokswarm.simulator.alarm import Alarm
from tokswarm.simulator.engine import Engine, Progress, Request, Step

MAX_LAG_NS = 100_000_000


class Driver:
    """Couples an engine, a clock and an alarm. `ring` is to be called when the alarm goes off."""

    def __init__(self, engine: Engine, clock_ns: Callable[[], int], deliver: Callable[[Step], None]) -> None:
        self.engine = engine
        self.slipped_ns = 0
        """How far the model's clock was moved forward because the process was late, in all."""
        self._clock_ns = clock_ns
        self._deliver = deliver
        self._alarm: Alarm | None = None
        self._step: Step | None = None
        self._ended_ns = 0
        """End of the last step: none may start before."""
        self._start_ns: int | None = None
        """When the next step is to start, if that is still to come and nothing arrives before."""

    def attach(self, alarm: Alarm) -> None:
        """Use this alarm; to be done once, before the first request."""
        self._alarm = alarm

    @property
    def running_count(self) -> int:
        """Requests in the batch, those included whose last token comes at the end of the current step."""
        ending = len(self._step.finished) if self._step is not None else 0
        return self.engine.running_count + ending

    def submit(self, request: Request) -> None:
        """Queue a request; an idle engine starts a step at once."""
        self.engine.submit(request)
        if self._step is None:
            self._begin(max(request.arrival_ns, self._ended_ns))

    def abort(self, request_id: int) -> Progress | None:
        """Drop a request whatever it is doing; None: it is unknown."""
        progress = self.engine.abort(request_id)
        if progress is None and self._step is not None:
            ending = (one for one in self._step.finished if one.request.request_id == request_id)
            progress = next(ending, None)
        return progress

    def ring(self) -> None:
        """Hand on the tokens of the step that has ended, and start the next; or start one that is due."""
        step = self._step
        if step is None:
            self._start_due()
            return
        late_ns = self._clock_ns() - step.end_ns
        if late_ns < 0:
            self._set(step.end_ns)
            return
        try:
            self._deliver(step)  # may submit: that only queues, because this step still stands
        finally:
            self._step = None
            self._ended_ns = step.end_ns
            self._begin(step.end_ns + self._slip_ns(late_ns))

    def _start_due(self) -> None:
        if self._start_ns is None:
            return
        late_ns = self._clock_ns() - self._start_ns
        if late_ns < 0:
            self._set(self._start_ns)
        else:
            self._begin(self._start_ns + self._slip_ns(late_ns))

    def _slip_ns(self, late_ns: int) -> int:
        """How far to move the model's clock: not at all within the bound."""
        if late_ns <= MAX_LAG_NS:
            return 0
        self.slipped_ns += late_ns
        return late_ns

    def _begin(self, after_ns: int) -> None:
        """Start the next step, or see to it that it starts when it can: others may arrive until then."""
        self._start_ns = None
        start_ns = self.engine.next_start_ns(after_ns)
        if start_ns is None:
            return
        if start_ns > after_ns and start_ns > self._clock_ns():
            self._start_ns = start_ns
            self._set(start_ns)
            return
        self._step = self.engine.step(start_ns)
        if self._step is not None:
            self._set(self._step.end_ns)

    def _set(self, at_ns: int) -> None:
        if self._alarm is None:
            raise RuntimeError("the driver has no alarm yet")
        self._alarm.set(at_ns)
