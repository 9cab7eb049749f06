"""docs/api.md has every route, and no other."""

import re
from pathlib import Path

from tokswarm.web.api import FILES, ROUTES
from tokswarm.web.problem import STATUS

DOC = (Path(__file__).parents[3] / "docs" / "api.md").read_text()


def test_the_table_of_routes_is_the_table_the_server_uses() -> None:
    written = set(re.findall(r"^\| `(GET|POST) (/\S+)` \|", DOC, re.MULTILINE))

    served = {
        (route.method, route.path.replace("<run_id>", "{id}").replace("<", "{").replace(">", "}")) for route in ROUTES
    }
    assert written == served


def test_every_file_and_status_is_told() -> None:
    assert [name for name in FILES if f"`{name}`" not in DOC] == []
    assert [status for _, status in STATUS if status != 500 and f" {status}" not in DOC] == []
