"""What each replica said of itself in each stage: the server's side of the stage's figures. Pure."""

from collections.abc import Iterable

import msgspec
import polars as pl

from tokswarm.insight.run_file import StageTimes


class ServerStage(msgspec.Struct, frozen=True, kw_only=True):
    """One replica in one stage, sending and drain. None: its metrics do not say."""

    stage: str
    target: str
    replica: str
    engine: str
    version: str | None
    seconds: int
    """Readings of its metrics."""
    silent_seconds: int
    """Of them without an answer."""
    running_mean: float | None
    waiting_mean: float | None
    waiting_max: int | None
    kv_use_max_ratio: float | None
    hit_ratio: float | None
    """Of all prompt tokens of the stage where they are counted, else the mean of its readings."""
    queue_wait_mean_ms: float | None
    """By its histogram, of all requests it observed; each reading weighs as the requests it saw end."""
    queue_wait_p99_worst_ms: float | None
    """The 99th percentile of the worst reading."""
    ttft_mean_ms: float | None
    preemptions: int | None
    evictions: int | None
    """Cached blocks given up; vLLM: of those it samples."""
    evicted_tokens: int | None
    recomputed_tokens: int | None


def server_stages(readings: pl.DataFrame, times: Iterable[StageTimes]) -> list[ServerStage]:
    """Stages in their order, replicas by name; only those that were read in the stage."""
    found: list[ServerStage] = []
    seen = readings.sort("unix_ns").with_columns(
        # Rates are of the time since the reading before: about a second, longer after silence.
        since_s=(pl.col("unix_ns").diff().over("target", "replica") / 1e9).fill_null(1.0)
    )
    for stage in times:
        # A reading is of the stage that the middle of its time is in: the first still tells of the drain before.
        middle_ns = pl.col("unix_ns") - pl.col("since_s") * 5e8
        within = seen.filter(middle_ns.is_between(stage.start_unix_ns, stage.end_unix_ns))
        for (target, replica), rows in within.sort("target", "replica").group_by(
            "target", "replica", maintain_order=True
        ):
            found.append(_server_stage(stage.name, str(target), str(replica), rows))
    return found


def _server_stage(stage: str, target: str, replica: str, rows: pl.DataFrame) -> ServerStage:
    def total(name: str) -> int | None:
        return _whole(rows.select((pl.col(name) * pl.col("since_s")).sum()).item() if rows[name].count() else None)

    def weighted(name: str) -> float | None:
        """By the requests that ended since the reading before; alike where they are not counted."""
        known = rows.drop_nulls(name)
        if known.is_empty():
            return None
        return _weighted_mean(known[name], (known["finished_per_s"] * known["since_s"]).fill_null(0.0))

    versions = rows["version"].drop_nulls()
    engines = rows["engine"].drop_nulls()
    return ServerStage(
        stage=stage,
        target=target,
        replica=replica,
        engine=str(engines[-1]) if len(engines) else "",
        version=str(versions[-1]) if len(versions) else None,
        seconds=rows.height,
        silent_seconds=rows.filter(pl.col("up") == 0).height,
        running_mean=_float(rows["running"].mean()),
        waiting_mean=_float(rows["waiting"].mean()),
        waiting_max=_whole(rows["waiting"].max()),
        kv_use_max_ratio=_float(rows["kv_use_ratio"].max()),
        hit_ratio=_hit_ratio(rows),
        queue_wait_mean_ms=weighted("queue_wait_mean_ms"),
        queue_wait_p99_worst_ms=_float(rows["queue_wait_p99_ms"].max()),
        ttft_mean_ms=weighted("ttft_mean_ms"),
        preemptions=total("preemptions_per_s"),
        evictions=total("evictions_per_s"),
        evicted_tokens=total("evicted_tok_per_s"),
        recomputed_tokens=total("recomputed_tok_per_s"),
    )


def _hit_ratio(rows: pl.DataFrame) -> float | None:
    counted = rows.drop_nulls(["hit_ratio", "prompt_tok_per_s"])
    if counted.is_empty():
        return _float(rows["hit_ratio"].mean())
    return _weighted_mean(counted["hit_ratio"], counted["prompt_tok_per_s"] * counted["since_s"])


def _weighted_mean(values: pl.Series, weights: pl.Series) -> float | None:
    """All alike where nothing weighs."""
    whole = float(weights.sum())
    return float((values * weights).sum()) / whole if whole > 0 else _float(values.mean())


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _whole(value: object) -> int | None:
    return round(value) if isinstance(value, int | float) else None
