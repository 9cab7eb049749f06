"""The child process that makes a run's report."""

from pathlib import Path

import pytest
from virtual_fleet import Stand, VirtualFleet, stage

from tokswarm.errors import TokswarmError
from tokswarm.master.finish import finish_in_child, log_notes, read_summary


def test_whole_logs_need_no_note() -> None:
    assert log_notes(torn_bytes=0, damaged_bytes=0, unreadable=[]) == []


@pytest.mark.parametrize(
    ("torn_bytes", "damaged_bytes", "unreadable", "words"),
    [
        pytest.param(7, 0, [], ["within an entry", "7 bytes"], id="torn"),
        pytest.param(0, 9, [], ["damaged", "9 bytes"], id="damaged"),
        pytest.param(0, 0, ["a.log: no log"], ["could not be read", "a.log: no log"], id="unreadable"),
    ],
)
def test_what_logs_lack_is_said(torn_bytes: int, damaged_bytes: int, unreadable: list[str], words: list[str]) -> None:
    [note] = log_notes(torn_bytes=torn_bytes, damaged_bytes=damaged_bytes, unreadable=unreadable)
    assert all(word in note for word in words)


def test_a_directory_without_a_run_is_an_error_with_the_childs_reason(tmp_path: Path) -> None:
    with pytest.raises(TokswarmError, match=r"could not be made: .*run\.json") as caught:
        finish_in_child(tmp_path)
    assert "tokswarm report" in caught.value.hint


def test_a_summary_that_is_no_json_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(TokswarmError, match=r"summary\.json cannot be read"):
        read_summary(tmp_path)


def test_a_log_that_cannot_be_read_is_noted_in_the_run_and_its_report_made_of_the_rest(tmp_path: Path) -> None:
    info = Stand(tmp_path, VirtualFleet("a"), stage("s1"), report=finish_in_child).run()  # its log is no record log
    assert (info.state, info.error) == ("finished", "")
    assert any(note.startswith("a log could not be read: ") and "a.log" in note for note in info.notes)
    assert read_summary(tmp_path / "run")["run_id"] == info.run_id
