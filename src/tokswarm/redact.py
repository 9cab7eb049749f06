"""Server text made fit to keep: short, one line, secrets removed."""

import re

MAX_CHARS = 300

_SECRETS = re.compile(
    r"(?i)\b(?:sk|rk|pk|hf|gsk|xai|key|tok)[-_][A-Za-z0-9_\-]{8,}"
    r"|\bbearer\s+[^\s\"']+"
    r"|\beyJ[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-.]+"
)


def redact(text: str | bytes, *, secret: str | None = None) -> str:
    """The text on one line, at most MAX_CHARS long, with this secret and what looks like one taken out."""
    if isinstance(text, bytes):
        text = text[: 16 * MAX_CHARS].decode("utf-8", errors="replace")
    if secret:
        text = text.replace(secret, "[secret]")
    text = _SECRETS.sub("[secret]", " ".join(text.split()))
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"
