"""A run at 20,000 tokens a second whose database does everything a database can do wrong, one after the other.

It is killed and comes back a minute later; then it answers 413, 429 with Retry-After, 401, 503 in plain
text, and after 20 s. In the end it holds exactly what was recorded, and the load was sent on time.
"""

import json
import os
import time
from pathlib import Path

import polars as pl
import pytest
from databases import influxd
from endpoints import simulator
from product import only_run, started, tokswarm, write_mix

TOKENS = 200
RATE_TOK_PER_S = int(os.environ.get("DRILL_TOK_PER_S", "20000"))
OUTAGE_S = float(os.environ.get("DRILL_OUTAGE_S", "60"))
BEFORE_S, BETWEEN_S, TROUBLE_S = 10.0, 15.0, 50.0
PROFILE = """\
description: takes all that is sent at once, and answers at 100 tokens a second a stream
max_num_seqs: 4096
num_blocks: 1000000
max_model_len: 4000
max_step_tokens: 8192
step_overhead_us: 1000
weights_read_us: 9000
sequence_overhead_us: 0
token_compute_us: 1
kv_read_us: 0
"""
TROUBLE = [
    {"status": 413, "body": '{"error":"Request Entity Too Large"}'},
    {"status": 429, "headers": {"Retry-After": "3"}, "body": '{"message":"slow down"}'},
    {"status": 503, "body": "Service Unavailable"},
    {"status": 401, "body": '{"error":"unauthorized access"}'},
    {"delay_s": 20.0},
]
COUNTED = {
    "llm_request": "request",
    "llm_window": "started",
    "llm_worker": "sockets",
    "llm_fleet": "workers",
    "llm_event": "title",
}


def test_nothing_is_lost_and_the_load_is_on_time(tmp_path: Path) -> None:
    profile = tmp_path / "wide.yaml"
    profile.write_text(PROFILE, encoding="utf-8")
    with influxd() as database, simulator(profile) as base_url:
        length_s = BEFORE_S + OUTAGE_S + BETWEEN_S + TROUBLE_S
        mix = write_mix(
            tmp_path / "steady.yaml",
            base_url,
            classes=[
                {
                    "name": "chat",
                    "prompt": {"tokens": {"fixed": 20}},
                    "output": {"max_tokens": {"fixed": TOKENS}, "ignore_eos": True},
                }
            ],
            load=[
                {"name": "steady", "rate": f"{RATE_TOK_PER_S // TOKENS}/s", "for": f"{length_s:.0f}s", "drain": "20s"}
            ],
        )
        data_dir = tmp_path / "data"
        command = ("run", mix, "--workers", "1", "--data-dir", data_dir)
        with started(*command, settings=database.environ()) as process:
            while not database.seen():
                assert process.poll() is None, process.communicate()
                time.sleep(0.2)
            time.sleep(BEFORE_S)
            database.kill()
            time.sleep(OUTAGE_S)
            database.restart()
            time.sleep(BETWEEN_S)
            seen = len(database.seen())
            database.rule(answers=TROUBLE * 2)  # the worker's writes meet them, and the master's
            process.communicate(timeout=length_s + 120)
            answers = [write["status"] for write in database.seen()[seen:]]
        run = only_run(data_dir)
        tokswarm("export", run.run_id, "--data-dir", data_dir, settings=database.environ())
        held = {name: database.value(f"SELECT count({field}) FROM {name}") for name, field in COUNTED.items()}
        tokens = database.value("SELECT sum(n) FROM llm_token")
        series = database.value("SHOW SERIES CARDINALITY")
    requests = pl.read_parquet(run.path / "requests.parquet", columns=["sent_unix_ns", "schedule_lag_ms"])
    lag_ms = requests["schedule_lag_ms"]
    calm = requests.filter(pl.col("sent_unix_ns") < requests["sent_unix_ns"].min() + int(BEFORE_S * 1e9))
    calm_p99_ms = calm["schedule_lag_ms"].quantile(0.99)
    workers = pl.read_parquet(run.path / "workers.parquet")
    figures = {
        "requests": run.finished_requests,
        "tokens": run.output_tokens,
        "answers_in_trouble": {str(status): answers.count(status) for status in sorted(set(answers))},
        "schedule_lag_p99_ms": lag_ms.quantile(0.99),
        "schedule_lag_p99_ms_before_trouble": calm_p99_ms,
        "schedule_lag_max_ms": lag_ms.max(),
        "loop_lag_p99_ms_median": workers["loop_lag_p99_ms"].median(),
        "cpu_ratio_median": workers["cpu_ratio"].median(),
        "largest_backlog_mb": workers["sink_backlog_bytes"].max() / 1e6,  # type: ignore[operator]
        "series": series,
        "verdict": run.summary["verdict"]["state"],
    }
    print(json.dumps(figures, indent=2))
    assert held == {name: count for name, count in run.points.items() if name in COUNTED}
    assert tokens == run.output_tokens > 0.9 * RATE_TOK_PER_S * length_s
    assert {413, 429, 401, 503} <= set(answers)
    assert series < 60
    if calm_p99_ms is None or calm_p99_ms > 5.0:
        pytest.skip(f"counts are exact; the machine is too busy to judge the lag: {calm_p99_ms} ms before any trouble")
    assert figures["schedule_lag_p99_ms"] <= 5.0
