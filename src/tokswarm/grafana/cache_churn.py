"""The board about the prefix cache: what it should save, what it does save, and what a storm of evictions costs."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from tokswarm.grafana import queries as q
from tokswarm.grafana.frame import Section, board
from tokswarm.grafana.panels import COUNT, MS, RATIO, TOK_PER_S, WORDS, Overlay, heat, lines, number, rows

_PER_SECOND = "* 1000.0 / $__interval_ms"

_NOW = (
    number(
        "Cached share, observed",
        RATIO,
        "Prompt tokens the server took from its prefix cache, of all prompt tokens, in the time range (requests whose"
        " answer tells). Compare with the ideal share beside.",
        q.request_range([(q.OBSERVED, "observed")], q.OK, q.CACHE_KNOWN),
        no_value="not reported",
        width=4,
    ),
    number(
        "Cached share, ideal",
        RATIO,
        "The share an unlimited cache would have had: the generator knows which prefixes it repeated. It is a"
        " property of the mix, not of the server.",
        q.request_range([(q.IDEAL, "ideal")], q.OK, q.CACHE_KNOWN, q.IDEAL_KNOWN),
        no_value="not known",
        width=4,
    ),
    number(
        "Prompt tokens computed again",
        COUNT,
        "Tokens that were sent before and had to be prefilled once more, in the time range: ideal less observed. Each"
        " costs a decode step something; a large number"
        " at a high load is the signature of eviction. More cache, fewer prefixes per replica or prefix-aware routing"
        " bring it down.",
        q.request_range(
            [('sum("ideal_cached_tokens") - sum("cached_tokens")', "computed again")],
            q.OK,
            q.CACHE_KNOWN,
            q.IDEAL_KNOWN,
        ),
        no_value="not known",
        width=4,
    ),
    number(
        "Output tokens per second",
        TOK_PER_S,
        "Output tokens that reached the clients, whole fleet. A fall at a steady load together with a fall of the"
        " cached share is a cache-churn cliff.",
        q.rate("output_tok_per_s", "tok/s"),
        decimals=0,
        width=4,
    ),
    number(
        "Fullest KV cache",
        RATIO,
        "KV cache in use by running requests, the fullest replica, newest second, as the server says. Above 90 % cached"
        " prefixes have nowhere to stay and requests are preempted: lower the load or the context length.",
        q.server_worst("kv_use_ratio", "KV use"),
        thresholds=((None, "green"), (0.9, "orange"), (0.95, "red")),
        no_value="not scraped",
        width=4,
    ),
    number(
        "Preemptions per second",
        "cps",
        "Requests that had to give their KV blocks back, all replicas, newest second. Above 1 a second tokens are"
        " computed twice: the batch is too large for the memory.",
        q.server_sum("preemptions_per_s", "preemptions"),
        thresholds=((None, "green"), (0.01, "orange"), (1, "red")),
        no_value="not scraped",
        width=4,
    ),
)

_CACHE = (
    lines(
        "Cached share of prompt tokens: observed and ideal",
        RATIO,
        "Observed: from the server's answers. Ideal: what an unlimited cache would have had for the same requests."
        " The gap is eviction (or requests of one prefix"
        " on different replicas). A gap that opens at one load and stays is the working set outgrowing the cache.",
        q.requests([(q.OBSERVED, "observed")], q.OK, q.CACHE_KNOWN),
        q.requests([(q.IDEAL, "ideal")], q.OK, q.CACHE_KNOWN, q.IDEAL_KNOWN),
    ),
    lines(
        "Output tokens per second with the cached share",
        TOK_PER_S,
        "Throughput (left) with the share of prompt tokens from the cache (right, dashed). Cliffs (red marks) that"
        " follow drops of the share, and not the request rate,"
        " are cache churn; cliffs without such a drop have another cause.",
        q.rate("output_tok_per_s", "tok/s"),
        q.requests([(q.OBSERVED, "cached share")], q.OK, q.CACHE_KNOWN),
        right=Overlay("cached share", RATIO),
    ),
    lines(
        "Prompt tokens per second",
        TOK_PER_S,
        "Prompt tokens of requests that ended, those served from the cache, and those sent before yet computed again."
        " The last one is pure loss:"
        " when it rises, prefill takes steps away from decoding.",
        q.rate("prompt_tok_per_s", "all"),
        q.requests([(f'sum("cached_tokens") {_PER_SECOND}', "from the cache")], q.OK, q.CACHE_KNOWN),
        q.requests(
            [(f'(sum("ideal_cached_tokens") - sum("cached_tokens")) {_PER_SECOND}', "computed again")],
            q.OK,
            q.CACHE_KNOWN,
            q.IDEAL_KNOWN,
        ),
    ),
    lines(
        "Cached share by class",
        RATIO,
        "Which class keeps its prefixes. A class with long pauses between turns loses them first; one class falling"
        " when another one starts says who evicts whom.",
        q.requests([(q.OBSERVED, "observed")], q.OK, q.CACHE_KNOWN, by=("class",)),
    ),
)

_SERVER = (
    lines(
        "Server: share from the prefix cache by replica",
        RATIO,
        "What each replica says it took from its prefix cache since the scrape before. Beside the share in the answers"
        " above it tells replicas apart: one that falls alone lost its prefixes to a restart or to the router.",
        q.server([('mean("hit_ratio")', "hit share")]),
        width=8,
    ),
    lines(
        "Server: KV cache in use by replica",
        RATIO,
        "KV cache held by running requests; cached blocks that nobody uses count as free. As it nears 100 %, cached"
        " prefixes go first, then running requests are preempted.",
        q.server([('max("kv_use_ratio")', "KV use")]),
        width=8,
    ),
    lines(
        "Server: evictions and preemptions",
        "cps",
        "Cached blocks given up for other use, and requests that had to give theirs back (right, dashed), a second, all"
        " replicas. Evictions rising while the request rate does not is a storm: fewer prefixes per replica end it.",
        q.server_sum("evictions_per_s", "evictions"),
        q.server_sum("preemptions_per_s", "preemptions"),
        right=Overlay("preemptions", "cps"),
        width=8,
    ),
    lines(
        "Server: tokens computed again and evicted",
        TOK_PER_S,
        "Tokens the servers say they had to compute again after giving them up, and cached tokens they gave up, a"
        " second, all replicas. Each takes a place in a decode step; compare with the loss seen from outside above.",
        q.server_sum("recomputed_tok_per_s", "computed again"),
        q.server_sum("evicted_tok_per_s", "evicted"),
        width=8,
    ),
    lines(
        "Server: prompt tokens, all and cached",
        TOK_PER_S,
        "Prompt tokens taken up and those of them from the cache, a second, all replicas. The distance is prefill"
        " work: if it grows at a steady request rate, the cache is losing.",
        q.server_sum("prompt_tok_per_s", "all"),
        q.server_sum("cached_tok_per_s", "from the cache"),
        width=8,
    ),
    rows(
        "Cliffs of this run",
        WORDS,
        "Falls of tok/s at a steady demand, with the cause found in the same seconds and its evidence, newest first;"
        " they are the red marks on every board. Cache churn: this board; another cause: the board of that name.",
        q.events_of("cliff"),
        width=8,
    ),
)

_COST = (
    lines(
        "Time to first token with and without a reusable prefix",
        MS,
        "Requests whose prefix had been sent before, and requests that were new, p50 and p99. While the cache works"
        " the first are quicker; when they meet"
        " the others, the cache no longer helps.",
        q.requests(
            [('percentile("ttft_ms", 50)', "reused p50"), ('percentile("ttft_ms", 99)', "reused p99")],
            q.OK,
            '"ideal_cached_tokens" > 0',
        ),
        q.requests(
            [('percentile("ttft_ms", 50)', "new p50"), ('percentile("ttft_ms", 99)', "new p99")],
            q.OK,
            '"ideal_cached_tokens" = 0',
        ),
    ),
    lines(
        "Gap between tokens p99 by class",
        MS,
        "Worst gaps between tokens. Recomputed prompts run between decode steps: gaps that grow when the cached share"
        " falls are its price for requests"
        " that were already answering.",
        q.percentiles("itl", ["p99"], each_class=True),
    ),
    heat(
        "Time to first token, distribution",
        "Requests by time to first token, each row a bucket up to the bound beside it. The quick band (prefix found)"
        " thinning out in favour of the slow one is churn.",
        "ttft",
    ),
    lines(
        "Queue wait p99 with requests in flight",
        MS,
        "Waits (left) and load (right, dashed). Requests that wait while their prefixes are evicted pay twice: if"
        " waits precede the fall of the cached share, cap the queue.",
        q.percentiles("queue_wait", ["p99"], each_class=False, prefix="queue wait "),
        q.rate("in_flight", "in flight"),
        right=Overlay("in flight", COUNT),
    ),
    rows(
        "Cache by class in the time range",
        COUNT,
        "Requests that ended ok and whose answer tells the cached tokens: sums over the time range and stages chosen."
        " Use it for reports; divide by prompt tokens for shares.",
        q.request_table(
            [
                ('count("cached_tokens")', "requests"),
                ('sum("prompt_tokens")', "prompt tokens"),
                ('sum("cached_tokens")', "cached"),
                ('sum("ideal_cached_tokens")', "ideally cached"),
                (q.OBSERVED, "cached share"),
            ],
            q.OK,
            q.CACHE_KNOWN,
        ),
        width=24,
        height=6,
        units={"cached share": RATIO},
        hide_time=True,
    ),
)


def cache_churn() -> Dashboard:
    """Build the board."""
    return board(
        uid="tokswarm-cache-churn",
        title="tokswarm: cache churn",
        description="The prefix cache under load: observed against ideal, and what eviction costs in tok/s and time to"
        " first token.",
        sections=(
            Section("Now", _NOW),
            Section("Cache and throughput", _CACHE),
            Section("What the server says", _SERVER),
            Section("What it costs", _COST),
        ),
    )
