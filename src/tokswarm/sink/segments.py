"""The files of one record log, seen as one range of bytes.

`NAME.log` holds the header and the first entries; each further file is named by the offset in the whole at
which it begins, `NAME.log.000000016777216`, and holds entries only, so that the files one after the other
are the log. Whole files may be removed from the front, the first down to its header: where bytes are
missing, the next file's name says where the log goes on.
"""

import os
import shutil
from pathlib import Path

_DIGITS = 15
_NO_FILE = -1


def segment_path(path: Path, base: int) -> Path:
    """The file that begins at this offset of the log."""
    return path if base == 0 else path.with_name(f"{path.name}.{base:0{_DIGITS}d}")


def segment_bases(path: Path) -> list[int]:
    """Where the files of a log begin, in order; empty when there is no such log."""
    start = len(path.name) + 1
    try:
        names = [entry.name for entry in os.scandir(path.parent) if entry.name.startswith(path.name)]
    except FileNotFoundError:
        return []
    tails = [name[start:] for name in names]
    bases = sorted(int(tail) for tail in tails if len(tail) == _DIGITS and tail.isdecimal())
    return [0, *bases] if path.name in names else []


def segment_paths(path: Path) -> list[Path]:
    """The files of a log, in order."""
    return [segment_path(path, base) for base in segment_bases(path)]


def stored_bytes(path: Path) -> int:
    """Bytes of a log that are on the disk; 0 when there is none."""
    return sum(part.stat().st_size for part in segment_paths(path))


def read_stored(path: Path, offset: int, limit_bytes: int) -> bytes:
    """A piece of the files of a log put one after the other; empty beyond their end, and when there are none."""
    for part in segment_paths(path):
        size = part.stat().st_size
        if offset < size:
            with part.open("rb") as file:
                file.seek(offset)
                return file.read(min(limit_bytes, size - offset))
        offset -= size
    return b""


def copy_stored(path: Path, target: Path) -> None:
    """Put the files of a log into one. OSError."""
    with target.open("wb") as into:
        for part in segment_paths(path):
            with part.open("rb") as file:
                shutil.copyfileobj(file, into, 1 << 20)


class Segments:
    """Reads a log by offsets of the whole, while its writer goes on. OSError when there is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._base = 0
        self._last_base = 0

    def read(self, count: int, at: int) -> bytes:
        """Up to `count` bytes from an offset on; fewer where the log ends or has a gap."""
        data = b""
        while len(data) < count:
            where = at + len(data)
            piece = os.pread(self._fd, count - len(data), where - self._base) if self._base <= where else b""
            if not piece and not self._enter(where):
                break
            data += piece
        return data

    def after(self, at: int) -> int | None:
        """Where the log goes on beyond an offset at which nothing more could be read; None: it does not."""
        return next((base for base in segment_bases(self._path) if base > at), None)

    def end(self) -> int:
        """The offset at which the log ends now."""
        while True:
            try:
                size = segment_path(self._path, self._last_base).stat().st_size
            except FileNotFoundError:  # removed since
                bases = segment_bases(self._path)
                if not bases:
                    return self._last_base
                self._last_base = bases[-1]
                continue
            following = self._last_base + size
            if not size or not segment_path(self._path, following).exists():
                break
            self._last_base = following
        beyond = self.after(following) if self._last_base == 0 else None
        if beyond is not None:
            self._last_base = beyond
            return self.end()
        return following

    def close(self) -> None:
        """Close what is open; may be called again."""
        if self._fd != _NO_FILE:
            os.close(self._fd)
            self._fd = _NO_FILE

    def _enter(self, at: int) -> bool:
        """Go to the file that has this offset; False when the one that is open is it, or none is."""
        base = max((base for base in segment_bases(self._path) if base <= at), default=self._base)
        if base == self._base:
            return False
        try:
            fd = os.open(segment_path(self._path, base), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        os.close(self._fd)
        self._fd, self._base = fd, base
        return True
