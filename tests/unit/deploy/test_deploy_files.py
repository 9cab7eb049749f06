import configparser
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tokswarm.cli import build
from tokswarm.grafana.data_source import DATA_SOURCE_NAME, DATA_SOURCE_UID, DataSource
from tokswarm.resources import resource_dir
from tokswarm.simulator.command import command as simulator_command

ROOT = Path(__file__).parents[3]
DEPLOY = resource_dir("deploy")
WORKERS = resource_dir("workers")
PROVISIONING = resource_dir("dashboards") / "provisioning"
UNITS = [WORKERS / "tokswarm-worker.service", WORKERS / "tokswarm-worker@.service", DEPLOY / "tokswarm-master.service"]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = read(DEPLOY / "compose.yaml")["services"]
    return loaded


def test_the_wheel_carries_these_folders_file_by_file_and_no_filled_in_copy() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    carried: dict[str, str] = wheel["wheel"]["force-include"]
    for folder in (DEPLOY, WORKERS):
        listed = {name for name in carried if name.startswith(f"{folder.name}/")}
        there = {f"{folder.name}/{path.name}" for path in folder.iterdir()}
        kept_out = {"deploy/.gitignore", "deploy/.env", "workers/worker.env"}
        assert listed == there - kept_out
        assert folder.name not in carried
    assert all(target == f"tokswarm/data/{source}" for source, target in carried.items())


def test_the_whole_product_is_in_compose(services: dict[str, dict[str, Any]]) -> None:
    assert set(services) == {"influxdb", "grafana", "simulator", "master", "worker"}


def test_every_published_port_is_bound_to_loopback(services: dict[str, dict[str, Any]]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) == 4
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in ports), ports


def test_images_have_a_version(services: dict[str, dict[str, Any]]) -> None:
    images = {service["image"] for service in services.values()}
    assert all(re.search(r":[\w.]+$", image) and not image.endswith(":latest") for image in images), images
    assert services["influxdb"]["image"] == "influxdb:2.7"


def test_everything_that_serves_is_watched(services: dict[str, dict[str, Any]]) -> None:
    assert {name for name, service in services.items() if "healthcheck" in service} == set(services) - {"worker"}
    waited_for = {name for service in services.values() for name in service.get("depends_on", {})}
    assert all("healthcheck" in services[name] for name in waited_for)


def test_volumes_are_declared_or_lie_beside_the_file(services: dict[str, dict[str, Any]]) -> None:
    declared = set(read(DEPLOY / "compose.yaml")["volumes"])
    for service in services.values():
        for volume in service.get("volumes", []):
            source, target, *mode = volume.split(":")
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
                assert mode == ["ro"], volume
            else:
                assert source in declared
            assert target.startswith("/")


def test_no_secret_is_written_down_and_every_setting_is_explained() -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    example = dict(
        line.split("=", 1) for line in (DEPLOY / ".env.example").read_text().splitlines() if re.match(r"\w+=", line)
    )
    assert set(re.findall(r"\$\{(\w+)", text)) == set(example)
    secrets = {name for name in example if re.search("PASSWORD|TOKEN|KEY", name)}
    assert {example[name] for name in secrets} == {""}
    for name in secrets - {"OPENAI_API_KEY"}:
        assert re.findall(rf"\$\{{{name}([^}}]*)", text), name
        assert all(rest.startswith(":?") for rest in re.findall(rf"\$\{{{name}([^}}]*)", text)), f"{name} may be empty"


def test_the_image_is_built_from_what_the_package_needs(services: dict[str, dict[str, Any]]) -> None:
    build = services["worker"]["build"]
    root = (DEPLOY / build["context"]).resolve()
    containerfile = root / build["dockerfile"]
    assert containerfile == WORKERS / "Containerfile"
    copied = {
        name
        for line in containerfile.read_text().splitlines()
        if line.startswith("COPY ")
        for name in line.split()[1:-1]
    }
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "src", "locustfiles", "dashboards", "deploy", "workers"}
    kept = {
        line[1:] for line in (WORKERS / "Containerfile.dockerignore").read_text().splitlines() if line.startswith("!")
    }
    assert copied == kept
    assert "USER tokswarm" in containerfile.read_text()


def test_workers_write_where_grafana_reads(services: dict[str, dict[str, Any]]) -> None:
    worker, grafana = services["worker"]["environment"], services["grafana"]["environment"]
    for name in ("INFLUXDB_V2_URL", "INFLUXDB_V2_BUCKET", "INFLUXDB_V2_TOKEN"):
        assert worker[name] == grafana[name] == services["master"]["environment"][name]
    assert services["influxdb"]["environment"]["DOCKER_INFLUXDB_INIT_ADMIN_TOKEN"] == worker["INFLUXDB_V2_TOKEN"]


def test_provisioned_and_published_data_sources_are_the_same() -> None:
    [source] = read(PROVISIONING / "datasources" / "tokswarm.yaml")["datasources"]
    settings = DataSource(url="${INFLUXDB_V2_URL}", database="${INFLUXDB_V2_BUCKET}", token="${INFLUXDB_V2_TOKEN}")
    assert {**source, "editable": None} == {**settings.payload(), "editable": None}
    assert (source["uid"], source["name"]) == (DATA_SOURCE_UID, DATA_SOURCE_NAME)
    assert "isDefault" not in source  # two defaults in one organisation keep Grafana from starting


def test_boards_are_provisioned_from_where_compose_mounts_them(services: dict[str, dict[str, Any]]) -> None:
    [provider] = read(PROVISIONING / "dashboards" / "tokswarm.yaml")["providers"]
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    assert mounts["../dashboards"] == provider["options"]["path"]
    assert mounts["../dashboards/provisioning"] == "/etc/grafana/provisioning"
    assert (provider["type"], provider["folderUid"]) == ("file", "tokswarm")


def unit_options(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if re.match(r"[A-Z]\w+=", line):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_restarts_for_ever_and_gives_nothing_away(path: Path) -> None:
    options = unit_options(path)
    assert options["Restart"] == ["always"]
    assert options["StartLimitIntervalSec"] == ["0"]
    assert options["LimitNOFILE"] == ["65536"]
    assert options["User"] == ["tokswarm"]
    for name in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "ProtectKernelTunables"):
        assert options[name] == ["yes"], name
    assert options["ProtectSystem"] == ["strict"]
    assert options["StateDirectory"] == ["tokswarm"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_understands_a_unit(path: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    text = path.read_text(encoding="utf-8").replace("/opt/tokswarm/bin/tokswarm", "/bin/true")
    copy = tmp_path / path.name.replace("@.", "@1.")
    copy.write_text(text, encoding="utf-8")
    outcome = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, timeout=30, check=False)
    assert [line for line in outcome.stderr.splitlines() if copy.name in line] == []


def test_the_two_worker_units_differ_in_the_name_only() -> None:
    one, many = (unit_options(path) for path in UNITS[:2])
    assert many.pop("ExecStart") == [f"{one.pop('ExecStart')[0]} --name %H-%i"]
    assert many.pop("Description") == [f"{one.pop('Description')[0]} %i"]
    assert one == many


def test_every_kernel_setting_has_its_reason() -> None:
    lines = (WORKERS / "sysctl.d" / "90-tokswarm.conf").read_text(encoding="utf-8").splitlines()
    settings = [place for place, line in enumerate(lines) if line and not line.startswith("#")]
    assert len(settings) == 3
    for place in settings:
        assert re.fullmatch(r"-?[a-z0-9_.]+ = [\d ]+", lines[place])
        assert lines[place - 1].startswith("# "), lines[place]


def commands() -> list[list[str]]:
    """Every command line of ours: in Compose, and in the units."""
    composed = read(DEPLOY / "compose.yaml")["services"]
    lines = [composed[name]["command"] for name in ("simulator", "master", "worker")]
    for path in UNITS:
        lines.append(unit_options(path)["ExecStart"][0].split()[1:])
    return lines


def parse(command: click.Command, arguments: list[str]) -> dict[str, Any]:
    """What the command would be called with; UsageError for an option it does not have."""
    return command.make_context(command.name, list(arguments)).params


def test_the_simulators_command_line_is_one_it_takes() -> None:
    assert parse(simulator_command(), commands()[0][1:])["port"] == 8100


def product_commands() -> dict[str, click.Command]:
    """The commands of the product, by name."""
    return dict(build().commands)


@pytest.mark.parametrize("line", commands(), ids=" ".join)
def test_a_command_line_is_one_that_tokswarm_takes(line: list[str], tmp_path: Path) -> None:
    name, *arguments = line
    settings = tmp_path / "worker.yaml"
    settings.write_text((WORKERS / "worker.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    arguments = [str(settings) if part == "/etc/tokswarm/worker.yaml" else part for part in arguments]
    parse(product_commands()[name], arguments)


def test_the_settings_of_a_worker_are_options_of_its_command() -> None:
    keys = set(read(WORKERS / "worker.yaml")) | set(
        re.findall(r"^# (\w+): \S+$", (WORKERS / "worker.yaml").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert keys == {"join", "unencrypted", "master_host", "master_port", "data_dir", "name"}


def test_ini_files_parse() -> None:
    for path in UNITS:
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(path.read_text(encoding="utf-8"))
        assert parser.sections() == ["Unit", "Service", "Install"], path
