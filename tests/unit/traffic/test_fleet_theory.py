"""Every distribution and every arrival process against its theory, as 1, 2, 3 and 7 workers together send it."""

import math
from collections.abc import Callable
from itertools import islice, pairwise
from statistics import NormalDist, fmean, pstdev

import msgspec
import pytest
from kolmogorov import critical_distance, distance, whole_number_distance

from tokswarm.traffic.mix import (
    Distribution,
    Empirical,
    Exponential,
    Geometric,
    Lognormal,
    Normal,
    Output,
    Prompt,
    TrafficClass,
    Uniform,
)
from tokswarm.traffic.plan import BurstCycle, ClosedLoop, OpenLoop, Plan, RateSegment
from tokswarm.traffic.schedule import TicketSource
from tokswarm.traffic.ticket import Ticket

WORKERS = [1, 2, 3, 7]
EACH = 16_800
"""Tickets of the closed loop, a multiple of every number of workers."""
RATE_PER_S, LONG_S = 40.0, 100.0
SIGMA = math.log(4142 / 1020) / NormalDist().inv_cdf(0.99)
MOMENTS = math.log(1 + (150 / 200) ** 2)

LENGTHS = {
    "fixed": Distribution(fixed=42),
    "uniform": Distribution(uniform=Uniform(low=3, high=70)),
    "normal": Distribution(normal=Normal(mean=700, sd=80)),
    "lognormal-by-quantiles": Distribution(lognormal=Lognormal(p50=1020, p99=4142)),
    "lognormal-by-moments": Distribution(lognormal=Lognormal(mean=200, sd=150)),
    "exponential": Distribution(exponential=Exponential(mean=100)),
    "geometric": Distribution(geometric=Geometric(mean=3)),
    "choice": Distribution(choice={5: 1, 7: 2, 1024: 1}),
    "empirical": Distribution(empirical=Empirical(edges=[10, 20, 40], weights=[1, 3])),
    "within-bounds": Distribution(geometric=Geometric(mean=30), min=10, max=60),
}
ARRIVALS = {
    "poisson": OpenLoop(rate_per_s=RATE_PER_S, arrivals="poisson"),
    "gamma": OpenLoop(rate_per_s=RATE_PER_S, arrivals="gamma", cv=0.5),
    "weibull": OpenLoop(rate_per_s=RATE_PER_S, arrivals="weibull", cv=2.0),
    "constant": OpenLoop(rate_per_s=RATE_PER_S, arrivals="constant"),
    "ramp": OpenLoop(rate_per_s=RATE_PER_S, arrivals="poisson", course=[RateSegment(100, 10, 70)]),
    "steps": OpenLoop(
        rate_per_s=RATE_PER_S, arrivals="poisson", course=[RateSegment(50, 20, 20), RateSegment(50, 60, 60)]
    ),
    "diurnal": OpenLoop(
        rate_per_s=RATE_PER_S, arrivals="poisson", course=[RateSegment(25, 20, 60), RateSegment(25, 60, 20)]
    ),
    "bursts": OpenLoop(rate_per_s=RATE_PER_S, arrivals="poisson", bursts=BurstCycle(10, 40, 3.0, 0.5)),
}

Fleets = dict[tuple[int, int], list[list[Ticket]]]
"""By the number of workers and the seed: the tickets of each stage in order, those with lengths first."""


def sent(plan: Plan, workers: int) -> list[list[Ticket]]:
    """What the whole fleet sends in each stage, in the order of the schedule; none of it twice."""
    sources = [TicketSource(plan, worker, workers) for worker in range(workers)]
    stages = []
    for stage in range(len(plan.stages)):
        limit = EACH // workers if stage == 0 else None
        parts = [list(islice(source.tickets(stage), limit)) for source in sources]
        tickets = sorted((ticket for part in parts for ticket in part), key=lambda ticket: ticket.index)
        assert [ticket.index for ticket in tickets] == list(range(len(tickets)))
        stages.append(tickets)
    return stages


@pytest.fixture(scope="module")
def fleets(sample_plan: Callable[..., Plan]) -> Fleets:
    plan = sample_plan(ClosedLoop(concurrency=8), *ARRIVALS.values(), duration_s=LONG_S)
    one_token = Prompt(tokens=Distribution(fixed=1))
    classes = [
        TrafficClass(name=name, prompt=one_token, output=Output(max_tokens=lengths))
        for name, lengths in LENGTHS.items()
    ]
    made = {}
    for workers, seed in ((1, 1), (2, 1), (3, 1), (7, 1), (1, 2)):
        mix = msgspec.structs.replace(plan.mix, classes=classes, seed=seed)
        made[workers, seed] = sent(msgspec.structs.replace(plan, mix=mix), workers)
    return made


# --- lengths ------------------------------------------------------------------------------------------

P_UP_TO: dict[str, Callable[[int], float]] = {
    "fixed": lambda k: float(k >= 42),
    "uniform": lambda k: min(max(k - 2, 0) / 68, 1),
    "normal": lambda k: NormalDist(700, 80).cdf(k + 0.5),
    "lognormal-by-quantiles": lambda k: NormalDist(math.log(1020), SIGMA).cdf(math.log(max(k, 0) + 0.5)),
    "lognormal-by-moments": lambda k: NormalDist(math.log(200) - MOMENTS / 2, math.sqrt(MOMENTS)).cdf(
        math.log(max(k, 0) + 0.5)
    ),
    "exponential": lambda k: 1 - math.exp(-(k + 0.5) / 100) if k >= 1 else 0.0,
    "geometric": lambda k: 1 - (2 / 3) ** k if k >= 1 else 0.0,
    "choice": lambda k: 0.25 * (k >= 5) + 0.5 * (k >= 7) + 0.25 * (k >= 1024),
    "empirical": lambda k: 0.25 * min(max(k - 9, 0) / 10, 1) + 0.75 * min(max(k - 19, 0) / 20, 1),
    "within-bounds": lambda k: 0.0 if k < 10 else 1.0 if k >= 60 else 1 - (29 / 30) ** k,
}
"""P(X ≤ k) in closed form."""


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_follow_their_distribution(fleets: Fleets, name: str, workers: int) -> None:
    def lengths(workers: int, seed: int = 1) -> list[int]:
        of_class = list(LENGTHS).index(name)
        return [ticket.max_tokens for ticket in fleets[workers, seed][0] if ticket.class_index == of_class]

    found = lengths(workers)
    assert whole_number_distance(found, P_UP_TO[name]) < critical_distance(len(found), alpha=0.001)
    assert found == lengths(1)
    assert (found == lengths(1, seed=2)) is (name == "fixed" and len(found) == len(lengths(1, seed=2)))


# --- arrivals -----------------------------------------------------------------------------------------


def weibull(x: float) -> float:
    """Of mean 1 and CV 2: with this shape k, Γ(1 + 2/k) / Γ(1 + 1/k)² is 5."""
    shape = 0.5427
    return 1 - math.exp(-((x * math.gamma(1 + 1 / shape)) ** shape))


def erlang(x: float) -> float:
    """A gamma distribution of mean 1 and CV 0.5: the sum of four exponential times."""
    return 1 - math.exp(-4 * x) * sum((4 * x) ** k / math.factorial(k) for k in range(4))


def wave(t: float) -> float:
    """Arrivals up to t of a rise from half the mean to one and a half in the first unit, and back in the second."""
    return t / 2 + t * t / 2 if t <= 1 else 2 - ((2 - t) / 2 + (2 - t) ** 2 / 2)


def cycle(t: float) -> float:
    """The share of a cycle's arrivals up to its part t: thrice the rate for a fifth, then half of it."""
    return 3 * t if t <= 0.2 else 0.6 + 0.5 * (t - 0.2)


GAPS: dict[str, tuple[float, Callable[[float], float]]] = {
    "poisson": (1.0, lambda x: 1 - math.exp(-x)),
    "gamma": (0.5, erlang),
    "weibull": (2.0, weibull),
}
"""CV of the gaps, and P(gap ≤ x) of gaps with mean 1."""

SHARE_UP_TO: dict[str, Callable[[float], float]] = {
    "ramp": lambda t: (10 * t + 30 * t * t) / 40,
    "steps": lambda t: t / 2 if t <= 0.5 else 0.25 + (t - 0.5) * 1.5,
    "diurnal": lambda t: int(2 * t) / 2 + wave(4 * (t - int(2 * t) / 2)) / 4,
    "bursts": lambda t: int(2 * t) / 2 + cycle(2 * t - int(2 * t)) / 2,
}
"""Of the arrivals of a stage, up to a share of its time."""


def due_s(fleets: Fleets, name: str, workers: int, seed: int = 1) -> list[float]:
    return [(ticket.due_ns or 0) / 1e9 for ticket in fleets[workers, seed][1 + list(ARRIVALS).index(name)]]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", ARRIVALS)
def test_a_fleet_keeps_the_rate_and_the_times_of_one_worker(fleets: Fleets, name: str, workers: int) -> None:
    found = due_s(fleets, name, workers)
    assert len(found) / LONG_S == pytest.approx(RATE_PER_S, rel=0.1)
    assert found == due_s(fleets, name, 1)
    assert (found == due_s(fleets, name, 1, seed=2)) is (name == "constant")


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", GAPS)
def test_gaps_of_a_fleet_are_of_the_asked_kind(fleets: Fleets, name: str, workers: int) -> None:
    cv, cdf = GAPS[name]
    gaps = [(after - before) * RATE_PER_S for before, after in pairwise(due_s(fleets, name, workers))]
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.12)
    assert distance(gaps, cdf) < critical_distance(len(gaps), alpha=0.001)


@pytest.mark.parametrize("workers", WORKERS)
def test_constant_gaps_of_a_fleet_are_equal(fleets: Fleets, workers: int) -> None:
    assert due_s(fleets, "constant", workers) == pytest.approx([k / RATE_PER_S for k in range(4_000)], abs=1e-8)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", SHARE_UP_TO)
def test_arrivals_of_a_fleet_are_spread_as_the_rate_is(fleets: Fleets, name: str, workers: int) -> None:
    found = [at_s / LONG_S for at_s in due_s(fleets, name, workers)]
    assert distance(found, SHARE_UP_TO[name]) < critical_distance(len(found), alpha=0.001)
