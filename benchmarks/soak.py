"""Does a worker's memory stay flat? One worker sends a million short requests.

    python benchmarks/soak.py --server mocksse.c [--requests 1000000] [--json]

Resident memory is that of the worker's own health report at the start, at each tenth and at the end.
The exit code is 1 when memory grew by more than 3 % from the first tenth to the end, or a request failed.
"""

import json
import os
import sys
import time
from typing import Any

import drill

TOKENS = 4
STREAMS = 64
GROUPS = 20
LIMIT_S = 1800
FLAT_RATIO = 1.03


def soak(port: int, requests: int) -> dict[str, Any]:
    """Send that many requests; memory on the way."""
    from tokswarm.worker.health import rss_bytes

    finished: dict[str, int] = {}
    samples: list[dict[str, float]] = []
    cpu_s = 0.0

    def on_second(second: Any) -> None:
        nonlocal cpu_s
        for row in second.window.rows:
            for outcome, count in row.finished.items():
                finished[outcome] = finished.get(outcome, 0) + count
        cpu_s += second.health.cpu_ratio
        done = sum(finished.values())
        while len(samples) < 10 and done * 10 >= requests * (len(samples) + 1):
            samples.append({"requests": done, "rss_mib": second.health.rss_bytes / 2**20})
            print(f"  {done:>9,} requests  {samples[-1]['rss_mib']:7.1f} MiB", file=sys.stderr, flush=True)
        if done >= requests:
            run.halt("all were sent", 10.0)

    drill.set_server(port, interval_us=500, ttft_us=500)
    lived = drill.Drill(port, streams=STREAMS, max_tokens=TOKENS, duration_s=LIMIT_S, prefix_groups=GROUPS)
    with lived.open(on_second) as run:
        start_mib = rss_bytes() / 2**20
        began = time.monotonic()
        drill.go(run)
        passed_s = time.monotonic() - began
        end_mib = rss_bytes() / 2**20
        final = run.finish()
    return {
        "requests": final.records,
        "requests_per_s": final.records / passed_s,
        "cpu_us_per_request": cpu_s * 1e6 / max(sum(finished.values()), 1),
        "outcomes": finished,
        "log_lost": final.log_lost,
        "log_bytes_per_request": final.log_bytes / final.records,
        "rss_start_mib": start_mib,
        "rss_tenths_mib": [round(each["rss_mib"], 1) for each in samples],
        "rss_end_mib": end_mib,
        "growth_ratio": end_mib / samples[0]["rss_mib"],
        "growth_bytes_per_request": (end_mib - samples[0]["rss_mib"])
        * 2**20
        / (final.records - samples[0]["requests"]),
    }


def main() -> int:
    """Parse, run, print."""
    parser = drill.parser(__doc__ or "", default_port=8931)
    parser.add_argument("--requests", type=int, default=1_000_000)
    arguments = parser.parse_args()
    if arguments.child:
        drill.prepare()
        print(json.dumps(soak(arguments.port, arguments.requests)), flush=True)
        os._exit(0)
    got = drill.in_child(__file__, arguments, ["--requests", str(arguments.requests)], timeout_s=LIMIT_S + 120)
    if arguments.json:
        print(json.dumps(got))
    else:
        print(f"requests                        {got['requests']:>12,}")
        print(f"requests/s on one core          {got['requests_per_s']:>12,.0f}")
        print(f"CPU per request, µs             {got['cpu_us_per_request']:>12.0f}")
        print(f"outcomes                        {json.dumps(got['outcomes'])}")
        print(f"records lost                    {got['log_lost']:>12}")
        print(f"resident at the start, MiB      {got['rss_start_mib']:>12.1f}")
        print(f"resident at each tenth, MiB     {' '.join(f'{each:.1f}' for each in got['rss_tenths_mib'])}")
        print(f"resident at the end, MiB        {got['rss_end_mib']:>12.1f}")
        print(f"end over first tenth            {got['growth_ratio']:>12.3f}")
        print(f"growth per request, bytes       {got['growth_bytes_per_request']:>12.2f}")
    # The requests that the halt found under way are given up; no more than there are streams.
    failed = got["requests"] - got["outcomes"].get("ok", 0) - got["outcomes"].get("aborted", 0)
    return 0 if got["growth_ratio"] <= FLAT_RATIO and not failed and not got["log_lost"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
