"""Fetching the workers' record logs in pieces, each asked for by its offset, so that a lost one is asked again.

Nothing here sends: questions are given back, for the course of the run to send.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from tokswarm.worker.messages import Chunk, Fetch

PIECE_BYTES = 1 << 20
"""A piece is written to the master's disk in about a millisecond."""
RETRY_S = 5.0
ATTEMPTS = 3


class LogFetch:
    """One worker's log on its way to the master: give it every chunk, it says what to ask for next."""

    def __init__(self, *, run_id: str, worker: str, path: Path, now_s: float) -> None:
        self.worker = worker
        self.error = ""
        self.bytes_fetched = 0
        self._run_id = run_id
        self._path = path
        self._asked_s = now_s
        self._attempts = 1
        self._file: BinaryIO | None = None
        try:
            self._file = path.open("wb")
        except OSError as error:
            self._end(f"{path} cannot be written: {error.strerror}")

    @property
    def done(self) -> bool:
        """Whether nothing more is to be asked: it is whole, or `error` says why not."""
        return self._file is None

    def question(self) -> Fetch:
        """The piece that is wanted now."""
        return Fetch(run_id=self._run_id, name=self.worker, offset=self.bytes_fetched, limit_bytes=PIECE_BYTES)

    def take(self, chunk: Chunk, *, now_s: float) -> Fetch | None:
        """Keep a piece; the next question, or None when this was the end, or not the piece asked for."""
        if self._file is None or chunk.offset != self.bytes_fetched:
            return None
        if not chunk.data:
            self._end("")
            return None
        try:
            self._file.write(chunk.data)
        except OSError as error:
            self._end(f"{self._path} cannot be written: {error.strerror}")
            return None
        self.bytes_fetched += len(chunk.data)
        self._asked_s, self._attempts = now_s, 1
        return self.question()

    def overdue(self, *, now_s: float) -> Fetch | None:
        """The question to ask again, when its answer is overdue; gives up after `ATTEMPTS`."""
        if self.done or now_s - self._asked_s < RETRY_S:
            return None
        if self._attempts == ATTEMPTS:
            self._end("no answer")
            return None
        self._attempts += 1
        self._asked_s = now_s
        return self.question()

    def give_up(self, reason: str) -> None:
        """End without the rest."""
        if not self.done:
            self._end(reason)

    def _end(self, error: str) -> None:
        self.error = error
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as failure:
                self.error = error or f"{self._path} cannot be written: {failure.strerror}"


class LogFetches:
    """The logs of some workers, on their way at the same time."""

    def __init__(self, workers: Iterable[str], *, run_id: str, logs_dir: Path, now_s: float) -> None:
        self._by_worker = {
            worker: LogFetch(run_id=run_id, worker=worker, path=logs_dir / f"{worker}.log", now_s=now_s)
            for worker in workers
        }

    @property
    def done(self) -> bool:
        """Whether nothing more is to be asked."""
        return all(fetch.done for fetch in self._by_worker.values())

    def questions(self) -> list[tuple[str, Fetch]]:
        """What to ask of whom at the beginning."""
        return [(worker, fetch.question()) for worker, fetch in self._by_worker.items() if not fetch.done]

    def take(self, worker: str, chunk: Chunk, *, now_s: float) -> list[tuple[str, Fetch]]:
        """Keep a piece; what to ask next."""
        fetch = self._by_worker.get(worker)
        question = None if fetch is None else fetch.take(chunk, now_s=now_s)
        return [] if question is None else [(worker, question)]

    def overdue(self, *, now_s: float) -> list[tuple[str, Fetch]]:
        """What to ask again."""
        again = [(worker, fetch.overdue(now_s=now_s)) for worker, fetch in self._by_worker.items()]
        return [(worker, question) for worker, question in again if question is not None]

    def close(self, reason: str) -> list[str]:
        """End without what is not there yet; notes on the logs that are not whole."""
        for fetch in self._by_worker.values():
            fetch.give_up(reason)
        return [
            f"the log of worker {fetch.worker} is not complete here ({fetch.bytes_fetched} bytes): {fetch.error}; "
            "the whole is in the worker's own data directory"
            for fetch in self._by_worker.values()
            if fetch.error
        ]
