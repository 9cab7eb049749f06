from pathlib import Path

import pytest

from tokswarm.sink.committed_offset import commit_offset, load_offset, offset_path


def test_an_offset_comes_back_for_its_run_alone(tmp_path: Path) -> None:
    path = offset_path(tmp_path / "w0.log")
    assert path.name == "w0.log.offset"
    assert load_offset(path, "run-1", "http://db/tokswarm") == 0
    commit_offset(path, "run-1", 17, "http://db/tokswarm")
    commit_offset(path, "run-1", 4711, "http://db/tokswarm")
    assert load_offset(path, "run-1", "http://db/tokswarm") == 4711
    assert load_offset(path, "run-2", "http://db/tokswarm") == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["w0.log.offset"]


def test_another_database_has_nothing_of_it(tmp_path: Path) -> None:
    path = offset_path(tmp_path / "w0.log")
    commit_offset(path, "run-1", 4711, "http://db/tokswarm")
    assert load_offset(path, "run-1", "http://db/other") == 0
    path.write_bytes(b'{"run_id": "run-1", "offset": 17}')  # of a version that did not say which
    assert load_offset(path, "run-1", "http://db/tokswarm") == 0


@pytest.mark.parametrize("content", [b"", b"{", b'{"run_id": "run-1"}', b'{"run_id": "run-1", "offset": "x"}'])
def test_an_unreadable_offset_sends_everything_again(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w0.log.offset"
    path.write_bytes(content)
    assert load_offset(path, "run-1", "http://db/tokswarm") == 0
