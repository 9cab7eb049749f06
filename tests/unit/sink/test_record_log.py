import errno
import os
import struct
import zlib
from array import array
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokswarm.errors import LogError
from tokswarm.measure.record import Outcome, RequestRecord
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond, Window, WindowRow, WorkerSecond
from tokswarm.sink.record_log import Entry, RecordLog, read_log

RECORD = RequestRecord(
    request_id=1 << 40 | 7,
    slot=3,
    class_name="chat",
    stage="sweep-4",
    target="tiny",
    outcome=Outcome.OK,
    planned_ns=10,
    sent_ns=20,
    sent_unix_ns=1_700_000_000_000_000_000,
    done_ns=5_000_000,
    output_tokens=3,
    arrivals=array("q", [1, 2, 3]).tobytes(),
)
WINDOW = Window(
    worker="w0",
    second_unix=1_700_000_000,
    sequence=4,
    rows=[WindowRow(class_name="chat", stage="sweep-4", started=3, finished={"ok": 2}, itl={70: 9})],
)
SECOND = WorkerSecond(
    worker="w0",
    second_unix=1_700_000_000,
    loop_lag_p99_ms=0.5,
    loop_lag_max_ms=1.5,
    cpu_ratio=0.25,
    schedule_lag_p99_ms=None,
    in_flight=4,
    sockets=4,
    rss_bytes=1 << 26,
    log_bytes=100,
    log_lost=0,
    sink_backlog_bytes=10,
    sink_error="",
    reads=9,
    merged_arrivals=1,
    unstamped_arrivals=0,
)
FLEET = FleetSecond(
    second_unix=1_700_000_000,
    class_name="_all",
    stage="sweep-4",
    workers=2,
    output_tok_per_s=100,
    prompt_tok_per_s=50,
    offered_per_s=3,
    started_per_s=3,
    finished={"ok": 2, "rate_limited": 1},
    in_flight=4,
    dropped=0,
    late=0,
    goodput_per_s=None,
    goodput_ratio=None,
    cached_ratio=0.5,
    ideal_cached_ratio=None,
)
EVENT = Event(unix_ns=1_700_000_000_000_000_000, kind="stage", title="sweep-4", text="began")
SERVER = ServerSecond(unix_ns=1_700_000_000_000_000_000, target="tiny", replica="127.0.0.1:8011", up=1, waiting=3)
EACH = [RECORD, WINDOW, SECOND, FLEET, SERVER, EVENT]

texts = st.text(max_size=20)
naturals = st.integers(0, 1 << 40)
records = st.builds(
    RequestRecord,
    request_id=naturals,
    slot=st.integers(0, 20_000),
    class_name=texts,
    stage=texts,
    target=texts,
    outcome=st.sampled_from(Outcome),
    planned_ns=naturals,
    sent_ns=naturals,
    sent_unix_ns=naturals,
    done_ns=naturals,
    error=st.none() | texts,
    output_tokens=naturals,
    slo_met=st.none() | st.booleans(),
    connect_ms=st.none() | st.floats(0, 1e6),
    arrivals=st.lists(naturals, max_size=40).map(lambda gaps: array("q", gaps).tobytes()),
)
entries = records | st.sampled_from([WINDOW, SECOND, FLEET, SERVER, EVENT])


def write(path: Path, what: list[Entry], *, run_id: str = "run-1", worker: str = "w0") -> list[int]:
    """Write a log; the offset after each entry."""
    with RecordLog(path, run_id=run_id, worker=worker) as log:
        ends = []
        for entry in what:
            assert log.append(entry)
            ends.append(log.size_bytes)
    return ends


def read(path: Path, start: int = 0) -> list[Entry]:
    return [entry for entry, _ in read_log(path, start)]


def test_each_kind_of_entry_comes_back_equal(tmp_path: Path) -> None:
    ends = write(tmp_path / "w0.log", EACH)
    assert list(read_log(tmp_path / "w0.log")) == list(zip(EACH, ends, strict=True))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(what=st.lists(entries, max_size=12), data=st.data())
def test_a_log_gives_back_what_it_took_from_any_entry_on(
    tmp_path: Path, what: list[Entry], data: st.DataObject
) -> None:
    path = tmp_path / "any.log"
    path.unlink(missing_ok=True)
    ends = write(path, what)
    assert read(path) == what
    skip = data.draw(st.integers(0, len(what)))
    assert read(path, ends[skip - 1] if skip else 0) == what[skip:]


def test_a_log_cut_at_any_byte_gives_its_whole_entries_and_counts_the_rest(tmp_path: Path) -> None:
    ends = write(tmp_path / "whole.log", EACH)
    whole = (tmp_path / "whole.log").read_bytes()
    header_end = ends[0] - (len(whole) - len(_without_first(tmp_path, whole)))
    path = tmp_path / "cut.log"
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        reader = read_log(path)
        got = [entry for entry, _ in reader]
        whole_ends = [end for end in ends if end <= length]
        assert got == EACH[: len(whole_ends)], length
        last = whole_ends[-1] if whole_ends else (header_end if length >= header_end else 0)
        assert reader.torn_bytes == length - last, length
        assert reader.damaged_bytes == 0, length


def _without_first(tmp_path: Path, whole: bytes) -> bytes:
    write(tmp_path / "shorter.log", EACH[1:])
    return (tmp_path / "shorter.log").read_bytes()


def test_a_torn_last_entry_of_full_length_is_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "w0.log"
    ends = write(path, EACH)
    data = bytearray(path.read_bytes())
    data[-1] ^= 0xFF
    path.write_bytes(data)
    reader = read_log(path)
    assert [entry for entry, _ in reader] == EACH[:-1]
    assert (reader.torn_bytes, reader.damaged_bytes) == (ends[-1] - ends[-2], 0)


def test_damage_at_any_byte_of_the_middle_costs_one_entry_and_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "w0.log"
    ends = write(path, EACH)
    whole = path.read_bytes()
    for at in range(ends[0], ends[1]):
        data = bytearray(whole)
        data[at] ^= 0xFF
        path.write_bytes(data)
        reader = read_log(path)
        assert [entry for entry, _ in reader] == [EACH[0], *EACH[2:]], at
        assert (reader.damaged_bytes, reader.torn_bytes) == (ends[1] - ends[0], 0), at


def test_damage_longer_than_one_reading_is_stepped_over(tmp_path: Path) -> None:
    path = tmp_path / "w0.log"
    ends = write(path, EACH)
    data = path.read_bytes()
    noise = b"\xdc\x00\x25\xa2r1 this is no entry " * 20_000
    path.write_bytes(data[: ends[1]] + noise + data[ends[1] :])
    reader = read_log(path)
    assert [entry for entry, _ in reader] == EACH
    assert reader.damaged_bytes == len(noise)


def test_an_entry_longer_than_one_reading_comes_back(tmp_path: Path) -> None:
    long = msgspec.structs.replace(RECORD, arrivals=array("q", range(100_000)).tobytes())
    write(tmp_path / "w0.log", [RECORD, long, EVENT])
    assert read(tmp_path / "w0.log") == [RECORD, long, EVENT]


def test_a_reader_at_the_end_goes_on_with_what_is_appended_later(tmp_path: Path) -> None:
    path = tmp_path / "w0.log"
    with RecordLog(path, run_id="run-1", worker="w0") as log:
        reader = read_log(path)
        assert next(reader, None) is None
        log.append(RECORD)
        assert next(reader, None) == (RECORD, log.size_bytes)
        assert next(reader, None) is None
        log.append(EVENT)
        assert next(reader, None) == (EVENT, log.size_bytes)


def test_opening_again_cuts_a_torn_tail_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "w0.log"
    write(path, [RECORD, WINDOW])
    with path.open("ab") as file:
        file.write(b"\x99\x00\x00\x00torn")
    with RecordLog(path, run_id="run-1", worker="w0") as log:
        log.append(EVENT)
    reader = read_log(path)
    assert [entry for entry, _ in reader] == [RECORD, WINDOW, EVENT]
    assert (reader.torn_bytes, reader.damaged_bytes) == (0, 0)


def test_opening_a_log_whose_header_is_torn_begins_it_anew(tmp_path: Path) -> None:
    path = tmp_path / "w0.log"
    path.write_bytes(b"TSWL\x20\x00")
    write(path, [EVENT])
    assert read(path) == [EVENT]


def test_the_log_of_another_run_is_not_continued(tmp_path: Path) -> None:
    write(tmp_path / "w0.log", [EVENT], run_id="run-0")
    with pytest.raises(LogError, match=r"run 'run-0', worker 'w0', not of run 'run-1'"):
        RecordLog(tmp_path / "w0.log", run_id="run-1", worker="w0")


def test_a_log_has_one_writer(tmp_path: Path) -> None:
    with RecordLog(tmp_path / "w0.log", run_id="run-1", worker="w0") as log:
        with pytest.raises(LogError, match="another process is writing"):
            RecordLog(tmp_path / "w0.log", run_id="run-1", worker="w0")
        assert log.append(EVENT)
    assert read(tmp_path / "w0.log") == [EVENT]


def test_a_full_disk_loses_entries_by_count_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w0.log"
    log = RecordLog(path, run_id="run-1", worker="w0")
    assert log.append(RECORD)
    real_write = os.write
    room = [25]

    def full(fd: int, data: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(fd, bytes(data)[: room.pop()])

    monkeypatch.setattr(os, "write", full)
    assert [log.append(WINDOW), log.append(SECOND)] == [False, False]
    monkeypatch.undo()
    assert log.lost == 2
    assert log.append(EVENT)
    log.close()
    reader = read_log(path)
    assert [entry for entry, _ in reader] == [RECORD, EVENT]
    assert (reader.damaged_bytes, reader.torn_bytes) == (0, 0)
    assert log.size_bytes == path.stat().st_size


def test_a_broken_write_that_cannot_be_taken_back_at_once_is_taken_back_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RecordLog(tmp_path / "w0.log", run_id="run-1", worker="w0")
    real_write = os.write

    def no_truncate(fd: int, length: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real_write(fd, bytes(data)[:10]))
        patch.setattr(os, "ftruncate", no_truncate)
        assert not log.append(RECORD)
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", no_truncate)
        assert not log.append(RECORD)
    assert log.append(EVENT)
    assert log.lost == 2
    assert read(log.path) == [EVENT]


@pytest.mark.parametrize(
    ("entry", "comes_back"),
    [
        pytest.param(
            msgspec.structs.replace(RECORD, error="bad \ud800 text"),
            msgspec.structs.replace(RECORD, error="bad ? text"),
            id="lone surrogate",
        ),
        pytest.param(msgspec.structs.replace(RECORD, prompt_tokens=10**30), None, id="integer beyond 64 bits"),
    ],
)
def test_values_msgpack_cannot_hold_never_raise(tmp_path: Path, entry: Entry, comes_back: Entry | None) -> None:
    with RecordLog(tmp_path / "w0.log", run_id="run-1", worker="w0") as log:
        assert log.append(entry) == (comes_back is not None)
        assert log.lost == (comes_back is None)
    assert read(log.path) == ([comes_back] if comes_back else [])


def test_appending_to_a_closed_log_loses_by_count(tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "w0.log", run_id="run-1", worker="w0")
    log.close()
    log.close()
    assert not log.append(EVENT)
    assert log.lost == 1


def test_an_empty_file_is_an_empty_log(tmp_path: Path) -> None:
    (tmp_path / "w0.log").touch()
    reader = read_log(tmp_path / "w0.log")
    assert (list(reader), reader.header, reader.torn_bytes) == ([], None, 0)


def _newer(data: bytes) -> bytes:
    payload = msgspec.msgpack.encode({"schema": 2, "somebody": "else"})
    crc = zlib.crc32(payload)
    return b"TSWL" + struct.pack("<II", len(payload), crc) + payload


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(lambda data: b"PAR1" + data, "no record log", id="foreign"),
        pytest.param(lambda data: b"x", "no record log", id="foreign and short"),
        pytest.param(_newer, "schema 2, this version reads up to 1", id="newer"),
        pytest.param(lambda data: data[:20] + b"\xff" + data[21:], "header of this record log is damaged", id="bad"),
    ],
)
def test_what_is_no_log_of_ours_is_refused(tmp_path: Path, spoil: object, words: str) -> None:
    path = tmp_path / "w0.log"
    write(path, [EVENT])
    path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(LogError, match=words):
        read_log(path)


def test_a_missing_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="No such file"):
        read_log(tmp_path / "none.log")
