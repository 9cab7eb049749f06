"""Real master and worker processes over Locust's channel; only what a worker does in a run is scripted."""

import contextlib
import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgpack
import msgspec
import polars as pl
import pytest
import zmq
from fleets import Fleet, MasterProcess, RefusedError, fleet_in, until
from product import tokswarm
from zmq.utils import z85

from tokswarm.measure.record import RequestRecord
from tokswarm.measure.window import WorkerSecond
from tokswarm.sink.record_log import read_log
from tokswarm.worker.join import Join, parse_join, public_key
from tokswarm.worker.messages import PROTOCOL, Ping, encode


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
    notes = [note for note in info["notes"] if not note.startswith("server metrics")]
    assert notes == ["not probed"]  # nothing late, missing or stray
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
    began_s = time.monotonic()  # it listens
    successor.ask("ready", 2)
    assert time.monotonic() - began_s < 2
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


KINDS_OF_BAD_FRAMES = {
    "a number": [msgpack.packb(5)],
    "a byte that begins nothing": [b"\xc1"],
    "nothing": [b""],
    "an exception without its text": [msgpack.packb(("exception", None, "stranger"))],
    "a message cut off": [msgpack.packb(("exception", None, "stranger"))[:-4]],
    "statistics without entries": [msgpack.packb(("stats", {"user_classes_count": {}}, "stranger"))],
    "another's name": [msgpack.packb(("client_stopped", None, "a"))],
    "a type that is a list": [msgpack.packb((["no", "type"], None, "stranger"))],
    "a ping of junk": [msgpack.packb(("tok.ping", b"junk", "stranger"))],
    "an empty second": [msgpack.packb(("tok.second", b"", "stranger"))],
    "a worker of no version": [msgpack.packb(("client_ready", None, "stranger"))],
    "two frames": [b"two", b"frames"],
}


@contextlib.contextmanager
def stranger_at(port: int, join: Join | None) -> Iterator[zmq.Socket[bytes]]:
    """A socket at the master's port, with the keys of this join string or with none."""
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        socket = stack.enter_context(context.socket(zmq.DEALER))
        socket.setsockopt(zmq.IDENTITY, b"stranger")
        socket.setsockopt(zmq.LINGER, 1000)
        if join is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, z85.encode(join.server_public))
            socket.setsockopt(zmq.CURVE_PUBLICKEY, z85.encode(public_key(join.client_secret)))
            socket.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(join.client_secret))
        socket.connect(f"tcp://127.0.0.1:{port}")
        yield socket


def join_of(fleet: Fleet) -> Join:
    return parse_join((fleet.data_dir / "fleet.join").read_text())


def ping_of(name: str) -> bytes:
    ping = Ping(run_id="", worker=name, host="h", protocol=PROTOCOL, version="0", epoch="", wall_unix_ns=time.time_ns())
    return cast("bytes", msgpack.packb(("tok.ping", encode(ping), "stranger")))


def test_whatever_bytes_a_worker_of_the_fleet_sends_the_fleet_goes_on(fleet: Fleet, master: MasterProcess) -> None:
    worker = fleet.worker(master, "a")
    master.ask("ready", 1)
    with stranger_at(master.port, join_of(fleet)) as socket:
        for frames in KINDS_OF_BAD_FRAMES.values():
            socket.send_multipart(frames)
        socket.send(ping_of("last"))  # so that it is known that all before were read
        until("the last frame", lambda: "last" in [worker["worker"] for worker in master.ask("workers")])
    time.sleep(3.5)  # a deaf master would call the worker silent by now
    assert [w["state"] for w in master.ask("workers") if w["worker"] == "a"] == ["ready"]
    assert "could not be handled" in (fleet.data_dir / "master.out").read_text()
    run_id = master.ask("start", mix(1))["run_id"]
    assert master.ask("wait", run_id, 30)["state"] == "finished"
    assert worker.process.poll() is None


@pytest.mark.parametrize("keys", ["none", "of another client", "of another master"])
def test_a_stranger_can_neither_register_nor_inject_nor_read(fleet: Fleet, master: MasterProcess, keys: str) -> None:
    fleet.worker(master, "a")
    master.ask("ready", 1)
    whole = join_of(fleet)
    join = {
        "none": None,
        "of another client": msgspec.structs.replace(whole, client_secret=bytes(32)),
        "of another master": msgspec.structs.replace(whole, server_public=public_key(bytes(range(32)))),
    }[keys]
    with stranger_at(master.port, join) as socket:
        socket.send(ping_of("intruder"), zmq.NOBLOCK)
        with contextlib.suppress(zmq.Again):
            socket.send(msgpack.packb(("client_ready", "2.0", "stranger")), zmq.NOBLOCK)
        assert not socket.poll(2500)  # a worker of the fleet has its welcome at once
    assert [worker["worker"] for worker in master.ask("workers")] == ["a"]
    assert "intruder" not in (fleet.data_dir / "master.out").read_text()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"client_secret": bytes(32)}, "it is not, or no longer, that of its fleet", id="another-fleet"),
        pytest.param(
            {"server_public": public_key(bytes(range(32)))}, "it is another master, or takes none", id="another-master"
        ),
    ],
)
def test_the_user_of_a_wrong_join_string_is_told_in_one_line(
    fleet: Fleet, master: MasterProcess, tmp_path_factory: pytest.TempPathFactory, change: dict[str, bytes], reason: str
) -> None:
    wrong = tmp_path_factory.mktemp("wrong") / "join"
    wrong.write_text(msgspec.structs.replace(join_of(fleet), **change).text())
    ended = tokswarm("worker", "--join", f"file:{wrong}", "--name", "w", "--data-dir", wrong.parent)
    assert ended.code == 2
    said = f"the master at 127.0.0.1:{master.port} did not accept the join string: {reason}"
    assert sum(said in line for line in ended.err.splitlines()) == 1
    assert "Traceback" not in ended.err
    assert master.ask("workers") == []


def test_the_keys_and_the_join_string_are_the_owners_and_outlive_the_master(fleet: Fleet) -> None:
    master = fleet.master()
    files = [fleet.data_dir / name for name in ("fleet.key", "fleet.join")]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    before = [file.read_text() for file in files]
    master.close()
    fleet.master(port=master.port)
    assert [file.read_text() for file in files] == before
    said = (fleet.data_dir / "master.out").read_text()
    assert not any(secret.strip() in said for secret in before)


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
