import math
import random

import pytest

from tokswarm.sink.token_budget import TokenBudget, is_drawn


def second_of(budget: TokenBudget, requests: int, points: int) -> list[float]:
    shares = [budget.share(points) for _ in range(requests)]
    budget.next_second()
    return shares


def test_within_the_budget_every_token_is_written() -> None:
    budget = TokenBudget(10_000)
    assert set(second_of(budget, 100, 100)) | set(second_of(budget, 100, 100)) == {1.0}


@pytest.mark.parametrize(
    ("points_per_s", "share"),
    [(10_001, 0.5), (20_000, 0.5), (20_001, 0.25), (40_000, 0.25), (80_000, 0.125), (1_000_000, 1 / 128)],
)
def test_beyond_it_the_share_is_the_power_of_two_that_keeps_to_it(points_per_s: int, share: float) -> None:
    budget = TokenBudget(10_000)
    second_of(budget, 1, points_per_s)
    assert budget.share(100) == share


def test_a_burst_is_met_within_its_second_and_a_lull_a_second_later() -> None:
    budget = TokenBudget(10_000)
    shares = second_of(budget, 1_000, 100)
    assert (shares[0], shares[-1]) == (1.0, 1 / 16)
    assert shares == sorted(shares, reverse=True)
    assert second_of(budget, 1, 100) == [1 / 16]
    assert second_of(budget, 1, 100) == [1.0]


def test_shares_are_drawn_by_id_as_often_as_they_say_and_a_higher_share_holds_a_lower_one() -> None:
    ids = [worker << 40 | sequence for worker in range(8) for sequence in range(20_000)]
    drawn = {share: {each for each in ids if is_drawn(each, share)} for share in (1.0, 0.5, 0.125, 1 / 64)}
    for share, those in drawn.items():
        sd = math.sqrt(len(ids) * share * (1 - share))
        assert abs(len(those) - len(ids) * share) <= 4 * sd, share
    assert drawn[1 / 64] < drawn[0.125] < drawn[0.5] < drawn[1.0]


def test_tokens_divided_by_their_share_add_up_to_all_tokens_without_bias() -> None:
    """Whatever the load does: long and short requests, bursts and lulls, over many draws (ids)."""
    rng = random.Random(5)
    errors = []
    for draw in range(300):
        budget = TokenBudget(5_000)
        total, estimate, written = 0, 0.0, 0
        for second in range(20):
            for number in range(rng.choice((20, 60, 200))):
                tokens = rng.choice((10, 50, 800))
                share = budget.share(tokens)
                total += tokens
                if is_drawn(draw << 40 | second << 20 | number, share):
                    estimate += tokens / share
                    written += tokens
            budget.next_second()
        assert estimate == int(estimate)  # powers of two: nothing is rounded
        assert written < 20 * 5_000 * 2.5
        errors.append(estimate / total - 1)
    mean = sum(errors) / len(errors)
    sd = math.sqrt(sum((error - mean) ** 2 for error in errors) / (len(errors) - 1))
    assert abs(mean) <= 4 * sd / math.sqrt(len(errors)), (mean, sd)
    assert sd < 0.2
