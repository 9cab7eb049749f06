"""When requests are due in an open loop: endless ascending offsets in ns from the start of the stage."""

import math
import random
from collections.abc import Iterator
from itertools import count


def constant_offsets_ns(rate_per_s: float) -> Iterator[int]:
    """Equal gaps, the first at 0; each offset is computed from its number, so rounding never adds up."""
    for index in count():
        yield round(index * 1e9 / rate_per_s)


def poisson_offsets_ns(rate_per_s: float, rng: random.Random) -> Iterator[int]:
    """Exponential gaps; the first arrival is one gap after the start."""
    gap_ns = 1e9 / rate_per_s
    offset_ns = 0.0
    while True:
        offset_ns -= gap_ns * math.log(1.0 - rng.random())
        yield round(offset_ns)
