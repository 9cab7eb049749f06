"""The step loop of a batching server with a finite KV cache, as a pure machine: time is an argument.

One step serves the whole batch. Who is in it, and what becomes of memory, is decided by the way of
batching (`continuous` or `static`); who comes first by the waiting line. The caller says when a step
starts; the answer says when it ends and whose tokens come out of it. Real time (`driver`) and virtual
time (`virtual`) drive the same code.
"""

from tokswarm.simulator.continuous import ContinuousBatch
from tokswarm.simulator.kv import BlockPool
from tokswarm.simulator.profile import Profile
from tokswarm.simulator.progress import Counts, Progress, Request, Step
from tokswarm.simulator.static import StaticBatch
from tokswarm.simulator.waiting import ByArrival, ByPriority, WaitingLine

__all__ = ["Counts", "Engine", "Progress", "Request", "Step"]


class Engine:
    """The scheduler and the memory of one server."""

    def __init__(self, profile: Profile, *, seed: int = 1) -> None:
        """`seed` decides which drafts are accepted, together with each request's id."""
        self.profile = profile
        self.pool = BlockPool(profile.num_blocks)
        self.counts = Counts()
        self.slowness = 1.0
        """Steps take so many times longer: a server that warms up."""
        self._waiting: WaitingLine = ByPriority() if profile.scheduling == "priority" else ByArrival()
        self._batch: ContinuousBatch | StaticBatch
        if profile.batching == "static":
            self._batch = StaticBatch(profile, self.pool, self._waiting, self.counts)
        else:
            self._batch = ContinuousBatch(profile, self.pool, self._waiting, self.counts, seed)

    @property
    def waiting_count(self) -> int:
        """Requests that hold no blocks: not yet admitted, or preempted."""
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        """Requests in the batch."""
        return len(self._batch.running)

    def submit(self, request: Request) -> None:
        """Queue a request. ValueError when it could never be served."""
        length = request.prompt_tokens + request.output_tokens
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"request {request.request_id} has no prompt or no output tokens")
        if length > self.profile.kv_tokens:
            raise ValueError(f"request {request.request_id} is {length} tokens, memory {self.profile.kv_tokens}")
        self._waiting.add(Progress(request))

    def abort(self, request_id: int) -> Progress | None:
        """Drop a request, free what it holds at once and say how far it was. None: it is not here (any more)."""
        running = self._batch.running
        sequence = next((one for one in running if one.request.request_id == request_id), None)
        if sequence is not None:
            running.remove(sequence)
        else:
            sequence = self._waiting.find(request_id)
            if sequence is None:
                return None
            self._waiting.remove(sequence)
        self._batch.drop(sequence)
        return sequence

    def next_start_ns(self, after_ns: int) -> int | None:
        """When the next step can start, at or after `after_ns`, if nothing arrives before. None: nothing to do."""
        return self._batch.next_start_ns(after_ns)

    def step(self, now_ns: int) -> Step | None:
        """Start a step and bring the state to its end.

        None: nothing can run at this time. The next step must not start before `end_ns` of this one.
        """
        return self._batch.step(now_ns, self.slowness)
