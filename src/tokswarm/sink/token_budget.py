"""Which requests have all their tokens written as points, where there are more than a database shall take. Pure.

Requests are drawn whole, each with a share that is known before the draw and kept in its record. The share
depends on how much there was, never on the draw, so tokens divided by their share add up without bias to
the tokens of all. Shares are powers of two: dividing by them is exact. The draw is by the request's id, so
the same record always gives the same points.
"""

import math

_MASK = (1 << 64) - 1


class TokenBudget:
    """Token points a second of one worker: gives each request that ends its share."""

    def __init__(self, points_per_s: float) -> None:
        self._points_per_s = points_per_s
        self._before = 0
        self._now = 0

    def share(self, points: int) -> float:
        """The share for a request of so many points: 1, or the power of two that keeps to the budget."""
        self._now += points
        wanted = max(self._before, self._now)  # the second under way counts as soon as it is the larger
        if wanted <= self._points_per_s:
            return 1.0
        return math.ldexp(0.5, math.frexp(self._points_per_s / wanted)[1])

    def next_second(self) -> None:
        """A second has passed."""
        self._before, self._now = self._now, 0


def is_drawn(request_id: int, share: float) -> bool:
    """Whether a request of this share has its tokens written; of those with a lower share, all have it at a higher."""
    if share >= 1.0:
        return True
    mixed = (request_id + 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31) < share * 2.0**64
