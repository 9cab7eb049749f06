"""Fetching a worker's record log in pieces, each asked for by its offset, so that a lost piece is asked again."""

from pathlib import Path

from tokswarm.worker.messages import Chunk, Fetch

PIECE_BYTES = 1 << 20
"""A piece is written to the master's disk in about a millisecond."""
RETRY_S = 5.0
ATTEMPTS = 3


class LogFetch:
    """One worker's log on its way to the master; give it every chunk, it says what to ask for next."""

    def __init__(self, *, run_id: str, worker: str, path: Path, now_s: float) -> None:
        self.worker = worker
        self.path = path
        self.done = False
        self.error = ""
        self._run_id = run_id
        self._offset = 0
        self._asked_s = now_s
        self._attempts = 1
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")

    @property
    def bytes_fetched(self) -> int:
        """How much has arrived."""
        return self._offset

    def question(self) -> Fetch:
        """The piece that is wanted now."""
        return Fetch(run_id=self._run_id, offset=self._offset, limit_bytes=PIECE_BYTES)

    def take(self, chunk: Chunk, *, now_s: float) -> Fetch | None:
        """Keep a piece; the next question, or None when this was the end, or not the piece asked for."""
        if self.done or chunk.offset != self._offset:
            return None
        if not chunk.data:
            self._end("")
            return None
        try:
            self._file.write(chunk.data)
        except OSError as error:
            self._end(f"{self.path} cannot be written: {error.strerror}")
            return None
        self._offset += len(chunk.data)
        self._asked_s, self._attempts = now_s, 1
        return self.question()

    def overdue(self, *, now_s: float) -> Fetch | None:
        """The question to ask again, when its answer is overdue; gives up after `ATTEMPTS`."""
        if self.done or now_s - self._asked_s < RETRY_S:
            return None
        if self._attempts == ATTEMPTS:
            self._end(f"no answer after {self._offset} bytes")
            return None
        self._attempts += 1
        self._asked_s = now_s
        return self.question()

    def give_up(self, reason: str) -> None:
        """End without the rest."""
        if not self.done:
            self._end(reason)

    def _end(self, error: str) -> None:
        self.done = True
        self.error = error
        try:
            self._file.close()
        except OSError as failure:
            self.error = self.error or f"{self.path} cannot be written: {failure.strerror}"
