"""What a search for the highest load found: its probes, its verdicts and how sure they are."""

import msgspec


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One load that was tried; its counts are those of all tries of this load together."""

    stage: str
    """The stage of the last try."""
    load: float
    tries: int
    met: int
    """Requests that did as the goal asks, after the load had settled."""
    known: int
    """Requests that could have."""
    low: float | None
    """Lower end of the 95 % interval of the share met / known; None: no request ended."""
    high: float | None
    is_met: bool
    is_sure: bool
    """Whether the interval lies on one side of the share that is needed; else the mean decided."""

    @property
    def line(self) -> str:
        """In words."""
        if self.low is None or self.high is None:
            return "no request ended"
        sure = "" if self.is_sure else ", not sure"
        return f"{_pct(self.met / self.known)} of {self.known:,} requests ({_pct(self.low)} to {_pct(self.high)}{sure})"


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one `find` stage. The limit is between `highest_met` and `lowest_missed`."""

    name: str
    goal: str
    unit: str
    """`concurrency` or `rate_per_s`."""
    share: float
    """Of the requests, that must do as the goal asks."""
    highest_met: float | None
    """None: not even the lowest load met the goal."""
    lowest_missed: float | None
    """None: the highest load met it too."""
    is_complete: bool
    """False: the run ended before the search did."""
    probes: list[Probe]
    """In the order of the tries."""

    @property
    def line(self) -> str:
        """In one sentence."""
        goal = f"{_pct(self.share)} of requests " + ("within their limits" if self.goal == "slo" else "ok")
        if not self.probes:
            return f"{self.name}: the run ended before a load was tried"
        early = "" if self.is_complete else " (the run ended before the search did)"
        if self.highest_met is None:
            return f"{self.name}: not even {self._load(self.probes[0].load)} has {goal}: {self.probes[0].line}{early}"
        best = next(probe for probe in reversed(self.probes) if probe.load == self.highest_met)
        said = f"{self.name}: the highest load with {goal} is {self._load(self.highest_met)}: {best.line}"
        if self.lowest_missed is None:
            return f"{said}; no higher load was found to miss it{early}"
        return f"{said}; at {self._load(self.lowest_missed)} no longer{early}"

    def _load(self, load: float) -> str:
        return f"concurrency {load:,.0f}" if self.unit == "concurrency" else f"{load:.4g}/s"


def _pct(ratio: float) -> str:
    """With a decimal, for shares near 1 differ by less than a percent."""
    return f"{ratio * 100:.1f} %"
