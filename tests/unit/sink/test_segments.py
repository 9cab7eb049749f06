"""A log of many files is the same log; what a full disk or a limit costs, and in which order."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tokswarm.measure.record import Outcome, RequestRecord
from tokswarm.measure.window import Event
from tokswarm.sink.record_log import Entry, RecordLog, read_log
from tokswarm.sink.segments import Segments, copy_stored, read_stored, segment_paths, stored_bytes

SEGMENT_BYTES = 1_000
RECORD = RequestRecord(
    request_id=0,
    slot=3,
    class_name="chat",
    stage="sweep-4",
    target="tiny",
    outcome=Outcome.OK,
    planned_ns=10,
    sent_ns=20,
    sent_unix_ns=1_700_000_000_000_000_000,
    done_ns=5_000_000,
)
EVENT = Event(unix_ns=1_700_000_000_000_000_000, kind="stage", title="sweep-4", text="began")


def numbered(count: int, first: int = 0) -> list[RequestRecord]:
    return [msgspec.structs.replace(RECORD, request_id=number) for number in range(first, first + count)]


def ids(entries: list[Entry]) -> list[int]:
    return [entry.request_id for entry in entries if isinstance(entry, RequestRecord)]


def read(path: Path, start: int = 0) -> list[Entry]:
    return [entry for entry, _ in read_log(path, start)]


def opened(path: Path, *, segment_bytes: int = SEGMENT_BYTES, limit_bytes: int | None = None) -> RecordLog:
    return RecordLog(path, run_id="run-1", worker="w0", segment_bytes=segment_bytes, limit_bytes=limit_bytes)


def put(log: RecordLog, entries: list[RequestRecord]) -> list[int]:
    ends = []
    for entry in entries:
        assert log.append(entry)
        ends.append(log.size_bytes)
    return ends


def test_a_log_of_many_files_reads_as_one_from_any_entry_on(tmp_path: Path) -> None:
    path = tmp_path / "w0.log"
    what = numbered(60)
    with opened(path) as log:
        ends = put(log, what)
    assert len(segment_paths(path)) > 4
    assert read(path) == what
    for number, end in enumerate(ends):
        assert read(path, end) == what[number + 1 :], number
    assert stored_bytes(path) == ends[-1] == Segments(path).end()


def test_the_files_one_after_the_other_are_the_log(tmp_path: Path) -> None:
    path = tmp_path / "w0.log"
    with opened(path) as log:
        put(log, numbered(60))
    whole = b"".join(part.read_bytes() for part in segment_paths(path))
    pieces = b""
    while piece := read_stored(path, len(pieces), 333):
        pieces += piece
    assert pieces == whole
    copy_stored(path, tmp_path / "copy.log")
    assert (tmp_path / "copy.log").read_bytes() == whole
    assert read(tmp_path / "copy.log") == numbered(60)


def test_a_reader_follows_from_file_to_file(tmp_path: Path) -> None:
    with opened(tmp_path / "w0.log") as log:
        reader = read_log(tmp_path / "w0.log")
        for record in numbered(60):
            assert next(reader, None) is None
            log.append(record)
            assert next(reader, None) == (record, log.size_bytes)
    assert len(segment_paths(tmp_path / "w0.log")) > 4


def test_opening_again_goes_on_in_the_last_file_and_cuts_its_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "w0.log"
    with opened(path) as log:
        put(log, numbered(30))
    with segment_paths(path)[-1].open("ab") as file:
        file.write(b"\x99\x00\x00\x00torn")
    with opened(path) as log:
        put(log, numbered(30, first=30))
    reader = read_log(path)
    assert [entry for entry, _ in reader] == numbered(60)
    assert (reader.torn_bytes, reader.damaged_bytes) == (0, 0)


def test_a_file_begun_and_not_written_when_the_machine_crashed_is_written_on(tmp_path: Path) -> None:
    path = tmp_path / "w0.log"
    with opened(path) as log:
        put(log, numbered(30))
        end = log.size_bytes
    path.with_name(f"w0.log.{end:015d}").write_bytes(b"torn")
    with opened(path) as log:
        put(log, numbered(5, first=30))
    assert read(path) == numbered(35)


def test_damage_in_one_file_costs_no_entry_of_the_next(tmp_path: Path) -> None:
    path = tmp_path / "w0.log"
    with opened(path) as log:
        put(log, numbered(60))
    second = segment_paths(path)[1]
    held = read(path)
    data = bytearray(second.read_bytes())
    data[-1] ^= 0xFF  # the last entry of that file
    second.write_bytes(data)
    reader = read_log(path)
    left = [entry for entry, _ in reader]
    assert len(left) == len(held) - 1
    assert reader.damaged_bytes > 0
    assert reader.torn_bytes == 0


def test_a_limit_takes_what_is_delivered_and_counts_it(tmp_path: Path) -> None:
    path = tmp_path / "w0.log"
    with opened(path, limit_bytes=4 << 16, segment_bytes=1 << 16) as log:
        log.delivered = lambda: log.size_bytes
        put(log, numbered(6_000))
        assert log.lost == 0
        assert stored_bytes(path) <= 4 << 16
        removed = log.removed_requests
    assert removed > 1_000
    reader = read_log(path)
    left = [entry for entry, _ in reader]
    assert ids(left) == list(range(removed, 6_000))
    assert (reader.damaged_bytes, reader.torn_bytes) == (0, 0)
    assert reader.removed_bytes + stored_bytes(path) == log.size_bytes
    copy_stored(path, tmp_path / "copy.log")
    assert read(tmp_path / "copy.log") == left


def test_a_log_of_which_a_part_is_gone_is_written_and_read_on(tmp_path: Path) -> None:
    path = tmp_path / "w0.log"
    with opened(path, limit_bytes=4 << 16, segment_bytes=1 << 16) as log:
        log.delivered = lambda: log.size_bytes
        ends = put(log, numbered(6_000))
        removed = log.removed_requests
    with opened(path, limit_bytes=4 << 16, segment_bytes=1 << 16) as log:
        assert log.size_bytes == ends[-1]
        put(log, numbered(10, first=6_000))
        assert stored_bytes(path) == log._stored_bytes
    assert ids(read(path)) == list(range(removed, 6_010))
    assert ids(read(path, ends[5_000])) == list(range(5_001, 6_010))


def test_a_limit_without_a_database_loses_what_comes_and_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "w0.log"
    with opened(path, limit_bytes=4 << 16) as log:
        kept = sum(log.append(record) for record in numbered(6_000))
        assert (log.lost, log.removed_requests) == (6_000 - kept, 0)
        assert log.size_bytes <= 4 << 16
    assert ids(read(path)) == list(range(kept))


def test_what_is_not_delivered_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "w0.log"
    with opened(path, limit_bytes=4 << 16, segment_bytes=1 << 16) as log:
        delivered = 100_000
        log.delivered = lambda: delivered
        for record in numbered(6_000):
            log.append(record)
        assert log.lost > 0
        removed = log.removed_requests
    left = ids(read(path))
    assert 0 < removed < 100_000 / (log.size_bytes / (6_000 - log.lost))
    assert left == list(range(removed, removed + len(left)))


def test_a_full_disk_takes_what_is_delivered_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w0.log"
    real_write = os.write
    room = 300_000

    def write(fd: int, data: bytes) -> int:
        free = room - stored_bytes(path)
        if free <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(fd, bytes(data)[:free])

    monkeypatch.setattr(os, "write", write)
    with opened(path, segment_bytes=1 << 16) as log:
        log.delivered = lambda: log.size_bytes
        put(log, numbered(6_000))
        assert log.lost == 0
        removed = log.removed_requests
    reader = read_log(path)
    assert ids([entry for entry, _ in reader]) == list(range(removed, 6_000))
    assert (reader.damaged_bytes, reader.torn_bytes) == (0, 0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system can be mounted by root alone")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full_loses_nothing_that_the_database_has(small_disk: Path) -> None:
    path = small_disk / "logs" / "w0.log"
    with opened(path, segment_bytes=1 << 16) as log:
        log.delivered = lambda: log.size_bytes
        put(log, numbered(12_000))
        removed = log.removed_requests
        assert (log.lost, removed > 0) == (0, True)
        assert ids(read(path)) == list(range(removed, 12_000))
        # The database goes away: what comes now fills the disk, and is then lost by count.
        held = log.size_bytes
        log.delivered = lambda: held
        kept = sum(log.append(record) for record in numbered(12_000, first=12_000))
        assert log.lost == 12_000 - kept > 0
        # And back: there is room again.
        log.delivered = lambda: log.size_bytes
        assert log.append(EVENT)
        removed = log.removed_requests
    left = read(path)
    assert left[-1] == EVENT
    assert ids(left) == list(range(removed, 12_000 + kept))
