"""How fast a writer may be: catching up after an outage must not cost the load its punctuality. Pure."""

LIVE_CORE_RATIO = 0.15
"""Of a core, for formatting and packing, while behind: over 100,000 token points a second all the same."""
LEFT_OVER_CORE_RATIO = 0.05
"""For logs of earlier runs and processes, beside a load that has nothing to do with them."""
BEHIND_BYTES = 4 << 20
"""A smaller backlog is the block under way and what came meanwhile, not an outage."""


class Pace:
    """Says after each block how long to rest, so that work takes at most `core_ratio` of the time."""

    def __init__(self, core_ratio: float, *, behind_bytes: int = BEHIND_BYTES, to_the_end: bool = False) -> None:
        """`to_the_end`: also when only the rest of a log is to be delivered, since somebody else's load goes on."""
        self.to_the_end = to_the_end
        self._core_ratio = core_ratio
        self._behind_bytes = behind_bytes
        self._backlog_bytes = 0

    def rest_s(self, *, busy_s: float, took_s: float, backlog_bytes: int) -> float:
        """The rest after a block that took `took_s`, of them `busy_s` of CPU; 0 while the backlog still grows."""
        grows = backlog_bytes > self._backlog_bytes > 0
        self._backlog_bytes = backlog_bytes
        if backlog_bytes < self._behind_bytes or grows:
            return 0.0
        return max(busy_s / self._core_ratio - took_s, 0.0)
