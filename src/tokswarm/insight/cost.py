"""What a run cost, by the price its mix gives."""

import msgspec
import polars as pl

from tokswarm.traffic.mix import Budget


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars of all requests of a run, whatever their outcome, by the tokens the endpoint counted."""

    usd: float
    input_usd: float
    """Prompt tokens that were not cached."""
    cached_usd: float
    output_usd: float
    uncounted_requests: int
    """Requests whose prompt the endpoint did not count, mostly failed ones: their prompts are not in it."""

    @property
    def line(self) -> str:
        """In one sentence."""
        parts = f"prompts {self.input_usd:,.4f}, cached {self.cached_usd:,.4f}, answers {self.output_usd:,.4f}"
        without = f"; without the prompts of {self.uncounted_requests:,} requests" if self.uncounted_requests else ""
        return f"cost: {self.usd:,.4f} USD ({parts}{without})"


def cost_of(budget: Budget | None, requests: pl.DataFrame) -> Cost | None:
    """The cost of the requests; None: there is no price, or no prompt was counted."""
    price = None if budget is None else budget.price
    if price is None:
        return None
    prompts = requests["prompt_tokens"]
    if prompts.is_null().all():
        return None
    cached = 0 if price.cached is None else int(requests.filter(prompts.is_not_null())["cached_tokens"].sum())
    input_usd = price.input.usd(int(prompts.sum()) - cached)
    cached_usd = 0.0 if price.cached is None else price.cached.usd(cached)
    output_usd = price.output.usd(int(requests["output_tokens"].sum()))
    return Cost(
        usd=round(input_usd + cached_usd + output_usd, 8),
        input_usd=round(input_usd, 8),
        cached_usd=round(cached_usd, 8),
        output_usd=round(output_usd, 8),
        uncounted_requests=int(prompts.is_null().sum()),
    )
