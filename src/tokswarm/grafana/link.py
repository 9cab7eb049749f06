"""Addresses of the boards with a run and its time range in them: what is put into a chat or a report."""

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from tokswarm.grafana.shipped import Board

BEFORE_MS = 5_000
AFTER_MS = 15_000
"""Around the run: its last requests are still being drained."""


class Span(NamedTuple):
    """When a run was, ms since 1970; without an end it still goes on."""

    from_ms: int
    to_ms: int | None


class BoardLink(NamedTuple):
    """One board, opened at one run."""

    title: str
    url: str


def board_links(
    boards: Sequence[Board], grafana_url: str, run_id: str, span: Span, *, data_source_uid: str | None = None
) -> list[BoardLink]:
    """A link for each board that shows the run and its time, whole."""
    choices = {
        "from": str(span.from_ms - BEFORE_MS),
        "to": "now" if span.to_ms is None else str(span.to_ms + AFTER_MS),
        "var-run": run_id,
    }
    if data_source_uid is not None:
        choices["var-ds"] = data_source_uid
    asked = urlencode(choices)
    base = grafana_url.rstrip("/")
    return [BoardLink(board["title"], f"{base}/d/{board['uid']}?{asked}") for board in boards]
