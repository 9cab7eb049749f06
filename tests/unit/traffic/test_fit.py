"""A mix that is fitted to requests drawn from a known one finds that one again, and says how well."""

import random
from itertools import islice
from math import exp

import pytest

from tokswarm.traffic.arrivals import offsets_ns
from tokswarm.traffic.distribution import Sampler
from tokswarm.traffic.fit import fit_arrivals, fit_lengths, fit_mix, lengths_distance, sample_distance
from tokswarm.traffic.mix import (
    Arrivals,
    Constant,
    Distribution,
    Exponential,
    Lognormal,
    Normal,
    Poisson,
    SharedPrefix,
    Uniform,
)
from tokswarm.traffic.plan import OpenLoop
from tokswarm.traffic.trace import TraceRow


def drawn(distribution: Distribution, count: int = 6000, seed: int = 1) -> list[int]:
    sampler, rng = Sampler(distribution), random.Random(seed)
    return [sampler.draw(rng) for _ in range(count)]


@pytest.mark.parametrize(
    ("kind", "distribution"),
    [
        pytest.param("fixed", Distribution(fixed=77), id="fixed"),
        pytest.param("lognormal", Distribution(lognormal=Lognormal(p50=1020, p99=4142)), id="lognormal"),
        pytest.param("normal", Distribution(normal=Normal(mean=700, sd=80)), id="normal"),
        pytest.param("exponential", Distribution(exponential=Exponential(mean=300)), id="exponential"),
        pytest.param("empirical", Distribution(choice={100: 1, 4000: 1}), id="two-lengths"),
        pytest.param("empirical", Distribution(uniform=Uniform(low=10, high=900)), id="uniform"),
    ],
)
def test_lengths_are_fitted_by_their_own_kind(kind: str, distribution: Distribution) -> None:
    fitted, fit = fit_lengths(drawn(distribution), "prompt")
    assert fit.kind == kind
    assert fit.distance < 0.03
    assert lengths_distance(drawn(distribution, seed=2), fitted) < 0.045


def test_a_lognormal_finds_its_quantiles() -> None:
    fitted, _ = fit_lengths(drawn(Distribution(lognormal=Lognormal(p50=1020, p99=4142))), "prompt")
    assert fitted.lognormal is not None
    assert fitted.lognormal.p50 == pytest.approx(1020, rel=0.03)
    assert fitted.lognormal.p99 == pytest.approx(4142, rel=0.05)


def test_a_bad_fit_has_a_large_distance() -> None:
    assert lengths_distance([1] * 50 + [1000] * 50, Distribution(fixed=1)) == pytest.approx(0.5)
    assert sample_distance([1, 2, 3, 4], [3, 4, 5, 6]) == 0.5


@pytest.mark.parametrize(
    ("load", "kind"),
    [
        pytest.param(OpenLoop(20, "poisson"), "poisson", id="poisson"),
        pytest.param(OpenLoop(20, "constant"), "constant", id="constant"),
        pytest.param(OpenLoop(20, "gamma", cv=3.0), "gamma", id="gamma"),
        pytest.param(OpenLoop(20, "weibull", cv=3.0), "weibull", id="weibull"),
        pytest.param(OpenLoop(20, "gamma", cv=0.3), "gamma", id="even"),
    ],
)
def test_arrivals_are_fitted_by_their_own_kind(load: OpenLoop, kind: str) -> None:
    arrivals, fit = fit_arrivals(list(islice(offsets_ns(load, random.Random(5)), 8000)))
    assert fit.kind == kind
    assert fit.distance < 0.05 or kind == "constant"
    varied = arrivals.gamma or arrivals.weibull
    if varied is not None:
        assert varied.cv == pytest.approx(load.cv, rel=0.1)
    else:
        assert arrivals in (Arrivals(poisson=Poisson()), Arrivals(constant=Constant()))


def rows(count: int) -> list[TraceRow]:
    """Two kinds of requests, one short in and long out; the other shares three first texts of two blocks."""
    rng = random.Random(3)
    made = []
    for k in range(count):
        if k % 4 == 0:
            made.append(TraceRow(offset_ns=k * 10**8, prompt_tokens=rng.randint(20, 40), output_tokens=900))
        else:
            group = rng.randrange(3)
            made.append(
                TraceRow(
                    offset_ns=k * 10**8,
                    prompt_tokens=int(1536 * exp(rng.random())),
                    output_tokens=10,
                    blocks=(2 * group, 2 * group + 1),
                )
            )
    return made


def test_classes_are_told_apart_by_length_with_their_weights_and_prefixes() -> None:
    fitted = fit_mix(rows(2000), class_names=None, classes=2, block_tokens=512)
    large, small = fitted.classes
    assert (large.name, large.weight, small.name, small.weight) == ("class-1", 1500, "class-2", 500)
    assert large.output.max_tokens == Distribution(fixed=10)
    assert small.output.max_tokens == Distribution(fixed=900)
    assert large.prompt.shared_prefix == SharedPrefix(groups=3, tokens=1022)
    assert small.prompt.shared_prefix is None
    assert fitted.rate_per_s == pytest.approx(10)
    assert fitted.arrivals == Arrivals(constant=Constant())
    assert fitted.known_ratio == pytest.approx(fitted.fitted_known_ratio, abs=0.02)
    assert fitted.known_ratio > 0.3


def test_classes_that_were_named_are_kept() -> None:
    names = ["a" if k % 10 else "b" for k in range(200)]
    fitted = fit_mix(rows(200), class_names=names, classes=1, block_tokens=512)
    assert [(one.name, one.weight) for one in fitted.classes] == [("a", 180), ("b", 20)]
    assert [fit.what for fit in fitted.fits][:2] == ["a: prompt tokens", "a: output tokens"]
