"""Run control, on a virtual fleet in virtual time and a real store."""

import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import msgspec
import pytest
from virtual_fleet import MemoryJournal, NoServers, VirtualFleet

from tokswarm.errors import BusyError, ConfigError, FleetError, PreflightError, TokswarmError, UnknownRunError
from tokswarm.insight.report import read_run_file
from tokswarm.master.control import ControlOptions, RunControl, new_run_id
from tokswarm.master.link import FleetWorker
from tokswarm.master.run import LoadRequest, RunInfo, RunState, StartRequest
from tokswarm.master.run import RunControl as Contract
from tokswarm.master.store import Store
from tokswarm.traffic.plan import TokenFit

MIX = """
name: chat
description: three of them
target: {base_url: "${BASE_URL:-http://127.0.0.1:1/v1}", model: tiny}
classes:
  - {name: chat, prompt: {tokens: {fixed: 10}}, output: {max_tokens: {fixed: 5}}}
load:
  - {concurrency: [1, 2], for: 3s, drain: 2s}
"""
TWO_TARGETS = re.sub(
    "target:.*?(?=classes)",
    "targets: [{name: old, base_url: 'http://a:1/v1'}, {name: new, base_url: 'http://b:2/v1', model: large}]\n",
    MIX,
    flags=re.DOTALL,
)


class StoringJournal(MemoryJournal):
    """Keeps and shows, as the real one does."""

    def __init__(self, run_id: str, store: Store, show: Callable[[Any], None]) -> None:
        super().__init__()
        self._run_id, self._store, self._show = run_id, store, show

    def seconds(self, rows: list[Any]) -> None:
        super().seconds(rows)
        self._store.add(self._run_id, rows)
        self._show(rows)

    def event(self, event: Any) -> None:
        super().event(event)
        self._store.add(self._run_id, [event])
        self._show([event])


class Desk:
    """A run control and everything around it."""

    def __init__(self, tmp_path: Path, *names: str) -> None:
        self.fleet = VirtualFleet(*names)
        self.mixes_dir = tmp_path / "mixes"
        self.mixes_dir.mkdir(exist_ok=True)
        (self.mixes_dir / "chat.yaml").write_text(MIX)
        self.store = Store(tmp_path / "store.sqlite")
        self.store.open()
        self.probed: list[str] = []
        self.preflight_error: TokswarmError | None = None
        self.context_tokens: int | None = None
        self.on_preflight: Callable[[], None] = lambda: None
        self.report_error: Exception | None = None
        self.control = RunControl(
            ControlOptions(data_dir=tmp_path, mixes_dir=self.mixes_dir),
            fleet=self.fleet,
            store=self.store,
            preflight=self._preflight,
            watch_servers=lambda mix: NoServers(),
            open_journal=lambda run_id, run_dir, show: StoringJournal(run_id, self.store, show),
            report=self._report,
            new_clock=lambda: self.fleet.clock,
            environ={"OPENAI_BASE_URL": "http://named:9/v1", "AWS_SECRET": "hunter2"},
        )
        self.fleet.receive = self.control.receive

    def _preflight(self, mix: Any, target: Any) -> Any:
        self.probed.append(target.base_url)
        if self.preflight_error is not None:
            raise self.preflight_error
        self.on_preflight()
        fit = TokenFit(tokens_per_word=1.0, overhead_tokens=0.0, source="assumed")
        return SimpleNamespace(
            model=target.model or "first",
            fit=fit,
            dropped_fields=["stream_options"],
            context_tokens=self.context_tokens,
            notes=["probed"],
        )

    def _report(self, run_dir: Path) -> dict[str, Any]:
        if self.report_error is not None:
            raise self.report_error
        summary = {"verdict": {"state": "valid", "reasons": []}, "bend": {"line": "bends at 2"}}
        (run_dir / "summary.json").write_bytes(msgspec.json.encode(summary))
        return summary

    def run_to_its_end(self, request: StartRequest | None = None) -> RunInfo:
        return self.control.wait(self.control.start(request or StartRequest(mix="chat")).run_id)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, "a", "b")
    yield desk
    desk.control.close(timeout_s=5)
    desk.store.close()


def test_a_run_by_the_name_of_its_mix_is_found_again_with_everything(desk: Desk) -> None:
    started = desk.control.start(StartRequest(mix="chat"))
    assert (started.state, started.workers, started.stages_total, started.planned_s) == ("preparing", 2, 2, 6.0)
    info = desk.control.wait(started.run_id)
    assert (info.state, info.verdict, info.bend, info.notes) == ("finished", "valid", "bends at 2", ("probed",))
    detail = desk.control.run(info.run_id)
    assert (detail.info, detail.mix_yaml) == (info, MIX)
    assert detail.summary == {"verdict": {"state": "valid", "reasons": []}, "bend": {"line": "bends at 2"}}
    assert [event.kind for event in detail.events] == ["run", "stage", "stage", "run", "verdict"]
    assert {second.class_name for second in desk.control.seconds(info.run_id)} == {"chat", "_all"}
    assert desk.control.runs() == [info]


def test_what_the_endpoint_refuses_and_cannot_hold_reaches_plan_and_notes(desk: Desk) -> None:
    desk.context_tokens = 15
    assert desk.run_to_its_end().notes == ("probed",)
    assert [worker.plan.dropped_fields for worker in desk.fleet.members.values()] == [["stream_options"]] * 2
    desk.context_tokens = 14
    assert desk.run_to_its_end().notes[1].startswith("chat: all of the requests do not fit")
    desk.context_tokens = 10
    with pytest.raises(PreflightError, match="chat ask for prompts or answers that do not fit"):
        desk.control.start(StartRequest(mix="chat"))


def test_run_control_keeps_its_contract(desk: Desk) -> None:
    contract: Contract = desk.control  # mypy compares; at run time every method must be there
    assert all(callable(getattr(contract, name)) for name in dir(Contract) if not name.startswith("_"))


def test_the_users_target_takes_the_place_of_the_mixes(desk: Desk) -> None:
    info = desk.run_to_its_end(StartRequest(mix_yaml=MIX, base_url="http://other:9/v1", model="large"))
    assert (info.base_url, info.model) == ("http://other:9/v1", "large")
    assert desk.probed == ["http://other:9/v1"]


def test_each_of_several_targets_is_probed_and_planned(desk: Desk) -> None:
    info = desk.run_to_its_end(StartRequest(mix_yaml=TWO_TARGETS))
    assert desk.probed == ["http://a:1/v1", "http://b:2/v1"]
    assert (info.base_url, info.model) == ("old http://a:1/v1, new http://b:2/v1", "first, large")
    assert info.notes[:2] == ("target old: probed", "target new: probed")
    run = read_run_file(Path(info.run_dir) / "run.json")
    assert (run.model, [endpoint.model for endpoint in run.further_endpoints]) == ("first", ["large"])


@pytest.mark.parametrize(
    ("request_", "message", "hint"),
    [
        pytest.param(StartRequest(), "a run needs one mix", "one of the two", id="none"),
        pytest.param(StartRequest(mix="chat", mix_yaml=MIX), "a run needs one mix", "one of the two", id="both"),
        pytest.param(StartRequest(mix="caht"), "no mix has the name 'caht'", "did you mean 'chat'", id="typo"),
        pytest.param(StartRequest(mix="../chat"), "no mix has the name '../chat'", "chat", id="path"),
        pytest.param(
            StartRequest(mix_yaml=TWO_TARGETS, model="large"),
            "the mix has several targets (old, new); neither address nor model",
            "change them in the mix",
            id="several-targets",
        ),
        pytest.param(
            StartRequest(mix="chat", base_url="ftp://h"),
            "target.base_url: expected an http:// or https:// address, came 'ftp://h'",
            "/v1",
            id="address",
        ),
        pytest.param(StartRequest(mix="chat", base_url="http://u:p@h/v1"), "holds a user or password", "", id="user"),
        pytest.param(StartRequest(mix="chat", base_url="http://h:port/v1"), "is no address", "", id="port"),
        pytest.param(StartRequest(mix="chat", base_url="http://h/v1?k=1"), "without ? or #", "", id="query"),
        pytest.param(StartRequest(mix_yaml=MIX + "nope: 1\n"), "nope", "", id="unknown-key"),
    ],
)
def test_a_start_that_cannot_be_is_refused_before_anything_is_probed(
    desk: Desk, request_: StartRequest, message: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        desk.control.start(request_)
    assert hint in caught.value.hint
    assert desk.probed == []
    assert desk.control.runs() == []


def test_a_submitted_mix_reads_the_endpoints_address_of_the_environment_and_nothing_else(desk: Desk) -> None:
    named = MIX.replace("${BASE_URL:-http://127.0.0.1:1/v1}", "${OPENAI_BASE_URL}")
    assert named != MIX
    assert desk.run_to_its_end(StartRequest(mix_yaml=named)).base_url == "http://named:9/v1"
    with pytest.raises(ConfigError, match="AWS_SECRET"):
        desk.control.start(StartRequest(mix_yaml=MIX.replace("three of them", "${AWS_SECRET}")))


def test_a_local_callers_own_environment_fills_its_mix(desk: Desk) -> None:
    info = desk.control.start(StartRequest(mix_yaml=MIX.replace("three of them", "${MINE}")), environ={"MINE": "yes"})
    assert desk.control.wait(info.run_id).error == ""


def test_without_workers_nothing_is_probed_and_no_run_is_left(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with pytest.raises(FleetError, match="no worker is connected"):
        desk.control.start(StartRequest(mix="chat"))
    assert (desk.probed, desk.control.runs()) == ([], [])
    desk.store.close()


def test_silent_workers_have_no_part(desk: Desk) -> None:
    desk.fleet.members["b"].die()
    assert desk.control.start(StartRequest(mix="chat")).workers == 1


def test_a_failed_preflight_leaves_no_run_and_the_next_start_is_free(desk: Desk) -> None:
    desk.preflight_error = PreflightError("connection refused")
    with pytest.raises(PreflightError):
        desk.control.start(StartRequest(mix="chat"))
    assert desk.control.runs() == []
    desk.preflight_error = None
    assert desk.run_to_its_end().state == "finished"


def test_a_second_start_is_refused_while_one_runs_and_while_one_prepares(desk: Desk) -> None:
    refused: list[str] = []

    def again() -> None:
        try:
            desk.control.start(StartRequest(mix="chat"))
        except BusyError as error:
            refused.append(str(error))

    desk.on_preflight = again
    run_id = desk.control.start(StartRequest(mix="chat")).run_id
    again()
    assert refused == ["a run is going on (another one is just starting)", f"a run is going on ({run_id})"]
    desk.control.wait(run_id)
    desk.on_preflight = lambda: None
    assert desk.run_to_its_end().state == "finished"


def test_a_run_that_could_not_begin_is_kept_as_failed_and_the_next_start_is_free(desk: Desk) -> None:
    desk.fleet.members["b"].ack_error = "no key"
    with pytest.raises(FleetError, match="no key"):
        desk.control.start(StartRequest(mix="chat"))
    failed = desk.control.runs()[0]
    assert (failed.state, failed.error) == ("failed", "worker b cannot run its shard: no key")
    assert failed.ended_unix_ns is not None
    desk.fleet.members["b"].ack_error = ""
    assert desk.control.start(StartRequest(mix="chat")).workers == 2


@pytest.mark.parametrize("stops", [1, 2])
def test_a_stop_is_fine_at_any_time_and_as_often_as_one_likes(desk: Desk, stops: int) -> None:
    run_id = desk.control.start(StartRequest(mix="chat")).run_id
    for _ in range(stops):
        desk.control.stop(run_id)
    info = desk.control.wait(run_id)
    assert (info.state, info.stages_done) == ("finished", 0)
    assert desk.control.stop(run_id) == info


@pytest.mark.parametrize("question", ["stop", "run", "seconds", "wait"])
def test_an_unknown_run_is_an_error(desk: Desk, question: str) -> None:
    with pytest.raises(UnknownRunError):
        getattr(desk.control, question)("nope")


def test_the_load_of_a_run_that_is_over_or_unknown_cannot_be_changed(desk: Desk) -> None:
    info = desk.run_to_its_end()
    with pytest.raises(BusyError, match=r"is over \(finished\)"):
        desk.control.change_load(info.run_id, LoadRequest(concurrency=2))
    with pytest.raises(UnknownRunError):
        desk.control.change_load("nope", LoadRequest(concurrency=2))
    with pytest.raises(ConfigError, match="exactly one of concurrency and rate"):
        desk.control.change_load(info.run_id, LoadRequest())


def test_an_error_of_our_own_in_the_report_ends_the_run_as_failed_not_the_master(desk: Desk) -> None:
    desk.report_error = ZeroDivisionError("oops")
    info = desk.run_to_its_end()
    assert (info.state, info.error) == ("failed", "the master's own error: ZeroDivisionError('oops')")
    assert (Path(info.run_dir) / "logs" / "a.log").exists()
    desk.report_error = None
    assert desk.run_to_its_end().state == "finished"


def test_a_clock_that_is_off_is_refused_by_name(desk: Desk) -> None:
    workers = desk.fleet.workers()
    desk.fleet.workers = lambda: [  # type: ignore[method-assign]
        workers[0],
        msgspec.structs.replace(workers[1], clock_ahead_s=-3.2),
    ]
    with pytest.raises(FleetError, match=re.escape("clocks differ from the master's: b by -3.20 s")):
        desk.control.start(StartRequest(mix="chat"))


def test_a_clock_that_only_looks_late_by_a_slow_first_ping_is_waited_for(desk: Desk) -> None:
    workers = desk.fleet.workers()
    late = msgspec.structs.replace(workers[1], clock_ahead_s=-0.6, pings=1)
    began_s = desk.fleet.clock.now_s

    def seen() -> list[FleetWorker]:
        return [workers[0], late if desk.fleet.clock.now_s < began_s + 1 else workers[1]]

    desk.fleet.workers = seen  # type: ignore[method-assign]
    assert desk.control.start(StartRequest(mix="chat")).workers == 2


def test_mixes_are_listed_and_a_broken_one_says_so(desk: Desk) -> None:
    (desk.mixes_dir / "broken.yaml").write_text("name: [")
    (desk.mixes_dir / "latin.yaml").write_bytes("name: m\nü: 1".encode("latin-1"))
    broken, chat, latin = desk.control.mixes()
    assert (chat.name, chat.description, chat.base_url, chat.text) == (
        "chat",
        "three of them",
        "http://127.0.0.1:1/v1",
        MIX,
    )
    assert broken.name == "broken"
    assert broken.description.startswith("cannot be used: ")
    assert latin.description.endswith("it is not UTF-8 text")


def test_a_master_that_ends_stops_its_run_and_takes_no_other(desk: Desk) -> None:
    run_id = desk.control.start(StartRequest(mix="chat")).run_id
    desk.control.end(stopped_by="signal")
    assert desk.control.wait(run_id).state == "finished"
    assert '"stopped_by": "signal"' in (Path(desk.control.info(run_id).run_dir) / "run.json").read_text()
    with pytest.raises(BusyError, match="this master is ending"):
        desk.control.start(StartRequest(mix="chat"))


def test_closing_waits_for_a_run_that_is_still_preparing(desk: Desk) -> None:
    desk.on_preflight = lambda: gevent.sleep(0.05)
    start = gevent.spawn(desk.control.start, StartRequest(mix="chat"))
    gevent.sleep(0.01)
    desk.control.close(timeout_s=5)
    assert start.ready()
    assert [info.state for info in desk.control.runs()] == ["finished"]


def test_a_run_the_last_master_left_is_failed_when_the_next_one_opens(desk: Desk) -> None:
    left = RunInfo(
        run_id="r0", state=RunState.RUNNING, mix_name="m", base_url="", model="", started_unix_ns=1, run_dir="/nowhere"
    )
    desk.store.add_run(left, MIX)
    desk.control.open()
    assert desk.control.info("r0").error == "the master ended during the run"
    assert desk.control.run("r0").summary is None


def test_a_reader_gets_the_newest_tick_at_once_and_then_one_a_second(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokswarm.master.control.TICK_S", 0.02)
    desk.control.open()
    ticks = desk.control.ticks()
    assert next(ticks).run is None
    info = desk.run_to_its_end()
    seen = next(ticks)
    while seen.run is None or not seen.run.state.is_over:
        seen = next(ticks)
    assert seen.run == info
    assert [worker.worker for worker in seen.workers] == ["a", "b"]
    desk.control.close(timeout_s=1)
    gevent.sleep(0)
    assert list(ticks) == []


@pytest.mark.parametrize(
    ("mix_name", "start"),
    [
        pytest.param("chat", "20261202-104233-chat-", id="plain"),
        pytest.param("Chat_Extract.Report v2", "20261202-104233-chat-extract-report-v2-", id="other-signs"),
        pytest.param("x" * 80, f"20261202-104233-{'x' * 24}-", id="long"),
        pytest.param("...", "20261202-104233-mix-", id="nothing-left"),
    ],
)
def test_run_ids_sort_by_time_and_are_safe_as_file_names(mix_name: str, start: str) -> None:
    at = time.strptime("2026-12-02 10:42:33", "%Y-%m-%d %H:%M:%S")
    run_id = new_run_id(mix_name, at, random.Random(1))
    assert run_id.startswith(start)
    assert re.fullmatch(r"[a-z0-9-]+-[0-9a-f]{4}", run_id)
