"""What two workers send where prefixes are replaced and where prompts are users' own, by the server's own counts."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from endpoints import simulator
from product import RunFolder, run_mix, write_mix

from tokswarm.measure.record import RequestRecord

GROUPS, PREFIX_TOKENS = 6, 160
ROWS = 60


def class_of(name: str, **prompt: Any) -> dict[str, Any]:
    return {"name": name, "prompt": prompt, "output": {"max_tokens": {"fixed": 4}, "ignore_eos": True}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFolder]:
    """Prefixes that are replaced twice in a stage, and rows each of a length of its own, until there are no more."""
    folder = tmp_path_factory.mktemp("prompts")
    rows = [{"question": " ".join(["word"] * (3 * number + 1)), "number": number} for number in range(ROWS)]
    (folder / "rows.jsonl").write_bytes(b"\n".join(msgspec.json.encode(row) for row in rows))
    prefix = {"groups": GROUPS, "tokens": PREFIX_TOKENS}
    with simulator("fast") as base_url:
        mix = write_mix(
            folder / "prompts.yaml",
            base_url,
            classes=[
                class_of("stays", tokens={"fixed": 240}, shared_prefix=prefix),
                class_of("churns", tokens={"fixed": 240}, shared_prefix={**prefix, "churn": "70%/s"}),
                class_of("asked", rows={"file": "rows.jsonl", "template": '{question}, "please"\n'}),
            ],
            load=[
                {"name": "open", "rate": "60/s", "classes": {"stays": 1, "churns": 1}, "for": "3s"},
                {"name": "closed", "concurrency": 4, "classes": {"asked": 1}, "for": "1500ms"},
            ],
        )
        yield run_mix(mix, folder / "data", workers=2)


def unknown(run: RunFolder, class_name: str) -> tuple[int, int]:
    """Requests that found less than half of their prefix in the server's cache, and those planned so."""
    records = [record for record in run.records("open") if record.class_name == class_name]
    assert len(records) > 60
    found = sum((record.cached_tokens or 0) < PREFIX_TOKENS / 2 for record in records)
    return found, sum((record.ideal_cached_tokens or 0) < PREFIX_TOKENS / 2 for record in records)


def test_the_servers_cache_meets_each_text_of_a_group_once(run: RunFolder) -> None:
    found, planned = unknown(run, "stays")
    assert planned == GROUPS
    assert GROUPS <= found <= GROUPS + 2  # two requests may meet an unknown text at a time
    found, planned = unknown(run, "churns")
    # 6 groups and 70 % of them each second for 3 s, less those that nobody drew.
    assert 2 * GROUPS < planned <= GROUPS + round(0.7 * GROUPS * 3) + 1
    assert planned <= found <= planned + 4


def test_each_row_is_sent_once_by_one_of_the_workers(run: RunFolder) -> None:
    records = run.records("closed")
    lengths = Counter(record.prompt_tokens for record in records)
    assert len(records) == len(lengths) == ROWS
    by_worker = [
        sum(isinstance(entry, RequestRecord) and entry.stage == "closed" for entry in entries)
        for entries in run.entries.values()
    ]
    assert sorted(by_worker)[-2:] == [ROWS // 2, ROWS // 2]
    assert {record.ideal_cached_tokens for record in records} == {0}


def test_the_notes_say_that_rows_are_sent_once(run: RunFolder) -> None:
    assert any("class asked: 60 prompts of its own, each sent once" in note for note in run.summary["notes"])
