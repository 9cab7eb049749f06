"""When a run has to end so that its budget is not exceeded."""

import random

from tokswarm.master.spending import Spending
from tokswarm.measure.window import WindowRow
from tokswarm.traffic.mix import Budget, Price
from tokswarm.traffic.units import TokenPrice

PRICE = Price(input=TokenPrice.parse("1/M"), cached=TokenPrice.parse("0.5/M"), output=TokenPrice.parse("10/M"))


def row(*, output: int = 0, open_max: int = 0, prompt: int = 0, most: int = 0, cached: int = 0) -> WindowRow:
    return WindowRow(
        class_name="chat",
        stage="s",
        output_tokens=output,
        open_max_tokens=open_max,
        asked_prompt_tokens=prompt,
        asked_max_tokens=most,
        cached_tokens=cached,
    )


def test_what_is_in_flight_counts_at_its_most() -> None:
    spending = Spending(Budget(output_tokens=1000))
    assert spending.take("a", [row(output=400, open_max=500)]) == ""
    assert spending.take("b", [row(open_max=101)]) == (
        "budget.output_tokens: 400 of 1,000 are spent and up to 601 more are on their way"
    )


def test_what_was_sent_lately_is_expected_to_be_sent_again_before_a_stop_arrives() -> None:
    assert Spending(Budget(output_tokens=1000)).take("a", [row(output=500, open_max=300, most=100)]) == ""
    assert Spending(Budget(output_tokens=1000)).take("a", [row(output=500, open_max=300, most=101)])


def test_a_lost_workers_open_requests_are_spent_and_it_sends_no_more() -> None:
    spending = Spending(Budget(output_tokens=1000))
    assert spending.take("a", [row(open_max=400, most=50)]) == ""
    spending.lost("a")
    assert spending.take("b", [row(output=600)]) == ""
    assert spending.take("b", [row(output=1)])


def test_dollars_are_those_of_prompts_sent_less_what_was_cached_and_of_answers() -> None:
    spending = Spending(Budget(usd=20.0, price=PRICE))
    assert spending.take("a", [row(prompt=2_000_000, output=1_000_000)]) == ""  # 2 + 10, and 4 of prompts to come
    assert spending.take("a", [row(prompt=1_000_000, cached=2_000_000, output=400_000)]) == ""  # 2 + 14, and 4
    assert spending.take("a", [row(output=10_000)]) == (
        "budget.usd: 16.1000 of 20.0000 USD are spent and up to 4.0000 more are on their way"
    )


def test_a_closed_loop_never_goes_beyond_its_budget() -> None:
    """A hundred runs of a fleet whose answers have any length up to their max_tokens, stopped a window late."""
    for seed in range(100):
        rng = random.Random(seed)
        budget, spent, spending = 200_000, 0, Spending(Budget(output_tokens=200_000))
        open_max = [rng.randint(1, 400) for _ in range(64)]
        stop_in = None
        for _ in range(10_000):
            over = [place for place in range(len(open_max)) if rng.random() < 0.3]
            output = sum(rng.randint(1, open_max[place]) for place in over)
            for place in over:
                open_max[place] = rng.randint(1, 400)
            spent += output
            asked = sum(open_max[place] for place in over)
            said = spending.take("a", [row(output=output, open_max=sum(open_max), most=asked)])
            stop_in = 1 if said and stop_in is None else None if stop_in is None else stop_in - 1
            if stop_in == 0:
                break
        assert spent + sum(open_max) <= budget, f"seed {seed}"
        assert spent > budget * 0.75, f"seed {seed}"
