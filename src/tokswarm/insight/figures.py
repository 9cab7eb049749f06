"""Numbers as people read them, the same in the terminal, in sentences and on the page."""

ABSENT = "–"
"""What stands where there is nothing to show."""


def number(value: float | None) -> str:
    """Three significant digits, but never fewer than the whole part has, with thousands set apart."""
    if value is None:
        return ABSENT
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size == 0:
        return "0"
    return f"{value:.2f}" if size >= 0.01 else f"{value:.1g}"


def percent(ratio: float | None) -> str:
    """A ratio as percent, whole from 10 % on."""
    if ratio is None:
        return ABSENT
    pct = ratio * 100
    return f"{pct:.0f} %" if pct >= 10 or pct == 0 else f"{pct:.2g} %"


def counted(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: `1 worker`, `2 workers`, `3 concurrencies`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def shortened(text: str, most: int = 200) -> str:
    """One line of at most this many characters; what is left out is marked."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def spans(seconds: list[tuple[int, int]], started_unix_ns: int) -> str:
    """Seconds of a run, counted from its start: `12–15 s, 40 s`; at most five spans, then how many more."""
    start = started_unix_ns // 1_000_000_000
    shown = [f"{a - start}" if a == b else f"{a - start}–{b - start}" for a, b in seconds[:5]]
    more = f" and {len(seconds) - 5} more" if len(seconds) > 5 else ""
    return ", ".join(shown) + " s" + more
