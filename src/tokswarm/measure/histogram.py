"""Mergeable histograms of durations with a relative error of at most 0.8 %.

A value v in ns falls in a bucket by its leading seven bits: with b = max(0, bit_length(v) - 7),
the bucket is [m * 2**b, (m + 1) * 2**b) where m = v >> b and 64 <= m < 128 (below 64 ns exact).
Its index is (b << 6) + m, so indices grow with the value, merging is adding counts, and the
middle of a bucket is off by at most 1/128 of the value.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import compress

Buckets = dict[int, int]
"""Bucket index to count: the sparse form that travels between processes."""

BUCKET_COUNT = 64 * 48
"""Enough for 2**53 ns, 104 days; longer durations count in the last bucket."""

_INDICES = range(BUCKET_COUNT)


def bucket_of(value_ns: int) -> int:
    """The bucket a duration falls in; negative durations count as 0."""
    if value_ns < 64:
        return max(value_ns, 0)
    shift = value_ns.bit_length() - 7
    return min((shift << 6) + (value_ns >> shift), BUCKET_COUNT - 1)


def bucket_bounds_ns(index: int) -> tuple[int, int]:
    """Lowest value in the bucket, and the lowest value above it, ns."""
    if index < 128:
        return index, index + 1
    shift = (index >> 6) - 1
    mantissa = index - (shift << 6)
    return mantissa << shift, (mantissa + 1) << shift


def bucket_middle_ns(index: int) -> float:
    """The value a bucket stands for, ns."""
    low, high = bucket_bounds_ns(index)
    return (low + high - 1) / 2


class Histogram:
    """Counts by bucket, dense, for adding fast; `take` hands them over and starts again."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: list[int] = [0] * BUCKET_COUNT

    def add(self, value_ns: int, weight: int = 1) -> None:
        """Count a duration `weight` times."""
        self.counts[bucket_of(value_ns)] += weight

    def buckets(self) -> Buckets:
        """The counts that are not zero."""
        # hot: each second for every class and stage; `compress` looks for them in C, twice as fast as a loop
        counts = self.counts
        return {index: counts[index] for index in compress(_INDICES, counts)}

    def take(self) -> Buckets:
        """The counts since the last take; leaves the histogram empty."""
        taken = self.buckets()
        for index in taken:
            self.counts[index] = 0
        return taken


def merge(many: Iterable[Mapping[int, int]]) -> Buckets:
    """Add histograms; equals the histogram of all values together."""
    merged: Buckets = {}
    for buckets in many:
        for index, count in buckets.items():
            merged[index] = merged.get(index, 0) + count
    return merged


def total(buckets: Mapping[int, int]) -> int:
    """How many values were counted."""
    return sum(buckets.values())


def quantile_ms(buckets: Mapping[int, int], q: float) -> float | None:
    """The q-quantile in ms by nearest rank, within 0.8 %; None when nothing was counted.

    Nearest rank: the smallest value with at least the share q at or below it. ValueError if q is not in 0..1.
    """
    if not 0 <= q <= 1:
        raise ValueError(f"q is {q!r}, expected 0 to 1")
    count = total(buckets)
    if count == 0:
        return None
    rank = max(math.ceil(q * count), 1)
    seen = 0
    for index in sorted(buckets):
        seen += buckets[index]
        if seen >= rank:
            return bucket_middle_ns(index) / 1e6
    raise AssertionError("a rank below the count is always reached")


def mean_ms(buckets: Mapping[int, int]) -> float | None:
    """The mean in ms, within 0.8 %; None when nothing was counted."""
    count = total(buckets)
    if count == 0:
        return None
    return sum(bucket_middle_ns(index) * n for index, n in buckets.items()) / count / 1e6


LE_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 60_000)
"""Upper bounds of the few coarse buckets that go to the database for heat maps."""


def le_counts(buckets: Mapping[int, int]) -> list[int]:
    """Counts per coarse bucket (not cumulative): one for each of LE_BOUNDS_MS, then the rest."""
    counts = [0] * (len(LE_BOUNDS_MS) + 1)
    for index, count in buckets.items():
        middle_ms = bucket_middle_ns(index) / 1e6
        place = next((i for i, bound in enumerate(LE_BOUNDS_MS) if middle_ms <= bound), len(LE_BOUNDS_MS))
        counts[place] += count
    return counts
