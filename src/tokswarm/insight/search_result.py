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
    """With the goal `knee`: whether its power is not surely less than that of the best load before it."""
    is_sure: bool
    """Whether the interval lies on one side of the share that is needed; else the mean decided. With the goal
    `knee` whether its power surely differs from that of the best load before it."""
    tok_per_s: float | None = None
    """With the goal `knee`: output tokens a second, over the fleet, once the load had settled."""
    in_flight: float | None = None
    """With the goal `knee`: the mean number of requests in flight meanwhile."""

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.tok_per_s is None:
            return "met" if self.is_met else "missed"
        return "less power" if not self.is_met else "more power" if self.is_sure else "about the same power"

    @property
    def line(self) -> str:
        """In words."""
        if self.tok_per_s is not None and self.in_flight is not None:
            if not self.tok_per_s:
                return "no token came once the load had settled; try each load for longer"
            each = self.tok_per_s / self.in_flight
            return f"{self.tok_per_s:,.0f} tok/s, {each:.3g} for each of {self.in_flight:.3g} in flight"
        if self.low is None or self.high is None:
            return "no request ended"
        sure = "" if self.is_sure else ", not sure"
        return f"{_pct(self.met / self.known)} of {self.known:,} requests ({_pct(self.low)} to {_pct(self.high)}{sure})"


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one `find` stage. The limit is between `highest_met` and `lowest_missed`; a knee is at
    `highest_met`, between `highest_below` and `lowest_missed`."""

    name: str
    goal: str
    unit: str
    """`concurrency` or `rate_per_s`."""
    share: float | None
    """Of the requests, that must do as the goal asks; None: the goal is the knee."""
    highest_met: float | None
    """None: not even the lowest load met the goal."""
    lowest_missed: float | None
    """None: the highest load met it too. Of a knee the lowest load above it that surely has less power."""
    is_complete: bool
    """False: the run ended before the search did."""
    probes: list[Probe]
    """In the order of the tries."""
    highest_below: float | None = None
    """The highest load below the knee that surely has less power; None: there is none, or the goal is another."""

    @property
    def line(self) -> str:
        """In one sentence."""
        if not self.probes:
            return f"{self.name}: the run ended before a load was tried"
        early = "" if self.is_complete else " (the run ended before the search did)"
        if self.share is None:
            return f"{self.name}: {self._knee_line()}{early}"
        goal = f"{_pct(self.share)} of requests " + ("within their limits" if self.goal == "slo" else "ok")
        if self.highest_met is None:
            return f"{self.name}: not even {self._load(self.probes[0].load)} has {goal}: {self.probes[0].line}{early}"
        best = next(probe for probe in reversed(self.probes) if probe.load == self.highest_met)
        said = f"{self.name}: the highest load with {goal} is {self._load(self.highest_met)}: {best.line}"
        if self.lowest_missed is None:
            return f"{said}; no higher load was found to miss it{early}"
        return f"{said}; at {self._load(self.lowest_missed)} no longer{early}"

    def _knee_line(self) -> str:
        if self.highest_met is None:
            return f"{self._load(self.probes[-1].load)}: {self.probes[-1].line}"
        best = min(self.probes, key=lambda probe: abs(probe.load - (self.highest_met or 0)))
        at = "" if best.load == self.highest_met else f"at {self._load(best.load)} "
        said = f"{at}{best.line}"
        if self.lowest_missed is None:
            return f"no knee up to {self._load(max(probe.load for probe in self.probes))}: {said}"
        beside = [load for load in (self.highest_below, self.lowest_missed) if load is not None]
        less = f"{' and '.join(map(self._load, beside))} surely {'has' if len(beside) == 1 else 'have'} less"
        knee = f"the knee, where tok/s times the tok/s of each request is highest, is {self._load(self.highest_met)}"
        return f"{knee}: {said}; {less}"

    def _load(self, load: float) -> str:
        return f"concurrency {load:,.0f}" if self.unit == "concurrency" else f"{load:.4g}/s"


def _pct(ratio: float) -> str:
    """With a decimal, for shares near 1 differ by less than a percent."""
    return f"{ratio * 100:.1f} %"
