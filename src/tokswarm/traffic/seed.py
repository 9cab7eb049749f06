"""Seeds for parts of a run: whole numbers mixed into one 64-bit number, the same on every machine."""

_MASK = (1 << 64) - 1


def mixed_seed(*parts: int) -> int:
    """Mix whole numbers into one of 64 bits; a change in any part, or in their order, changes all bits of it.

    The finishing steps of SplitMix64 (Steele, Lea, Flood 2014) over a running state.
    """
    state = 0
    for part in parts:
        state = (state + part + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state
