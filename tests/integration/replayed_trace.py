"""A trace file read once more, by a small reader of its own, and what a run made of it held against that.

Nothing here uses the product's readers or its schedule: what a row says is taken from the file, what was sent
from `requests.parquet` and from the simulated endpoint's own account.
"""

import csv
import itertools
import json
import statistics
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from product import RunFolder, write_mix

BLOCK_TOKENS = 512
"""Behind one id of Mooncake's `hash_ids`."""
ORDER_S = 0.02
"""Rows that are due further apart than this must come in the order of the file."""

STAGE = "replay"

AMPLE_PROFILE = """
# Quick, and with room for every block of a trace: the load alone is looked at.
step_overhead_us: 5000
sequence_overhead_us: 0
token_compute_us: 0
weights_read_us: 0
kv_read_us: 0
max_num_seqs: 8192
max_step_tokens: 4000000
block_tokens: 512
num_blocks: 400000
max_model_len: 131072
"""


class Row(NamedTuple):
    """One request of the file; its time is counted from the first row."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


class Came(NamedTuple):
    """One request that was sent, by whichever account; its time is counted from the start of the stage."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


class Sharing(NamedTuple):
    """Prompt tokens, and those of them that a cache has, or could have."""

    prompt_tokens: int
    cached_tokens: int

    @property
    def ratio(self) -> float:
        return self.cached_tokens / self.prompt_tokens


class Compared(NamedTuple):
    """An account of what was sent against the file."""

    missing: int
    """Rows of the file that nothing with their lengths was sent for."""
    beyond: int
    """What was sent and is no row of the file."""
    out_of_order: int
    """Rows that came before one that was due more than ORDER_S earlier."""
    late_ms: list[float]
    """For each row how far from its time it came, in either direction; sorted."""

    def late_at(self, q: float) -> float:
        return self.late_ms[min(len(self.late_ms) - 1, int(q * len(self.late_ms)))]


# --- the file ---------------------------------------------------------------------------------------


def azure_rows(path: Path, *, rows: int | None = None) -> list[Row]:
    """The rows of an Azure trace; all of one day."""
    with path.open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))[:rows]
    days = {row["TIMESTAMP"].split()[0] for row in read}
    assert len(days) == 1, days
    clocks = [row["TIMESTAMP"].split()[1].split(":") for row in read]
    at_s = [int(hours) * 3600 + int(minutes) * 60 + float(seconds) for hours, minutes, seconds in clocks]
    return [
        Row(at - at_s[0], int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for at, row in zip(at_s, read, strict=True)
    ]


def mooncake_rows(path: Path, *, rows: int | None = None) -> list[Row]:
    """The rows of a Mooncake trace; those of one stamp spread evenly over its step, as docs/mix.md says."""
    read = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    steps = [(stamp, list(group)) for stamp, group in itertools.groupby(read, key=lambda row: row["timestamp"])]
    usual_ms = statistics.median(after - before for (before, _), (after, _) in itertools.pairwise(steps))
    ends = [stamp for stamp, _ in steps[1:]] + [steps[-1][0] + usual_ms]
    found = []
    for (stamp, group), end in zip(steps, ends, strict=True):
        step_ms = min(usual_ms, end - stamp)
        for place, row in enumerate(group):
            at_s = (stamp - steps[0][0] + step_ms * place / len(group)) / 1e3
            found.append(Row(at_s, row["input_length"], row["output_length"], tuple(row["hash_ids"])))
    return found[:rows]


def ideal_sharing(rows: Iterable[Row]) -> Sharing:
    """What a cache without limits would have, were each row over before the next: the leading blocks seen before.

    A block that the prompt fills only in part is not counted: a cache finds whole blocks.
    """
    seen: set[int] = set()
    prompt_tokens = cached_tokens = 0
    for row in rows:
        whole = row.blocks[: row.prompt_tokens // BLOCK_TOKENS]
        known = next((place for place, block in enumerate(whole) if block not in seen), len(whole))
        cached_tokens += known * BLOCK_TOKENS
        prompt_tokens += row.prompt_tokens
        seen.update(whole)
    return Sharing(prompt_tokens, cached_tokens)


# --- what was sent ----------------------------------------------------------------------------------


def replay_mix(folder: Path, base_url: str, *, api: str, **trace: Any) -> Path:
    """A mix that only replays a trace, without limits on its lengths."""
    return write_mix(
        folder / "replay.yaml",
        base_url,
        target={"base_url": base_url, "api": api},
        classes=[
            {
                "name": "recorded",
                "prompt": {"tokens": {"fixed": 64}},
                "output": {"max_tokens": {"fixed": 4}, "ignore_eos": True},
            }
        ],
        load=[{"name": STAGE, "trace": trace, "drain": "60s"}],
    )


def records(run: RunFolder) -> pl.DataFrame:
    """The requests of the replay, by the run's own table; `at_s` and `due_s` from the start of the stage."""
    found = pl.read_parquet(run.path / "requests.parquet").filter(stage=STAGE)
    start_unix_ns = run.stage_times(STAGE)["start_unix_ns"]
    sent_ns = pl.col("sent_unix_ns") - start_unix_ns
    late_ns = pl.col("sent_ns") - pl.col("planned_ns")
    return found.with_columns(at_s=sent_ns / 1e9, due_s=(sent_ns - late_ns) / 1e9).sort("due_s")


def by_client(found: pl.DataFrame) -> list[Came]:
    """What was sent by the records of the run."""
    assert set(found["outcome"]) == {"ok"}, Counter(found["outcome"])
    return list(itertools.starmap(Came, found.select("at_s", "prompt_tokens", "output_tokens").iter_rows()))


def by_server(served: Iterable[dict[str, Any]], start_ns: int) -> list[Came]:
    """What was sent by the endpoint's account; the start of the stage is of the monotonic clock."""
    return [
        Came((each["arrival_ns"] - start_ns) / 1e9, each["prompt_tokens"], each["output_tokens"]) for each in served
    ]


def start_ns(run: RunFolder) -> int:
    """When the replay began, by the monotonic clock, which all processes of a machine share."""
    start_unix_ns: int = run.stage_times(STAGE)["start_unix_ns"]
    return start_unix_ns - (time.time_ns() - time.monotonic_ns())


# --- side by side -----------------------------------------------------------------------------------


def compared(rows: Sequence[Row], came: Iterable[Came], *, speed: float) -> Compared:
    """Rows and requests of equal lengths belong together, in the order of their times."""
    waiting: dict[tuple[int, int], deque[float]] = defaultdict(deque)
    beyond = 0
    for each in sorted(came):
        waiting[each.prompt_tokens, each.output_tokens].append(each.at_s)
    missing, errors, pairs = 0, [], []
    for row in rows:
        found = waiting[row.prompt_tokens, row.output_tokens]
        if not found:
            missing += 1
            continue
        due_s, at_s = row.at_s / speed, found.popleft()
        errors.append(abs(at_s - due_s) * 1e3)
        pairs.append((due_s, at_s))
    beyond = sum(map(len, waiting.values()))
    return Compared(missing, beyond, _out_of_order(pairs), sorted(errors))


def _out_of_order(pairs: Sequence[tuple[float, float]]) -> int:
    """Of (due, came) in the order of the file: how many came before one that was due more than ORDER_S earlier."""
    swapped, latest_s, settled = 0, float("-inf"), 0
    for due_s, at_s in pairs:
        while pairs[settled][0] < due_s - ORDER_S:
            latest_s = max(latest_s, pairs[settled][1])
            settled += 1
        swapped += at_s < latest_s
    return swapped
