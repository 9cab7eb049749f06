"""The part of a stage whose throughput counts: from when it has settled to when it stops sending."""

import msgspec

from tokswarm.insight.run_file import StageTimes

SETTLE_RATIO_MAX = 0.2
"""Never cut more than this share of a stage: a short stage with long answers must keep seconds to measure."""


class MeasuredWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Wall-clock span of a stage that is measured; `settle_s` was cut off before it."""

    begin_unix_ns: int
    end_unix_ns: int
    settle_s: float

    @property
    def length_s(self) -> float:
        """Length in seconds; 0 when the stage was stopped at once."""
        return (self.end_unix_ns - self.begin_unix_ns) / 1e9


def measured_window(times: StageTimes, e2e_p90_ms: float | None) -> MeasuredWindow:
    """Cut the ramp-up: one typical long answer (E2E p90), at most SETTLE_RATIO_MAX of the stage.

    After that a closed loop's streams have all been through their common start and end at
    different times. Without a finished request the whole SETTLE_RATIO_MAX is cut.
    """
    sending_ns = max(times.stop_unix_ns - times.start_unix_ns, 0)
    settle_ns = int(sending_ns * SETTLE_RATIO_MAX)
    if e2e_p90_ms is not None:
        settle_ns = min(settle_ns, int(e2e_p90_ms * 1e6))
    begin_ns = times.start_unix_ns + settle_ns
    return MeasuredWindow(
        begin_unix_ns=begin_ns, end_unix_ns=begin_ns + sending_ns - settle_ns, settle_s=round(settle_ns / 1e9, 3)
    )
