"""What all tests share: golden files beside the test that reads them, in `goldens/`."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens", action="store_true", help="rewrite golden files; every test that does so fails, to be read"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with a golden file; `--update-goldens` rewrites the file and fails."""
    update = request.config.getoption("--update-goldens")

    def compare(name: str, text: str) -> None:
        path: Path = request.path.parent / "goldens" / name
        if update:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            pytest.fail(f"{path} was rewritten: read the difference, then run without --update-goldens")
        assert text == path.read_text(encoding="utf-8"), f"differs from {path}; --update-goldens rewrites it"

    return compare
