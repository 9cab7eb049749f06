"""The Kolmogorov-Smirnov test, for comparing draws with the distribution they should have."""

import math
from collections import Counter
from collections.abc import Callable, Sequence


def distance(draws: Sequence[float], cdf: Callable[[float], float], *, above: float = -math.inf) -> float:
    """The largest difference between the share of draws up to x and P(X ≤ x), of a continuous distribution.

    It is looked for at each draw larger than `above`, below which draws may have been rounded.
    """
    ordered = sorted(draws)
    count = len(ordered)
    return max(max((k + 1) / count - cdf(x), cdf(x) - k / count) for k, x in enumerate(ordered) if x > above)


def whole_number_distance(draws: Sequence[int], cdf: Callable[[int], float]) -> float:
    """The same of a distribution of whole numbers: both functions step at the same places."""
    below = 0
    largest = 0.0
    for value, times in sorted(Counter(draws).items()):
        largest = max(largest, abs(below / len(draws) - cdf(value - 1)))
        below += times
        largest = max(largest, abs(below / len(draws) - cdf(value)))
    return largest


def critical_distance(count: int, *, alpha: float) -> float:
    """What draws of the right distribution exceed with probability `alpha` (asymptotic; whole numbers: at most)."""
    return math.sqrt(-math.log(alpha / 2) / 2 / count)
