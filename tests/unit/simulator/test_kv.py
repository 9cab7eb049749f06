"""Laws of the paged KV memory."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokswarm.simulator.kv import BlockPool, block_keys


def test_keys_cover_full_blocks_only() -> None:
    assert len(block_keys(array("I", range(35)), 16)) == 2
    assert block_keys(array("I", range(15)), 16) == ()


def test_equal_prefixes_have_equal_keys_up_to_the_first_difference() -> None:
    one = block_keys(array("I", range(64)), 16)
    other = block_keys(array("I", [*range(40), 999, *range(41, 64)]), 16)
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert one[3] != other[3], "a key names all tokens before it, not its block alone"


def test_least_recently_released_block_is_evicted_first() -> None:
    pool = BlockPool(3)
    for key in "abc":
        (block,) = pool.allocate(1)
        pool.label(block, key)
        pool.release([block])
    pool.hold(pool.find(["a"], 1))
    pool.release(pool.find(["a"], 1))  # used again: now b is the oldest
    evicted = []
    for _ in range(3):
        pool.allocate(1)
        evicted.append([key for key in "abc" if not pool.find([key], 1)])
    assert evicted == [["b"], ["b", "c"], ["a", "b", "c"]]
    assert pool.evictions == 3


def test_tail_of_a_released_prefix_is_evicted_before_its_head() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block, key in zip(blocks, ("x", "xy", "xyz"), strict=True):
        pool.label(block, key)
    pool.release(blocks)
    pool.allocate(1)
    assert pool.find(["x", "xy", "xyz"], 3) == blocks[:2]


def test_blocks_without_content_are_taken_before_cached_ones() -> None:
    pool = BlockPool(2)
    labelled, plain = pool.allocate(2)
    pool.label(labelled, "kept")
    pool.release([labelled])
    pool.release([plain])
    assert pool.allocate(1) == [plain]
    assert pool.evictions == 0
    assert pool.find(["kept"], 1) == [labelled]


def test_shared_block_is_free_only_when_all_have_released_it() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    pool.label(block, "k")
    pool.hold([block])
    pool.release([block])
    assert (pool.free_count, pool.references(block)) == (0, 1)
    pool.release([block])
    assert (pool.free_count, pool.references(block)) == (1, 0)


def test_finding_stops_at_the_first_gap_and_at_the_limit() -> None:
    pool = BlockPool(4)
    one, two, three = pool.allocate(3)
    pool.label(one, 1)
    pool.label(three, 3)
    assert pool.find([1, 2, 3], 3) == [one]
    pool.label(two, 2)
    assert pool.find([1, 2, 3], 2) == [one, two]


def test_same_content_twice_is_found_once() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.label(first, "same")
    pool.label(second, "same")
    pool.release([second])
    assert pool.find(["same"], 1) == [first]
    assert pool.allocate(1) == [second]
    assert pool.find(["same"], 1) == [first], "taking the nameless copy loses nothing"


def test_misuse_is_refused() -> None:
    pool = BlockPool(1)
    with pytest.raises(ValueError, match="2 blocks asked, 1 free"):
        pool.allocate(2)
    with pytest.raises(ValueError, match="released more often"):
        pool.release([0])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=60))
def test_every_block_is_always_held_or_free_and_cached_ones_are_findable(moves: list[tuple[int, int]]) -> None:
    """Holders take prefixes of six families and give them back; a slow oracle counts references."""
    pool = BlockPool(8)
    held: dict[int, list[int]] = {}
    for family, length in moves:
        if family in held:
            pool.release(held.pop(family))
        else:
            keys = [(family % 3, place) for place in range(length)]
            found = pool.find(keys, length)
            if length - len(found) > pool.free_without(found):
                continue
            pool.hold(found)
            blocks = found + pool.allocate(length - len(found))
            for block, key in zip(blocks, keys, strict=True):
                pool.label(block, key)
            held[family] = blocks
        counts = [sum(blocks.count(block) for blocks in held.values()) for block in range(8)]
        assert [pool.references(block) for block in range(8)] == counts
        assert pool.free_count == counts.count(0)
        assert pool.usage_ratio == pytest.approx(sum(1 for count in counts if count) / 8)


def test_memory_that_is_cleared_finds_nothing_and_takes_as_much_as_before() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    pool.label(blocks[0], "a")
    with pytest.raises(ValueError, match="2 blocks are held"):
        pool.clear()
    pool.release(blocks)
    pool.clear()
    assert pool.find(["a"], 1) == []
    assert len(pool.allocate(3)) == 3
    assert pool.evictions == 0
