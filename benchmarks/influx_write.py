"""What the InfluxDB writer of a worker costs, and what its points weigh in the database.

    python benchmarks/influx_write.py [--rate 50000] [--seconds 20] [--json FILE]

A writer process, patched as a worker is and with nothing else to do, gets a record log that grows by
records of 200 tokens at the asked rate, appended by another process, and delivers every token as a point
to a real influxd (behind the API of version 2 that the tests use, a process of its own). Printed: the CPU time
of the writer process per token point and as a share of a core at that rate, what the database holds, its
size on disk after a compaction, and that hour at 100,000 tokens per second, extrapolated.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from array import array
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

TOKENS = 200
GAP_NS = 20_000_000
IN_FLIGHT = 9_000

WRITER = """
import gevent.monkey
gevent.monkey.patch_all()
import json, os, resource, sys, time
from pathlib import Path
import gevent
from tokswarm.sink.influx import InfluxSink
from tokswarm.sink.settings import InfluxSettings

def cpu_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

lags = []
def watch():
    while True:
        due = time.perf_counter() + 0.005
        gevent.sleep(0.005)
        lags.append(time.perf_counter() - due)

sink = InfluxSink(Path(sys.argv[1]), InfluxSettings.from_environ(os.environ), "run-1", "w0")
gevent.sleep(0.2)
watcher = gevent.spawn(watch)
sink.start()
idle_cpu_s, idle_from = cpu_s(), time.monotonic()
gevent.sleep(2.0)
idle_ratio = (cpu_s() - idle_cpu_s) / (time.monotonic() - idle_from)
print("ready", flush=True)
began, before_s, before_points = time.monotonic(), cpu_s(), sink.written_points
seconds = float(sys.argv[2])
while sink.written_points == before_points:
    gevent.sleep(0.01)
began, before_s, before_points = time.monotonic(), cpu_s(), sink.written_points
gevent.sleep(seconds - 3)
points, took_s, spent_s = sink.written_points - before_points, time.monotonic() - began, cpu_s() - before_s
backlog = sink.backlog_bytes
watcher.kill()
lags.sort()
sys.stdin.readline()  # the log is whole
delivery = sink.stop(60)
print(json.dumps({"points": points, "took_s": took_s, "cpu_s": spent_s, "idle_ratio": idle_ratio,
    "backlog_bytes": backlog, "written": delivery.written_points, "left_bytes": delivery.backlog_bytes,
    "error": delivery.error, "loop_lag_p99_ms": lags[len(lags) * 99 // 100] * 1e3}), flush=True)
"""


def write_log(path: Path, rate_per_s: int, seconds: int) -> int:
    """Append records at the rate for so long, in steps of 50 ms; how many."""
    from tokswarm.measure.record import Outcome, RequestRecord
    from tokswarm.sink.record_log import RecordLog

    arrivals = array("q", [300_000_000 + number * GAP_NS + number % 7 * 1000 for number in range(TOKENS)])
    length_ns = arrivals[-1]
    records = 0
    began = time.monotonic()
    with RecordLog(path, run_id="run-1", worker="w0") as log:
        while (passed_s := time.monotonic() - began) < seconds:
            while records * TOKENS < passed_s * rate_per_s:
                sent_ns = time.monotonic_ns() - length_ns + records % IN_FLIGHT * 7_000
                log.append(
                    RequestRecord(
                        request_id=records,
                        slot=records % IN_FLIGHT,
                        class_name=("chat", "report")[records % 2],
                        stage="sweep-64",
                        target="tiny",
                        outcome=Outcome.OK,
                        planned_ns=sent_ns,
                        sent_ns=sent_ns,
                        sent_unix_ns=time.time_ns() - length_ns + records % IN_FLIGHT * 7_000,
                        done_ns=sent_ns + length_ns + 100_000,
                        first_token_ns=sent_ns + arrivals[0],
                        first_output_ns=sent_ns + arrivals[0],
                        last_token_ns=sent_ns + length_ns,
                        headers_ns=sent_ns + 250_000_000,
                        status=200,
                        prompt_tokens_planned=1000,
                        prompt_tokens=1003,
                        max_tokens=TOKENS,
                        output_tokens=TOKENS,
                        finish_reason="length",
                        arrivals=arrivals.tobytes(),
                    )
                )
                records += 1
            time.sleep(0.05)
    return records


def folder_bytes(path: Path) -> int:
    """Bytes of all files below, but for those that influxd lays out in advance for its series."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and "_series" not in file.parts)


def settled(data: Path) -> tuple[int, int]:
    """Bytes of the store and of its write-ahead log, once that has gone into the store."""
    deadline = time.monotonic() + 60
    while (wal := folder_bytes(data / "wal")) > 100_000 and time.monotonic() < deadline:
        time.sleep(1)
    time.sleep(2)
    return folder_bytes(data / "data"), wal


def measure(rate_per_s: int, seconds: int) -> dict[str, float]:
    """One run."""
    from databases import influxd

    os.environ["INFLUXDB_DATA_CACHE_SNAPSHOT_WRITE_COLD_DURATION"] = "5s"
    with TemporaryDirectory() as folder, influxd() as database:
        path = Path(folder) / "w0.log"
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(seconds)],
            env={**os.environ, **database.environ()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdin is not None
        assert writer.stdout is not None
        try:
            assert writer.stdout.readline() == "ready\n"
            records = write_log(path, rate_per_s, seconds)
            writer.stdin.write("whole\n")
            writer.stdin.flush()
            found = json.loads(writer.stdout.readline())
        finally:
            writer.kill()
            writer.wait()
        held = database.value("SELECT sum(n) FROM llm_token")
        requests = database.value("SELECT count(request) FROM llm_request")
        points = database.value("SELECT count(n) FROM llm_token")
        [series] = database.query("SHOW SERIES CARDINALITY") or [None]
        size = folder_bytes(database.data / "data") + folder_bytes(database.data / "wal")
        stored, wal = settled(database.data)
    per_point_us = (found["cpu_s"] - found["idle_ratio"] * found["took_s"]) / found["points"] * 1e6
    return {
        "asked_per_s": rate_per_s,
        "points_per_s": found["points"] / found["took_s"],
        "core_ratio": found["cpu_s"] / found["took_s"],
        "us_per_point": per_point_us,
        "points_per_s_at_a_tenth": 0.1 / per_point_us * 1e6,
        "loop_lag_p99_ms": found["loop_lag_p99_ms"],
        "backlog_bytes_at_end": found["backlog_bytes"],
        "left_bytes": found["left_bytes"],
        "written": found["written"],
        "records": records,
        "requests_held": requests,
        "tokens_sent": records * TOKENS,
        "tokens_held": held,
        "points_held": points,
        "series": series["values"][0][0] if series else 0,
        "bytes_at_once": size,
        "bytes_stored": stored + wal,
        "bytes_per_token": (stored + wal) / held,
        "gb_per_hour_at_100k": (stored + wal) / held * 100_000 * 3600 / 1e9,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=50_000, help="token points per second")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="where the figures go as well")
    options = parser.parse_args()
    found = measure(options.rate, options.seconds)
    for name, value in found.items():
        print(f"{name:26} {value:,.3f}" if isinstance(value, float) else f"{name:26} {value:,}")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if found["tokens_held"] != found["tokens_sent"] or found["requests_held"] != found["records"]:
        sys.exit("the database does not hold what was logged")


if __name__ == "__main__":
    main()
