"""Sessions over sockets: what the server's cache sees, which connection carries which turn, what a failure costs."""

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from endpoints import simulator
from product import RunFolder, only_run, run_mix, tokswarm, truth, write_mix
from scripted_server import Part, ScriptedServer, scripted_server

from tokswarm.measure.record import Outcome, RequestRecord
from tokswarm.measure.window import Window

TURNS, TURN_TOKENS, ANSWER_TOKENS, FIRST_TOKENS = 4, 64, 32, 160
BLOCK_TOKENS = 16
THINK_S = 0.05


def class_of(name: str, **session: Any) -> dict[str, Any]:
    return {
        "name": name,
        "prompt": {"tokens": {"fixed": FIRST_TOKENS}},
        "output": {"max_tokens": {"fixed": ANSWER_TOKENS}, "ignore_eos": True},
        "session": {
            "turns": {"fixed": TURNS},
            "turn_tokens": {"fixed": TURN_TOKENS},
            "think_time": {"fixed": f"{round(THINK_S * 1000)}ms"},
            **session,
        },
    }


class Served(NamedTuple):
    """A run and what the server knows of each of its requests."""

    run: RunFolder
    truth: list[dict[str, Any]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two workers with five users each, then an open loop; sessions with histories of both kinds."""
    folder = tmp_path_factory.mktemp("sessions")
    with simulator("fast") as base_url:
        mix = write_mix(
            folder / "sessions.yaml",
            base_url,
            classes=[class_of("own"), class_of("server", history="server")],
            load=[
                {"name": "closed", "concurrency": 5, "for": "3s"},
                {"name": "open", "rate": "6/s", "arrivals": {"constant": {}}, "for": "3s"},
            ],
        )
        since_ns = time.monotonic_ns()
        run = run_mix(mix, folder / "data", workers=2)
        yield Served(run, truth(base_url, since_ns))


def by_session(records: Sequence[RequestRecord]) -> dict[tuple[str, int], list[RequestRecord]]:
    """The turns of each session, in order."""
    found: dict[tuple[str, int], list[RequestRecord]] = defaultdict(list)
    for record in records:
        assert record.session is not None
        found[record.stage, record.session].append(record)
    return found


def test_turns_come_one_after_the_other_with_the_thinking_between(served: Served) -> None:
    sessions = by_session(served.run.records())
    assert len(sessions) > 30
    for turns in sessions.values():
        assert [record.turn for record in turns] == list(range(1, len(turns) + 1))
        for before, after in itertools.pairwise(turns):
            assert after.planned_ns - before.done_ns == round(THINK_S * 1e9)
            assert after.sent_ns >= after.planned_ns
    assert Counter(len(turns) for turns in sessions.values()).most_common(1)[0][0] == TURNS


def test_the_share_of_later_turns_that_is_cached_is_what_was_said_before(served: Served) -> None:
    """By usage, and by the server's own account: all but what does not fill a block."""
    turns: dict[tuple[str, int], list[RequestRecord]] = defaultdict(list)
    for record in served.run.records():
        assert record.outcome is Outcome.OK
        assert record.turn is not None
        turns[record.class_name, record.turn].append(record)
    for (class_name, turn), records in turns.items():
        for record in records:
            assert record.prompt_tokens is not None
            assert record.cached_tokens is not None
            assert record.ideal_cached_tokens is not None
            assert record.prompt_tokens == pytest.approx(record.prompt_tokens_planned, rel=0.02)
            if turn == 1:
                assert record.cached_tokens == record.ideal_cached_tokens == 0
                continue
            # 5 tokens of the template, 2 of them the answer's opening, are not in the asked lengths of a turn
            before = FIRST_TOKENS + (turn - 2) * (TURN_TOKENS + ANSWER_TOKENS)
            known = before + (ANSWER_TOKENS if class_name == "server" else 0)
            assert known <= record.ideal_cached_tokens <= known + turn
            assert record.ideal_cached_tokens - BLOCK_TOKENS <= record.cached_tokens <= record.ideal_cached_tokens
    truly = Counter((one["prompt_tokens"], one["cached_tokens"]) for one in served.truth)
    probes = truly - Counter((record.prompt_tokens, record.cached_tokens) for record in served.run.records())
    assert probes.total() == len(served.truth) - len(served.run.records()) <= 4


def test_a_closed_loop_has_no_more_than_its_users_and_fewer_in_flight(served: Served) -> None:
    records = served.run.records("closed")
    edges = sorted([(r.sent_ns, 1) for r in records] + [(r.done_ns, -1) for r in records])
    in_flight = most = 0
    for _, step in edges:
        in_flight += step
        most = max(most, in_flight)
    assert most <= 5
    assert served.run.stage("closed")["in_flight_mean"] < 5 * 0.9


def test_an_open_loop_begins_sessions_at_its_rate(served: Served) -> None:
    records = served.run.records("open")
    assert sum(record.turn == 1 for record in records) == 18
    assert len(records) > 2 * 18


def test_nothing_was_abandoned(served: Served) -> None:
    assert [stage["abandoned_turns"] for stage in served.run.summary["stages"]] == [0, 0]


# --- what one connection carries, and failures --------------------------------------------------------


def answer(*words: str) -> list[Part]:
    events = [{"choices": [{"delta": {"content": word}}]} for word in words]
    events.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})  # type: ignore[dict-item]
    body = b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in events) + b"data: [DONE]\n\n"
    return [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)]


REFUSAL: list[Part] = [b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"]


def run_against(server: ScriptedServer, folder: Path, load: dict[str, Any], **session: Any) -> RunFolder:
    mix = write_mix(
        folder / "scripted.yaml",
        f"http://127.0.0.1:{server.port}/v1",
        classes=[class_of("chat", **session)],
        load=[{"name": "only", "for": "2s", **load}],
    )
    document = mix.read_text(encoding="utf-8").replace("target:\n", "target:\n  model: m\n")
    mix.write_text(document, encoding="utf-8")
    end = tokswarm("run", mix, "--workers", 1, "--data-dir", folder / "data")
    assert end.code in (0, 4), end
    return only_run(folder / "data")


def bodies(server: ScriptedServer) -> list[dict[str, Any]]:
    """Of the load: the requests that name a session or carry more than a probe's few tokens."""
    requests = (request.partition(b"\r\n\r\n")[2] for request in server.requests)
    found = [msgspec.json.decode(body) for body in requests if body]
    return [body for body in found if body.get("max_tokens") == ANSWER_TOKENS]


def test_the_servers_own_words_come_back_in_the_next_turn(tmp_path: Path) -> None:
    with scripted_server(answer('"So', "\n", "be it\u00fc")) as server:
        run_against(server, tmp_path, {"concurrency": 1}, history="server")
        later = [body["messages"] for body in bodies(server) if len(body["messages"]) > 1]
    assert later
    assert all(message["content"] == '"So\nbe it\u00fc' for messages in later for message in messages[1::2])


def names(server: ScriptedServer) -> list[bytes]:
    heads = (request.partition(b"\r\n\r\n")[0] for request in server.requests)
    return [
        line.partition(b": ")[2] for head in heads for line in head.split(b"\r\n") if line.startswith(b"x-session-id")
    ]


def test_a_header_names_the_session_on_each_of_its_turns(tmp_path: Path) -> None:
    with scripted_server(answer("yes")) as server:
        run = run_against(server, tmp_path, {"concurrency": 2}, sticky="header")
        sent = Counter(names(server))
    assert len(sent) == len(by_session(run.records()))
    assert max(sent.values()) == TURNS


@pytest.mark.parametrize("sticky", ["connection", "none"])
def test_a_sticky_session_has_a_connection_of_its_own(tmp_path: Path, sticky: str) -> None:
    with scripted_server(answer("yes")) as server:
        run = run_against(server, tmp_path, {"concurrency": 3}, sticky=sticky)
        connections = server.connections
    records = run.records()
    opened = [record for record in records if record.connect_ms is not None]
    if sticky == "none":
        assert len(opened) <= 3
    else:
        assert all((record.connect_ms is not None) == (record.turn == 1) for record in records)
        assert connections >= len(opened) == len(by_session(records))


def test_the_turns_after_a_failure_are_abandoned_and_counted(tmp_path: Path) -> None:
    """Every second turn of a session is refused: two of four are sent, two are not."""

    def script(number: int) -> list[Part]:
        body = msgspec.json.decode(server.requests[number].partition(b"\r\n\r\n")[2] or b"{}")
        return REFUSAL if len(body.get("messages", ())) > 1 else answer("yes")

    with scripted_server(script) as server:
        run = run_against(server, tmp_path, {"rate": "5/s", "arrivals": {"constant": {}}})
    records = run.records()
    assert {record.turn: record.outcome for record in records} == {1: Outcome.OK, 2: Outcome.HTTP_ERROR}
    failed = sum(record.turn == 2 for record in records)
    assert failed >= 8
    assert run.stage("only")["abandoned_turns"] == failed * (TURNS - 2)
    windows = [row.abandoned_turns for window in run.all_of(Window) for row in window.rows]
    assert sum(windows) == failed * (TURNS - 2)
