"""How far a record log was delivered: a small file beside the log, replaced as a whole."""

from pathlib import Path

import msgspec


class CommittedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of this run's log before `offset` is in the database."""

    run_id: str
    offset: int


def offset_path(log_path: Path) -> Path:
    """Where the offset of a log is kept unless somebody says otherwise."""
    return log_path.with_name(f"{log_path.name}.offset")


def load_offset(path: Path, run_id: str) -> int:
    """The committed offset; 0 when there is none, or it is another run's, or unreadable: points may be sent again."""
    try:
        committed = msgspec.json.decode(path.read_bytes(), type=CommittedOffset)
    except (OSError, msgspec.MsgspecError):
        return 0
    return committed.offset if committed.run_id == run_id else 0


def commit_offset(path: Path, run_id: str, offset: int) -> None:
    """Replace the file, so that a reader finds the old offset or the new one. OSError."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(msgspec.json.encode(CommittedOffset(run_id=run_id, offset=offset)))
    new.replace(path)
