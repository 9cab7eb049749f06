"""Does one worker keep to its schedule? Poisson arrivals at 1,000/s for a minute.

    python benchmarks/arrivals.py --server mocksse.c [--rate 1000] [--seconds 60] [--json]

The lag of a request is from the instant it was due to the instant its bytes were sent. The exit code is 1
when it was more than 5 ms at p99 or 1 ms at p50, an arrival was dropped, a request failed, or the number
sent differs from the schedule's.
"""

import json
import os
from typing import Any

import drill

TOKENS = 16
INTERVAL_US = 5000
P50_MS, P99_MS = 1.0, 5.0


def arrive(port: int, rate_per_s: float, seconds: float) -> dict[str, Any]:
    """Send what is due; how late it was."""
    from tokswarm.traffic.schedule import TicketSource

    lag_ns: list[int] = []
    finished: dict[str, int] = {}
    dropped = 0
    cpu: list[float] = []

    def on_second(second: Any) -> None:
        nonlocal dropped
        cpu.append(second.health.cpu_ratio)
        for row in second.window.rows:
            dropped += row.dropped
            for outcome, count in row.finished.items():
                finished[outcome] = finished.get(outcome, 0) + count

    drill.set_server(port, interval_us=INTERVAL_US, ttft_us=INTERVAL_US)
    lived = drill.Drill(port, rate_per_s=rate_per_s, max_tokens=TOKENS, duration_s=seconds)
    due = sum(1 for _ in TicketSource(lived.plan, 0, 1).arrivals(0))
    with lived.open(on_second) as run:
        run.on_record = lambda record: lag_ns.append(record.sent_ns - record.planned_ns)
        drill.go(run)
        run.finish()
    lag_ns.sort()
    return {
        "due": due,
        "sent": len(lag_ns),
        "dropped": dropped,
        "outcomes": finished,
        "lag_p50_ms": lag_ns[len(lag_ns) // 2] / 1e6,
        "lag_p99_ms": lag_ns[len(lag_ns) * 99 // 100] / 1e6,
        "lag_p999_ms": lag_ns[len(lag_ns) * 999 // 1000] / 1e6,
        "lag_max_ms": lag_ns[-1] / 1e6,
        "cpu_ratio": sum(cpu[1:-1]) / max(len(cpu) - 2, 1),
    }


def main() -> int:
    """Parse, run, print."""
    parser = drill.parser(__doc__ or "", default_port=8933)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    if arguments.child:
        drill.prepare()
        print(json.dumps(arrive(arguments.port, arguments.rate, arguments.seconds)), flush=True)
        os._exit(0)
    options = ["--rate", str(arguments.rate), "--seconds", str(arguments.seconds)]
    got = drill.in_child(__file__, arguments, options, timeout_s=arguments.seconds + 60)
    if arguments.json:
        print(json.dumps(got))
    else:
        print(f"due, sent, dropped         {got['due']:>10,} {got['sent']:>10,} {got['dropped']:>6,}")
        print(f"outcomes                   {json.dumps(got['outcomes'])}")
        print(f"lag p50, p99, ms           {got['lag_p50_ms']:>10.2f} {got['lag_p99_ms']:>10.2f}")
        print(f"lag p99.9, ms              {got['lag_p999_ms']:>10.2f}")
        print(f"lag at most, ms            {got['lag_max_ms']:>10.2f}")
        print(f"CPU of one core            {got['cpu_ratio']:>10.0%}")
    in_time = got["lag_p50_ms"] <= P50_MS and got["lag_p99_ms"] <= P99_MS
    is_whole = got["sent"] == got["due"] == got["outcomes"].get("ok", 0) and not got["dropped"]
    return 0 if in_time and is_whole else 1


if __name__ == "__main__":
    raise SystemExit(main())
