"""The database schema as a page's tables, written from its declaration.

`python -m tokswarm.sink.schema_table docs/influxdb.md` puts them into the page, between its two marks.
"""

import re
import sys
from pathlib import Path

from tokswarm.errors import ConfigError
from tokswarm.measure.histogram import LE_BOUNDS_MS
from tokswarm.measure.schema import MEASUREMENTS, Field, Measurement

BEGIN = "<!-- schema: made by tokswarm.sink.schema_table -->"
END = "<!-- end of schema -->"

_BUCKET = re.compile(r"(\w+)_le_(\d+ms|inf)")


def schema_markdown() -> str:
    """One table per measurement; the buckets of a histogram are one row."""
    return "\n".join(_measurement(measurement) for measurement in MEASUREMENTS)


def put_into(page: str) -> str:
    """The page with the tables of now between its marks. ConfigError when the marks are not there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"the page lacks the line {BEGIN if not begin else END!r}")
    return f"{before}{BEGIN}\n\n{schema_markdown()}\n{END}{after}"


def _measurement(measurement: Measurement) -> str:
    tags = ", ".join(f"`{tag}`" for tag in measurement.tags)
    rows: list[str] = []
    for field in measurement.fields:
        row = _row(field)
        if row is not None:
            rows.append(row)
    head = "| field | type | unit | meaning |\n| --- | --- | --- | --- |"
    return f"### {measurement.name}\n\nOne point per {measurement.point}. Tags: {tags}.\n\n{head}\n" + "\n".join(
        [*rows, ""]
    )


def _row(field: Field) -> str | None:
    bucket = _BUCKET.fullmatch(field.name)
    name = f"`{field.name}`"
    if bucket is not None:
        if bucket[2] != f"{LE_BOUNDS_MS[0]}ms":
            return None
        name = f"`{bucket[1]}_le_{LE_BOUNDS_MS[0]}ms` … `{bucket[1]}_le_{LE_BOUNDS_MS[-1]}ms`, `{bucket[1]}_le_inf`"
    return f"| {name} | {field.type.value} | {field.unit} | {field.meaning} |"


def main() -> None:
    """Rewrite the pages named on the command line."""
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(put_into(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
