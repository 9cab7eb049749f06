"""Ten thousand slow streams in one worker: errors, memory of each, and how true the stamps stay.

    python benchmarks/slow_streams.py --server mocksse.c [--streams 10000] [--json]

Every stream gets one token a second. *Stamp error* is our arrival stamp minus the server's send stamp, of every
token in the seconds measured, once all streams are up; *memory* is what the worker grew by since it was ready.
The exit code is 1 when a stream failed.
"""

import json
import os
from typing import Any

import drill

WARM_S = 15
MEASURE_S = 30
INTERVAL_US = 1_000_000
TOKENS = WARM_S + MEASURE_S + 4
DURATION_S = WARM_S + MEASURE_S + 2


def stream(port: int, streams: int) -> dict[str, Any]:
    """Hold that many streams for the seconds measured, then let them end."""
    from tokswarm.wire.chat_answer import ChatAnswer
    from tokswarm.worker.health import rss_bytes

    errors_ns: list[int] = []
    seconds: list[Any] = []
    finished: dict[str, int] = {}
    measuring = False
    feed = ChatAnswer.feed

    def tapped(self: ChatAnswer, body: bytes, at_ns: int, stamped: bool) -> None:
        feed(self, body, at_ns, stamped)
        if measuring:
            at = body.rfind(b"chatcmpl-")
            if at > 0 and (sent_ns := int(body[at + 9 : at + 29])):
                errors_ns.append(at_ns - sent_ns)

    def on_second(second: Any) -> None:
        nonlocal measuring
        seconds.append(second)
        # This second has just ended: the next one is measured or not.
        measuring = WARM_S <= second.window.second_unix + 1 - seconds[0].window.second_unix < WARM_S + MEASURE_S
        for row in second.window.rows:
            for outcome, count in row.finished.items():
                finished[outcome] = finished.get(outcome, 0) + count

    ChatAnswer.feed = tapped  # type: ignore[method-assign]
    drill.set_server(port, interval_us=INTERVAL_US, ttft_us=1000)
    held = drill.Drill(port, streams=streams, max_tokens=TOKENS, duration_s=DURATION_S)
    with held.open(on_second) as run:
        ready_bytes = rss_bytes()
        drill.go(run)
    first = seconds[0].window.second_unix + WARM_S
    measured = [each for each in seconds if first <= each.window.second_unix < first + MEASURE_S]
    tokens = sum(row.output_tokens for each in measured for row in each.window.rows)
    errors_ns.sort()
    return {
        "streams": max(each.health.in_flight for each in measured),
        "streams_lowest": min(each.health.in_flight for each in measured),
        "outcomes": finished,
        "tok_per_s": tokens / len(measured),
        "cpu_ratio": sum(each.health.cpu_ratio for each in measured) / len(measured),
        "cpu_us_per_token": sum(each.health.cpu_ratio for each in measured) * 1e6 / tokens,
        "rss_ready_mib": ready_bytes / 2**20,
        "rss_begin_mib": measured[0].health.rss_bytes / 2**20,
        "rss_end_mib": measured[-1].health.rss_bytes / 2**20,
        "kib_per_stream": (measured[-1].health.rss_bytes - ready_bytes) / 1024 / streams,
        "loop_lag_max_ms": max(each.health.loop_lag_max_ms for each in measured),
        "merged_arrivals": sum(each.health.merged_arrivals for each in seconds),
        "stamps": len(errors_ns),
        "stamp_error_p50_us": errors_ns[len(errors_ns) // 2] / 1e3,
        "stamp_error_p99_us": errors_ns[int(len(errors_ns) * 0.99)] / 1e3,
        "stamp_error_max_us": errors_ns[-1] / 1e3,
    }


def main() -> int:
    """Parse, run, print."""
    parser = drill.parser(__doc__ or "", default_port=8932)
    parser.add_argument("--streams", type=int, default=10_000)
    arguments = parser.parse_args()
    if arguments.child:
        drill.prepare()
        print(json.dumps(stream(arguments.port, arguments.streams)), flush=True)
        os._exit(0)
    got = drill.in_child(__file__, arguments, ["--streams", str(arguments.streams)], timeout_s=DURATION_S + 120)
    if arguments.json:
        print(json.dumps(got))
    else:
        print(f"streams open, lowest and highest    {got['streams_lowest']:,} {got['streams']:,}")
        print(f"outcomes                            {json.dumps(got['outcomes'])}")
        print(f"tokens/s                            {got['tok_per_s']:>10,.0f}")
        print(f"CPU, cores                          {got['cpu_ratio']:>10.3f}")
        print(f"CPU per token, µs                   {got['cpu_us_per_token']:>10.1f}")
        print(f"resident when ready, MiB            {got['rss_ready_mib']:>10.1f}")
        print(f"resident, first to last second, MiB {got['rss_begin_mib']:.1f} {got['rss_end_mib']:.1f}")
        print(f"memory of a stream, KiB             {got['kib_per_stream']:>10.2f}")
        print(f"longest stall of the loop, ms       {got['loop_lag_max_ms']:>10.2f}")
        print(
            f"stamp error p50, p99, max, µs       {got['stamp_error_p50_us']:.1f} {got['stamp_error_p99_us']:.1f}",
            end="",
        )
        print(f" {got['stamp_error_max_us']:.1f} of {got['stamps']:,}")
    return 0 if set(got["outcomes"]) <= {"ok"} and got["streams_lowest"] == arguments.streams else 1


if __name__ == "__main__":
    raise SystemExit(main())
