"""The columns this package reads from a run's Parquet files, and nothing else of them.

The lists of token arrivals are most of a run; they are read one stage at a time.
"""

import polars as pl

from tokswarm.errors import ReportError

REQUESTS: dict[str, pl.DataType] = {
    "worker": pl.String(),
    "class_name": pl.String(),
    "stage": pl.String(),
    "target": pl.String(),
    "outcome": pl.String(),
    "error": pl.String(),
    "sent_ns": pl.Int64(),
    "sent_unix_ns": pl.Int64(),
    "done_ns": pl.Int64(),
    "ttft_ms": pl.Float64(),
    "ttfo_ms": pl.Float64(),
    "tpot_ms": pl.Float64(),
    "e2e_ms": pl.Float64(),
    "schedule_lag_ms": pl.Float64(),
    "connect_ms": pl.Float64(),
    "prompt_tokens_planned": pl.Int64(),
    "prompt_tokens": pl.Int64(),
    "max_tokens": pl.Int64(),
    "output_tokens": pl.Int64(),
    "output_tokens_source": pl.String(),
    "cached_tokens": pl.Int64(),
    "ideal_cached_tokens": pl.Int64(),
    "queue_wait_ms": pl.Float64(),
    "queue_wait_source": pl.String(),
    "slo_met": pl.Boolean(),
    "served_by": pl.String(),
    "model": pl.String(),
    "fell_back": pl.Boolean(),
    "merged_arrivals": pl.Int64(),
    "unstamped_arrivals": pl.Int64(),
    "coalesced": pl.Boolean(),
    "arrivals_ns": pl.List(pl.Int64()),
    "arrival_tokens": pl.List(pl.UInt32()),
}
"""`requests.parquet`: one row per finished request (measure/record.py)."""

APPENDED = {
    "coalesced": False,
    "abandoned_turns": 0,
    "served_by": None,
    "model": None,
    "fell_back": None,
    "log_removed": 0,
}
"""Columns that older runs do not have, and what their absence means."""

WORKERS: dict[str, pl.DataType] = {
    "worker": pl.String(),
    "second_unix": pl.Int64(),
    "loop_lag_p99_ms": pl.Float64(),
    "loop_lag_max_ms": pl.Float64(),
    "cpu_ratio": pl.Float64(),
    "log_lost": pl.Int64(),
    "log_removed": pl.Int64(),
}
"""`workers.parquet`: one row per worker and second (measure/window.py)."""

FLEET: dict[str, pl.DataType] = {
    "second_unix": pl.Int64(),
    "class_name": pl.String(),
    "stage": pl.String(),
    "dropped": pl.Int64(),
    "abandoned_turns": pl.Int64(),
}
"""`fleet.parquet`: one row per class, stage and second (measure/window.py)."""

_SERVER_TEXTS = ("target", "replica", "engine", "version")
_SERVER_COUNTS = ("unix_ns", "up", "running", "waiting")
_SERVER_FLOATS = (
    *("kv_use_ratio", "hit_ratio", "prompt_tok_per_s", "finished_per_s", "preemptions_per_s", "evictions_per_s"),
    *("evicted_tok_per_s", "recomputed_tok_per_s", "queue_wait_mean_ms", "queue_wait_p99_ms", "ttft_mean_ms"),
)
SERVER: dict[str, pl.DataType] = {
    **dict.fromkeys(_SERVER_TEXTS, pl.String()),
    **dict.fromkeys(_SERVER_COUNTS, pl.Int64()),
    **dict.fromkeys(_SERVER_FLOATS, pl.Float64()),
}
"""`server.parquet`: one row per replica of a target and reading of its metrics (measure/server_second.py)."""


def empty(columns: dict[str, pl.DataType]) -> pl.DataFrame:
    """A table without rows, for a run that left none."""
    return pl.DataFrame(schema=columns)


def conform(table: pl.DataFrame | pl.LazyFrame, columns: dict[str, pl.DataType], name: str) -> pl.LazyFrame:
    """The columns that are read, in their types; a column that was all null arrives without one."""
    found = table.lazy().collect_schema().names()
    absent = [column for column in columns if column not in found and column not in APPENDED]
    if absent:
        raise ReportError(
            f"{name}: the columns {', '.join(absent)} are not there; found {', '.join(found) or 'none'}",
            hint="the run was written by another version of tokswarm; report it with that one",
        )
    return table.lazy().select(
        (pl.col(column) if column in found else pl.lit(APPENDED[column])).cast(kind).alias(column)
        for column, kind in columns.items()
    )
