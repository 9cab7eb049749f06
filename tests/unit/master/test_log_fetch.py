"""Fetching logs, piece by piece."""

from pathlib import Path

import pytest

from tokswarm.master.log_fetch import ATTEMPTS, RETRY_S, LogFetch, LogFetches
from tokswarm.worker.messages import Chunk


def chunk(offset: int, data: bytes) -> Chunk:
    return Chunk(run_id="r", worker="w", offset=offset, data=data)


def fetch_to(path: Path) -> LogFetch:
    return LogFetch(run_id="r", worker="w", path=path, now_s=0)


def test_pieces_are_asked_for_one_after_the_other_until_an_empty_one(tmp_path: Path) -> None:
    fetch = fetch_to(tmp_path / "w.log")
    second = fetch.take(chunk(0, b"abc"), now_s=1)
    assert second is not None
    assert second.offset == 3
    assert fetch.take(chunk(3, b""), now_s=2) is None
    assert (fetch.done, fetch.error) == (True, "")
    assert (tmp_path / "w.log").read_bytes() == b"abc"


@pytest.mark.parametrize("offset", [0, 6], ids=["again", "ahead"])
def test_a_piece_that_was_not_asked_for_is_not_written(tmp_path: Path, offset: int) -> None:
    fetch = fetch_to(tmp_path / "w.log")
    fetch.take(chunk(0, b"abc"), now_s=1)
    assert fetch.take(chunk(offset, b"xyz"), now_s=1) is None
    fetch.take(chunk(3, b""), now_s=1)
    assert (tmp_path / "w.log").read_bytes() == b"abc"


def test_an_overdue_piece_is_asked_for_again_and_given_up_in_the_end(tmp_path: Path) -> None:
    fetch = fetch_to(tmp_path / "w.log")
    asked = [fetch.overdue(now_s=RETRY_S * n) for n in range(1, ATTEMPTS + 1)]
    assert [question.offset if question else None for question in asked] == [0, 0, None]
    assert (fetch.done, fetch.error) == (True, "no answer")


def test_a_log_that_cannot_be_written_is_an_error_of_that_log_alone(tmp_path: Path) -> None:
    (tmp_path / "bad.log").mkdir()
    fetches = LogFetches(["bad", "good"], run_id="r", logs_dir=tmp_path, now_s=0)
    assert [worker for worker, _ in fetches.questions()] == ["good"]
    fetches.take("good", Chunk(run_id="r", worker="good", offset=0, data=b""), now_s=1)
    assert fetches.done
    [note] = fetches.close("not in time")
    assert note.startswith("the log of worker bad is not complete here (0 bytes): ")


def test_chunks_of_workers_that_were_not_asked_are_ignored(tmp_path: Path) -> None:
    fetches = LogFetches(["w"], run_id="r", logs_dir=tmp_path, now_s=0)
    assert fetches.take("stranger", chunk(0, b"x"), now_s=0) == []
    assert fetches.close("given up") == [
        "the log of worker w is not complete here (0 bytes): given up; the whole is in the worker's own data directory"
    ]
