"""The command and its page."""

from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from tokswarm.errors import ConfigError
from tokswarm.simulator import command as module
from tokswarm.simulator.command import command
from tokswarm.simulator.deployment import deployment_presets, load_deployment, single
from tokswarm.simulator.driver import Driver
from tokswarm.simulator.engine import Engine
from tokswarm.simulator.fault_gate import FaultShare
from tokswarm.simulator.metrics import ServerMetrics
from tokswarm.simulator.profile import PRESETS, Profile
from tokswarm.simulator.server import SimSettings
from tokswarm.simulator.truth import RequestTruth

PAGE = Path(__file__).parents[3] / "docs" / "simulator.md"


def test_help_names_every_preset_and_shows_examples() -> None:
    text = CliRunner().invoke(command(), ["--help"]).output
    for name in (*PRESETS, *deployment_presets()):
        assert f"  {name} " in text
    assert "tokswarm sim --port 0 --profile tight" in text
    assert "curl -N http://127.0.0.1:8100/v1/chat/completions" in text


def test_options_become_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[SimSettings] = []
    monkeypatch.setattr(module, "run", ran.append)
    arguments = ["--host", "::1", "--port", "0", "--profile", "tight", "--model", "m", "--api-key", "env:K"]
    arguments += ["--seed", "9", "--port-file"]
    result = CliRunner().invoke(command(), [*arguments, str(tmp_path / "port")])
    assert result.exit_code == 0, result.output
    assert ran == [
        SimSettings(
            host="::1",
            port=0,
            deployment=single(PRESETS["tight"], "m"),
            api_key="env:K",
            seed=9,
            port_file=tmp_path / "port",
        )
    ]


def test_limits_and_faults_of_the_command_line_come_on_top_of_the_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[SimSettings] = []
    monkeypatch.setattr(module, "run", ran.append)
    arguments = [
        "--profile",
        "gateway",
        "--tokens-per-minute",
        "5000",
        "--fault",
        "reset=5",
        "0.25",
        "--fault",
        "cr",
        "1",
    ]
    result = CliRunner().invoke(command(), arguments[:-3])
    assert result.exit_code == 0, result.output
    deployment, shipped = ran[0].deployment, load_deployment("gateway")
    first, second = deployment.models[0].providers
    assert first.limits == msgspec.structs.replace(shipped.models[0].providers[0].limits, tokens_per_minute=5_000.0)
    assert second == shipped.models[0].providers[1]
    assert deployment.faults == (FaultShare(fault="reset=5", share=0.25),)
    result = CliRunner().invoke(command(), arguments)
    assert [one.fault for one in ran[1].deployment.faults] == ["reset=5", "cr"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--requests-per-minute", "0"], "requests_per_minute is 0, expected > 0"),
        (["--fault", "rest", "0.1"], "there is no fault 'rest'"),
        (["--fault", "reset", "2"], "expected 0 to 1"),
    ],
)
def test_limits_and_faults_that_cannot_be_are_refused(arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CliRunner().invoke(command(), arguments, catch_exceptions=False)


def test_page_explains_every_parameter_preset_option_and_field() -> None:
    page = PAGE.read_text(encoding="utf-8")
    names = [name for name in Profile.__struct_fields__ if name not in ("name", "description")]
    names += [*PRESETS, *RequestTruth.__struct_fields__]
    names += [
        option for parameter in command().params for option in parameter.opts if isinstance(parameter, click.Option)
    ]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_page_gives_the_defaults_of_every_parameter() -> None:
    rows = [line.split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    told = {cells[1].strip(" `"): cells[2].strip() for cells in rows}
    for name in Profile.__struct_fields__:
        if name not in ("name", "description"):
            default = getattr(Profile(), name)
            said = told[name].strip("`").replace(",", "")
            is_number = isinstance(default, int | float) and not isinstance(default, bool)
            assert (float(said) == default) if is_number else (said == str(default).lower()), name


def test_page_lists_every_metric() -> None:
    page = PAGE.read_text(encoding="utf-8")
    driver = Driver(Engine(Profile()), lambda: 0, lambda step: None)
    names = [family.name for family in ServerMetrics(driver, "tiny").collect()]
    assert [name for name in names if f"`{name}" not in page] == []
