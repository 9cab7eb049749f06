"""A conversation: its turns drawn by the mix's seed, its history growing with each answer.

A later turn sends everything said before. Earlier answers are texts of our own, as long as the real
ones were, or what the server said; either way the lengths of what the user says, the thinking and the
number of turns depend on the seed alone.
"""

import math
import random
from collections.abc import Iterator
from statistics import NormalDist

from tokswarm.traffic.distribution import Sampler
from tokswarm.traffic.mix import Session as SessionSpec
from tokswarm.traffic.mix import TimeDistribution, TrafficClass
from tokswarm.traffic.prompt import PromptWriter
from tokswarm.traffic.ticket import Ticket

SESSION_HEADER = "x-session-id"
"""Names its session where sessions are sticky by header."""

LONGEST_THINK_NS = 366 * 24 * 3600 * 1_000_000_000
"""A longer draw becomes this: as long as a mix can write."""

_STANDARD_NORMAL = NormalDist()
_Z99 = _STANDARD_NORMAL.inv_cdf(0.99)
_SMALLEST_U = 2.0**-53


class SessionDraws:
    """What is drawn for the sessions of one class; shared by all of them."""

    def __init__(self, traffic_class: TrafficClass, spec: SessionSpec) -> None:
        self.spec = spec
        self.turns = Sampler(spec.turns)
        self.max_tokens = Sampler(traffic_class.output.max_tokens)
        self._turn_tokens = Sampler(traffic_class.prompt.lengths if spec.turn_tokens is None else spec.turn_tokens)
        prefix = traffic_class.prompt.shared_prefix
        self._prefix_tokens = 0 if spec.turn_tokens is not None or prefix is None else prefix.tokens

    def turn_tokens(self, rng: random.Random) -> int:
        """How much of its own a later turn adds."""
        return max(1, self._turn_tokens.draw(rng) - self._prefix_tokens)

    def think_ns(self, rng: random.Random) -> int:
        """How long the user thinks before it."""
        return draw_time_ns(self.spec.think_time, rng)

    def lengths(self, rng: random.Random, prompt_tokens: int, max_tokens: int) -> Iterator[tuple[int, int]]:
        """Prompt and `max_tokens` of each turn of a session that begins so, were every answer as long as it may be."""
        yield prompt_tokens, max_tokens
        for _ in range(self.turns.draw(rng) - 1):
            prompt_tokens += max_tokens + self.turn_tokens(rng)
            max_tokens = self.max_tokens.draw(rng)
            yield prompt_tokens, max_tokens


class Session:
    """One conversation under way: `answered` and `next_ticket` by turns."""

    __slots__ = (
        "_draws",
        "_first",
        "_history",
        "_key",
        "_known_tokens",
        "_prompt",
        "_rng",
        "_said_tokens",
        "_writer",
        "turn",
        "turns",
    )

    def __init__(
        self, draws: SessionDraws, first: Ticket, *, seed: int, key: tuple[int, int], writer: PromptWriter
    ) -> None:
        self._draws = draws
        self._first = first
        self._key = key
        self._writer = writer
        self._rng = random.Random(seed)  # noqa: S311 - to be reproducible
        self._prompt = first.prompt
        self._history: list[bytes] = []
        self._said_tokens = self._known_tokens = 0
        self.turns = draws.turns.draw(self._rng)
        """How many it has."""
        self.turn = 1
        """The one under way, or answered last."""

    @property
    def spec(self) -> SessionSpec:
        """What the mix says of it."""
        return self._draws.spec

    @property
    def name(self) -> str:
        """What a router tells it apart by: no other of this run or of another has it."""
        return f"{self._writer.session_id(self._key):016x}"

    @property
    def left(self) -> int:
        """Turns after this one."""
        return self.turns - self.turn

    def think_ns(self) -> int:
        """How long the user thinks now; to be asked once before each later turn."""
        return self._draws.think_ns(self._rng)

    def answered(self, *, prompt_tokens: int, answer_tokens: int, answer: bytes | None) -> None:
        """The turn under way got its answer; `answer` is its text as it stands in JSON, None: ours takes its place.

        An unlimited cache then has the prompt, and the answer's tokens where that very text comes back.
        """
        text = self._writer.stand_in(answer_tokens, self._key, self.turn) if answer is None else answer
        self._history += (self._prompt, text)
        self._said_tokens = prompt_tokens + answer_tokens
        self._known_tokens = prompt_tokens if answer is None else self._said_tokens

    def next_ticket(self) -> Ticket:
        """The next turn."""
        self.turn += 1
        tokens = self._draws.turn_tokens(self._rng)
        self._prompt = self._writer.turn(tokens, self._key, self.turn)
        return Ticket(
            index=self._first.index,
            class_index=self._first.class_index,
            target_index=self._first.target_index,
            due_ns=None,
            prompt=self._prompt,
            prompt_tokens=self._said_tokens + tokens,
            max_tokens=self._draws.max_tokens.draw(self._rng),
            ideal_cached_tokens=self._known_tokens,
            turn=self.turn,
            history=tuple(self._history),
        )


def draw_time_ns(distribution: TimeDistribution, rng: random.Random) -> int:
    """One time, from one number of `rng`."""
    u = rng.random() or _SMALLEST_U
    most = LONGEST_THINK_NS if distribution.max is None else distribution.max.nanoseconds
    match distribution:
        case TimeDistribution(fixed=fixed) if fixed is not None:
            value: float = fixed.nanoseconds
        case TimeDistribution(uniform=uniform) if uniform is not None:
            low, high = uniform.low.nanoseconds, uniform.high.nanoseconds
            value = low + u * (high - low)
        case TimeDistribution(exponential=exponential) if exponential is not None:
            value = -exponential.mean.nanoseconds * math.log1p(-u)
        case TimeDistribution(lognormal=lognormal) if lognormal is not None:
            p50, p99 = lognormal.p50.nanoseconds, lognormal.p99.nanoseconds
            value = p50 * math.exp(math.log(p99 / p50) / _Z99 * _STANDARD_NORMAL.inv_cdf(u))
        case _:
            raise ValueError("a distribution of times needs exactly one kind")
    return round(min(value, most))
