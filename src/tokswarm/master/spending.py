"""What a run has used up of its budget, from the windows of its workers. Pure.

Everything in flight is taken at its `max_tokens`, and so is what may be sent before a stop arrives, so
a run ends before its budget is exceeded. Prompts are counted as planned and when they are sent, because
an endpoint that counts them says so only at the end, and failed requests may be billed too.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from functools import partial

from tokswarm.measure.window import WindowRow
from tokswarm.traffic.mix import Budget

UNSEEN_S = 2.0
"""What was sent but is in no window yet: a second under way, its message, and the stop's way back."""
LATELY = 10
"""Of so many seconds the one with the most tokens says what may be sent in an unseen one."""


class Spending:
    """Takes every window once. Without a budget nothing is ever spent."""

    def __init__(self, budget: Budget | None) -> None:
        self._budget = budget
        self._output_tokens = 0
        self._asked_prompt_tokens = 0
        self._cached_tokens = 0
        self._open: dict[str, int] = {}
        self._asked_prompt: dict[str, deque[int]] = defaultdict(partial(deque, maxlen=LATELY))
        self._asked_most: dict[str, deque[int]] = defaultdict(partial(deque, maxlen=LATELY))

    def take(self, worker: str, rows: Iterable[WindowRow]) -> str:
        """Add one worker's second; why the run must end now, or nothing."""
        if self._budget is None:
            return ""
        opened = prompt = most = 0
        for row in rows:
            self._output_tokens += row.output_tokens
            self._cached_tokens += row.cached_tokens
            opened += row.open_max_tokens
            prompt += row.asked_prompt_tokens
            most += row.asked_max_tokens
        self._asked_prompt_tokens += prompt
        self._open[worker] = opened
        self._asked_prompt[worker].append(prompt)
        self._asked_most[worker].append(most)
        return self._over(self._budget)

    def lost(self, worker: str) -> None:
        """A worker is gone: what it had open counts as spent, and it sends nothing more."""
        self._output_tokens += self._open.pop(worker, 0)
        self._asked_prompt.pop(worker, None)
        self._asked_most.pop(worker, None)

    def _over(self, budget: Budget) -> str:
        unseen_prompt = UNSEEN_S * sum(map(max, self._asked_prompt.values()))
        may_come = sum(self._open.values()) + UNSEEN_S * sum(map(max, self._asked_most.values()))
        if budget.output_tokens is not None and self._output_tokens + may_come > budget.output_tokens:
            return (
                f"budget.output_tokens: {self._output_tokens:,} of {budget.output_tokens:,} are spent and up to "
                f"{may_come:,.0f} more are on their way"
            )
        if budget.usd is not None and budget.price is not None:
            price = budget.price
            cached = self._cached_tokens if price.cached is not None else 0
            spent = price.input.usd(self._asked_prompt_tokens - cached) + price.output.usd(self._output_tokens)
            if price.cached is not None:
                spent += price.cached.usd(cached)
            more = price.input.usd(unseen_prompt) + price.output.usd(may_come)
            if spent + more > budget.usd:
                return (
                    f"budget.usd: {spent:,.4f} of {budget.usd:,.4f} USD are spent and up to "
                    f"{more:,.4f} more are on their way"
                )
        return ""
