"""Texts as requests carry them: the bytes between the quotes of JSON."""

import msgspec


def json_text(text: str) -> bytes:
    """A text as it stands between the quotes of JSON."""
    return msgspec.json.encode(text)[1:-1]
