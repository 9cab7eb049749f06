"""Draws whole numbers ≥ 1 from the distributions of a mix.

Each draw takes exactly one uniform number and puts it through the quantile function, so that the
numbers that follow in a request's stream do not depend on what was drawn before.
"""

import math
import random
from bisect import bisect
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import NormalDist

from tokswarm.traffic.mix import Distribution, Empirical, Lognormal

LARGEST_DRAW = 10_000_000
"""A draw above this becomes this: no endpoint takes more tokens, and a tail must not exhaust memory."""

_STANDARD_NORMAL = NormalDist()
_Z99 = _STANDARD_NORMAL.inv_cdf(0.99)
_SMALLEST_U = 2.0**-53
"""In place of 0, whose normal quantile is infinite; random() never gives 1."""


class Weighted:
    """Draws an index with the probability of its weight."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._cumulative = list(accumulate(weights))
        self._last = max(index for index, weight in enumerate(weights) if weight > 0)

    def draw(self, rng: random.Random) -> int:
        """One index, from one number of `rng`."""
        return min(bisect(self._cumulative, rng.random() * self._cumulative[-1]), self._last)


class Sampler:
    """Draws from one distribution, which has been checked: it has exactly one kind and sane parameters."""

    def __init__(self, distribution: Distribution) -> None:
        self._quantile = _quantile_function(distribution)
        self._low = 1 if distribution.min is None else max(1, distribution.min)
        self._high = LARGEST_DRAW if distribution.max is None else min(distribution.max, LARGEST_DRAW)

    def draw(self, rng: random.Random) -> int:
        """One whole number ≥ 1, within the bounds, from one number of `rng`."""
        value = self._quantile(rng.random() or _SMALLEST_U)
        if value <= self._low:
            return self._low
        if value >= self._high:
            return self._high
        return round(value)


def _quantile_function(distribution: Distribution) -> Callable[[float], float]:  # noqa: PLR0911 - one for each kind
    """The inverse of the distribution function, on (0, 1), before bounds and rounding."""
    match distribution:
        case Distribution(fixed=int(value)):
            return lambda _u: value
        case Distribution(uniform=uniform) if uniform is not None:
            low, high = math.ceil(uniform.low), math.floor(uniform.high)
            return lambda u: low + math.floor(u * (high - low + 1))
        case Distribution(normal=normal) if normal is not None:
            mean, sd = normal.mean, normal.sd
            return lambda u: mean + sd * _STANDARD_NORMAL.inv_cdf(u)
        case Distribution(lognormal=lognormal) if lognormal is not None:
            mu, sigma = _lognormal_parameters(lognormal)
            return lambda u: math.exp(min(mu + sigma * _STANDARD_NORMAL.inv_cdf(u), 300.0))
        case Distribution(exponential=exponential) if exponential is not None:
            mean = exponential.mean
            return lambda u: -mean * math.log1p(-u)
        case Distribution(geometric=geometric) if geometric is not None:
            return _geometric_quantile(geometric.mean)
        case Distribution(choice=choice) if choice is not None:
            return _choice_quantile(choice)
        case Distribution(empirical=empirical) if empirical is not None:
            return _empirical_quantile(empirical)
    raise ValueError("a distribution needs exactly one kind")


def _lognormal_parameters(lognormal: Lognormal) -> tuple[float, float]:
    """Mean and standard deviation of the logarithm."""
    if lognormal.p50 is not None and lognormal.p99 is not None:
        return math.log(lognormal.p50), math.log(lognormal.p99 / lognormal.p50) / _Z99
    if lognormal.mean is not None and lognormal.sd is not None:
        variance = math.log1p((lognormal.sd / lognormal.mean) ** 2)
        return math.log(lognormal.mean) - variance / 2, math.sqrt(variance)
    raise ValueError("a lognormal needs p50 and p99, or mean and sd")


def _choice_quantile(choice: dict[int, float]) -> Callable[[float], float]:
    values = sorted(value for value, weight in choice.items() if weight > 0)
    cumulative = list(accumulate(choice[value] for value in values))
    last = len(values) - 1
    return lambda u: values[min(bisect(cumulative, u * cumulative[-1]), last)]


def _geometric_quantile(mean: float) -> Callable[[float], float]:
    """The number of trials up to the first success, each succeeding with probability 1/mean."""
    if mean <= 1:
        return lambda _u: 1
    log_failure = math.log1p(-1 / mean)
    return lambda u: math.ceil(math.log1p(-u) / log_failure)


def _empirical_quantile(empirical: Empirical) -> Callable[[float], float]:
    """Through the histogram: the bin by its weight, then the whole number within it by what is left of u."""
    if empirical.edges is None or empirical.weights is None:
        raise ValueError("an empirical distribution needs edges and weights; a file must have been read before")
    lows, ends = empirical.edges[:-1], empirical.edges[1:]
    weights = empirical.weights
    cumulative = list(accumulate(weights))
    last = max(index for index, weight in enumerate(weights) if weight > 0)

    def quantile(u: float) -> float:
        at = u * cumulative[-1]
        index = min(bisect(cumulative, at), last)
        width = ends[index] - lows[index]
        inside = (at - cumulative[index] + weights[index]) / weights[index]
        return lows[index] + min(max(int(inside * width), 0), width - 1)

    return quantile
