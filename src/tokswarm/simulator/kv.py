"""Paged KV memory: blocks with reference counts, prefixes found by key, least recently used evicted first.

A block is *used* while a sequence holds it, *cached* when it is free but still findable by its key, and
*empty* otherwise. Keys name the whole prefix up to the end of their block, so equal keys mean equal
prefixes (`block_keys` makes such keys from token ids).
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


def block_keys(tokens: "array[int]", block_tokens: int) -> tuple[bytes, ...]:
    """One key for each full block of these token ids; each key depends on all tokens up to its block's end."""
    data = memoryview(tokens).cast("B")
    width = block_tokens * tokens.itemsize
    chain = hashlib.blake2b(digest_size=16)
    keys = []
    for end in range(width, len(data) + 1, width):
        chain.update(data[end - width : end])
        keys.append(chain.digest())
    return tuple(keys)


class BlockPool:
    """The blocks of one server. Single owner; ids are 0 to num_blocks - 1."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.evictions = 0
        """Cached blocks whose content was given up for another use."""
        self._references = [0] * num_blocks
        self._key_of: list[Hashable | None] = [None] * num_blocks
        self._cached: dict[Hashable, int] = {}
        # First to be taken first: empty blocks, then cached ones by the time of their last use.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def free_count(self) -> int:
        """Blocks no sequence holds, cached or empty."""
        return len(self._free)

    @property
    def usage_ratio(self) -> float:
        """Share of the blocks that sequences hold; cached free ones count as free, as in vLLM."""
        return 1 - len(self._free) / self.num_blocks

    def references(self, block: int) -> int:
        """How many sequences hold this block."""
        return self._references[block]

    def find(self, keys: Sequence[Hashable], limit: int) -> list[int]:
        """The blocks that hold the longest known prefix of these keys, at most `limit`. Takes nothing."""
        found = []
        for key in keys[:limit]:
            block = self._cached.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def free_without(self, blocks: Iterable[int]) -> int:
        """How many blocks would be free once these are held."""
        return len(self._free) - sum(1 for block in blocks if not self._references[block])

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a reference to blocks that `find` gave."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take free blocks, the least valuable first, with one reference each. ValueError if there are too few."""
        if count > len(self._free):
            raise ValueError(f"{count} blocks asked, {len(self._free)} free")
        taken = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            key = self._key_of[block]
            if key is not None:
                del self._cached[key]
                self._key_of[block] = None
                self.evictions += 1
            self._references[block] = 1
            taken.append(block)
        return taken

    def label(self, block: int, key: Hashable) -> None:
        """Make a full block findable. A second block with the same content stays unlabelled."""
        if key not in self._cached and self._key_of[block] is None:
            self._cached[key] = block
            self._key_of[block] = key

    def clear(self) -> None:
        """Forget what free blocks hold, as memory after a start. ValueError while a sequence holds any."""
        if len(self._free) < self.num_blocks:
            raise ValueError(f"{self.num_blocks - len(self._free)} blocks are held")
        self._cached.clear()
        self._key_of = [None] * self.num_blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one reference to each block of a sequence.

        Later blocks become evictable first: a prefix is worth more than what hangs on it.
        """
        for block in reversed(blocks):
            left = self._references[block] - 1
            if left < 0:
                raise ValueError(f"block {block} is released more often than held")
            self._references[block] = left
            if left == 0:
                self._free[block] = None
                if self._key_of[block] is None:
                    self._free.move_to_end(block, last=False)
