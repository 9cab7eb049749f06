"""Real workers against the simulator, whose gauge shows that shares are exact: also when one dies, comes back, or the
load is changed."""

import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from databases import free_port
from endpoints import simulator
from fleets import until
from product import RunFolder, in_server, only_run, started, write_mix
from test_run_trouble import Api, answers

from tokswarm.insight.run_file import LostWorker

CONCURRENCY = 97
BUSY_S = 0.5
"""What a machine that runs other tests may add; `test_course_crew.py` holds the bar itself, in virtual time."""
CLASSES = [
    {
        "name": "long",
        "prompt": {"tokens": {"fixed": 20}},
        "output": {"max_tokens": {"uniform": {"low": 50, "high": 350}}, "ignore_eos": True},
    }
]
"""Answers of some seconds that end at different times, so that the number in flight is steady."""


class Story(NamedTuple):
    """What happened to one run."""

    steady: list[int]
    back_s: float
    after_kill: list[int]
    after_return: list[int]
    changed: tuple[int, Any]
    after_change: list[int]
    ended: Any
    run: RunFolder
    lost: list[LostWorker]


def gauge(base_url: str, seconds: float = 0.6) -> list[int]:
    """What the server has in flight, again and again for a while."""
    end_s, seen = time.monotonic() + seconds, []
    while time.monotonic() < end_s:
        seen.append(in_server(base_url))
        time.sleep(0.03)
    return seen


def is_steady_at(concurrency: int, seen: list[int]) -> bool:
    """Never more, and less only in the moment between one request of a user and the next."""
    return max(seen) == concurrency == sorted(seen)[len(seen) // 2]


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with simulator("demo") as url:
        yield url


@pytest.fixture(scope="module")
def story(base_url: str, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """97 in flight on two workers; one is killed, and comes back as another process; then a user wants 10."""
    folder = tmp_path_factory.mktemp("crew")
    port, web_port = free_port(), free_port()
    api = Api(web_port)
    stage = {"name": "steady", "concurrency": CONCURRENCY, "for": "60s", "drain": "1s"}
    mix = write_mix(folder / "crew.yaml", base_url, classes=CLASSES, load=[stage])
    arguments = ("--port", port, "--web-port", web_port, "--data-dir", folder / "master")
    with started("master", *arguments) as master:
        until("the page", lambda: answers(web_port), timeout_s=60)
        to_master = ("--join", f"file:{folder / 'master' / 'fleet.join'}", "--data-dir", folder / "workers")
        with (
            started("worker", *to_master, "--name", "stays") as stays,
            started("worker", *to_master, "--name", "dies") as dies,
        ):
            until("both workers", lambda: api.ready_workers() == ["dies", "stays"], timeout_s=60)
            run_id = api.ask("POST", "/runs", {"mix_yaml": mix.read_text()})[1]["run_id"]
            until("load", lambda: in_server(base_url) == CONCURRENCY, timeout_s=30)
            steady = gauge(base_url, 2.5)  # so long that its windows have told what it has open
            dies.kill()
            killed_s = time.monotonic()
            until("the fall", lambda: in_server(base_url) < CONCURRENCY * 2 // 3, timeout_s=2)
            while in_server(base_url) < CONCURRENCY and time.monotonic() < killed_s + 20:
                time.sleep(0.02)
            back_s = time.monotonic() - killed_s
            after_kill = gauge(base_url)
            with started("worker", *to_master, "--name", "dies") as again:
                until("its return", lambda: api.run(run_id)["info"]["workers"] == 3, timeout_s=30)
                # The one that stayed has requests too many until they are over.
                until("shares", lambda: is_steady_at(CONCURRENCY, gauge(base_url, 0.4)), timeout_s=40)
                after_return = gauge(base_url)
                changed = api.ask("POST", f"/runs/{run_id}/load", {"concurrency": 10})
                until("the change", lambda: is_steady_at(10, gauge(base_url, 0.4)), timeout_s=20)
                after_change = gauge(base_url)
                api.ask("POST", f"/runs/{run_id}/stop")
                until("the end", lambda: api.run(run_id)["info"]["state"] in ("finished", "failed"), timeout_s=90)
                ended = api.run(run_id)
                again.send_signal(signal.SIGTERM)
                again.wait(30)
            stays.send_signal(signal.SIGTERM)
            stays.wait(30)
        master.send_signal(signal.SIGTERM)
        master.wait(30)
    run = only_run(folder / "master")
    lost = [LostWorker(**each) for each in run.run_file["lost_workers"]]
    return Story(steady, back_s, after_kill, after_return, changed, after_change, ended, run, lost)


def test_two_workers_hold_97_in_flight_exactly(story: Story) -> None:
    assert is_steady_at(CONCURRENCY, story.steady)


def test_within_three_seconds_of_a_kill_the_other_has_the_whole_load(story: Story) -> None:
    assert story.back_s <= 3.0 + BUSY_S
    assert is_steady_at(CONCURRENCY, story.after_kill)


def test_what_the_killed_worker_had_open_is_lost_and_counted(story: Story) -> None:
    (lost,) = story.lost
    assert lost.worker == "dies"
    assert 45 <= lost.in_flight <= 49  # by its last window, which may fall between two requests of a user
    assert story.ended["info"]["requests"]["lost"] == lost.in_flight
    assert story.run.summary["verdict"]["state"] == "invalid"


def test_the_process_that_takes_its_place_takes_its_share(story: Story) -> None:
    assert is_steady_at(CONCURRENCY, story.after_return)
    assert story.run.run_file["workers"] == ["dies", "stays", "dies_2"]
    titles = [event["title"] for event in story.ended["events"] if event["kind"] == "worker"]
    assert titles == ["worker dies lost", "worker dies_2 joined"]
    assert not any("sent twice" in note for note in story.run.run_file["notes"])


def test_a_changed_load_is_exact_too_and_a_stage_of_its_own(story: Story) -> None:
    assert story.changed[0] == 202
    assert is_steady_at(10, story.after_change)
    assert [stage["name"] for stage in story.run.summary["stages"]] == ["steady", "steady-changed-1-to-10"]
    assert story.ended["info"]["state"] == "finished"


def test_every_request_of_the_run_has_an_id_of_its_own(story: Story) -> None:
    ids = Counter(record.request_id for record in story.run.records())
    assert len(ids) > CONCURRENCY
    assert set(ids.values()) == {1}
    assert set(story.run.entries) == {"master", "stays", "dies", "dies_2"}
