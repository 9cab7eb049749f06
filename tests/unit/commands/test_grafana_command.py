"""`tokswarm grafana link` finds a run where `tokswarm runs` does."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tokswarm.commands.grafana import grafana
from tokswarm.errors import ConfigError, UnknownRunError
from tokswarm.grafana.shipped import shipped_boards
from tokswarm.master.run import RunInfo, RunState
from tokswarm.master.service import STORE_FILE
from tokswarm.master.store import Store

RUN = "20261202-101500-demo-1a2b"
URL = "http://127.0.0.1:3000"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    store = Store(tmp_path / STORE_FILE)
    store.open()
    for run_id, state, ended in ((RUN, RunState.FINISHED, 1_060_000_000_000), ("going-on", RunState.RUNNING, None)):
        store.add_run(
            RunInfo(
                run_id=run_id,
                state=state,
                mix_name="demo",
                base_url="http://x/v1",
                model="m",
                started_unix_ns=1_000_000_000_000,
                ended_unix_ns=ended,
            ),
            "",
        )
    store.close()
    (tmp_path / "runs" / RUN / "logs").mkdir(parents=True)
    return tmp_path


def link(*arguments: object) -> Result:
    return CliRunner().invoke(grafana, ["link", *map(str, arguments)], env={"GRAFANA_URL": None})


def test_each_board_gets_a_line_with_its_title_and_address(data_dir: Path) -> None:
    lines = link(RUN, "--data-dir", data_dir, "--url", URL).output.splitlines()
    assert len(lines) == len(shipped_boards())
    assert f"tokswarm: launch overview: {URL}/d/tokswarm-overview?from=995000&to=1075000&var-run={RUN}" in lines


def test_the_folder_of_a_run_names_it_as_well(data_dir: Path) -> None:
    by_id = link(RUN, "--data-dir", data_dir, "--url", URL).output
    assert link(data_dir / "runs" / RUN, "--url", URL).output == by_id


def test_a_run_under_way_is_linked_up_to_now_with_the_data_source(data_dir: Path) -> None:
    output = link("going-on", "--data-dir", data_dir, "--url", URL, "--datasource-uid", "mine").output
    assert output.count("to=now") == output.count("var-ds=mine") == len(shipped_boards())


def test_a_run_that_there_is_not_is_said(data_dir: Path, tmp_path: Path) -> None:
    assert isinstance(link("nope", "--data-dir", data_dir, "--url", URL).exception, UnknownRunError)
    assert isinstance(link(RUN, "--data-dir", tmp_path / "empty", "--url", URL).exception, UnknownRunError)


def test_without_an_address_there_is_no_link(data_dir: Path) -> None:
    assert isinstance(link(RUN, "--data-dir", data_dir).exception, ConfigError)
