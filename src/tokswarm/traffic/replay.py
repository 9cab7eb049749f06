"""A trace on its way to the workers: cut and scaled by the master, packed into the plan, unpacked by each worker.

The columns go as differences, deflated: block ids mostly count upwards, so 20,000 rows of a
Mooncake trace take well under a megabyte.
"""

import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import msgspec

from tokswarm.traffic.mix import TraceSource
from tokswarm.traffic.plan import Replay
from tokswarm.traffic.seed import mixed_seed
from tokswarm.traffic.trace import BLOCK_TOKENS, TraceRow


@dataclass(frozen=True, slots=True)
class ReplayRows:
    """The rows of a replay in columns: arrays, which the garbage collector need not walk."""

    due_ns: Sequence[int]
    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]
    block_starts: Sequence[int]
    """Row k's blocks are `blocks[block_starts[k]:block_starts[k + 1]]`."""
    blocks: Sequence[int]

    def blocks_of(self, row: int) -> Sequence[int]:
        """Ids of the leading blocks of a row's prompt."""
        return self.blocks[self.block_starts[row] : self.block_starts[row + 1]]


def part_of_trace(rows: Sequence[TraceRow], source: TraceSource, *, seed: int) -> list[TraceRow]:
    """The rows between the source's `from` and `until`, thinned to what it keeps, long pauses cut; the first at 0.

    A row's chance depends on the seed and its place in the file, so the same ones stay whatever the window.
    """
    from_ns, until_ns = source.from_.nanoseconds, None if source.until is None else source.until.nanoseconds
    most_ns = None if source.max_gap is None else source.max_gap.nanoseconds
    most = round(source.keep * 2**64)
    part: list[TraceRow] = []
    last_ns = offset_ns = 0
    for index, row in enumerate(rows):
        if row.offset_ns < from_ns or (source.keep < 1 and mixed_seed(seed, index) >= most):
            continue
        if until_ns is not None and row.offset_ns >= until_ns:
            break
        gap_ns = row.offset_ns - last_ns if part else 0
        offset_ns += gap_ns if most_ns is None else min(gap_ns, most_ns)
        last_ns = row.offset_ns
        part.append(msgspec.structs.replace(row, offset_ns=offset_ns))
    return part


def cut_replay(
    rows: Sequence[TraceRow], source: TraceSource, *, duration_ns: int | None, block_tokens: int = BLOCK_TOKENS
) -> Replay:
    """Apply the source's speed, rows and token limits, and the stage's end, to (a part of) a trace."""
    due_ns: list[int] = []
    prompts: list[int] = []
    outputs: list[int] = []
    counts: list[int] = []
    blocks: list[int] = []
    prompts_cut = outputs_cut = 0
    for row in rows[: source.rows]:
        offset_ns = round(row.offset_ns / source.speed)
        if duration_ns is not None and offset_ns >= duration_ns:
            break
        prompt = _capped(row.prompt_tokens, source.max_prompt_tokens)
        output = _capped(row.output_tokens, source.max_output_tokens)
        prompts_cut += prompt < row.prompt_tokens
        outputs_cut += output < row.output_tokens
        kept = row.blocks[: -(-prompt // block_tokens)]
        due_ns.append(offset_ns)
        prompts.append(prompt)
        outputs.append(output)
        counts.append(len(kept))
        blocks.extend(kept)
    columns = _packed("q", _differences(due_ns))
    columns += _packed("i", prompts) + _packed("i", outputs) + _packed("i", counts)
    columns += _packed("i", _differences(blocks))
    return Replay(
        trace=source.file,
        rows=len(due_ns),
        last_due_ns=due_ns[-1] if due_ns else 0,
        block_tokens=block_tokens,
        columns=zlib.compress(columns),
        prompts_cut=prompts_cut,
        outputs_cut=outputs_cut,
    )


def replay_rows(replay: Replay) -> ReplayRows:
    """Unpack what `cut_replay` packed."""
    packed = memoryview(zlib.decompress(replay.columns))
    rows = replay.rows
    due_end, prompt_end, output_end, count_end = (rows * size for size in (8, 12, 16, 20))
    return ReplayRows(
        due_ns=array("q", accumulate(_unpacked("q", packed[:due_end]))),
        prompt_tokens=_unpacked("i", packed[due_end:prompt_end]),
        output_tokens=_unpacked("i", packed[prompt_end:output_end]),
        block_starts=array("q", accumulate(_unpacked("i", packed[output_end:count_end]), initial=0)),
        blocks=array("i", accumulate(_unpacked("i", packed[count_end:]))),
    )


def _capped(tokens: int, most: int | None) -> int:
    return tokens if most is None else min(tokens, most)


def _differences(values: Sequence[int]) -> Iterable[int]:
    return (later - sooner for sooner, later in pairwise((0, *values)))


def _packed(code: str, values: Iterable[int]) -> bytes:
    """Little-endian on every machine."""
    column = array(code, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def _unpacked(code: str, data: memoryview) -> "array[int]":
    column: array[int] = array(code)
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column
