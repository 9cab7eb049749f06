"""The board about the load generators: whether what they measured is the endpoint, or themselves."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from tokswarm.grafana import queries as q
from tokswarm.grafana.frame import Section, board
from tokswarm.grafana.panels import BYTES, COUNT, MS, RATIO, REQ_PER_S, WORDS, Overlay, lines, number, rows

_LAGS = ((None, "green"), (2, "orange"), (10, "red"))

_NOW = (
    number(
        "Loop lag p99, worst worker",
        MS,
        "How late the workers' own timers were, newest second. Above 2 ms token stamps begin to suffer, above 10 ms the"
        " generator is the bottleneck: add workers, or move other work off the machine.",
        q.workers([('max("loop_lag_p99_ms")', "loop lag p99")], each=False),
        thresholds=_LAGS,
        width=5,
    ),
    number(
        "Schedule lag p99, worst worker",
        MS,
        "Actual minus planned start of requests, newest second. Above 10 ms the load is not the planned one, and"
        " latencies measured from the send are too small: add workers.",
        q.workers([('max("schedule_lag_p99_ms")', "schedule lag p99")], each=False),
        thresholds=_LAGS,
        width=5,
    ),
    number(
        "CPU, busiest worker",
        RATIO,
        "CPU time per wall time; a worker is one core. Above 85 % the run becomes suspect, above 97 % invalid: add a"
        " worker for each free core, or another machine.",
        q.workers([('max("cpu_ratio")', "CPU")], each=False),
        thresholds=((None, "green"), (0.7, "orange"), (0.85, "red")),
        width=5,
    ),
    number(
        "Lost records",
        COUNT,
        "Records that could not be written to a worker's disk, so far, worst worker. Anything but zero is missing from"
        " every number: free the disk, and repeat the run.",
        q.workers([('max("log_lost")', "lost")], each=False),
        thresholds=((None, "green"), (1, "red")),
        width=4,
    ),
    number(
        "Backlog to the database",
        BYTES,
        "Records logged and not yet in the database, worst worker. Growing: the database is slow or away, nothing is"
        " lost, and these boards lag behind; what is left is sent by `tokswarm export`.",
        q.workers([('max("sink_backlog_bytes")', "backlog")], each=False),
        thresholds=((None, "green"), (16 << 20, "orange"), (256 << 20, "red")),
        width=5,
    ),
)

_LAG = (
    lines(
        "Loop lag",
        MS,
        "How late each worker's own 5 ms timer was: 99th percentile and longest. Above one token interval the stamps"
        " of that second are merged; add workers, or move other work off the machine.",
        q.workers([('max("loop_lag_p99_ms")', "p99"), ('max("loop_lag_max_ms")', "longest")]),
        width=8,
    ),
    lines(
        "Schedule lag p99",
        MS,
        "Actual minus planned start of requests. Above 10 ms the load is not the planned one: the worker is short of"
        " CPU, or its bound on open requests is reached.",
        q.workers([('max("schedule_lag_p99_ms")', "p99")]),
        width=8,
    ),
    lines(
        "CPU of workers",
        RATIO,
        "CPU time per wall time, 100 % is one core, and a worker uses one. Above 80 % add a worker per free core"
        " before raising the load.",
        q.workers([('mean("cpu_ratio")', "CPU")]),
        width=8,
    ),
)

_LOAD = (
    lines(
        "Late, dropped and abandoned",
        REQ_PER_S,
        "Requests sent more than 10 ms after they were due, arrivals never sent because the worker's bound on open"
        " requests was reached, and turns left out after a failed one. Anything but zero belongs in the report: the"
        " endpoint saw less load than planned.",
        q.rate("late", "late"),
        q.rate("dropped", "dropped"),
        q.rate("abandoned_turns", "abandoned turns"),
        width=8,
    ),
    lines(
        "Requests in flight by worker",
        COUNT,
        "Requests each worker has open. They are shared out evenly: a worker that stays behind has fallen out, or its"
        " network has; look for it in the events below.",
        q.workers([('mean("in_flight")', "in flight")]),
        stacked=True,
        width=8,
    ),
    lines(
        "Connections by worker",
        COUNT,
        "Open connections to the target. Far more than requests in flight: the server closes connections or a proxy"
        " limits their use, and time to first token has handshakes in it.",
        q.workers([('max("sockets")', "sockets")]),
        stacked=True,
        width=8,
    ),
)

_STAMPS = (
    lines(
        "Merged token stamps",
        RATIO,
        "Token arrivals that shared a read, and so a stamp, with the one before, per read. Some are normal when the"
        " server sends tokens in pairs; a rise together with loop lag means the generator is too slow for this token"
        " rate.",
        q.workers([('sum("merged_arrivals") * 1.0 / sum("reads")', "merged")], q.HAS_READ),
        width=8,
    ),
    lines(
        "Token stamps without the kernel's clock",
        RATIO,
        "Token arrivals stamped by the process, per read. Kernel stamps are good to microseconds, these to a loop's"
        " turn: expected with TLS off Linux only; else look for a proxy or tunnel device on the worker.",
        q.workers([('sum("unstamped_arrivals") * 1.0 / sum("reads")', "unstamped")], q.HAS_READ),
        width=8,
    ),
    lines(
        "Memory of workers",
        BYTES,
        "Resident memory. It levels off with the number of open requests; a steady climb at a steady load will end the"
        " worker: shorten the run and report it.",
        q.workers([('max("rss_bytes")', "memory")]),
        width=8,
    ),
)

_RECORDS = (
    lines(
        "Backlog by worker",
        BYTES,
        "Records logged on each worker's disk and not yet in the database. A saw is normal; a ramp means that the"
        " database is slow or away. Nothing is lost: the log keeps all.",
        q.workers([('max("sink_backlog_bytes")', "backlog")]),
        width=8,
    ),
    lines(
        "Record log and lost records",
        BYTES,
        "Size of each worker's record log, and the records that could not be written to it, so far (right, dashed). Any"
        " lost record: the worker's disk is full.",
        q.workers([('max("log_bytes")', "log")]),
        q.workers([('max("log_lost")', "lost records")], each=False),
        right=Overlay("lost records", COUNT),
        width=8,
    ),
    lines(
        "Share of requests with all their tokens here",
        RATIO,
        "Beyond a budget of points, workers bring the tokens of some whole requests only; sums over tokens are to be"
        " divided by this share. Requests, rates and percentiles are whole. Empty without a budget; below 100 % raise"
        " TOKSWARM_TOKEN_POINTS if the database can take more.",
        q.requests([('min("share")', "share")], by=("worker",)),
        width=8,
    ),
    rows(
        "Events of workers and database",
        WORDS,
        "Workers that were lost and databases that did not take data, with the reason, and the verdict. Empty but for"
        " the verdict is how it should be.",
        q.events_of("worker", "database", "verdict"),
        width=24,
        height=6,
    ),
)


def generator() -> Dashboard:
    """Build the board."""
    return board(
        uid="tokswarm-generator",
        title="tokswarm: generator health",
        description="Whether the load generators kept up: their lag, CPU, stamps, disks and deliveries. What is wrong"
        " here is not the endpoint's fault.",
        sections=(
            Section("Now", _NOW),
            Section("Lag and CPU", _LAG),
            Section("Load", _LOAD),
            Section("Stamps and memory", _STAMPS),
            Section("Records", _RECORDS),
        ),
    )
