"""Logs of gateways are read by the columns that are named, in the order of time."""

from pathlib import Path

import pytest

from tokswarm.errors import ConfigError
from tokswarm.traffic.gateway_log import GatewayColumns, read_gateway_log
from tokswarm.traffic.trace import TraceRow

COLUMNS = GatewayColumns("at", "in", "out", "route")
HEAD = "id,at,in,out,route\n"


def written(folder: Path, text: str) -> Path:
    (folder / "log.csv").write_text(text, encoding="utf-8")
    return folder / "log.csv"


def test_rows_come_in_the_order_of_time_with_their_classes(tmp_path: Path) -> None:
    text = (
        HEAD + "1,2026-01-02T03:04:05.5Z,9,3,/v1/chat\n2,2026-01-02 03:04:05,7,2,\n3,2026-01-02T04:04:07+01:00,1,1,x\n"
    )
    log = read_gateway_log(written(tmp_path, text), COLUMNS)
    assert log.rows == [
        TraceRow(offset_ns=0, prompt_tokens=7, output_tokens=2),
        TraceRow(offset_ns=500_000_000, prompt_tokens=9, output_tokens=3),
        TraceRow(offset_ns=2_000_000_000, prompt_tokens=1, output_tokens=1),
    ]
    assert log.class_names == ["none", "v1-chat", "x"]


def test_seconds_keep_all_their_digits(tmp_path: Path) -> None:
    text = "at,in,out\n1700000000.000000001,1,1\n1700000001.25,1,1\n"
    log = read_gateway_log(written(tmp_path, text), COLUMNS._replace(class_name=None))
    assert [row.offset_ns for row in log.rows] == [0, 1_249_999_999]
    assert log.class_names is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", ":1: there is no column 'at'", id="empty"),
        pytest.param("at,in,out\n", ":1: there is no column 'route'", id="column"),
        pytest.param(HEAD, ": the log has no rows", id="no-rows"),
        pytest.param(HEAD + "1,soon,1,1,a\n", ":2: the time is neither seconds nor a date and time", id="time"),
        pytest.param(HEAD + "1,5,1,1,a\n1,5,0,1,a\n", ":3: in is not a whole number of tokens", id="tokens"),
        pytest.param(HEAD + "1,5,1\n", ":2: out is not a whole number of tokens", id="short-row"),
        pytest.param(HEAD + "".join(f"1,5,1,1,c{k}\n" for k in range(51)), ": 51 classes are too many", id="classes"),
    ],
)
def test_what_makes_no_sense_is_refused_with_file_and_line(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_gateway_log(path, COLUMNS)
    assert str(caught.value).startswith(f"{path}{words}")
