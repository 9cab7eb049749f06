"""The stages of a run on a simulated server, in virtual time, and the figures they would give."""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from tokswarm.predict.measured import Figures, MeasuredStage
from tokswarm.predict.workload import Workload
from tokswarm.simulator.engine import Engine, Request, Step
from tokswarm.simulator.profile import Profile
from tokswarm.simulator.virtual import Served, closed_loop, open_loop
from tokswarm.traffic.plan import ClosedLoop


class Simulation:
    """One simulated server with its cache, and the stages that are run on it, one after the other."""

    def __init__(self, profile: Profile, workload: Workload) -> None:
        self._engine = Engine(profile)
        self._overhead_ns = round(profile.request_overhead_us * 1e3)
        self._workload = workload
        self._now_ns = 0
        self._requests = 0
        """How many were sent so far, whose numbers name them."""

    def run(self, stage: MeasuredStage) -> Figures:
        """Send the stage's requests for as long as it sent, let all of them end, and measure as it was measured."""
        start_ns = self._now_ns
        stop_ns = start_ns + round(stage.sent_for_s * 1e9)
        starts: array[int] = array("q")

        def note(step: Step) -> None:
            starts.append(step.start_ns)

        index = next(place for place, each in enumerate(self._workload.stages) if each.name == stage.name)
        served = list(self._serve(index, start_ns, stop_ns, note))
        self._now_ns = max([stop_ns, *(each.ended_ns for each in served)])
        return self._figures(stage, start_ns, served, starts)

    def _serve(self, index: int, start_ns: int, stop_ns: int, note: Callable[[Step], None]) -> Iterator[Served]:
        load = self._workload.stages[index].load
        if not isinstance(load, ClosedLoop):
            return open_loop(self._engine, self._arrivals(index, start_ns, stop_ns), note)
        place = iter(range(1 << 40))

        def draw(_client: int, arrival_ns: int) -> Request | None:
            sent_ns = arrival_ns - self._overhead_ns
            draft = self._workload.draft(index, next(place)) if sent_ns < stop_ns else None
            return None if draft is None else draft.arriving(self._next_id(), arrival_ns)

        return closed_loop(
            self._engine,
            load.concurrency,
            draw,
            think_ns=self._overhead_ns,
            start_ns=start_ns + self._overhead_ns,
            on_step=note,
        )

    def _arrivals(self, index: int, start_ns: int, stop_ns: int) -> Iterable[Request]:
        place = 0
        while (draft := self._workload.draft(index, place)) is not None and draft.due_ns is not None:
            if start_ns + draft.due_ns >= stop_ns:
                return
            yield draft.arriving(self._next_id(), start_ns + draft.due_ns + self._overhead_ns)
            place += 1

    def _next_id(self) -> int:
        self._requests += 1
        return self._requests

    def _figures(self, stage: MeasuredStage, start_ns: int, served: list[Served], starts: "array[int]") -> Figures:
        if not served:
            return Figures(0.0, None, None, None)
        begin_ns = start_ns + round(stage.settle_s * 1e9)
        end_ns = begin_ns + round(stage.window_s * 1e9)
        tokens = sum(bisect_left(each.token_ns, end_ns) - bisect_left(each.token_ns, begin_ns) for each in served)
        ttfts_ns = sorted(each.first_token_ns - each.request.arrival_ns + self._overhead_ns for each in served)
        gaps_ns = sorted(after - before for each in served for before, after in pairwise(each.token_ns))
        # A server takes requests in between two steps, and counts the wait of each from there (as vLLM does).
        waits_ns = [each.admitted_ns - starts[bisect_left(starts, each.request.arrival_ns)] for each in served]
        return Figures(
            output_tok_per_s=round(tokens / stage.window_s, 3),
            ttft_p50_ms=round(ttfts_ns[(len(ttfts_ns) - 1) // 2] / 1e6, 3),
            itl_p50_ms=None if not gaps_ns else round(gaps_ns[(len(gaps_ns) - 1) // 2] / 1e6, 3),
            queue_wait_mean_ms=round(sum(waits_ns) / len(waits_ns) / 1e6, 3),
        )
