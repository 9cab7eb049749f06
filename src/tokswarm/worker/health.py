"""How the worker itself does: the lag of its loop, CPU, memory. The grounds of a run's verdict."""

import os
import resource
import time

import gevent

PROBE_S = 0.005


class LoopProbe:
    """A 5 ms timer in the loop that notes how late it was called."""

    def __init__(self) -> None:
        self._lags_ns: list[int] = []
        self._greenlet = gevent.spawn(self._probe)

    def take(self) -> tuple[float, float]:
        """99th percentile and maximum of the lag since the last take, ms."""
        lags, self._lags_ns = sorted(self._lags_ns), []
        if not lags:
            return 0.0, 0.0
        return lags[int(len(lags) * 0.99)] / 1e6, lags[-1] / 1e6

    def stop(self) -> None:
        """End the probe."""
        self._greenlet.kill()

    def _probe(self) -> None:
        period_ns = int(PROBE_S * 1e9)
        while True:
            due_ns = time.monotonic_ns() + period_ns
            gevent.sleep(PROBE_S)
            self._lags_ns.append(max(time.monotonic_ns() - due_ns, 0))


class CpuMeter:
    """CPU time of this process per wall time between two readings."""

    def __init__(self) -> None:
        self._wall_ns, self._cpu_s = time.monotonic_ns(), _cpu_s()

    def take(self) -> float:
        """Cores' worth of CPU since the last take."""
        wall_ns, cpu_s = time.monotonic_ns(), _cpu_s()
        spent_s, passed_s = cpu_s - self._cpu_s, (wall_ns - self._wall_ns) / 1e9
        self._wall_ns, self._cpu_s = wall_ns, cpu_s
        return spent_s / passed_s if passed_s > 0 else 0.0


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def rss_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - read each second; a Path adds nothing
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
