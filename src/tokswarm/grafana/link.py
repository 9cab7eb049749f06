"""Addresses of the boards with a run and its time range in them: what is put into a chat or a report."""

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from tokswarm.grafana.shipped import Board, Span

BEFORE_MS = 5_000
AFTER_MS = 15_000
"""Around the run: its last requests are still being drained."""


class BoardLink(NamedTuple):
    """One board, opened at one run."""

    title: str
    url: str


def around_run(span: Span) -> Span:
    """The time to look at, to see the run whole."""
    return Span(span.from_ms - BEFORE_MS, None if span.to_ms is None else span.to_ms + AFTER_MS)


def board_links(
    boards: Sequence[Board], grafana_url: str, run_id: str, span: Span, *, data_source_uid: str | None = None
) -> list[BoardLink]:
    """A link for each board that shows the run and its time, whole."""
    around = around_run(span)
    choices = {
        "from": str(around.from_ms),
        "to": "now" if around.to_ms is None else str(around.to_ms),
        "var-run": run_id,
    }
    if data_source_uid is not None:
        choices["var-ds"] = data_source_uid
    asked = urlencode(choices)
    base = grafana_url.rstrip("/")
    return [BoardLink(board["title"], f"{base}/d/{board['uid']}?{asked}") for board in boards]
