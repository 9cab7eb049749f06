"""What every query of every board must answer, computed from the run's Parquet tables by other means than InfluxQL.

`EXPECTED[board][panel]` holds an expectation for each query of the panel, in the order of their letters. A panel that
is not here fails the tests, and so does an entry without a panel.
"""

from collections.abc import Callable, Sequence

import polars as pl
from board_tables import DRAWN, Expected, Rows, Seen

Expectation = Callable[[Seen], Expected]

VIRTUAL_ONLY: set[Expectation] = set()
"""Exact where the clock stands still while a second is closed and no two values are alike, and where the verdict is
known before the tables are written."""


def _virtual_only(expectation: Expectation) -> Expectation:
    VIRTUAL_ONLY.add(expectation)
    return expectation


BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 60_000)


def nearest_rank(column: str, percent: float) -> pl.Expr:
    """The percentile as InfluxDB takes it: the value at rank n p rounded half up; none below the first."""
    values = pl.col(column).drop_nulls().sort()
    place = (values.len() * percent / 100 + 0.5).floor().cast(pl.Int64) - 1
    return pl.when(place >= 0).then(values.get(place.clip(0), null_on_oob=True))


def _over(frame: pl.DataFrame, by: Sequence[str], columns: dict[str, pl.Expr]) -> pl.DataFrame:
    values = [expression.alias(name) for name, expression in columns.items()]
    return frame.group_by(*by).agg(values) if by else frame.select(values)


# --- the fleet's seconds -------------------------------------------------------------------------


def _summed_seconds(seen: Seen, by: Sequence[str], columns: Sequence[str]) -> pl.DataFrame:
    frame = seen.fleet_by_class if "class" in by else seen.fleet
    return frame.group_by("second", "step", *by).agg(pl.col(column).sum() for column in columns)


def rate(column: str, name: str, *by: str) -> Expectation:
    """The mean over the step of what the stages of a second have together."""
    return lambda seen: _over(_summed_seconds(seen, by, [column]), ["step", *by], {name: pl.col(column).mean()})


def percentiles(
    metric: str, quantiles: Sequence[str] = ("p50", "p90", "p99"), *by: str, prefix: str = ""
) -> Expectation:
    """The middle second's median, and the worst second's p90 and p99."""

    def expect(seen: Seen) -> Expected:
        frame = seen.fleet_by_class if "class" in by else seen.fleet
        columns = {
            f"{prefix}{q}": pl.col(f"{metric}_{q}_ms").median() if q == "p50" else pl.col(f"{metric}_{q}_ms").max()
            for q in quantiles
        }
        return _over(frame, ["step", *by], columns)

    return expect


def fleet_share(part: str, whole: str, name: str) -> Expectation:
    return lambda seen: seen.fleet.select((pl.col(part).sum() / pl.col(whole).sum()).alias(name))


def tok_per_s_from_records(name: str) -> Expectation:
    """Tokens by the second they came in, from the requests themselves: nothing of the live merge is in it."""

    def expect(seen: Seen) -> Expected:
        stages = seen.chosen.of("stage")
        requests = seen.every_request if stages is None else seen.every_request.filter(pl.col("stage").is_in(stages))
        streamed = seen.arrivals("stage").select("second", "step", tokens=pl.col("arrival_tokens").cast(pl.Int64))
        whole = requests.filter(pl.col("arrivals_ns").list.len() == 0).select("second", "step", tokens="output_tokens")
        by_second = pl.concat([streamed, whole]).group_by("second").agg(pl.col("tokens").sum())
        # A second in which nothing came, but something was open, counts as 0.
        seconds = seen.fleet.select("second", "step").unique()
        return _over(
            seconds.join(by_second, on="second", how="left"), ["step"], {name: pl.col("tokens").fill_null(0).mean()}
        )

    return _virtual_only(expect)


def per_request(seen: Seen) -> Expected:
    summed = _summed_seconds(seen, (), ["output_tok_per_s", "in_flight"]).filter(pl.col("in_flight") > 0)
    return _over(
        summed, ["step"], {"tok/s per request": pl.col("output_tok_per_s").mean() / pl.col("in_flight").mean()}
    )


def _chosen_in_flight(seen: Seen) -> Expected:
    by_second = seen.fleet_by_class.group_by("second", "step").agg(pl.col("in_flight").sum())
    return _over(by_second, ["step"], {"L in flight": pl.col("in_flight").mean()})


def little_range(seen: Seen) -> Expected:
    """Over requests that ended ok: their rate, times the mean of their stays by the second they ended in."""
    ok_per_s = pl.col("finished_per_s") - pl.col("failed_per_s")
    by_second = seen.fleet.group_by("second").agg(
        ok_per_s.sum().alias("f"), (ok_per_s * pl.col("e2e_mean_ms")).sum().alias("w"), pl.col("in_flight").sum()
    )
    return by_second.select(
        (pl.col("f").mean() * pl.col("w").sum() / pl.col("f").sum() / 1000 / pl.col("in_flight").mean()).alias("λW ÷ L")
    )


# --- finished requests ---------------------------------------------------------------------------


def requests(columns: dict[str, pl.Expr], *where: pl.Expr, by: Sequence[str] = ("step",)) -> Expectation:
    """Requests chosen that meet every condition, grouped."""
    return lambda seen: _over(seen.requests.filter(*where) if where else seen.requests, by, columns)


OK = pl.col("outcome") == "ok"
CACHE_KNOWN = pl.col("cached_tokens").is_not_null()
IDEAL_KNOWN = pl.col("ideal_cached_tokens").is_not_null()
WAITED = pl.col("queue_wait_ms").is_not_null()
OBSERVED = pl.col("cached_tokens").sum() / pl.col("prompt_tokens").sum()
IDEAL = pl.col("ideal_cached_tokens").sum() / pl.col("prompt_tokens").sum()
LOST = pl.col("ideal_cached_tokens").sum() - pl.col("cached_tokens").sum()


def requests_per_s(columns: dict[str, pl.Expr], *where: pl.Expr, by: Sequence[str] = ("step",)) -> Expectation:
    """The same, per second of the step."""
    return lambda seen: _over(
        seen.requests.filter(*where) if where else seen.requests,
        by,
        {name: expression / seen.chosen.step_s for name, expression in columns.items()},
    )


def heatmap(metric: str) -> Expectation:
    """Counts by bucket; a second with a window of the kind has a count, or 0, in each."""

    def expect(seen: Seen) -> Expected:
        if metric == "itl":
            found = seen.arrivals("class", "stage").filter(pl.col("gap_ms").is_not_null()).rename({"gap_ms": "value"})
        else:
            found = (
                seen.of_any_target.filter(OK).rename({f"{metric}_ms": "value"}).filter(pl.col("value").is_not_null())
            )
        lower = (float("-inf"), *BOUNDS_MS)
        upper = (*BOUNDS_MS, float("inf"))
        names = (*map(str, BOUNDS_MS), "+Inf")
        return _over(
            found,
            ["step"],
            {
                name: ((pl.col("value") > low) & (pl.col("value") <= high)).sum().cast(pl.Int64)
                for name, low, high in zip(names, lower, upper, strict=True)
            },
        )

    return _virtual_only(expect)


def last_failures(seen: Seen) -> Expected:
    failed = seen.requests.filter(~OK).sort("time_ns", descending=True).head(50)
    return Rows(failed.select("outcome", "status", "error", "class", "worker").to_dicts())


def from_due(seen: Seen) -> Expected:
    stays = seen.ok.with_columns(v=pl.col("e2e_ms") + pl.col("schedule_lag_ms"))
    return _over(stays, ["step"], {"from due p99": nearest_rank("v", 99)})


def events(*kinds: str) -> Expectation:
    """Events of these kinds; without one, all."""

    def expect(seen: Seen) -> Expected:
        found = [event for event in seen.events if not kinds or event["kind"] in kinds]
        return Rows([{key: event[key] for key in ("kind", "title", "text")} for event in found], in_order=False)

    return _virtual_only(expect)


@_virtual_only
def verdict(seen: Seen) -> Expected:
    return Rows([{"verdict": event["title"]} for event in seen.events if event["kind"] == "verdict"])


def limits(metric: str) -> Expectation:
    return lambda seen: _over(seen.fleet_by_class, ["step", "class"], {"limit": pl.col(f"{metric}_limit_ms").max()})


def stages(columns: dict[str, pl.Expr]) -> Expectation:
    return lambda seen: _over(seen.fleet, ["stage"], columns)


def each_step(columns: dict[str, pl.Expr], *where: pl.Expr) -> Expectation:
    def expect(seen: Seen) -> Expected:
        summed = _summed_seconds(seen, (), ["output_tok_per_s", "in_flight"]).filter(*where)
        return _over(summed, ["step"], columns)

    return expect


def utilisation(seen: Seen) -> Expected:
    tens = seen.fleet.group_by(pl.col("second") // 10).agg(
        pl.col("offered_per_s").mean().alias("o"), pl.col("finished_per_s").mean().alias("f")
    )
    return tens.select((pl.col("o").mean() / pl.col("f").max()).alias("ρ"))


# --- the servers ---------------------------------------------------------------------------------


def server(columns: dict[str, pl.Expr], by: Sequence[str] = ("step", "replica")) -> Expectation:
    return lambda seen: _over(seen.server, by, columns)


def server_sum(column: str, name: str) -> Expectation:
    def expect(seen: Seen) -> Expected:
        means = seen.server.group_by("step", "replica").agg(pl.col(column).mean()).drop_nulls(column)
        return _over(means, ["step"], {name: pl.col(column).sum()})

    return expect


# --- one request ---------------------------------------------------------------------------------


def slowest(column: str, name: str) -> Expectation:
    def expect(seen: Seen) -> Expected:
        found = seen.requests.drop_nulls(column).sort(column, descending=True).head(20)
        columns = [pl.col(column).alias(name), pl.col("request_id").alias("request")]
        others = ("class", "stage", "output_tokens", "queue_wait_ms")
        return Rows(found.select(*columns, *others).to_dicts(), in_order=False)

    return expect


@_virtual_only
def longest_gaps(seen: Seen) -> Expected:
    """Arrivals within 10 µs are one point, so the gap of a point is the one before its first arrival."""
    found = _points(seen.arrivals("class").filter(DRAWN)).drop_nulls("gap_us").sort("gap_us", descending=True).head(20)
    return Rows(
        found.select(
            pl.col("gap_us").alias("gap"), pl.col("request_id").alias("request"), "index", "class", "worker"
        ).to_dicts(),
        in_order=False,
    )


def _points(arrived: pl.DataFrame) -> pl.DataFrame:
    """Token arrivals with the tokens before them, those of one read taken together."""
    return (
        arrived.group_by("request_id", "class", "worker", "arrivals_ns", maintain_order=True)
        .agg(
            index=pl.col("before").first(),
            tokens=pl.col("arrival_tokens").cast(pl.Int64).sum(),
            gap_us=((pl.col("gap_ns").first() + 500) // 1000),
            time_ns=pl.col("time_ns").first(),
        )
        .sort("time_ns")
    )


def _points_of_request(seen: Seen) -> pl.DataFrame:
    return _points(seen.arrivals().filter(pl.col("request_id") == seen.request_id))


def _the_request(seen: Seen) -> pl.DataFrame:
    return seen.every_request.filter(pl.col("request_id") == seen.request_id)


def the_request(seen: Seen) -> Expected:
    words = ("class", "stage", "outcome", "worker", "target", "status")
    counts = ("prompt_tokens", "cached_tokens", "ideal_cached_tokens", "output_tokens")
    times = [pl.col(f"{name}_ms").alias(name) for name in ("queue_wait", "ttft", "tpot", "e2e", "schedule_lag")]
    sampled = pl.when(pl.col("token_share").is_not_null()).then(DRAWN).alias("sampled")
    return Rows(_the_request(seen).select(*words, *counts, *times, sampled).to_dicts())


@_virtual_only
def tokens_of_request(seen: Seen) -> Expected:
    points = _points_of_request(seen)
    return Rows([{"tokens": row["index"] + row["tokens"]} for row in points.iter_rows(named=True)])


@_virtual_only
def gaps_of_request(seen: Seen) -> Expected:
    points = _points_of_request(seen)
    return Rows(
        [
            {"token": row["index"], "gap": None if row["gap_us"] is None else row["gap_us"] / 1000}
            for row in points.iter_rows(named=True)
        ]
    )


# --- two runs ------------------------------------------------------------------------------------


def _run(seen: Seen, letter: str) -> Seen:
    return seen.whole if letter == "A" else seen.other


def on_run_time(letter: str, column: str, name: str, *, worst: bool = False) -> Expectation:
    """Means (or the worst) of the steps of one run, each at the first of its seconds since the run's start."""

    def expect(seen: Seen) -> Expected:
        one = _run(seen, letter).fleet
        value = pl.col(column).max() if worst else pl.col(column).sum()
        by_second = one.group_by("second", "step").agg(pl.col("run_second").first(), v=value)
        return _over(
            by_second,
            ["step"],
            {
                "run s": pl.col("run_second").min(),
                f"{letter} {name}": pl.col("v").max() if worst else pl.col("v").mean(),
            },
        )

    return expect


def mean_of_run(letter: str) -> Expectation:
    return lambda seen: _over(
        _run(seen, letter).fleet.group_by("second").agg(pl.col("output_tok_per_s").sum()),
        (),
        {letter: pl.col("output_tok_per_s").mean()},
    )


def requests_of_run(expression: pl.Expr, *where: pl.Expr) -> list[Expectation]:
    def of(letter: str) -> Expectation:
        return lambda seen: _over(
            _run(seen, letter).requests.filter(pl.lit(value=True), *where), (), {letter: expression}
        )

    return [of("A"), of("B")]


def both_runs(columns: dict[str, pl.Expr], by: str, *where: pl.Expr) -> Expectation:
    def expect(seen: Seen) -> Expected:
        both = pl.concat([_run(seen, letter).requests for letter in "AB"])
        return _over(both.filter(pl.lit(value=True), *where), [by, "run"], columns)

    return expect


# --- workers -------------------------------------------------------------------------------------


def workers(columns: dict[str, pl.Expr], *by: str, where: pl.Expr | None = None) -> Expectation:
    return lambda seen: _over(seen.workers if where is None else seen.workers.filter(where), ["step", *by], columns)


HAS_READ = pl.col("reads") > 0


def _sum(column: str) -> pl.Expr:
    """The sum as InfluxDB takes it: none of nothing."""
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum())


CLASS_COLUMNS = {
    "requests": pl.len(),
    "output tokens": _sum("output_tokens"),
    **{f"{name} p{p}": nearest_rank(f"{name.lower()}_ms", p) for name in ("TTFT", "TPOT", "E2E") for p in (50, 99)},
}
GOOD_SHARE = _sum("slo_met") / pl.col("slo_met").count()
LIMITED = pl.col("slo_met").is_not_null()
PER_REQUEST = {"tok/s per request": pl.col("output_tok_per_s").mean() / pl.col("in_flight").mean()}
OPEN = pl.col("in_flight") > 0


def _mean(column: str) -> pl.Expr:
    return pl.col(column).mean()


def _max(column: str) -> pl.Expr:
    return pl.col(column).max()


def _with_limit(metric: str) -> list[Expectation]:
    return [percentiles(metric, ("p50", "p99"), "class"), limits(metric)]


def _both(column: str, name: str, *, worst: bool = False) -> list[Expectation]:
    return [on_run_time(letter, column, name, worst=worst) for letter in "AB"]


TOK_PER_S = [tok_per_s_from_records("tok/s")]
IN_FLIGHT = [rate("in_flight", "in flight")]

EXPECTED: dict[str, dict[str, list[Expectation]]] = {
    "overview.json": {
        "Verdict": [verdict],
        "Output tokens per second": TOK_PER_S,
        "Requests in flight": IN_FLIGHT,
        "TTFT p99": [percentiles("ttft", ["p99"], prefix="TTFT ")],
        "Goodput share": [requests({"within limits": GOOD_SHARE}, by=())],
        "Failed share": [fleet_share("failed_per_s", "finished_per_s", "failed")],
        "Cached share": [requests({"cached": OBSERVED}, OK, CACHE_KNOWN, by=())],
        "Generator lag p99": [workers({"loop lag p99": _max("loop_lag_p99_ms")})],
        "Output tokens per second against requests in flight": [*TOK_PER_S, *IN_FLIGHT],
        "Where it bends: tok/s over requests in flight, by stage": [
            stages({"in flight": _mean("in_flight"), "tok/s": _mean("output_tok_per_s")})
        ],
        "TTFT p99 by class with its limit": [percentiles("ttft", ["p99"], "class"), limits("ttft")],
        "Requests finished by outcome": [requests_per_s({"per second": pl.len()}, by=("step", "outcome"))],
        "Server: running, waiting, KV cache in use": [
            server_sum("running", "running"),
            server_sum("waiting", "waiting"),
            server({"KV use": _max("kv_use_ratio")}, ["step"]),
        ],
        "Events of the run": [events()],
        "Last failures": [last_failures],
    },
    "throughput.json": {
        "Output tokens per second": TOK_PER_S,
        "Tokens per second per request": [per_request],
        "Requests in flight": IN_FLIGHT,
        "Requests finished per second": [rate("finished_per_s", "finished")],
        "Tok/s over requests in flight, by stage": [
            stages({"in flight": _mean("in_flight"), "tok/s": _mean("output_tok_per_s")})
        ],
        "Tok/s over requests in flight, every second": [
            each_step({"in flight": _mean("in_flight"), "tok/s": _mean("output_tok_per_s")})
        ],
        "Tok/s of one request over requests in flight, every second": [
            each_step({"in flight": _mean("in_flight"), **PER_REQUEST}, OPEN)
        ],
        "Stages in the time range": [
            stages(
                {
                    "in flight": _mean("in_flight"),
                    "tok/s": _mean("output_tok_per_s"),
                    "best second": _max("output_tok_per_s"),
                    "finished/s": _mean("finished_per_s"),
                    "failed/s": _mean("failed_per_s"),
                }
            )
        ],
        "Output tokens per second against requests in flight": [*TOK_PER_S, *IN_FLIGHT],
        "Output tokens per second by class": [rate("output_tok_per_s", "tok/s", "class")],
        "Tokens per second per request in flight": [per_request],
        "Requests offered, sent and finished": [
            rate("offered_per_s", "offered"),
            rate("started_per_s", "sent"),
            rate("finished_per_s", "finished"),
        ],
        "Requests in flight by class": [rate("in_flight", "in flight", "class")],
        "Output tokens of ended requests by target": [
            requests_per_s({"tok/s": _sum("output_tokens")}, by=("step", "target"))
        ],
        "Server: tokens generated by replica": [server({"tok/s": _mean("generation_tok_per_s")})],
        "Server: requests in the batch by replica": [server({"running": _mean("running")})],
    },
    "latency.json": {
        "Goodput share": [requests({"within limits": GOOD_SHARE}, by=())],
        "Goodput share by class": [requests({"within limits": GOOD_SHARE}, LIMITED, by=("step", "class"))],
        "Goodput by class": [requests_per_s({"good requests": _sum("slo_met")}, LIMITED, by=("step", "class"))],
        "Time to first token by class": _with_limit("ttft"),
        "Gap between tokens (ITL) by class": _with_limit("itl"),
        "Whole request by class": _with_limit("e2e"),
        "Time to first token, distribution": [heatmap("ttft")],
        "Gap between tokens, distribution": [heatmap("itl")],
        "Whole request, distribution": [heatmap("e2e")],
        "Classes in the time range": [requests(CLASS_COLUMNS, OK, by=("class",))],
        "Stages in the time range": [requests(CLASS_COLUMNS, OK, by=("stage",))],
        "Targets in the time range": [requests(CLASS_COLUMNS, OK, by=("target",))],
        "From sent and from due: whole request p99": [
            requests({"from sent p99": nearest_rank("e2e_ms", 99)}, OK),
            from_due,
        ],
    },
    "queue-wait.json": {
        "Queue wait p99": [percentiles("queue_wait", ["p99"], prefix="queue wait ")],
        "Share of TTFT spent waiting": [requests({"waiting": _sum("queue_wait_ms") / _sum("ttft_ms")}, WAITED, by=())],
        "Where the waits come from": [
            requests({"with a wait": pl.col("queue_wait_ms").count()}, by=()),
            requests(
                {"measured by the server": pl.col("queue_wait_ms").count()},
                pl.col("queue_wait_source") == "server",
                by=(),
            ),
        ],
        "Little's law: λW ÷ L": [little_range],
        "Sent of offered": [fleet_share("started_per_s", "offered_per_s", "sent")],
        "Queue wait": [percentiles("queue_wait")],
        "Time to first token against queue wait": [
            percentiles("ttft", ["p50", "p99"], prefix="TTFT "),
            percentiles("queue_wait", ["p50", "p99"], prefix="queue wait "),
        ],
        "Queue wait p99 by class": [percentiles("queue_wait", ["p99"], "class")],
        "Waits in the time range": [
            requests(
                {
                    "requests": pl.len(),
                    **{f"queue wait p{p}": nearest_rank("queue_wait_ms", p) for p in (50, 90, 99)},
                    **{f"TTFT p{p}": nearest_rank("ttft_ms", p) for p in (50, 99)},
                },
                OK,
                WAITED,
                by=("class",),
            )
        ],
        "Little's law: L beside λW": [
            _chosen_in_flight,
            lambda seen: _over(seen.requests, ["step"], {"λW": pl.col("e2e_ms").sum() / (1000 * seen.chosen.step_s)}),
        ],
        "Requests in flight by class": [rate("in_flight", "in flight", "class")],
        "Offered against finished": [
            rate("offered_per_s", "offered"),
            rate("started_per_s", "sent"),
            rate("finished_per_s", "finished"),
        ],
        "Shed load": [rate("rate_limited_per_s", "rate limited"), rate("failed_per_s", "failed")],
        "Schedule lag p99": [percentiles("schedule_lag", ["p99"], prefix="schedule lag ")],
        "ρ: arrivals over what can be served": [utilisation],
        "Queue wait: client and server side": [
            percentiles("queue_wait", ["p50", "p99"], prefix="client "),
            server({"server p50": _max("queue_wait_p50_ms")}, ["step"]),
            server({"server p99": _max("queue_wait_p99_ms")}, ["step"]),
        ],
        "Server: running and waiting": [
            server_sum("running", "running"),
            server_sum("waiting", "waiting"),
            *IN_FLIGHT,
        ],
        "Server: waiting by replica": [server({"waiting": _max("waiting")})],
        "Server: time to first token": [
            server({"queue wait": _mean("queue_wait_mean_ms"), "prefill": _mean("prefill_mean_ms")}),
            percentiles("ttft", ["p99"], prefix="client TTFT "),
        ],
        "Replicas in the time range": [
            server(
                {
                    "running": _mean("running"),
                    "waiting": _mean("waiting"),
                    "most waiting": _max("waiting"),
                    "mean wait": _mean("queue_wait_mean_ms"),
                    "worst p99 wait": _max("queue_wait_p99_ms"),
                    "fullest KV": _max("kv_use_ratio"),
                    "rejected": _sum("rejected_per_s"),
                },
                ["replica"],
            )
        ],
        "Queue wait p99 over arrivals, by stage": [
            stages({"arrivals": _mean("offered_per_s"), "queue wait p99": _mean("queue_wait_p99_ms")})
        ],
    },
    "cache-churn.json": {
        "Cached share, observed": [requests({"observed": OBSERVED}, OK, CACHE_KNOWN, by=())],
        "Cached share, ideal": [requests({"ideal": IDEAL}, OK, CACHE_KNOWN, IDEAL_KNOWN, by=())],
        "Prompt tokens computed again": [requests({"computed again": LOST}, OK, CACHE_KNOWN, IDEAL_KNOWN, by=())],
        "Output tokens per second": [tok_per_s_from_records("tok/s")],
        "Cached share of prompt tokens: observed and ideal": [
            requests({"observed": OBSERVED}, OK, CACHE_KNOWN),
            requests({"ideal": IDEAL}, OK, CACHE_KNOWN, IDEAL_KNOWN),
        ],
        "Output tokens per second with the cached share": [
            tok_per_s_from_records("tok/s"),
            requests({"cached share": OBSERVED}, OK, CACHE_KNOWN),
        ],
        "Prompt tokens per second": [
            rate("prompt_tok_per_s", "all"),
            requests_per_s({"from the cache": _sum("cached_tokens")}, OK, CACHE_KNOWN),
            requests_per_s({"computed again": LOST}, OK, CACHE_KNOWN, IDEAL_KNOWN),
        ],
        "Cached share by class": [requests({"observed": OBSERVED}, OK, CACHE_KNOWN, by=("step", "class"))],
        "Time to first token with and without a reusable prefix": [
            requests(
                {f"reused p{p}": nearest_rank("ttft_ms", p) for p in (50, 99)}, OK, pl.col("ideal_cached_tokens") > 0
            ),
            requests(
                {f"new p{p}": nearest_rank("ttft_ms", p) for p in (50, 99)}, OK, pl.col("ideal_cached_tokens") == 0
            ),
        ],
        "Gap between tokens p99 by class": [percentiles("itl", ["p99"], "class")],
        "Time to first token, distribution": [heatmap("ttft")],
        "Queue wait p99 with requests in flight": [
            percentiles("queue_wait", ["p99"], prefix="queue wait "),
            rate("in_flight", "in flight"),
        ],
        "Cache by class in the time range": [
            requests(
                {
                    "requests": pl.len(),
                    "prompt tokens": _sum("prompt_tokens"),
                    "cached": _sum("cached_tokens"),
                    "ideally cached": _sum("ideal_cached_tokens"),
                    "cached share": OBSERVED,
                },
                OK,
                CACHE_KNOWN,
                by=("class",),
            )
        ],
        "Fullest KV cache": [server({"KV use": _max("kv_use_ratio")}, ["step"])],
        "Preemptions per second": [server_sum("preemptions_per_s", "preemptions")],
        "Server: share from the prefix cache by replica": [server({"hit share": _mean("hit_ratio")})],
        "Server: KV cache in use by replica": [server({"KV use": _max("kv_use_ratio")})],
        "Server: evictions and preemptions": [
            server_sum("evictions_per_s", "evictions"),
            server_sum("preemptions_per_s", "preemptions"),
        ],
        "Server: tokens computed again and evicted": [
            server_sum("recomputed_tok_per_s", "computed again"),
            server_sum("evicted_tok_per_s", "evicted"),
        ],
        "Server: prompt tokens, all and cached": [
            server_sum("prompt_tok_per_s", "all"),
            server_sum("cached_tok_per_s", "from the cache"),
        ],
        "Cliffs of this run": [events("cliff")],
    },
    "one-request.json": {
        "Slowest first tokens": [slowest("ttft_ms", "TTFT")],
        "Longest gaps between tokens": [longest_gaps],
        "The request": [the_request],
        "Tokens received": [tokens_of_request],
        "Gap before each token": [gaps_of_request],
        "Gap between tokens of all requests": [percentiles("itl")],
        "Requests in flight and waiting": [*IN_FLIGHT, server_sum("waiting", "waiting")],
        "Server: preemptions and evictions": [
            server_sum("preemptions_per_s", "preemptions"),
            server_sum("evictions_per_s", "evictions"),
        ],
    },
    "generator.json": {
        "Loop lag p99, worst worker": [workers({"loop lag p99": _max("loop_lag_p99_ms")})],
        "Schedule lag p99, worst worker": [workers({"schedule lag p99": _max("schedule_lag_p99_ms")})],
        "CPU, busiest worker": [workers({"CPU": _max("cpu_ratio")})],
        "Lost records": [workers({"lost": _max("log_lost")})],
        "Backlog to the database": [
            workers({"backlog": _max("sink_backlog_bytes")}),
        ],
        "Backlog by worker": [workers({"backlog": _max("sink_backlog_bytes")}, "worker")],
        "Loop lag": [workers({"p99": _max("loop_lag_p99_ms"), "longest": _max("loop_lag_max_ms")}, "worker")],
        "Schedule lag p99": [workers({"p99": _max("schedule_lag_p99_ms")}, "worker")],
        "CPU of workers": [workers({"CPU": _mean("cpu_ratio")}, "worker")],
        "Late, dropped and abandoned": [
            rate("late", "late"),
            rate("dropped", "dropped"),
            rate("abandoned_turns", "abandoned turns"),
        ],
        "Requests in flight by worker": [workers({"in flight": _mean("in_flight")}, "worker")],
        "Connections by worker": [workers({"sockets": _max("sockets")}, "worker")],
        "Merged token stamps": [workers({"merged": _sum("merged_arrivals") / _sum("reads")}, "worker", where=HAS_READ)],
        "Token stamps without the kernel's clock": [
            workers({"unstamped": _sum("unstamped_arrivals") / _sum("reads")}, "worker", where=HAS_READ)
        ],
        "Memory of workers": [workers({"memory": _max("rss_bytes")}, "worker")],
        "Record log and lost records": [
            workers({"log": _max("log_bytes")}, "worker"),
            workers({"lost records": _max("log_lost")}),
        ],
        "Share of requests with all their tokens here": [
            requests({"share": pl.col("token_share").min()}, by=("step", "worker"))
        ],
        "Events of workers and database": [events("worker", "database", "verdict")],
    },
    "compare.json": {
        "Mean output tokens per second": [mean_of_run("A"), mean_of_run("B")],
        "TTFT p99": requests_of_run(nearest_rank("ttft_ms", 99), OK),
        "TPOT p50": requests_of_run(nearest_rank("tpot_ms", 50), OK),
        "Goodput share": requests_of_run(GOOD_SHARE),
        "Cached share": requests_of_run(OBSERVED, OK, CACHE_KNOWN),
        "Queue wait p99": requests_of_run(nearest_rank("queue_wait_ms", 99)),
        "Output tokens per second": _both("output_tok_per_s", "tok/s"),
        "Requests in flight": _both("in_flight", "requests"),
        "TTFT p99, worst second": _both("ttft_p99_ms", "ms", worst=True),
        "ITL p99, worst second": _both("itl_p99_ms", "ms", worst=True),
        "Queue wait p99, worst second": _both("queue_wait_p99_ms", "ms", worst=True),
        "Failed requests per second": _both("failed_per_s", "per s"),
        "Stage by stage": [both_runs(CLASS_COLUMNS, "stage", OK)],
        "Class by class": [both_runs(CLASS_COLUMNS, "class", OK)],
        "How requests ended": [both_runs({"requests": pl.len()}, "outcome")],
    },
}
