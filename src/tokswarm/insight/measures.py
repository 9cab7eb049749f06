"""What is measured of a group of requests: one stage, or one class in it. Definitions: docs/metrics.md."""

import msgspec
import polars as pl

from tokswarm.insight.measured_window import MeasuredWindow
from tokswarm.insight.percentiles import Percentiles, percentiles
from tokswarm.measure.record import Outcome, QueueWaitSource

SLICE_ROWS = 20_000
"""Requests whose arrivals are laid out at a time: a few hundred megabytes at the longest answers."""

_OK = pl.col("outcome") == Outcome.OK.value
_DONE_UNIX_NS = pl.col("sent_unix_ns") + pl.col("done_ns") - pl.col("sent_ns")


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that met every limit of their class, among those whose class has limits."""

    met: int
    known: int
    ratio: float
    per_s: float | None
    """Of them that ended in the measured window, per second; None: the window has no length."""


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """One group of requests. Latencies are of requests that ended ok; None: there was nothing to measure."""

    requests: dict[str, int]
    """Outcome to count; only outcomes that occurred."""
    output_tokens: int
    """Of all requests, whatever the outcome."""
    failed_output_tokens: int
    """Of them in requests that did not end ok."""
    prompt_tokens: int | None
    """Of requests that ended ok, as the server counted them; None: it did not."""
    offered_per_s: float | None
    achieved_per_s: float | None
    completed_per_s: float | None
    output_tok_per_s: float | None
    tok_per_s_per_stream: float | None
    in_flight_mean: float | None
    ttft_ms: Percentiles | None
    ttfo_ms: Percentiles | None
    itl_ms: Percentiles | None
    tpot_ms: Percentiles | None
    e2e_ms: Percentiles | None
    ttft_from_schedule_ms: Percentiles | None
    """From when the request was due; None in a closed loop, where nothing is due."""
    e2e_from_schedule_ms: Percentiles | None
    schedule_lag_ms: Percentiles | None
    """Of all requests: it is the generator's own."""
    queue_wait_ms: Percentiles | None
    queue_wait_source: str | None
    """server, estimated, or None: not known."""
    cached_ratio: float | None
    ideal_cached_ratio: float | None
    coalesced_ratio: float | None
    """Share of ok requests delivered in a few bursts; they have no part in TTFT, TTFO, ITL and TPOT."""
    below_max_tokens_ratio: float | None
    """Share of ok requests that ended with fewer tokens than they were allowed."""
    goodput: Goodput | None
    """None: no class has limits."""


def measure(
    requests: pl.DataFrame, window: MeasuredWindow, *, streams: int | None, dropped: int, from_schedule: bool
) -> Measures:
    """Measure a group. `streams`: its closed-loop concurrency, None where there is none.

    `dropped`: arrivals of the window that were due and never sent; `from_schedule`: arrivals were
    due at a time of their own. The column `estimated_wait_ms` serves where the server reports no wait.
    """
    ok = requests.filter(_OK)
    timed = ok.filter(~pl.col("coalesced"))
    output_tok_per_s = _per_s(_tokens_in(requests, window), window)
    in_flight = _in_flight_mean(requests, window)
    width = in_flight if streams is None else float(streams)
    queue_wait_ms, queue_wait_source = _queue_wait(ok)
    cached_ratio, ideal_cached_ratio = _cached(ok)
    since_due_ms = pl.col("schedule_lag_ms") + pl.col("connect_ms").fill_null(0.0)
    return Measures(
        requests=_outcomes(requests),
        output_tokens=_total(requests, "output_tokens"),
        failed_output_tokens=_total(requests.filter(~_OK), "output_tokens"),
        prompt_tokens=_total(ok, "prompt_tokens") if ok["prompt_tokens"].is_not_null().any() else None,
        offered_per_s=_per_s(
            _count_in(requests, pl.col("sent_unix_ns") - since_due_ms * 1e6, window) + dropped, window
        ),
        achieved_per_s=_per_s(_count_in(requests, pl.col("sent_unix_ns"), window), window),
        completed_per_s=_per_s(_count_in(ok, _DONE_UNIX_NS, window), window),
        output_tok_per_s=output_tok_per_s,
        tok_per_s_per_stream=round(output_tok_per_s / width, 3) if output_tok_per_s is not None and width else None,
        in_flight_mean=in_flight,
        ttft_ms=percentiles(timed["ttft_ms"]),
        ttfo_ms=percentiles(timed["ttfo_ms"]),
        itl_ms=_itl(timed),
        tpot_ms=percentiles(timed["tpot_ms"]),
        e2e_ms=percentiles(ok["e2e_ms"]),
        ttft_from_schedule_ms=_sum(timed, "ttft_ms", since_due_ms) if from_schedule else None,
        e2e_from_schedule_ms=_sum(ok, "e2e_ms", since_due_ms) if from_schedule else None,
        schedule_lag_ms=percentiles(requests["schedule_lag_ms"]),
        queue_wait_ms=queue_wait_ms,
        queue_wait_source=queue_wait_source,
        cached_ratio=cached_ratio,
        ideal_cached_ratio=ideal_cached_ratio,
        coalesced_ratio=_ratio(len(ok) - len(timed), len(ok)),
        below_max_tokens_ratio=_below_max_tokens(ok),
        goodput=_goodput(requests, window),
    )


def _sum(requests: pl.DataFrame, column: str, more: pl.Expr) -> Percentiles | None:
    return percentiles(requests.select(pl.col(column) + more).to_series())


def _outcomes(requests: pl.DataFrame) -> dict[str, int]:
    counts: dict[str, int] = dict(requests["outcome"].value_counts().iter_rows())
    return {outcome.value: counts[outcome.value] for outcome in Outcome if outcome.value in counts}


def _total(requests: pl.DataFrame, column: str) -> int:
    return int(requests[column].cast(pl.Int64).sum())


def _per_s(count: int, window: MeasuredWindow) -> float | None:
    return round(count / window.length_s, 3) if window.length_s > 0 else None


def _inside(unix_ns: pl.Expr, window: MeasuredWindow) -> pl.Expr:
    return (unix_ns >= window.begin_unix_ns) & (unix_ns < window.end_unix_ns)


def _count_in(requests: pl.DataFrame, unix_ns: pl.Expr, window: MeasuredWindow) -> int:
    return len(requests.filter(_inside(unix_ns.cast(pl.Int64), window)))


def _tokens_in(requests: pl.DataFrame, window: MeasuredWindow) -> int:
    """Tokens that arrived in the window; those of an answer that was not streamed arrive at its end."""
    streamed = pl.col("arrivals_ns").list.len() > 0
    whole = requests.filter(~streamed, _inside(_DONE_UNIX_NS, window))
    tokens = _total(whole, "output_tokens")
    for part in requests.filter(streamed).iter_slices(SLICE_ROWS):
        arrivals = part.select("sent_unix_ns", "arrivals_ns", "arrival_tokens").explode("arrivals_ns", "arrival_tokens")
        tokens += _total(
            arrivals.filter(_inside(pl.col("sent_unix_ns") + pl.col("arrivals_ns"), window)), "arrival_tokens"
        )
    return tokens


def _in_flight_mean(requests: pl.DataFrame, window: MeasuredWindow) -> float | None:
    """Time each request was in flight inside the window, added up, per time of the window."""
    if window.length_s <= 0:
        return None
    begin = pl.max_horizontal(pl.col("sent_unix_ns"), pl.lit(window.begin_unix_ns, pl.Int64))
    end = pl.min_horizontal(_DONE_UNIX_NS, pl.lit(window.end_unix_ns, pl.Int64))
    inside_ns = int(requests.select((end - begin).clip(lower_bound=0).sum()).item())
    return round(inside_ns / 1e9 / window.length_s, 3)


def _itl(timed: pl.DataFrame) -> Percentiles | None:
    """Gaps between arrivals, each once per token of the arrival that ended it.

    Gaps are counted by the microsecond, which is what is reported: few values, however many tokens.
    """
    counts = [
        part.select(gap_ns=pl.col("arrivals_ns").list.diff(), tokens="arrival_tokens")
        .explode("gap_ns", "tokens")
        .filter(pl.col("gap_ns").is_not_null())
        .group_by(gap_us=(pl.col("gap_ns") / 1e3).round())
        .agg(pl.col("tokens").cast(pl.Int64).sum())
        for part in timed.filter(pl.col("arrivals_ns").list.len() > 1).iter_slices(SLICE_ROWS)
    ]
    if not counts:
        return None
    gaps = pl.concat(counts)
    return percentiles(gaps["gap_us"] / 1e3, gaps["tokens"])


def _queue_wait(ok: pl.DataFrame) -> tuple[Percentiles | None, str | None]:
    """The server's own figures when it gives any, else the estimate."""
    said = ok.filter(pl.col("queue_wait_source") == QueueWaitSource.SERVER.value)
    if (reported := percentiles(said["queue_wait_ms"])) is not None:
        return reported, QueueWaitSource.SERVER.value
    if (estimated := percentiles(ok.filter(~pl.col("coalesced"))["estimated_wait_ms"])) is not None:
        return estimated, QueueWaitSource.ESTIMATED.value
    return None, None


def _cached(ok: pl.DataFrame) -> tuple[float | None, float | None]:
    """Cached share and ideal share of the prompt tokens, over the same requests where the server says."""
    said = ok.filter(pl.col("cached_tokens").is_not_null(), pl.col("prompt_tokens").is_not_null())
    ideal = (ok if said.is_empty() else said).filter(pl.col("ideal_cached_tokens").is_not_null())
    prompt_tokens = ideal.select(pl.coalesce("prompt_tokens", "prompt_tokens_planned").sum()).item()
    return (
        _ratio(_total(said, "cached_tokens"), _total(said, "prompt_tokens")),
        _ratio(_total(ideal, "ideal_cached_tokens"), prompt_tokens),
    )


def _below_max_tokens(ok: pl.DataFrame) -> float | None:
    limited = ok.filter(pl.col("max_tokens").is_not_null())
    return _ratio(len(limited.filter(pl.col("output_tokens") < pl.col("max_tokens"))), len(limited))


def _goodput(requests: pl.DataFrame, window: MeasuredWindow) -> Goodput | None:
    known = requests.filter(pl.col("slo_met").is_not_null())
    if known.is_empty():
        return None
    met = known.filter(pl.col("slo_met"))
    return Goodput(
        met=len(met),
        known=len(known),
        ratio=round(len(met) / len(known), 4),
        per_s=_per_s(_count_in(met, _DONE_UNIX_NS, window), window),
    )


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole > 0 else None
