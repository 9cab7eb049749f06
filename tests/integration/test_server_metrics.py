"""The servers' own metrics: found, read each second whatever they answer, and in everything a run leaves behind."""

import contextlib
import itertools
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gevent
import polars as pl
import pytest
import trustme
from endpoints import simulator
from product import RunFolder, run_mix, write_mix

from tokswarm.master import server_watch
from tokswarm.master.server_watch import ServerWatch, watch_servers
from tokswarm.measure.server_second import ServerSecond
from tokswarm.traffic.mix import Mix, Target, Tls
from tokswarm.traffic.mixfile import parse_mix

Answer = Callable[[str], tuple[int, str]]
"""From a path to a status and a text; a status of 0 ends the connection without an answer."""

MIX = """
name: m
target: {base_url: "http://127.0.0.1:1/v1"}
classes: [{name: c, prompt: {tokens: {fixed: 8}}, output: {max_tokens: {fixed: 4}}}]
load: [{concurrency: 1, for: 1s}]
"""


class Server(ThreadingHTTPServer):
    """Answers by a function, and keeps what it was asked."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.asked: list[tuple[str, dict[str, str]]] = []

    def handle_error(self, *_: object) -> None:
        """A client that has gone is part of the tests."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        status, text = self.server.answer(self.path)
        if status == 0:
            self.close_connection = True
            return
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(answer: Answer, context: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(answer)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def vllm_text(generated: float = 0, *, waiting: int = 0, process: float | None = None) -> str:
    started = "" if process is None else f"process_start_time_seconds {process}\n"
    labels = '{engine="0",model_name="m"}'
    return f"{started}vllm:num_requests_waiting{labels} {waiting}\nvllm:generation_tokens_total{labels} {generated}\n"


def only_metrics(text: Callable[[], tuple[int, str]], path: str = "/metrics") -> Answer:
    return lambda asked: text() if asked == path else (404, "")


class Watching:
    """A watch on some targets, and what it told."""

    def __init__(self, *targets: Target) -> None:
        sources = [source for target in targets for source in server_watch.metrics_sources(target)]
        self.watch = ServerWatch(sources)
        self.seconds: list[ServerSecond] = []
        self.troubles: list[tuple[str, str]] = []

    def start(self) -> None:
        self.watch.start(self.seconds.extend, lambda title, text: self.troubles.append((title, text)))

    def wait_for(self, done: Callable[[], bool]) -> None:
        with gevent.Timeout(10):
            while not done():
                gevent.sleep(0.01)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_watch, "INTERVAL_S", 0.05)


def find(*targets: Target) -> list[str]:
    watching = Watching(*targets)
    try:
        return watching.watch.find()
    finally:
        watching.watch.stop()


# --- finding ----------------------------------------------------------------------------------------


def test_auto_finds_metrics_at_the_usual_places_and_says_of_which_engine_and_version() -> None:
    def answer(path: str) -> tuple[int, str]:
        return {
            "/metrics": (200, '[{"iter": 1}]'),
            "/prometheus/metrics": (200, 'trtllm_num_requests_running{model_name="m"} 1\n'),
        }.get(path, (404, ""))

    with serving(answer) as server:
        assert find(Target(base_url=f"{server.url}/v1")) == [
            f"server metrics: {server.url}/prometheus/metrics (TensorRT-LLM), read each second"
        ]
    versioned = {"/metrics": (200, vllm_text()), "/version": (200, '{"version": "0.32.0"}')}
    with serving(lambda path: versioned.get(path, (404, ""))) as server:
        [note] = find(Target(base_url=f"{server.url}/v1"))
        assert note == f"server metrics: {server.url}/metrics (vLLM 0.32.0), read each second"


def test_what_is_not_there_is_said_and_off_asks_nobody() -> None:
    with serving(lambda _: (404, "")) as server:
        [note] = find(Target(base_url=f"{server.url}/v1"))
        assert note.startswith(f"server metrics: none ({server.url}/metrics answered 404; ")
        assert find(Target(base_url=f"{server.url}/v1", metrics="off")) == []
        assert len(server.asked) == 3


def test_a_mounted_application_is_followed_to_its_slash() -> None:
    answers = {"/metrics": (307, ""), "/metrics/": (200, "litellm_in_flight_requests 4\n")}
    with serving(lambda path: answers.get(path, (404, ""))) as server:
        [note] = find(Target(base_url=f"{server.url}/v1"))
        assert note == f"server metrics: {server.url}/metrics (LiteLLM), read each second"


def test_a_mute_address_holds_up_the_start_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_watch, "FIND_S", 0.3)
    mute = threading.Event()

    def say_nothing(_: str) -> tuple[int, str]:
        mute.wait(5)
        return 200, ""

    with (
        serving(say_nothing) as silent,
        serving(only_metrics(lambda: (200, vllm_text()))) as good,
    ):
        begun_s = time.monotonic()
        notes = find(Target(base_url=f"{silent.url}/v1"), Target(base_url=f"{good.url}/v1"))
        took_s = time.monotonic() - begun_s
        mute.set()
    assert took_s < 2
    assert f"none ({silent.url}/metrics says nothing)" in notes[0]
    assert f"{good.url}/metrics (vLLM)" in notes[1]


def test_only_the_metrics_key_goes_to_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOAD_KEY", "of-the-load")
    monkeypatch.setenv("METRICS_KEY", "of-the-metrics")
    with serving(only_metrics(lambda: (200, vllm_text()))) as server:
        target = Target(base_url=f"{server.url}/v1", key="env:LOAD_KEY", headers={"x-route": "env:LOAD_KEY"})
        find(target)
        find(Target(base_url=f"{server.url}/v1", metrics_key="env:METRICS_KEY"))
        said = [headers for path, headers in server.asked if path == "/metrics"]
    assert [headers.get("Authorization") for headers in said] == [None, "Bearer of-the-metrics"]
    assert all("x-route" not in headers for headers in said)


def test_a_certificate_nobody_vouches_for_is_refused_and_a_trusted_one_is_not(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with serving(only_metrics(lambda: (200, vllm_text())), context) as server:
        url = f"https://localhost:{server.server_port}/metrics"
        target = Target(base_url="http://127.0.0.1:1/v1", metrics=url)
        [refused] = find(target)
        [found] = find(Target(base_url="https://h/v1", metrics=url, tls=Tls(ca_file=str(tmp_path / "ca.pem"))))
    assert "certificate" in refused
    assert found == f"server metrics: {url} (vLLM), read each second"


def test_the_watch_of_a_mix_is_over_all_its_targets() -> None:
    texts = [vllm_text(), "tgi_queue_size 3\n"]
    with serving(only_metrics(lambda: (200, texts[0]))) as one, serving(only_metrics(lambda: (200, texts[1]))) as two:
        several = MIX.replace(
            'target: {base_url: "http://127.0.0.1:1/v1"}',
            f'targets: [{{name: a, base_url: "{one.url}/v1"}}, {{name: b, base_url: "{two.url}/v1"}}]',
        )
        mix: Mix = parse_mix(several, source="mix", environ={})
        watch = watch_servers(mix)
        notes = watch.find()
        watch.stop()
    assert [note.split("(")[1].split(")")[0] for note in notes] == ["vLLM", "TGI"]


# --- reading ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_a_server_that_fails_is_said_once_asked_on_and_disturbs_no_other() -> None:
    trouble = [(0, ""), (500, "no"), (200, "<html>"), (200, "\x00" * 1000)]
    state = {"count": 0, "failing": False}

    def unsteady() -> tuple[int, str]:
        state["count"] += 1
        return trouble[state["count"] % 4] if state["failing"] else (200, vllm_text(100 * state["count"], waiting=5))

    with (
        serving(only_metrics(unsteady)) as bad,
        serving(only_metrics(lambda: (200, vllm_text(waiting=1)))) as good,
    ):
        watching = Watching(Target(base_url=f"{bad.url}/v1"), Target(base_url=f"{good.url}/v1"))
        watching.watch.find()
        watching.start()

        def of_bad(up: int) -> list[ServerSecond]:
            return [each for each in watching.seconds if each.replica in bad.url and each.up == up]

        watching.wait_for(lambda: len(of_bad(1)) >= 2)
        state["failing"] = True
        watching.wait_for(lambda: len(of_bad(0)) >= 9)
        state["failing"] = False
        before = len(of_bad(1))
        watching.wait_for(lambda: len(of_bad(1)) > before + 2)
        watching.watch.stop()
    assert [title for title, _ in watching.troubles] == [f"the metrics of {bad.url}/metrics cannot be read"]
    assert {each.waiting for each in of_bad(0)} == {None}
    assert all((each.generation_tok_per_s or 0) > 0 for each in of_bad(1)[-2:])
    assert len([each for each in watching.seconds if each.replica in good.url and each.up]) >= 9


@pytest.mark.usefixtures("quick")
def test_a_server_that_is_mute_is_given_up_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_watch, "TIMEOUT_S", 0.2)
    mute = threading.Event()
    answers = {"mute": False}

    def text() -> tuple[int, str]:
        if answers["mute"]:
            mute.wait(5)
        return 200, vllm_text()

    with serving(only_metrics(text)) as server:
        watching = Watching(Target(base_url=f"{server.url}/v1"))
        watching.watch.find()
        answers["mute"] = True
        watching.start()
        watching.wait_for(lambda: len(watching.seconds) >= 3)
        begun_s = time.monotonic()
        watching.watch.stop()
        mute.set()
    assert time.monotonic() - begun_s < 1
    assert {each.up for each in watching.seconds} == {0}
    assert "no whole answer within 0.2 s" in watching.troubles[0][1]


@pytest.mark.usefixtures("quick")
def test_processes_behind_one_address_are_told_apart_and_said() -> None:
    state = {"count": 0}

    def in_turn() -> tuple[int, str]:
        state["count"] += 1
        process = state["count"] % 2
        return 200, vllm_text(1000 * (1 - process) + state["count"], process=float(process))

    with serving(only_metrics(in_turn)) as server:
        watching = Watching(Target(base_url=f"{server.url}/v1"))
        watching.watch.find()
        watching.start()
        watching.wait_for(lambda: len(watching.seconds) >= 6)
        watching.watch.stop()
    rates = [each.generation_tok_per_s for each in watching.seconds[2:]]
    assert all(rate is not None and rate < 500 for rate in rates)
    assert [title for title, _ in watching.troubles] == [f"several servers answer for {server.url}/metrics in turn"]


@pytest.mark.usefixtures("quick")
def test_a_process_that_is_new_has_no_rates_at_first() -> None:
    state = {"generated": 500, "process": 1.0}
    with serving(only_metrics(lambda: (200, vllm_text(state["generated"], process=state["process"])))) as server:
        watching = Watching(Target(base_url=f"{server.url}/v1"))
        watching.watch.find()
        watching.start()
        watching.wait_for(lambda: len(watching.seconds) >= 2)
        seen = len(watching.seconds)
        state.update(generated=9000, process=2.0)
        watching.wait_for(lambda: len(watching.seconds) >= seen + 4)
        watching.watch.stop()
    rates = [each.generation_tok_per_s for each in watching.seconds]
    assert set(rates) == {0.0, None}
    assert rates[-1] == 0.0
    assert watching.troubles == []


# --- a whole run ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFolder]:
    where = tmp_path_factory.mktemp("server-metrics")
    with simulator("demo") as base_url:
        mix = write_mix(
            where / "watched.yaml",
            base_url,
            classes=[
                {
                    "name": "chat",
                    "prompt": {"tokens": {"fixed": 64}},
                    "output": {"max_tokens": {"fixed": 40}, "ignore_eos": True},
                }
            ],
            load=[{"name": "full", "concurrency": 48, "for": "4s", "drain": "10s"}],
        )
        yield run_mix(mix, where / "data", workers=1)


def test_a_run_keeps_what_its_server_said_in_its_log_its_table_and_its_summary(folder: RunFolder) -> None:
    said = folder.all_of(ServerSecond)
    table = pl.read_parquet(folder.path / "server.parquet")
    assert 4 <= len(said) == table.height
    assert {each.engine for each in said} == {"vllm"}
    assert any("(vLLM), read each second" in note for note in folder.summary["notes"])
    [server] = folder.summary["servers"]
    assert (server["stage"], server["silent_seconds"]) == ("full", 0)
    assert server["waiting_max"] >= 10


def test_the_servers_tokens_are_those_that_the_clients_counted(folder: RunFolder) -> None:
    said = sorted(folder.all_of(ServerSecond), key=lambda each: each.unix_ns)
    spans = [(after.unix_ns - before.unix_ns) / 1e9 for before, after in itertools.pairwise(said)]
    counted = sum((each.generation_tok_per_s or 0) * span for each, span in zip(said[1:], spans, strict=True))
    inside = [
        stamp
        for record in folder.records()
        for stamp in record.arrival_offsets_ns()
        if said[0].unix_ns <= record.sent_unix_ns + stamp < said[-1].unix_ns
    ]
    assert counted == pytest.approx(len(inside), rel=0.1)


def test_the_servers_queue_wait_stands_beside_that_of_the_answers(folder: RunFolder) -> None:
    [server] = folder.summary["servers"]
    waits = [record.queue_wait_ms for record in folder.records() if record.queue_wait_ms is not None]
    assert server["queue_wait_mean_ms"] == pytest.approx(sum(waits) / len(waits), rel=0.25)
