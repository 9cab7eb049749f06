"""What goes wrong is said at once and loses nothing: bad input, no endpoint, no workers, Ctrl-C, a killed worker."""

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from databases import call, free_port
from endpoints import simulator
from fleets import until
from product import Ended, RunFolder, ended, in_server, only_run, started, tokswarm, write_mix

CLASSES = [
    {
        "name": "chat",
        "prompt": {"tokens": {"fixed": 40}},
        "output": {"max_tokens": {"fixed": 30}, "ignore_eos": True},
    }
]


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with simulator("demo") as url:
        yield url


def long_mix(path: Path, base_url: str, **changes: Any) -> Path:
    stage = {"name": "long", "concurrency": 4, "for": "60s", "drain": "10s"}
    return write_mix(path, base_url, classes=CLASSES, load=[{**stage, **changes}])


# --- what cannot be started -------------------------------------------------------------------------


def test_a_mistake_in_a_mix_is_shown_where_it_is(tmp_path: Path, base_url: str) -> None:
    mix = long_mix(tmp_path / "wrong.yaml", base_url)
    text = mix.read_text()
    mix.write_text(text.replace("    tokens:\n", "    tokns:\n").rstrip() + "\nsead: 7\n")
    [line] = [number for number, line in enumerate(mix.read_text().splitlines(), 1) if "tokns" in line]
    end = tokswarm("run", mix, "--data-dir", tmp_path / "data")
    assert end.code == 2
    assert f"{mix}:{line}: classes[0].prompt.tokns: unknown key; did you mean 'tokens'?" in end.err
    assert (
        f"{mix}:{len(mix.read_text().splitlines())}: sead: unknown key; did you mean 'seed'?" in end.err
    )  # all at once
    assert not (tmp_path / "data").exists()
    checked = tokswarm("mix", "check", mix)
    assert (checked.code, checked.err) == (2, end.err)


def test_a_mix_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    end = tokswarm("run", "no-such-mix", "--data-dir", tmp_path)
    assert end.code == 2
    assert "'no-such-mix' is neither a file nor a mix that ships" in end.err
    assert "mooncake-conversation" in end.err


def test_an_endpoint_that_is_not_there_is_found_before_any_load(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    end = tokswarm("run", long_mix(tmp_path / "m.yaml", url), "--data-dir", tmp_path / "data", "--workers", 1)
    assert end.code == 2
    assert f"error: the endpoint does not answer: GET {url}/models: the connection was refused" in end.err
    assert "hint: start the endpoint, or correct target.base_url" in end.err
    assert not list((tmp_path / "data").glob("runs/*"))
    assert not list((tmp_path / "data").glob("records/*"))


def test_an_endpoint_that_never_answers_is_given_up_by_the_run_and_not_by_the_user(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.listen(1)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        mix = long_mix(tmp_path / "m.yaml", url)
        document = mix.read_text().replace("target:\n", "target:\n  first_byte_timeout: 2s\n")
        mix.write_text(document)
        end = tokswarm("run", mix, "--data-dir", tmp_path / "data", "--workers", 1)
    assert end.code == 2
    assert f"error: the endpoint does not answer: GET {url}/models" in end.err


# --- Ctrl-C -----------------------------------------------------------------------------------------


class Interrupted(NamedTuple):
    """A run that was told to end while it was under way."""

    end: Ended
    run: RunFolder
    data_dir: Path
    left_in_server: int


@pytest.fixture(scope="module")
def interrupted(base_url: str, tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    folder = tmp_path_factory.mktemp("interrupted")
    mix = long_mix(folder / "interrupted.yaml", base_url)
    with started("run", mix, "--workers", 2, "--data-dir", folder / "data") as process:
        until("load", lambda: in_server(base_url) == 4, timeout_s=60)
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        end = ended(process)
    return Interrupted(end, only_run(folder / "data"), folder / "data", in_server(base_url))


def test_ctrl_c_drains_and_keeps_the_results(interrupted: Interrupted) -> None:
    assert interrupted.end.code == 5, interrupted.end
    summary = interrupted.run.summary
    assert (summary["stopped_by"], summary["error"]) == ("signal", "")
    assert summary["aborted_requests"] == 0
    assert summary["totals"]["requests"] == {"ok": len(interrupted.run.records())}
    assert len(interrupted.run.records()) >= 8
    assert all(record.output_tokens == 30 for record in interrupted.run.records())
    assert interrupted.left_in_server == 0
    assert [reason["cause"] for reason in summary["verdict"]["reasons"]].count("short_stage") == 1


def test_the_table_is_printed_all_the_same(interrupted: Interrupted) -> None:
    assert "tok/s" in interrupted.end.out
    assert interrupted.run.run_id in interrupted.end.out
    assert {path.name for path in interrupted.run.path.iterdir()} >= {"summary.json", "curve.html", "requests.parquet"}


def test_every_process_is_gone_after_ctrl_c(interrupted: Interrupted) -> None:
    assert processes_on(interrupted.data_dir) == []
    again = tokswarm("runs", "--data-dir", interrupted.data_dir, "--json")
    assert [json.loads(line)["state"] for line in again.out.splitlines()] == ["finished"]


def test_a_second_ctrl_c_leaves_at_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    # The simulated endpoint of the demo has a folder of its own under TMPDIR.
    with started("demo", "--data-dir", tmp_path / "data", "--web-port", 0, settings={"TMPDIR": str(tmp_path)}) as demo:
        until("records", lambda: any(path.stat().st_size > 2000 for path in tmp_path.glob("data/records/*/*.log")))
        assert len(processes_on(tmp_path)) == 4
        demo.send_signal(signal.SIGINT)
        time.sleep(0.3)
        demo.send_signal(signal.SIGINT)
        end = ended(demo)
    assert end.code == -signal.SIGINT, end
    until("the end of every process", lambda: processes_on(tmp_path) == [])


def test_a_killed_master_leaves_a_run_that_can_be_reported(tmp_path: Path, base_url: str) -> None:
    mix = long_mix(tmp_path / "m.yaml", base_url)
    data = ("--data-dir", tmp_path / "data")
    with started("run", mix, *data) as process:
        until("load", lambda: in_server(base_url) == 4, timeout_s=60)
        time.sleep(3)
        listed = json.loads(tokswarm("runs", *data, "--json").out)
        run_id = listed["run_id"]
        assert listed["state"] == "running"
        refused = tokswarm("report", run_id, *data)
        assert (refused.code, refused.err.splitlines()[0]) == (1, f"error: run {run_id} is running")
        process.kill()
        process.communicate()
    listed = json.loads(tokswarm("runs", *data, "--json").out)
    assert (listed["state"], listed["error"]) == ("failed", "the master ended during the run")
    reported = tokswarm("report", run_id, *data, "--json")
    assert reported.code == 0, reported
    summary = json.loads(reported.out)
    assert (summary["stopped_by"], summary["error"]) == ("error", "the master ended during the run")
    [stage] = summary["stages"]
    run = only_run(tmp_path / "data")
    assert set(run.entries) == {"master", "local-1", "local-2"}
    assert stage["requests"]["ok"] == len([record for record in run.records() if record.outcome == "ok"]) > 10
    assert stage["in_flight_mean"] > 3
    for worker in processes_on(tmp_path):  # which would have ended by themselves, but not soon
        os.kill(worker.pid, signal.SIGTERM)
    until("the end of the workers", lambda: not processes_on(tmp_path))
    again = json.loads(tokswarm("report", run_id, *data, "--json").out)
    assert again["totals"]["requests"]["ok"] > stage["requests"]["ok"]


def test_ctrl_c_before_there_is_a_run_ends_in_130(tmp_path: Path, base_url: str) -> None:
    mix = long_mix(tmp_path / "m.yaml", base_url)
    with started("run", mix, "--data-dir", tmp_path / "data") as process:
        until("workers that start", lambda: list(tmp_path.glob("data/logs/*.log")))
        process.send_signal(signal.SIGINT)
        end = ended(process)
    assert (end.code, end.out) == (130, ""), end
    assert processes_on(tmp_path) == []
    assert not list(tmp_path.glob("data/runs/*"))


class Left(NamedTuple):
    """A process that is there."""

    pid: int
    command_line: bytes


def processes_on(data_dir: Path) -> list[Left]:
    """The processes that were given this directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found.append(Left(int(path.parent.name), path.read_bytes()))
    return [process for process in found if str(data_dir).encode() in process.command_line]


# --- a master with workers of its own processes -----------------------------------------------------


class Api:
    """The API of a master, as curl uses it."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, method: str, path: str, document: Any = None) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            body = None if document is None else json.dumps(document)
            connection.request(method, f"/api/v1{path}", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def ready_workers(self) -> list[str]:
        return sorted(each["worker"] for each in self.ask("GET", "/workers")[1] if each["state"] == "ready")

    def run(self, run_id: str) -> Any:
        return self.ask("GET", f"/runs/{run_id}")[1]


class Story(NamedTuple):
    """What happened to one master: each answer of its API, and the run it had."""

    without_workers: tuple[int, Any]
    runs_before: Any
    started: tuple[int, Any]
    second_start: tuple[int, Any]
    bad_start: tuple[int, Any]
    detail: Any
    run: RunFolder
    master_code: int
    worker_codes: list[int]


@pytest.fixture(scope="module")
def story(base_url: str, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """No worker; two workers and a run; a second start; one worker killed without warning."""
    folder = tmp_path_factory.mktemp("story")
    port, web_port = free_port(), free_port()
    api = Api(web_port)
    asked = {"mix_yaml": long_mix(folder / "story.yaml", base_url, **{"for": "8s"}).read_text()}
    wrong = {"mix_yaml": asked["mix_yaml"].replace("concurrency:", "concurency:")}
    arguments = ("--port", port, "--web-port", web_port, "--data-dir", folder / "master")
    with started("master", *arguments) as master:
        until("the page", lambda: answers(web_port), timeout_s=60)
        without_workers = api.ask("POST", "/runs", asked)
        runs_before = api.ask("GET", "/runs")[1]
        to_master = ("--join", f"file:{folder / 'master' / 'fleet.join'}", "--data-dir", folder / "workers")
        with (
            started("worker", *to_master, "--name", "stays") as stays,
            started("worker", *to_master, "--name", "dies") as dies,
        ):
            until("both workers", lambda: api.ready_workers() == ["dies", "stays"], timeout_s=60)
            bad = api.ask("POST", "/runs", wrong)
            first = api.ask("POST", "/runs", asked)
            run_id = first[1]["run_id"]
            second = api.ask("POST", "/runs", asked)
            until("load", lambda: in_server(base_url) == 4, timeout_s=30)
            time.sleep(3)
            dies.kill()
            dies.communicate()
            until("the end", lambda: api.run(run_id)["info"]["state"] in ("finished", "failed"), timeout_s=90)
            detail = api.run(run_id)
            stays.send_signal(signal.SIGTERM)
            codes = [ended(stays).code, dies.returncode]
        master.send_signal(signal.SIGTERM)
        master_code = ended(master).code
    return Story(
        without_workers, runs_before, first, second, bad, detail, only_run(folder / "master"), master_code, codes
    )


def answers(port: int) -> bool:
    try:
        return call(f"http://127.0.0.1:{port}", "GET", "/api/v1/health")[0] == 200
    except OSError:
        return False


def test_without_workers_a_start_is_refused(story: Story) -> None:
    status, problem = story.without_workers
    assert status == 503
    assert problem["error"] == "no worker is connected"
    assert "tokswarm worker --join" in problem["hint"]
    assert story.runs_before == []


def test_a_mistake_in_a_mix_names_its_field(story: Story) -> None:
    status, problem = story.bad_start
    assert status == 422
    assert problem["field"] == "mix_yaml"
    assert "load[0].concurency: unknown key; did you mean 'concurrency'?" in problem["error"]


def test_a_second_start_is_refused_while_a_run_goes_on(story: Story) -> None:
    assert story.started[0] == 201
    status, problem = story.second_start
    assert status == 409
    assert story.started[1]["run_id"] in problem["error"]
    assert problem["hint"]


def test_a_killed_worker_is_lost_and_counted(story: Story) -> None:
    info = story.detail["info"]
    assert (info["state"], info["workers"]) == ("finished", 2)
    assert info["requests"]["lost"] == 2
    assert [event["title"] for event in story.detail["events"] if event["kind"] == "worker"] == ["worker dies lost"]
    assert [lost["worker"] for lost in story.run.run_file["lost_workers"]] == ["dies"]


def test_a_run_that_lost_a_worker_is_marked_and_keeps_what_it_has(story: Story) -> None:
    summary = story.run.summary
    assert summary["verdict"]["state"] == story.detail["info"]["verdict"] == "invalid"
    assert "lost_worker" in {reason["cause"] for reason in summary["verdict"]["reasons"]}
    assert summary["lost_requests"] == 2
    assert any("the log of worker dies was not fetched" in note for note in summary["notes"])
    assert set(story.run.entries) == {"master", "stays"}
    assert summary["totals"]["requests"]["ok"] == len(story.run.records()) > 10


def test_master_and_workers_end_when_they_are_told_to(story: Story) -> None:
    assert story.master_code == 0
    assert story.worker_codes == [0, -signal.SIGKILL]
