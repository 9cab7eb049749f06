"""Requests by the replica that served them."""

import polars as pl

from tokswarm.insight.server_share import ServerShare, server_shares

ROWS = pl.DataFrame(
    {
        "served_by": ["b", "a", "a", "a", None],
        "outcome": ["ok", "ok", "ok", "rate_limited", "ok"],
        "output_tokens": [10, 20, 30, 0, 7],
        "ttft_ms": [5.0, 100.0, 300.0, None, 1.0],
        "prompt_tokens": [100, 100, 100, None, 100],
        "cached_tokens": [None, 80, 40, None, 0],
    },
    schema_overrides={"cached_tokens": pl.Int64, "prompt_tokens": pl.Int64},
)


def test_each_server_has_its_requests_and_what_they_went_through() -> None:
    assert server_shares(ROWS) == {
        "a": ServerShare(requests=3, ok=2, output_tokens=50, ttft_p50_ms=100.0, cached_ratio=0.6),
        "b": ServerShare(requests=1, ok=1, output_tokens=10, ttft_p50_ms=5.0, cached_ratio=None),
    }


def test_the_busiest_server_comes_first() -> None:
    assert list(server_shares(ROWS)) == ["a", "b"]


def test_without_a_name_in_any_response_there_are_no_shares() -> None:
    assert server_shares(ROWS.filter(pl.col("served_by").is_null())) == {}
