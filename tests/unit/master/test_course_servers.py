"""A run's servers and cliffs: what is read while it sends reaches its journal, and reading ends with it."""

from pathlib import Path

import pytest
from virtual_fleet import EPOCH_UNIX_S, Stand, VirtualFleet, stage

from tokswarm.errors import FleetError
from tokswarm.measure.server_second import ServerSecond


def test_what_servers_say_while_it_sends_goes_into_the_journal_and_then_nothing_is_read(tmp_path: Path) -> None:
    fleet = VirtualFleet("a")
    stand = Stand(tmp_path, fleet, stage("s1"))
    said = ServerSecond(unix_ns=EPOCH_UNIX_S * 10**9, target="t", replica="h:1", up=1, waiting=3)

    def tell() -> None:
        assert stand.servers.tell is not None
        assert stand.servers.trouble is not None
        stand.servers.tell([said])
        stand.servers.trouble("the metrics of h:1 cannot be read", "refused")

    fleet.clock.at(2.0, tell)
    info = stand.run()
    assert stand.journal.server_rows == [said]
    assert stand.journal.titles("server-metrics") == ["the metrics of h:1 cannot be read"]
    assert "the metrics of h:1 cannot be read: refused" in info.notes
    assert (info.state, stand.servers.stopped) == ("finished", 1)


def test_reading_ends_with_a_run_that_fails(tmp_path: Path) -> None:
    fleet = VirtualFleet("a")
    stand = Stand(tmp_path, fleet, stage("s1"))
    fleet.clock.at(2.0, fleet.members["a"].die)
    with pytest.raises(FleetError):
        stand.run()
    stand.course.stop_by_error("every worker was lost")
    stand.course.wind_down()
    assert stand.servers.stopped >= 1


def test_errors_in_the_middle_of_a_stage_are_marked_while_it_goes_on_and_end_with_them(tmp_path: Path) -> None:
    fleet = VirtualFleet("a")
    stand = Stand(tmp_path, fleet, stage("s1", duration_s=20.0))
    worker = fleet.members["a"]
    fleet.clock.at(8.0, lambda: setattr(worker, "finished", {"http_error": 5}))
    fleet.clock.at(14.0, lambda: setattr(worker, "finished", {"ok": 1}))
    stand.run()
    begun, ended = (event for event in stand.journal.events if event.kind == "cliff")
    assert (begun.title, begun.end_unix_ns, begun.unix_ns) == ("cliff: errors", None, ended.unix_ns)
    assert begun.unix_ns / 1e9 - EPOCH_UNIX_S == pytest.approx(7, abs=1)
    assert ended.end_unix_ns is not None
    assert (ended.end_unix_ns - ended.unix_ns) / 1e9 == pytest.approx(6, abs=1)
