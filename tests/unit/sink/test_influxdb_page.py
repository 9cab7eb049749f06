from pathlib import Path

import pytest

from tokswarm.errors import ConfigError
from tokswarm.measure.schema import MEASUREMENTS
from tokswarm.sink.line_protocol import TEXT_LIMIT
from tokswarm.sink.schema_table import put_into, schema_markdown
from tokswarm.sink.settings import InfluxSettings

PAGE = Path(__file__).parents[3] / "docs" / "influxdb.md"


def test_the_page_shows_the_schema_of_now() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert put_into(page) == page, "run: python -m tokswarm.sink.schema_table docs/influxdb.md"


def test_the_tables_name_every_measurement_tag_and_field() -> None:
    text = schema_markdown()
    for measurement in MEASUREMENTS:
        assert f"### {measurement.name}\n" in text
        for field in measurement.fields:
            if "_le_" not in field.name:
                assert f"| `{field.name}` | {field.type.value} |" in text
    assert "| `ttft_le_1ms` … `ttft_le_60000ms`, `ttft_le_inf` | integer |" in text


def test_the_page_names_every_variable_that_is_read() -> None:
    read: set[str] = set()

    class Environ(dict[str, str]):
        def get(self, name: str, default: str = "") -> str:  # type: ignore[override]
            read.add(name)
            return "http://db" if name.endswith("_URL") else default

    InfluxSettings.from_environ(Environ())
    page = PAGE.read_text(encoding="utf-8")
    assert len(read) == 5
    for name in read:
        assert f"| `{name}` |" in page
    assert f"texts beyond {TEXT_LIMIT} characters" in page


def test_a_page_without_marks_is_an_error() -> None:
    with pytest.raises(ConfigError, match="lacks the line"):
        put_into("# nothing here\n")
