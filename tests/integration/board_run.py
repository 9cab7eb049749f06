"""A run in virtual time for the boards: real parsers, recorders, merge, record logs; the writer and Parquet read those.

Two workers, two targets, two classes, two stages that overlap while the first drains, and all that goes wrong in a run:
refusals, broken streams, prompts too long, answers in one piece, late and dropped arrivals, servers that do not
say how long a request waited or what was cached. Everything is drawn from one seed, so that a run is the same
each time; no duration lies near a bound of the coarse buckets, whose middle values stand for whole fine ones.
"""

import heapq
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tokswarm.master.merge import WindowMerge
from tokswarm.measure.histogram import LE_BOUNDS_MS
from tokswarm.measure.record import Outcome
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond, Window, WorkerSecond
from tokswarm.sink.parquet import write_parquet
from tokswarm.sink.record_log import RecordLog
from tokswarm.sink.token_budget import TokenBudget
from tokswarm.traffic.mix import Distribution, Limit, Output, Prompt, Slo, TrafficClass
from tokswarm.traffic.ticket import Ticket
from tokswarm.traffic.units import Duration
from tokswarm.wire.answer import LiveRow
from tokswarm.wire.chat_answer import ChatAnswer
from tokswarm.worker.recorder import Recorder, Sending

MS, S = 1_000_000, 1_000_000_000
WORKERS = ("node-1", "node-2")
STAGES = ("c4", "c8")
STAGE_S = 20
POINTS_PER_S = 60
"""Token points the second worker may write, about half of what it sees: some requests go without."""
TARGETS = ("here", "there:8000")
REPLICAS = (("here", "10.0.0.1:8000"), ("here", "10.0.0.2:8000"), ("there:8000", "there:8000"))
"""Each with its target."""


class Plan(NamedTuple):
    """What tells one run from another."""

    run_id: str
    start_s: int
    seed: int
    slowness: float = 1.0
    """Every time of the server, times this."""
    trouble: float = 0.15
    """Share of requests that do not end ok."""
    verdict: str = "suspect"
    backlog_bytes: int = 1 << 16
    """At most so much is logged and not in the database."""


def classes() -> list[TrafficClass]:
    """One with limits on its tokens, one with a limit on the whole."""
    one = Distribution(fixed=1)

    def limit(ms: float) -> Limit:
        return Limit(p99=Duration.parse(f"{ms}ms"))

    return [
        TrafficClass(
            name="chat",
            prompt=Prompt(tokens=one),
            output=Output(max_tokens=one),
            slo=Slo(ttft=limit(150), itl=limit(30)),
        ),
        TrafficClass(
            name="long.report", prompt=Prompt(tokens=one), output=Output(max_tokens=one), slo=Slo(e2e=limit(700))
        ),
    ]


class _Exchange:
    """A request that is over, as the recorder finds it."""

    def __init__(self, live: LiveRow, sent_ns: int) -> None:
        self.answer = ChatAnswer(live)
        self.outcome: Outcome | None = None
        self.sent_ns = sent_ns
        self.done_ns = sent_ns
        self.headers_ns: int | None = None
        self.connect_ns: int | None = None
        self.status: int | None = 200
        self.error: str | None = None
        self.headers: dict[str, str] = {}


class _Worker:
    """One worker: its log, its recorder, and what it says of itself."""

    def __init__(self, name: str, index: int, plan: Plan, folder: Path) -> None:
        self.name = name
        self.plan = plan
        self.log = RecordLog(folder / f"{name}.log", run_id=plan.run_id, worker=name)
        self.recorder = Recorder(
            worker=name,
            worker_index=index,
            classes=classes(),
            target_names=TARGETS,
            log=self.log,
            wall_offset_ns=lambda: plan.start_s * S,
            token_budget=TokenBudget(POINTS_PER_S) if index else None,
        )
        self.in_flight = 0

    def health(self, second_unix: int, draws: random.Random) -> WorkerSecond:
        """A worker in good health, with a bad second now and then."""
        bad = draws.random() < 0.1
        return WorkerSecond(
            worker=self.name,
            second_unix=second_unix,
            loop_lag_p99_ms=draws.uniform(11, 40) if bad else draws.uniform(0.1, 1.5),
            loop_lag_max_ms=draws.uniform(40, 300) if bad else draws.uniform(1.5, 9),
            cpu_ratio=draws.uniform(0.86, 0.99) if bad else draws.uniform(0.1, 0.7),
            schedule_lag_p99_ms=None if draws.random() < 0.1 else draws.uniform(0.1, 30),
            in_flight=self.in_flight,
            sockets=self.in_flight + draws.randrange(3),
            rss_bytes=60_000_000 + draws.randrange(1 << 20),
            log_bytes=self.log.size_bytes,
            log_lost=int(bad),
            sink_backlog_bytes=self.plan.backlog_bytes // 2 + draws.randrange(self.plan.backlog_bytes // 2),
            sink_error="",
            reads=draws.randrange(50, 150) if self.in_flight else 0,
            merged_arrivals=draws.randrange(10) if self.in_flight else 0,
            unstamped_arrivals=draws.randrange(3) if self.in_flight else 0,
        )


class VirtualRun:
    """Makes the logs of one run below `folder`, and their tables beside them."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self._draws = random.Random(plan.seed)
        (folder / "logs").mkdir(parents=True)
        self._workers = [_Worker(name, index, plan, folder / "logs") for index, name in enumerate(WORKERS)]
        self._master = RecordLog(folder / "logs" / "master.log", run_id=plan.run_id, worker="master")
        self._merge = WindowMerge(limits={each.name: each.slo for each in classes() if each.slo is not None})
        self._due: list[tuple[int, int, Callable[[int], None]]] = []
        self._order = itertools.count()
        self._slots = itertools.count()

    def make(self) -> None:
        """Send, answer, record, merge; then the tables."""
        self._events()
        for place, stage in enumerate(STAGES):
            begin_ns = place * STAGE_S * S
            for worker, class_index in itertools.product(self._workers, range(2)):
                for user in range(1 + place):
                    at_ns = begin_ns + self._draws.randrange(400 * MS) + user
                    self._at(at_ns, self._send(worker, class_index, stage, begin_ns + STAGE_S * S))
        end_s = len(STAGES) * STAGE_S
        for second in itertools.count():
            while self._due and self._due[0][0] < (second + 1) * S:
                at_ns, _, act = heapq.heappop(self._due)
                act(at_ns)
            self._close(second)
            if second >= end_s and not self._due:
                break
        for entry in self._merge.take_rest():
            self._log(entry)
        for log in (self._master, *(worker.log for worker in self._workers)):
            assert log.lost == 0
            log.close()
        write_parquet(sorted((self.folder / "logs").glob("*.log")), self.folder)

    def _at(self, at_ns: int, act: Callable[[int], None]) -> None:
        heapq.heappush(self._due, (at_ns, next(self._order), act))

    def _log(self, entry: FleetSecond | ServerSecond | Event) -> None:
        assert self._master.append(entry)

    def _close(self, second: int) -> None:
        second_unix = self.plan.start_s + second
        for worker in self._workers:
            window: Window = worker.recorder.take(second_unix)
            assert worker.log.append(window)
            assert worker.log.append(worker.health(second_unix, self._draws))
            self._merge.add(window)
        for entry in self._merge.take(now_unix_s=second_unix + 1, workers=WORKERS):
            self._log(entry)
        for target, replica in REPLICAS:
            self._log(self._server(target, replica, second_unix))

    # --- requests

    def _send(self, worker: _Worker, class_index: int, stage: str, end_ns: int) -> Callable[[int], None]:
        def act(at_ns: int) -> None:
            if at_ns >= end_ns:
                return
            draws = self._draws
            row = worker.recorder.row(class_index, stage)
            if draws.random() < 0.03:
                worker.recorder.dropped(row)
            ticket = Ticket(
                index=0,
                class_index=class_index,
                target_index=draws.randrange(len(TARGETS)),
                due_ns=None,
                prompt=b"x",
                prompt_tokens=1000,
                max_tokens=64,
                ideal_cached_tokens=draws.choice((0, 800, 800, 600)),
            )
            planned_ns = at_ns - draws.choice((0, 0, 0, 500_000, 25 * MS))
            sending = Sending(ticket, row, next(self._slots) % 10_000, planned_ns)
            worker.recorder.begun(sending, at_ns)
            worker.in_flight += 1
            self._answer(worker, sending, at_ns, again=self._send(worker, class_index, stage, end_ns))

        return act

    def _answer(self, worker: _Worker, sending: Sending, sent_ns: int, again: Callable[[int], None]) -> None:
        draws = self._draws
        exchange = _Exchange(sending.row.live, sent_ns)
        exchange.headers_ns = sent_ns + 2 * MS
        if draws.random() < self.plan.trouble:
            kind = draws.choice(("limited", "limited", "long", "reset"))
        else:
            kind = "whole" if draws.random() < 0.05 else "stream"
        wait_ns = self._time_ns(15, 90)
        at_ns = self._clear(sent_ns, sent_ns + wait_ns + self._time_ns(25, 60))
        tokens = draws.randrange(2, 30)

        def done(now_ns: int) -> None:
            exchange.done_ns = now_ns
            worker.recorder.finished(exchange, sending)  # type: ignore[arg-type]
            worker.in_flight -= 1
            self._at(now_ns + draws.randrange(5 * MS, 60 * MS), again)

        match kind:
            case "limited":
                exchange.outcome, exchange.status, exchange.error = Outcome.RATE_LIMITED, 429, "HTTP 429: slow down"
                exchange.headers = {"retry-after": "2"}
                self._at(sent_ns + self._time_ns(3, 9), done)
                return
            case "long":
                exchange.outcome, exchange.status = Outcome.CONTEXT_LENGTH, 400
                exchange.error = "HTTP 400: the prompt is too long"
                self._at(sent_ns + self._time_ns(3, 9), done)
                return
            case "whole":
                exchange.outcome = Outcome.OK
                whole = json.dumps(
                    {"choices": [{"message": {"content": "all"}}], **self._usage(sending, tokens, wait_ns)}
                )

                def read(now_ns: int) -> None:
                    exchange.answer.read_body(whole.encode())
                    done(now_ns)

                self._at(self._clear(sent_ns, at_ns + 100 * MS), read)
                return
        for token in range(tokens):
            self._at(at_ns, lambda now_ns: exchange.answer.feed(_TOKEN, now_ns, stamped=True))
            if token < tokens - 1 and draws.random() > 0.05:  # else the next comes in the same read
                at_ns += self._time_ns(11, 45)
        if kind == "reset":
            exchange.outcome, exchange.error = Outcome.RESET, "the connection was reset"
        else:
            exchange.outcome = Outcome.OK
            usage = json.dumps({"choices": [], **self._usage(sending, tokens, wait_ns)})
            last = f"data: {usage}\n\ndata: [DONE]\n\n".encode()
            self._at(at_ns, lambda now_ns: exchange.answer.feed(last, now_ns, stamped=True))
        self._at(self._clear(sent_ns, at_ns + draws.randrange(50_000, MS)), done)

    def _usage(self, sending: Sending, tokens: int, wait_ns: int) -> dict[str, Any]:
        usage: dict[str, Any] = {"prompt_tokens": 1000 + self._draws.randrange(9), "completion_tokens": tokens}
        if self._draws.random() < 0.8:
            found = int(sending.ticket.ideal_cached_tokens * self._draws.random())
            usage["prompt_tokens_details"] = {"cached_tokens": found}
        said: dict[str, Any] = {"usage": usage}
        if self._draws.random() < 0.8:
            said["metrics"] = {"queue_time_ms": wait_ns / MS}
        return said

    def _time_ns(self, low_ms: float, high_ms: float) -> int:
        """A time away from every bound of the coarse buckets by more than a fine bucket is wide."""
        while True:
            time_ns = int(self._draws.uniform(low_ms, high_ms) * MS * self.plan.slowness)
            if not _near_a_bound(time_ns):
                return time_ns

    @staticmethod
    def _clear(sent_ns: int, at_ns: int) -> int:
        """The same moment, or a little later, so that its distance from `sent_ns` is near no bound."""
        while _near_a_bound(at_ns - sent_ns):
            at_ns += (at_ns - sent_ns) // 50
        return at_ns

    # --- what else a run writes

    def _server(self, target: str, replica: str, second_unix: int) -> ServerSecond:
        draws = self._draws
        unix_ns = second_unix * S + 300 * MS + draws.randrange(MS)
        if draws.random() < 0.05:
            return ServerSecond(unix_ns=unix_ns, target=target, replica=replica, up=0)
        waited = draws.random() < 0.9
        return ServerSecond(
            unix_ns=unix_ns,
            target=target,
            replica=replica,
            up=1,
            engine="vllm",
            version="0.26.0",
            scrape_ms=draws.uniform(1, 4),
            running=draws.randrange(1, 8),
            waiting=draws.randrange(5),
            paused=draws.randrange(2),
            kv_use_ratio=draws.uniform(0.2, 0.99),
            kv_capacity_tokens=16_384,
            hit_ratio=draws.random(),
            prompt_tok_per_s=draws.uniform(500, 3000),
            cached_tok_per_s=draws.uniform(100, 500),
            generation_tok_per_s=draws.uniform(50, 100),
            recomputed_tok_per_s=draws.uniform(0, 200),
            preemptions_per_s=draws.choice((0.0, 0.0, 1.5)),
            evictions_per_s=draws.uniform(0, 40),
            evicted_tok_per_s=draws.uniform(0, 640),
            finished_per_s=draws.uniform(0, 6),
            aborted_per_s=0.0,
            failed_per_s=draws.choice((0.0, 0.0, 0.0, 1.0)),
            rejected_per_s=draws.choice((0.0, 0.0, 1.0)),
            queue_wait_mean_ms=draws.uniform(15, 90) if waited else None,
            queue_wait_p50_ms=draws.uniform(15, 40) if waited else None,
            queue_wait_p90_ms=draws.uniform(40, 70) if waited else None,
            queue_wait_p99_ms=draws.uniform(70, 90) if waited else None,
            ttft_mean_ms=draws.uniform(40, 150) if waited else None,
            ttft_p50_ms=draws.uniform(40, 90) if waited else None,
            ttft_p90_ms=draws.uniform(90, 130) if waited else None,
            ttft_p99_ms=draws.uniform(130, 150) if waited else None,
            prefill_mean_ms=draws.uniform(25, 60) if waited else None,
        )

    def _events(self) -> None:
        def at(second: float) -> int:
            return int((self.plan.start_s + second) * S)

        for event in (
            Event(unix_ns=at(0), kind="run", title="run began", text="2 workers, 2 stages"),
            Event(unix_ns=at(0), kind="stage", title="c4", text="4 in flight"),
            Event(unix_ns=at(0), kind="stage", title="c4", text="4 in flight", end_unix_ns=at(STAGE_S)),
            Event(unix_ns=at(STAGE_S), kind="stage", title="c8", text="8 in flight", end_unix_ns=at(2 * STAGE_S)),
            Event(
                unix_ns=at(31.5),
                kind="cliff",
                title="cliff: cache churn",
                text="tok/s fell by 40 % at steady demand; the cached share fell from 70 % to 20 %",
            ),
            Event(unix_ns=at(33), kind="worker", title="worker node-2 lost", text="2 requests in flight"),
            Event(unix_ns=at(2 * STAGE_S + 1), kind="verdict", title=f"the run is {self.plan.verdict}", text="why"),
        ):
            self._log(event)


_TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


def _near_a_bound(time_ns: int) -> bool:
    return any(abs(time_ns / MS - bound) < 0.02 * bound for bound in LE_BOUNDS_MS)


def virtual_run(plan: Plan, folder: Path) -> Path:
    """Make a run; its folder, with `logs/` and the tables."""
    VirtualRun(plan, folder).make()
    return folder


def events_of(folder: Path) -> list[dict[str, Any]]:
    """The events as the run's folder holds them."""
    found: list[dict[str, Any]] = msgspec.json.decode((folder / "events.json").read_bytes())
    return found
