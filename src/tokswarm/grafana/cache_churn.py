"""The board about the prefix cache: what it should save, what it does save, and what a storm of evictions costs."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from tokswarm.grafana import queries as q
from tokswarm.grafana.panels import COUNT, MS, RATIO, TOK_PER_S, Overlay, board, heat, lines, number, rows

_KNOWN = '"cached_tokens" >= 0'
_IDEAL_KNOWN = '"ideal_cached_tokens" >= 0'
_OBSERVED = 'sum("cached_tokens") * 1.0 / sum("prompt_tokens")'
_IDEAL = 'sum("ideal_cached_tokens") * 1.0 / sum("prompt_tokens")'
_PER_SECOND = "* 1000 / $__interval_ms"

_NOW = (
    number(
        "Cached share, observed",
        RATIO,
        "Prompt tokens the server took from its prefix cache, of all prompt tokens, in the time range (requests whose"
        " answer tells). Compare with the ideal share beside.",
        q.request_range([(_OBSERVED, "observed")], q.OK, _KNOWN),
        no_value="not reported",
        width=6,
    ),
    number(
        "Cached share, ideal",
        RATIO,
        "The share an unlimited cache would have had: the generator knows which prefixes it repeated. It is a"
        " property of the mix, not of the server.",
        q.request_range([(_IDEAL, "ideal")], q.OK, _KNOWN, _IDEAL_KNOWN),
        no_value="not known",
        width=6,
    ),
    number(
        "Prompt tokens computed again",
        COUNT,
        "Tokens that were sent before and had to be prefilled once more, in the time range: ideal less observed. Each"
        " costs a decode step something; a large number"
        " at a high load is the signature of eviction. More cache, fewer prefixes per replica or prefix-aware routing"
        " bring it down.",
        q.request_range(
            [('sum("ideal_cached_tokens") - sum("cached_tokens")', "computed again")], q.OK, _KNOWN, _IDEAL_KNOWN
        ),
        no_value="not known",
        width=6,
    ),
    number(
        "Output tokens per second",
        TOK_PER_S,
        "Output tokens that reached the clients, whole fleet. A fall at a steady load together with a fall of the"
        " cached share is a cache-churn cliff.",
        q.rate("output_tok_per_s", "tok/s"),
        decimals=0,
        width=6,
    ),
)

_CACHE = (
    lines(
        "Cached share of prompt tokens: observed and ideal",
        RATIO,
        "Observed: from the server's answers. Ideal: what an unlimited cache would have had for the same requests."
        " The gap is eviction (or requests of one prefix"
        " on different replicas). A gap that opens at one load and stays is the working set outgrowing the cache.",
        q.requests([(_OBSERVED, "observed")], q.OK, _KNOWN),
        q.requests([(_IDEAL, "ideal")], q.OK, _KNOWN, _IDEAL_KNOWN),
    ),
    lines(
        "Output tokens per second with the cached share",
        TOK_PER_S,
        "Throughput (left) with the share of prompt tokens from the cache (right, dashed). Cliffs of tok/s that"
        " follow drops of the share, and not the request rate,"
        " are cache churn; cliffs without such a drop have another cause.",
        q.rate("output_tok_per_s", "tok/s"),
        q.requests([(_OBSERVED, "cached share")], q.OK, _KNOWN),
        right=Overlay("cached share", RATIO),
    ),
    lines(
        "Prompt tokens per second",
        TOK_PER_S,
        "Prompt tokens of requests that ended, those served from the cache, and those sent before yet computed again."
        " The last one is pure loss:"
        " when it rises, prefill takes steps away from decoding.",
        q.rate("prompt_tok_per_s", "all"),
        q.requests([(f'sum("cached_tokens") {_PER_SECOND}', "from the cache")], q.OK, _KNOWN),
        q.requests(
            [(f'(sum("ideal_cached_tokens") - sum("cached_tokens")) {_PER_SECOND}', "computed again")],
            q.OK,
            _KNOWN,
            _IDEAL_KNOWN,
        ),
    ),
    lines(
        "Cached share by class",
        RATIO,
        "Which class keeps its prefixes. A class with long pauses between turns loses them first; one class falling"
        " when another one starts says who evicts whom.",
        q.requests([(_OBSERVED, "observed")], q.OK, _KNOWN, by=("class",)),
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
                (_OBSERVED, "cached share"),
            ],
            q.OK,
            _KNOWN,
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
        sections=(("Now", _NOW), ("Cache and throughput", _CACHE), ("What it costs", _COST)),
        with_worker=False,
    )
