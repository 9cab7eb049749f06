"""What docs/simulator.md says of the fit to a real server is what a fit to the figures measured there gives."""

from pathlib import Path

import msgspec
import pytest

from tokswarm.insight.figures import number
from tokswarm.predict.fit import STEP_TIMES, Compared, alternate, compare, fit_profile
from tokswarm.predict.measured import MeasuredRun, decode_measured
from tokswarm.simulator.profile import Profile, load_profile

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "vllm-cpu-sweeps"
PAGE = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
SHIPPED = load_profile(str(ROOT / "docs" / "profiles" / "vllm-cpu-tiny.yaml"))
WITHIN = 0.15
"""What the page claims of every figure of every load that was held out."""


def measured(name: str) -> MeasuredRun:
    return decode_measured((DATA / f"{name}.json").read_bytes())


FIRST = measured("first")


@pytest.fixture(scope="module")
def shipped() -> list[Compared]:
    return compare(FIRST, SHIPPED, alternate(FIRST))


def beyond_the_claim(loads: list[Compared]) -> list[str]:
    """The figures of held-out loads that are further off than the page says."""
    names = ("tok/s", "TTFT", "ITL", "queue wait")
    return [
        f"{name} at {each.load}: {error:+.1%}"
        for each in loads
        if not each.fitted
        for name, error in zip(names, each.errors, strict=True)
        if error is None or abs(error) > WITHIN
    ]


def astray() -> Profile:
    """The profile that ships with its step times a third off, some too long and some too short."""
    factors = (1.3, 0.7, 1.3, 0.7, 1.3)
    changed = {name: getattr(SHIPPED, name) * factor for name, factor in zip(STEP_TIMES, factors, strict=True)}
    return msgspec.structs.replace(SHIPPED, **changed)


def test_a_fit_to_every_other_load_predicts_the_others_as_well_as_the_page_says() -> None:
    seen = alternate(FIRST)
    assert seen == ["1", "4", "12", "24"]
    assert beyond_the_claim(compare(FIRST, astray(), seen)) != []
    found = fit_profile(FIRST, astray(), seen=seen, name="again")
    assert beyond_the_claim(compare(FIRST, found, seen)) == []


def test_the_profile_that_ships_is_as_good(shipped: list[Compared]) -> None:
    assert [each.load for each in shipped if not each.fitted] == ["2", "8", "16", "32"]
    assert beyond_the_claim(shipped) == []


def test_the_page_has_the_figures_of_every_load(shipped: list[Compared]) -> None:
    for each in shipped:
        assert row(each) in PAGE


def row(compared: Compared) -> str:
    """A line of the table on the page, up to its last columns, which are measured by hand."""
    cells = [
        f"{number(was)} → {number(said)}, {error:+.0%}".replace("%", " %")
        for was, said, error in zip(compared.measured.values, compared.predicted.values, compared.errors, strict=True)
        if error is not None
    ]
    return f"| {compared.load} | {'fitted' if compared.fitted else 'held out'} | {' | '.join(cells)} |"


def test_a_second_run_gave_the_throughput_and_waits_the_page_says_but_for_the_lowest_loads() -> None:
    for each in compare(measured("second"), SHIPPED, []):
        tok_per_s, _, _, wait = each.errors
        assert wait is not None
        assert abs(wait) < 0.11, each.load
        assert tok_per_s is not None
        assert each.load in ("1", "2") or abs(tok_per_s) < 0.1, each.load
