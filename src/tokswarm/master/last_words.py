"""What a reader of a run should know of its workers' last words and of the messages that went astray. Pure."""

from collections.abc import Iterable, Iterator

from tokswarm.worker.messages import Final


def notes_on_finals(finals: Iterable[Final]) -> Iterator[str]:
    """What workers could not keep or deliver."""
    for final in finals:
        if final.log_lost:
            yield f"worker {final.worker}: {final.log_lost} records could not be written to its log"
        if final.log_removed:
            yield (
                f"worker {final.worker}: {final.log_removed} requests were removed from its log to make room; "
                "they are in the database, and missing from the tables and the report"
            )
        if final.sink_backlog_bytes:
            yield (
                f"worker {final.worker}: {final.sink_backlog_bytes} bytes of its log are not in the database yet "
                f"({final.sink_error or 'no more time'}); send them with `tokswarm export`"
            )


def notes_on_messages(*, missing: int, late: int, strays: int) -> Iterator[str]:
    """Windows that never came or came late, and messages that belonged to nobody."""
    if missing:
        yield f"{missing} windows never came: gaps in the live graphs, not in the logs"
    if late:
        yield f"{late} windows came late and are missing from the live graphs only"
    if strays:
        yield f"{strays} messages of other runs or of workers given up were dropped"
