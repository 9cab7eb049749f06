"""The cliffs of a run, out of its events. Pure but for reading the file."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tokswarm.insight.run_file import StageTimes

EVENTS_FILE = "events.json"
KIND, TITLE = "cliff", "cliff: "


class CliffFound(msgspec.Struct, frozen=True, kw_only=True):
    """One cliff as it was marked while the run went on."""

    cause: str
    stage: str | None
    """None: it began between two stages."""
    from_unix_ns: int
    to_unix_ns: int | None
    """None: nobody saw its end."""
    evidence: str


class _Event(msgspec.Struct):
    unix_ns: int
    kind: str
    title: str
    text: str
    end_unix_ns: int | None = None


def cliffs_of(events: Iterable[_Event], times: Sequence[StageTimes]) -> list[CliffFound]:
    """In their order."""
    return [
        CliffFound(
            cause=event.title.removeprefix(TITLE),
            stage=_stage_at(event.unix_ns, times),
            from_unix_ns=event.unix_ns,
            to_unix_ns=event.end_unix_ns,
            evidence=event.text,
        )
        for event in sorted(events, key=lambda event: event.unix_ns)
        if event.kind == KIND
    ]


def read_cliffs(run_dir: Path, times: Sequence[StageTimes]) -> list[CliffFound]:
    """Those of a run's folder; none where it has no events."""
    try:
        events = msgspec.json.decode((run_dir / EVENTS_FILE).read_bytes(), type=list[_Event])
    except (OSError, msgspec.MsgspecError):
        return []
    return cliffs_of(events, times)


def _stage_at(unix_ns: int, times: Sequence[StageTimes]) -> str | None:
    """A cliff's second may begin before its stage does."""
    second = 1_000_000_000
    for stage in times:
        if stage.start_unix_ns - second < unix_ns < stage.end_unix_ns:
            return stage.name
    return None
