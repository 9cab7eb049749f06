"""What the requests of a run cost."""

import polars as pl
import pytest

from tokswarm.insight.cost import cost_of
from tokswarm.traffic.mix import Budget, Price
from tokswarm.traffic.units import TokenPrice

PRICE = Price(input=TokenPrice.parse("1/M"), cached=TokenPrice.parse("0.25/M"), output=TokenPrice.parse("4/M"))


def requests(*rows: tuple[int | None, int | None, int]) -> pl.DataFrame:
    return pl.DataFrame(
        rows, schema={"prompt_tokens": pl.Int64, "cached_tokens": pl.Int64, "output_tokens": pl.Int64}, orient="row"
    )


def test_cached_prompts_have_their_own_price_and_what_was_not_counted_is_said() -> None:
    cost = cost_of(Budget(price=PRICE), requests((1_000_000, 400_000, 500_000), (1_000_000, None, 0), (None, None, 7)))
    assert cost is not None
    assert (cost.input_usd, cost.cached_usd, cost.uncounted_requests) == (1.6, 0.1, 1)
    assert cost.output_usd == pytest.approx(2.000028)
    assert cost.line == (
        "cost: 3.7000 USD (prompts 1.6000, cached 0.1000, answers 2.0000; without the prompts of 1 requests)"
    )


def test_without_a_price_for_cached_prompts_they_cost_as_others() -> None:
    price = Price(input=TokenPrice.parse("1/M"), output=TokenPrice.parse("4/M"))
    cost = cost_of(Budget(price=price), requests((1_000_000, 400_000, 0)))
    assert cost is not None
    assert (cost.usd, cost.cached_usd) == (1.0, 0.0)


@pytest.mark.parametrize("budget", [None, Budget(output_tokens=5)])
def test_without_a_price_there_is_no_cost(budget: Budget | None) -> None:
    assert cost_of(budget, requests((1, None, 1))) is None


def test_without_counted_prompts_there_is_no_cost() -> None:
    assert cost_of(Budget(price=PRICE), requests((None, None, 9))) is None
