"""The load that was asked for is the load that a server sees, however many workers share it."""

import itertools
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from endpoints import simulator
from product import RunFolder, in_server, run_mix, truth, write_mix

from tokswarm.measure.window import WorkerSecond

RATE_PER_S = 50.0
WORKERS = (1, 2, 3)
POISSON_S, CONSTANT_S = 6.0, 2.0
BUSY_LAG_MS = 10.0
"""A p99 of sends later than this changes the gaps that a server sees."""
SETTLING_S = 1.5
"""All users of a closed loop begin at one instant; after that long they are in the server's hands."""


def cv(values: Sequence[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values)


def gaps(instants: Sequence[int]) -> list[int]:
    return [after - before for before, after in itertools.pairwise(instants)]


# --- closed loop: 33 in flight over two workers -----------------------------------------------------


class Watched(NamedTuple):
    """A run, and what the server had in it at instants of the wall clock."""

    run: RunFolder
    in_server: list[tuple[int, int]]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Two workers hold 33 in a server that runs 32 at a time."""
    folder = tmp_path_factory.mktemp("closed")
    with simulator("demo") as base_url:
        mix = write_mix(
            folder / "closed.yaml",
            base_url,
            classes=[
                {
                    "name": "chat",
                    "prompt": {"tokens": {"uniform": {"low": 48, "high": 96}}},
                    "output": {"max_tokens": {"uniform": {"low": 24, "high": 72}}, "ignore_eos": True},
                }
            ],
            load=[{"name": "steady", "concurrency": 33, "for": "7s", "drain": "10s"}],
        )
        seen: list[tuple[int, int]] = []
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.1):
                seen.append((time.time_ns(), in_server(base_url)))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            run = run_mix(mix, folder / "data", workers=2)
        finally:
            over.set()
            watcher.join()
        yield Watched(run, seen)


def test_the_server_has_33_in_flight(closed: Watched) -> None:
    times = closed.run.stage_times("steady")
    begin_ns, end_ns = times["start_unix_ns"] + int(SETTLING_S * 1e9), times["stop_unix_ns"] - 100_000_000
    steady = [count for unix_ns, count in closed.in_server if begin_ns <= unix_ns <= end_ns]
    assert len(steady) >= 20
    assert max(count for _, count in closed.in_server) == 33
    # A user whose answer has just ended needs a moment to ask again, so a few looks may miss one.
    assert statistics.median(steady) == 33
    assert statistics.fmean(steady) == pytest.approx(33, abs=0.5)


def test_the_summary_says_33_in_flight(closed: Watched) -> None:
    stage = closed.run.stage("steady")
    assert stage["concurrency"] == 33
    assert stage["in_flight_mean"] == pytest.approx(33, abs=0.5)
    assert set(stage["requests"]) == {"ok"}
    most = {
        worker: max(entry.in_flight for entry in entries if isinstance(entry, WorkerSecond))
        for worker, entries in closed.run.entries.items()
        if worker != "master"
    }
    assert sorted(most.values()) == [16, 17]


def test_one_request_more_than_the_server_runs_has_to_wait(closed: Watched) -> None:
    waits = closed.run.stage("steady")
    assert waits["queue_wait_source"] == "server"
    assert waits["queue_wait_ms"]["p50"] > 0


def test_littles_law_holds_in_the_summary(closed: Watched) -> None:
    stage = closed.run.stage("steady")
    mean_s = statistics.fmean(record.e2e_ms for record in closed.run.records("steady")) / 1000
    assert stage["achieved_per_s"] * mean_s == pytest.approx(stage["in_flight_mean"], rel=0.1)


# --- open loop: 50/s over one, two and three workers --------------------------------------------------


class Sent(NamedTuple):
    """An open-loop run, and what the server knows of each request, by arrival."""

    run: RunFolder
    truth: list[dict[str, Any]]

    def arrivals_ns(self, stage: str) -> list[int]:
        """When the server got each request of a stage: those that came after its first was due, in their order."""
        records = self.run.records(stage)
        came = [each["arrival_ns"] for each in self.truth if each["arrival_ns"] >= records[0].planned_ns]
        return came[: len(records)]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Sent]]:
    """The same mix from one, two and three workers, by their number."""
    folder = tmp_path_factory.mktemp("open")
    sent: dict[int, Sent] = {}
    with simulator("fast") as base_url:
        mix = write_mix(
            folder / "open.yaml",
            base_url,
            classes=[
                {
                    "name": "short",
                    "weight": 3,
                    "prompt": {"tokens": {"lognormal": {"p50": 60, "p99": 300}}},
                    "output": {"max_tokens": {"uniform": {"low": 4, "high": 12}}, "ignore_eos": True},
                },
                {
                    "name": "long",
                    "weight": 1,
                    "prompt": {"tokens": {"uniform": {"low": 200, "high": 400}}},
                    "output": {"max_tokens": {"choice": {16: 1, 32: 1}}, "ignore_eos": True},
                },
            ],
            load=[
                {"name": "poisson", "rate": "50/s", "for": f"{POISSON_S:g}s", "drain": "5s"},
                {
                    "name": "constant",
                    "rate": "50/s",
                    "arrivals": {"constant": {}},
                    "for": f"{CONSTANT_S:g}s",
                    "drain": "5s",
                },
            ],
        )
        for workers in WORKERS:
            run = run_mix(mix, folder / f"data-{workers}", workers=workers)
            sent[workers] = Sent(run, truth(base_url, run.records()[0].planned_ns))
        yield sent


@pytest.mark.parametrize("workers", WORKERS)
def test_fifty_a_second_is_fifty_in_all(opened: dict[int, Sent], workers: int) -> None:
    run = opened[workers].run
    assert len(run.summary["workers"]) == workers
    for stage, length_s in (("poisson", POISSON_S), ("constant", CONSTANT_S)):
        arrivals_ns = opened[workers].arrivals_ns(stage)
        assert len(arrivals_ns) == len(run.records(stage)) == sum(run.stage(stage)["requests"].values())
        # Four standard deviations of a Poisson count; equal gaps leave one request of doubt at the edge.
        doubt = 4 * (RATE_PER_S * length_s) ** 0.5 if stage == "poisson" else 1
        assert len(arrivals_ns) == pytest.approx(RATE_PER_S * length_s, abs=doubt)
        assert run.stage(stage)["requests"] == {"ok": len(arrivals_ns)}
        assert run.stage(stage)["dropped"] == 0


@pytest.mark.parametrize("workers", WORKERS)
def test_poisson_arrivals_know_nothing_of_each_other(opened: dict[int, Sent], workers: int) -> None:
    sent = opened[workers]
    planned = cv(gaps([record.planned_ns for record in sent.run.records("poisson")]))
    # The estimate of 300 exponential gaps scatters by 0.06.
    assert planned == pytest.approx(1, abs=0.15)
    late_ms = sent.run.stage("poisson")["schedule_lag_ms"]["p99"]
    if late_ms > BUSY_LAG_MS:
        pytest.skip(f"this machine was too busy: the run itself says that requests were {late_ms} ms late")
    assert cv(gaps(sent.arrivals_ns("poisson"))) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("workers", WORKERS)
def test_constant_arrivals_keep_their_distance(opened: dict[int, Sent], workers: int) -> None:
    sent = opened[workers]
    assert cv(gaps([record.planned_ns for record in sent.run.records("constant")])) < 0.05
    seen_ms = [gap / 1e6 for gap in gaps(sent.arrivals_ns("constant"))]
    assert statistics.median(seen_ms) == pytest.approx(1000 / RATE_PER_S, rel=0.25)


def test_the_tickets_are_the_same_whatever_the_number_of_workers(opened: dict[int, Sent]) -> None:
    for stage in ("poisson", "constant"):
        tickets = {
            workers: [
                (record.class_name, record.prompt_tokens_planned, record.max_tokens)
                for record in sent.run.records(stage)
            ]
            for workers, sent in opened.items()
        }
        due_ms = {
            workers: [
                (record.planned_ns - sent.run.records(stage)[0].planned_ns) / 1e6 for record in sent.run.records(stage)
            ]
            for workers, sent in opened.items()
        }
        for workers in WORKERS[1:]:
            assert tickets[workers] == tickets[1]
            assert due_ms[workers] == pytest.approx(due_ms[1], abs=1)


@pytest.mark.parametrize("workers", WORKERS)
def test_what_the_server_counted_is_what_the_summary_says(opened: dict[int, Sent], workers: int) -> None:
    sent = opened[workers]
    ours = [each for each in sent.truth if each["arrival_ns"] <= max(r.done_ns for r in sent.run.records())]
    assert len(ours) == sent.run.finished_requests
    assert sum(each["output_tokens"] for each in ours) == sent.run.output_tokens
    assert sum(each["prompt_tokens"] for each in ours) == sent.run.summary["totals"]["prompt_tokens"]


@pytest.mark.parametrize("workers", WORKERS)
def test_prompts_have_the_length_that_was_asked_for(opened: dict[int, Sent], workers: int) -> None:
    for record in opened[workers].run.records():
        assert record.prompt_tokens == pytest.approx(record.prompt_tokens_planned, abs=2)


def test_no_two_runs_send_the_same_text(opened: dict[int, Sent]) -> None:
    assert len({sent.run.summary["content_seed"] for sent in opened.values()}) == len(WORKERS)
    assert all(each["cached_tokens"] < 16 for sent in opened.values() for each in sent.truth)
