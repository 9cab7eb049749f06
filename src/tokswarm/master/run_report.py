"""The report of a run that has ended: made, and told of in the run's account."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokswarm.errors import TokswarmError
from tokswarm.master.account import Account

_log = logging.getLogger(__name__)


def report_on(run_dir: Path, *, report: Callable[[Path], dict[str, Any]], account: Account) -> str:
    """Make the report; verdict, bend and notes go into the account. Why it could not be made; empty when it was."""
    try:
        summary = report(run_dir)
    except TokswarmError as error:
        _log.warning("run %s: no report: %s", account.info.run_id, error)
        return f"no report: {error}"
    verdict, bend = summary.get("verdict") or {}, summary.get("bend")
    account.change(verdict=verdict.get("state"), bend=bend.get("line") if isinstance(bend, dict) else bend)
    for note in summary.get("notes", ()):
        account.note(note)
    reasons = "; ".join(_text(reason) for reason in verdict.get("reasons", ()))
    account.event("verdict", f"the run is {verdict.get('state')}", reasons or "no reason against it")
    return ""


def _text(reason: object) -> str:
    return str(reason.get("text", reason)) if isinstance(reason, dict) else str(reason)
