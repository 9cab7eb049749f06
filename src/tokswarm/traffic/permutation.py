"""A seeded order of whole numbers that is worked out number by number: no list of them is kept.

A Feistel network of four rounds over the next even number of bits; a result beyond the end goes through
again until it is within. Every worker has the same order from the same seed.
"""

from tokswarm.traffic.seed import mixed_seed

_ROUNDS = 4


class Permutation:
    """The numbers from 0 to `count` - 1 in an order of their own."""

    def __init__(self, count: int, seed: int) -> None:
        if count < 1:
            raise ValueError(f"count is {count}, expected at least 1")
        self._count = count
        self._half_bits = max(1, ((count - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half_bits) - 1
        self._round_seeds = [mixed_seed(seed, number) for number in range(_ROUNDS)]

    def __len__(self) -> int:
        return self._count

    def at(self, place: int) -> int:
        """The number at this place of the order."""
        if not 0 <= place < self._count:
            raise ValueError(f"place is {place}, expected 0 to {self._count - 1}")
        number = self._mixed(place)
        while number >= self._count:
            number = self._mixed(number)
        return number

    def _mixed(self, number: int) -> int:
        left, right = number >> self._half_bits, number & self._mask
        for seed in self._round_seeds:
            left, right = right, left ^ (mixed_seed(seed, right) & self._mask)
        return left << self._half_bits | right
