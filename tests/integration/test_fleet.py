"""Real master and worker processes over Locust's channel; only what a worker does in a run is scripted."""

import contextlib
import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgpack
import polars as pl
import pytest
import zmq
from fleets import Fleet, MasterProcess, RefusedError, fleet_in, until

from tokswarm.measure.record import RequestRecord
from tokswarm.measure.window import WorkerSecond
from tokswarm.sink.record_log import read_log


def mix(*stages_s: float, description: str = "") -> str:
    stages = "".join(f"  - {{concurrency: {4 + n}, for: {s}s, drain: 2s}}\n" for n, s in enumerate(stages_s))
    return f"""
name: chat
description: {description or "scripted"}
target: {{base_url: "http://127.0.0.1:1/v1", model: tiny}}
classes:
  - {{name: chat, prompt: {{tokens: {{fixed: 10}}}}, output: {{max_tokens: {{fixed: 5}}}}}}
load:
{stages}"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_in(tmp_path) as fleet:
        yield fleet


@pytest.fixture
def master(fleet: Fleet) -> MasterProcess:
    return fleet.master()


def test_two_workers_run_the_stages_and_nothing_is_missing(fleet: Fleet, master: MasterProcess) -> None:
    workers = [fleet.worker(master, name) for name in ("a", "b")]
    master.ask("ready", 2)
    started = master.ask("start", mix(2, 1))
    assert (started["workers"], started["stages_total"], started["model"]) == (2, 2, "tiny")
    info = master.ask("wait", started["run_id"], 30)
    assert (info["state"], info["error"], info["stages_done"]) == ("finished", "", 2)
    detail = master.ask("run", started["run_id"])
    records = detail["summary"]["records"]
    assert set(records) == {"a", "b", "master"}
    assert info["output_tokens"] == 5 * (records["a"] + records["b"]) > 0
    assert info["notes"] == ["not probed"]  # nothing late, missing or stray
    stages = [event[3] for event in detail["events"] if event[2] == "stage"]
    assert stages == stage_names(Path(info["run_dir"]))
    assert (
        sum(second[5] for second in master.ask("seconds", started["run_id"]) if second[2] == "_all")
        == info["output_tokens"]
    )
    # Locust's own page saw each request and its first token
    until("Locust's count", lambda: master.ask("locust")["requests"] == 2 * (records["a"] + records["b"]))
    until("Locust's stop", lambda: master.ask("locust")["state"] == "stopped")
    again = master.ask("start", mix(1))
    assert master.ask("wait", again["run_id"], 30)["state"] == "finished"
    assert [run["run_id"] for run in master.ask("runs")] == [again["run_id"], started["run_id"]]
    for worker in workers:
        worker.close()
        assert worker.process.returncode == 0


def test_without_workers_a_start_is_refused_with_a_hint(master: MasterProcess) -> None:
    with pytest.raises(RefusedError, match="no worker is connected") as caught:
        master.ask("start", mix(1))
    assert caught.value.kind == "FleetError"
    assert "tokswarm worker" in caught.value.hint
    assert master.ask("runs") == []


def test_a_second_start_is_refused_and_a_stop_ends_the_run_soon(fleet: Fleet, master: MasterProcess) -> None:
    fleet.worker(master, "a")
    fleet.worker(master, "b")
    master.ask("ready", 2)
    run_id = master.ask("start", mix(120))["run_id"]
    with pytest.raises(RefusedError, match=run_id) as caught:
        master.ask("start", mix(1))
    assert caught.value.kind == "BusyError"
    time.sleep(1.5)
    stopped_s = time.monotonic()
    master.ask("stop", run_id)
    master.ask("stop", run_id)
    info = master.ask("wait", run_id, 30)
    assert time.monotonic() - stopped_s < 4
    assert (info["state"], info["verdict"], info["stages_done"]) == ("finished", "valid", 1)
    assert master.ask("stop", run_id)["state"] == "finished"
    assert master.ask("run", run_id)["summary"]["records"]["a"] > 0


def test_a_killed_worker_is_lost_and_the_run_ends_with_partial_results(fleet: Fleet, master: MasterProcess) -> None:
    fleet.worker(master, "a")
    victim = fleet.worker(master, "b")
    master.ask("ready", 2)
    run_id = master.ask("start", mix(7, 1))["run_id"]
    time.sleep(2.5)
    victim.kill()
    info = master.ask("wait", run_id, 40)
    assert (info["state"], info["stages_done"]) == ("finished", 2)
    assert info["requests"]["lost"] == 2
    detail = master.ask("run", run_id)
    assert [event[3] for event in detail["events"] if event[2] == "worker"] == ["worker b lost"]
    assert set(detail["summary"]["records"]) == {"a", "master"}
    until("Locust's stop", lambda: master.ask("locust")["state"] == "stopped")


def test_the_log_of_a_worker_that_died_is_fetched_from_its_successor(fleet: Fleet) -> None:
    master = fleet.master(local_workers=2)
    master.ask("ready", 2)
    run_id = master.ask("start", mix(7))["run_id"]
    time.sleep(2.5)
    os.kill(master.ask("pids")["local-2"], signal.SIGKILL)
    info = master.ask("wait", run_id, 40)
    assert (info["state"], info["requests"]["lost"]) == ("finished", 2)
    records = master.ask("run", run_id)["summary"]["records"]
    assert records["local-1"] > records["local-2"] > 0
    master.ask("ready", 2)  # the successor serves the next run
    again = master.ask("start", mix(1))
    assert (again["workers"], master.ask("wait", again["run_id"], 30)["state"]) == (2, "finished")


def test_local_workers_end_with_their_master(fleet: Fleet) -> None:
    master = fleet.master(local_workers=2)
    master.ask("ready", 2)
    pids = list(master.ask("pids").values())
    master.close()
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_join_a_restarted_master_and_the_broken_run_is_marked(fleet: Fleet, master: MasterProcess) -> None:
    fleet.worker(master, "a")
    fleet.worker(master, "b")
    master.ask("ready", 2)
    broken = master.ask("start", mix(60))["run_id"]
    time.sleep(2.5)
    master.kill()
    successor = fleet.master(port=master.port)
    began_s = time.monotonic()
    successor.ask("ready", 2)
    assert time.monotonic() - began_s < 5
    old = successor.ask("runs")[0]
    assert (old["run_id"], old["state"], old["error"]) == (broken, "failed", "the master ended during the run")
    assert successor.ask("seconds", broken) != []
    run_id = successor.ask("start", mix(2))["run_id"]
    info = successor.ask("wait", run_id, 30)
    assert (info["state"], info["workers"], info["error"]) == ("finished", 2, "")


def test_a_worker_that_cannot_run_its_shard_is_named(fleet: Fleet, master: MasterProcess) -> None:
    fleet.worker(master, "a")
    fleet.worker(master, "b")
    master.ask("ready", 2)
    with pytest.raises(RefusedError, match="worker b cannot run its shard: the key OPENAI_API_KEY is not set here"):
        master.ask("start", mix(1, description="refuse b"))
    assert master.ask("runs")[0]["state"] == "failed"
    until("both ready again", lambda: [w["state"] for w in master.ask("workers")] == ["ready", "ready"])
    run_id = master.ask("start", mix(1))["run_id"]
    assert master.ask("wait", run_id, 30)["state"] == "finished"


def test_of_two_workers_with_one_name_the_older_is_refused_and_exits_for_good(
    fleet: Fleet, master: MasterProcess
) -> None:
    older = fleet.worker(master, "a")
    master.ask("ready", 1)
    fleet.worker(master, "a")
    assert older.process.wait(15) == 2
    assert "a newer worker took the name 'a'" in older.output.read_text()
    assert [worker["worker"] for worker in master.ask("workers")] == ["a"]


def test_a_signal_to_the_master_drains_the_run_and_keeps_it(fleet: Fleet, master: MasterProcess) -> None:
    fleet.worker(master, "a")
    master.ask("ready", 1)
    run_id = master.ask("start", mix(60))["run_id"]
    time.sleep(1.5)
    master.process.send_signal(signal.SIGINT)
    info = master.ask("wait", run_id, 20)
    assert info["state"] == "finished"
    with pytest.raises(RefusedError, match="this master is ending"):
        master.ask("start", mix(1))
    master.process.send_signal(signal.SIGTERM)
    assert master.process.wait(5) == -signal.SIGTERM


def test_a_second_master_on_the_same_data_directory_is_refused(fleet: Fleet, master: MasterProcess) -> None:
    with pytest.raises(TimeoutError, match=f"another master uses the data directory {fleet.data_dir}"):
        fleet.master()
    assert master.ask("runs") == []


def test_a_master_on_a_taken_port_is_refused(
    fleet: Fleet, master: MasterProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        fleet_in(tmp_path_factory.mktemp("other")) as other,
        pytest.raises(TimeoutError, match="Address already in use"),
    ):
        other.master(port=master.port)


def test_a_worker_whose_master_is_gone_ends_its_load_closes_its_log_and_then_exits(
    fleet: Fleet, master: MasterProcess
) -> None:
    worker = fleet.worker(master, "a", patience_s=(2.0, 5.0))
    master.ask("ready", 1)
    run_id = master.ask("start", mix(60))["run_id"]
    time.sleep(1.5)
    master.kill()
    killed_s = time.monotonic()
    assert worker.process.wait(12) == 1
    assert time.monotonic() - killed_s < 9
    log = fleet.data_dir / "records" / run_id / "a.log"
    entries = [entry for entry, _ in read_log(log)]
    sent_s = [entry.sent_unix_ns / 1e9 for entry in entries if isinstance(entry, RequestRecord)]
    assert 2 < max(sent_s) - min(sent_s) < 6.5
    assert isinstance(entries[-1], WorkerSecond)  # closed in order


def test_whatever_bytes_reach_the_port_the_fleet_goes_on(fleet: Fleet, master: MasterProcess) -> None:
    worker = fleet.worker(master, "a")
    master.ask("ready", 1)
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        socket = stack.enter_context(context.socket(zmq.DEALER))
        socket.setsockopt(zmq.IDENTITY, b"stranger")
        socket.setsockopt(zmq.LINGER, 1000)
        socket.connect(f"tcp://127.0.0.1:{master.port}")
        for frame in (
            msgpack.packb(5),
            b"\xc1",
            b"",
            msgpack.packb(("exception", None, "stranger")),
            msgpack.packb(("exception", None, "stranger"))[:-4],
            msgpack.packb(("stats", {"user_classes_count": {}}, "stranger")),
            msgpack.packb(("client_stopped", None, "a")),
            msgpack.packb((["no", "type"], None, "stranger")),
            msgpack.packb(("tok.ping", b"junk", "stranger")),
            msgpack.packb(("tok.second", b"", "stranger")),
            msgpack.packb(("client_ready", None, "stranger")),
        ):
            socket.send(frame)
        socket.send_multipart([b"two", b"frames"])
    time.sleep(3.5)  # a deaf master would call the worker silent by now
    assert [w["state"] for w in master.ask("workers")] == ["ready"]
    run_id = master.ask("start", mix(1))["run_id"]
    assert master.ask("wait", run_id, 30)["state"] == "finished"
    assert worker.process.poll() is None


def test_the_real_report_is_made_of_the_fetched_logs(fleet: Fleet) -> None:
    master = fleet.master(report="real")
    fleet.worker(master, "a")
    fleet.worker(master, "b")
    master.ask("ready", 2)
    run_id = master.ask("start", mix(3))["run_id"]
    info = master.ask("wait", run_id, 60)
    assert (info["state"], info["error"]) == ("finished", "")
    assert info["verdict"] in ("valid", "suspect", "invalid")
    assert info["bend"]
    run_dir = Path(info["run_dir"])
    requests = pl.read_parquet(run_dir / "requests.parquet")
    assert sorted(requests["worker"].unique()) == ["a", "b"]
    assert requests["output_tokens"].sum() == info["output_tokens"]
    assert (run_dir / "curve.html").stat().st_size > 1000
    assert [stage["name"] for stage in master.ask("run", run_id)["summary"]["stages"]] == stage_names(run_dir)


def stage_names(run_dir: Path) -> list[str]:
    return [stage["name"] for stage in json.loads((run_dir / "run.json").read_text())["stages"]]


def test_a_worker_told_to_end_during_a_run_leaves_in_order_and_is_lost_with_that_reason(
    fleet: Fleet, master: MasterProcess
) -> None:
    fleet.worker(master, "a")
    leaver = fleet.worker(master, "b")
    master.ask("ready", 2)
    run_id = master.ask("start", mix(5))["run_id"]
    time.sleep(2)
    leaver.close()
    assert leaver.process.returncode == 0
    info = master.ask("wait", run_id, 30)
    assert info["state"] == "finished"
    [event] = [event for event in master.ask("run", run_id)["events"] if event[2] == "worker"]
    assert event[4].startswith("the worker was told to end")
    assert [worker["worker"] for worker in master.ask("workers")] == ["a"]


def test_the_page_the_api_and_locusts_own_page_are_served(master: MasterProcess) -> None:
    url = master.ask("url")
    for path, word in (("", b"tokswarm"), ("api/v1/runs", b"["), ("locust/", b"Locust")):
        with urllib.request.urlopen(url + path, timeout=10) as answer:
            assert answer.status == 200
            assert word in answer.read()
