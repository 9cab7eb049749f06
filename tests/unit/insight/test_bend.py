from typing import Any

import msgspec
import pytest
from synthetic_run import bent_sweep, requests_table, workers_table

from tokswarm.insight.bend import Bend, find_bend
from tokswarm.insight.percentiles import Percentiles
from tokswarm.insight.stage import StageSummary
from tokswarm.insight.summary import summarise
from tokswarm.insight.verdict import Cause

_RUN, _ROWS = bent_sweep((1,))
PATTERN = summarise(_RUN, requests_table(_ROWS), workers_table([])).stages[0]


def at(ms: float) -> Percentiles:
    return Percentiles(p50=ms, p90=ms, p99=ms, count=100)


def stage(concurrency: int, tok_per_s: float | None, **fields: Any) -> StageSummary:
    """A point of a curve on which nothing but tok/s changes, unless said."""
    return msgspec.structs.replace(
        PATTERN, name=f"sweep-{concurrency}", concurrency=concurrency, output_tok_per_s=tok_per_s, **fields
    )


def curve(*points: tuple[int, float]) -> list[StageSummary]:
    return [stage(concurrency, tok_per_s) for concurrency, tok_per_s in points]


def bend(stages: list[StageSummary]) -> Bend:
    return find_bend(stages, {})


@pytest.mark.parametrize(
    ("points", "knee", "peak"),
    [
        pytest.param([(1, 60), (2, 118), (4, 220), (8, 260), (16, 250)], 4, 8, id="bends-then-falls"),
        pytest.param([(1, 60), (2, 90), (4, 149)], 2, 4, id="a-gain-of-exactly-half-is-enough"),
        pytest.param([(1, 60), (2, 80), (4, 100)], 1, 4, id="bends-at-once"),
        pytest.param([(1, 60), (2, 40), (4, 20)], 1, 1, id="falls-at-once"),
        pytest.param([(4, 200), (8, 380), (16, 500)], 8, 16, id="not-from-one"),
        pytest.param([(1, 60), (2, 70), (4, 200), (8, 210)], 4, 8, id="one-noisy-stage-on-the-way"),
    ],
)
def test_the_knee_is_the_last_stage_whose_streams_bring_half_of_the_first_one(
    points: list[tuple[int, float]], knee: int, peak: int
) -> None:
    got = bend(curve(*points))
    assert got.found
    assert got.knee is not None
    assert got.peak is not None
    assert (got.knee.concurrency, got.peak.concurrency) == (knee, peak)
    assert got.line.startswith(f"tok/s bends at concurrency {knee}: ")


def test_stages_may_come_in_any_order() -> None:
    got = bend(curve((8, 260), (1, 60), (4, 220), (2, 118)))
    assert got.knee is not None
    assert (got.knee.concurrency, got.knee.stage, got.knee.linear_ratio) == (
        4,
        "sweep-4",
        pytest.approx(220 / 240, abs=1e-4),
    )


def test_a_curve_that_still_rises_has_no_bend_and_says_so() -> None:
    got = bend(curve((1, 60), (2, 118), (4, 220)))
    assert not got.found
    assert got.cause is None
    assert got.line == "no bend up to concurrency 4: 220 tok/s, 92 % of linear, and still rising; sweep further"


@pytest.mark.parametrize(
    ("stages", "line"),
    [
        pytest.param([], "no bend to look for: 0 concurrencies measured, it takes 3", id="none"),
        pytest.param(
            curve((1, 60), (2, 100)),
            "no bend to look for: 2 concurrencies measured, it takes 3",
            id="two",
        ),
        pytest.param(
            [*curve((1, 60), (2, 100)), stage(4, 120, warmup=True), stage(8, None), stage(2, 101)],
            "no bend to look for: 2 concurrencies measured, it takes 3",
            id="warm-up-unmeasured-and-repeated",
        ),
        pytest.param(
            curve((1, 0), (2, 100), (4, 200)), "no bend to look for: no token arrived at concurrency 1", id="dead-start"
        ),
    ],
)
def test_without_a_curve_there_is_nothing_to_bend(stages: list[StageSummary], line: str) -> None:
    got = bend(stages)
    assert (got.found, got.line, got.knee, got.causes) == (False, line, None, [])


def bent(**after: Any) -> list[StageSummary]:
    """Linear to 4, flat at 8, where the fields say what changed."""
    return [*curve((1, 60), (2, 120), (4, 240)), stage(8, 250, **after)]


def test_queue_wait_is_named_with_its_numbers() -> None:
    got = bend(bent(e2e_ms=at(1350), ttft_ms=at(410), queue_wait_ms=at(310)))
    assert got.line == (
        "tok/s bends at concurrency 4: 240 tok/s, 4.0× of linear 4×; at 8 it is 4.2× of linear 8×; "
        "queue wait p50 rose from 0 to 310 ms"
    )
    # E2E grew by 350 ms: 310 of queue, 40 of decode
    assert [(cause.cause, cause.share) for cause in got.causes] == [
        ("queue_wait", pytest.approx(310 / 350, abs=1e-4)),
        ("batching", pytest.approx(40 / 350, abs=1e-4)),
    ]


def test_an_estimated_queue_wait_is_called_so() -> None:
    got = bend(bent(e2e_ms=at(1350), ttft_ms=at(410), queue_wait_ms=at(310), queue_wait_source="estimated"))
    assert "queue wait (estimated) p50 rose from 0 to 310 ms" in got.line


def test_a_slower_stream_is_batching() -> None:
    got = bend(bent(e2e_ms=at(1900), tpot_ms=at(200)))
    assert got.cause == "batching"
    assert got.line.endswith("each stream decodes more slowly in the larger batch (TPOT p50 rose from 100 to 200 ms)")


def test_a_fallen_cache_share_takes_what_ttft_grew_beyond_the_queue() -> None:
    got = bend(bent(e2e_ms=at(1700), ttft_ms=at(700), queue_wait_ms=at(100), cached_ratio=0.05))
    assert [(cause.cause, cause.share) for cause in got.causes][:1] == [("cache", pytest.approx(500 / 700, abs=1e-4))]
    assert "the cached share of prompts fell from 40 % to 5 %" in got.line


def test_a_fallen_cache_share_is_named_even_when_its_cost_shows_as_queue_wait() -> None:
    got = bend(bent(e2e_ms=at(1400), ttft_ms=at(500), queue_wait_ms=at(400), cached_ratio=0.1))
    assert got.cause == "queue_wait"
    assert "; also the cached share of prompts fell from 40 % to 10 %" in got.line


def test_a_cache_share_that_hardly_moves_is_not_named() -> None:
    got = bend(bent(e2e_ms=at(1500), ttft_ms=at(600), cached_ratio=0.35))
    assert (got.cause, "cached" in got.line) == ("first_token", False)


def test_first_tokens_are_named_when_nobody_knows_the_queue_wait() -> None:
    unknown = {"queue_wait_ms": None, "queue_wait_source": None}
    got = bend(bent(e2e_ms=at(1400), ttft_ms=at(500), **unknown))
    assert got.cause == "first_token"
    assert got.line.endswith("TTFT p50 rose from 100 to 500 ms (the queue wait in it is not known)")


@pytest.mark.parametrize(
    ("requests", "cause", "words"),
    [
        pytest.param(
            {"ok": 60, "rate_limited": 40}, "rate_limiting", "refused with 429 rose from 0 % to 40 %", id="429"
        ),
        pytest.param({"ok": 70, "timeout": 20, "reset": 10}, "errors", "failing rose from 0 % to 30 %", id="errors"),
    ],
)
def test_failures_outweigh_latencies(requests: dict[str, int], cause: str, words: str) -> None:
    got = bend(bent(requests=requests, e2e_ms=at(1350), ttft_ms=at(410), queue_wait_ms=at(310)))
    assert got.cause == cause
    assert words in got.line


def test_the_generator_is_named_first_when_it_spoiled_the_stage() -> None:
    got = find_bend(bent(e2e_ms=at(1350), ttft_ms=at(410), queue_wait_ms=at(310)), {"sweep-8": Cause.CPU})
    assert got.cause == "generator"
    assert "the generator itself was the limit at 8: it was out of CPU; also queue wait" in got.line


def test_a_spoiled_stage_elsewhere_does_not_explain_the_bend() -> None:
    got = find_bend(bent(e2e_ms=at(1350), ttft_ms=at(410), queue_wait_ms=at(310)), {"sweep-1": Cause.CPU})
    assert got.cause == "queue_wait"


def test_a_bend_that_nothing_explains_says_so() -> None:
    got = bend(bent())
    assert (got.found, got.cause, got.causes) == (True, None, [])
    assert got.line.endswith("; nothing visible explains it")
