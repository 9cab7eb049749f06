"""When a pool grows and shrinks. Pure: load and time are arguments."""

from tokswarm.simulator.deployment import Autoscale


class Autoscaler:
    """Watches one pool: a condition must hold without a break for its time, and each decision starts anew."""

    def __init__(self, plan: Autoscale) -> None:
        self._plan = plan
        self._busy_since_ns: int | None = None
        self._idle_since_ns: int | None = None

    def decide(self, now_ns: int, *, waiting: int, in_flight: int, replicas: int) -> int:
        """How many replicas to add: 1, 0 or -1. `replicas` are those that serve or will soon."""
        plan = self._plan
        busy = waiting > plan.up_waiting * replicas
        idle = waiting == 0 and in_flight <= plan.down_in_flight * replicas
        self._busy_since_ns = _since(self._busy_since_ns, now_ns, holds=busy and replicas < plan.max_replicas)
        self._idle_since_ns = _since(self._idle_since_ns, now_ns, holds=idle and replicas > plan.min_replicas)
        if self._busy_since_ns is not None and now_ns - self._busy_since_ns >= plan.up_after_s * 1e9:
            self._busy_since_ns = None
            return 1
        if self._idle_since_ns is not None and now_ns - self._idle_since_ns >= plan.down_after_s * 1e9:
            self._idle_since_ns = None
            return -1
        return 0


def _since(since_ns: int | None, now_ns: int, *, holds: bool) -> int | None:
    if not holds:
        return None
    return now_ns if since_ns is None else since_ns
