"""Arrows between packages point inwards, and importing does nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "tokswarm"

ALLOWED = {
    "traffic": {"traffic"},
    "measure": {"measure"},
    "wire": {"wire", "measure", "traffic"},
    "sink": {"sink", "measure"},
    "scrape": {"scrape", "measure"},
    "insight": {"insight", "measure", "traffic"},
    "simulator": {"simulator"},
    "predict": {"predict", "simulator", "insight", "measure", "traffic"},
    "worker": {"worker", "wire", "sink", "measure", "traffic"},
    "master": {"master", "worker", "wire", "sink", "scrape", "measure", "traffic", "insight", "web"},
    "web": {"web", "master", "measure", "traffic", "insight"},
    "grafana": {"grafana", "measure", "sink"},
    "commands": None,
    "testing": None,
}
"""Package to the packages it may import; None: the rim, which may import all. Top-level modules are open to all."""

PURE = ("traffic", "measure", "scrape", "insight", "predict")
FORBIDDEN_IN_PURE = {"gevent", "locust", "socket", "ssl", "requests", "threading", "subprocess"}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def packages() -> list[str]:
    return sorted(path.name for path in SOURCE.iterdir() if path.is_dir() and (path / "__init__.py").is_file())


def test_every_package_has_its_rule() -> None:
    assert set(packages()) == set(ALLOWED)


@pytest.mark.parametrize("package", sorted(name for name, allowed in ALLOWED.items() if allowed is not None))
def test_a_package_imports_only_what_lies_inwards(package: str) -> None:
    allowed = ALLOWED[package]
    assert allowed is not None
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in sorted((SOURCE / package).rglob("*.py"))
        for name in sorted(imports(path))
        if name.startswith("tokswarm.") and (inner := name.split(".")[1]) in ALLOWED and inner not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PURE)
def test_pure_packages_know_no_sockets_and_no_locust(package: str) -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in sorted((SOURCE / package).rglob("*.py"))
        for name in sorted(imports(path))
        if name.split(".")[0] in FORBIDDEN_IN_PURE
    ]
    assert wrong == []


def test_importing_the_hot_path_patches_nothing_and_loads_no_heavy_library() -> None:
    program = (
        "import sys, socket; before = socket.socket\n"
        "import tokswarm.worker.engine\n"
        "assert socket.socket is before\n"
        "print(sorted({'locust', 'polars', 'flask', 'openai', 'plotly', 'requests', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
