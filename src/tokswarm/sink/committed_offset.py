"""How far a record log was delivered: a small file beside the log, replaced as a whole."""

from pathlib import Path

import msgspec


class CommittedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of this run's log before `offset` is in the database."""

    run_id: str
    offset: int
    database: str = ""
    """Which one it is: address and bucket."""


def offset_path(log_path: Path) -> Path:
    """Where the offset of a log is kept unless somebody says otherwise."""
    return log_path.with_name(f"{log_path.name}.offset")


def load(path: Path, run_id: str) -> CommittedOffset | None:
    """What was committed; None when nothing was, or it is another run's, or unreadable."""
    try:
        committed = msgspec.json.decode(path.read_bytes(), type=CommittedOffset)
    except (OSError, msgspec.MsgspecError):
        return None
    return committed if committed.run_id == run_id else None


def load_offset(path: Path, run_id: str, database: str) -> int:
    """The offset committed for a database; 0 when there is none: points may be sent again."""
    committed = load(path, run_id)
    return committed.offset if committed is not None and committed.database == database else 0


def commit_offset(path: Path, run_id: str, offset: int, database: str) -> None:
    """Replace the file, so that a reader finds the old offset or the new one. OSError."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(msgspec.json.encode(CommittedOffset(run_id=run_id, offset=offset, database=database)))
    new.replace(path)
