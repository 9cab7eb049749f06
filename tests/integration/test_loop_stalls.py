"""Nothing in a worker holds up its loop for more than 2 ms, with every sink on."""

import json
import os
import subprocess
import sys
from pathlib import Path

from databases import influxd
from endpoints import simulator

STALL_MS = 2.0
SECONDS = 6.0


def test_nothing_holds_up_the_loop_of_a_worker_for_more_than_two_milliseconds_with_all_sinks_on(
    tmp_path: Path,
) -> None:
    with influxd() as database, simulator("fast") as base_url:
        program = str(Path(__file__).with_name("loop_stalls.py"))
        done = subprocess.run(
            [sys.executable, program, base_url, str(SECONDS), str(tmp_path)],
            env={**os.environ, **database.environ()},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])

    # A run in which all of it was at work, or the turns say nothing.
    assert seen["sink_error"] == ""
    assert seen["records"] > 200
    assert seen["sink_written"] > seen["output_tokens"] / 2
    assert seen["seconds"] >= SECONDS
    assert seen["turns"] > 1000

    # A page fault or an interrupt is charged to the turn it hits: one such turn may be longer, a rule may not.
    assert seen["other_ms"][-2] <= STALL_MS, seen["other_ms"]
    assert seen["reading_ms"][-20] <= 2 * STALL_MS, seen["reading_ms"]
