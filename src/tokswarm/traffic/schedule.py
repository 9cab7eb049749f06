"""Turns a plan into tickets: for each request of a stage its class, due time, lengths and text.

A ticket depends on the mix's seed, the stage and its index alone, so the same requests are sent at
the same times by any number of workers; worker k of n takes indices k, k + n, k + 2n, … (`share` says
what happens when workers come and go). Each target has
texts of its own: what is sent to one is never in the cache of another, nor in one before both.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count, takewhile

from tokswarm.traffic.arrivals import offsets_ns
from tokswarm.traffic.distribution import Sampler, Weighted
from tokswarm.traffic.mix import Mix, TrafficClass
from tokswarm.traffic.own_prompts import OwnPrompts
from tokswarm.traffic.plan import ClosedLoop, OpenLoop, Plan, PlannedStage, Replay
from tokswarm.traffic.prefix_groups import GroupText, PrefixGroups, stage_begins_ns
from tokswarm.traffic.prompt import prompt_writers
from tokswarm.traffic.replay import ReplayRows, replay_rows
from tokswarm.traffic.routing import Routing
from tokswarm.traffic.seed import mixed_seed
from tokswarm.traffic.session import Session, SessionDraws
from tokswarm.traffic.share import PART_BITS, Arrival, Share
from tokswarm.traffic.ticket import Ticket

_ARRIVALS, _TICKETS, _SESSIONS, _CHURN, _ROWS = range(5)
REPLAY_CLASS_INDEX = 0
"""Requests of a trace count for the mix's first class, with its limits; their lengths come from the trace."""


def target_content_seed(content_seed: int, target_index: int) -> int:
    """Seeds the text for one of the mix's targets."""
    return content_seed if target_index == 0 else mixed_seed(content_seed, target_index)


def stage_class_weights(mix: Mix, stage: PlannedStage) -> list[float]:
    """Weight of each class of the mix in a stage: the stage's own, else the classes'."""
    return [one.weight for one in mix.classes] if stage.class_weights is None else stage.class_weights


class TicketSource:
    """The tickets of one worker for one run, stage after stage.

    It remembers which prefixes this worker has used; ask for the stages in the order they run.
    """

    def __init__(self, plan: Plan, worker_index: int, worker_count: int, *, joins_late: bool = False) -> None:
        """`joins_late`: others have used the prefixes already."""
        if not 0 <= worker_index < worker_count:
            raise ValueError(f"worker_index is {worker_index}, expected 0 to {worker_count - 1}")
        self._plan = plan
        self._worker_index = worker_index
        self._worker_count = worker_count
        self._joins_late = joins_late
        self._draws: dict[int, Callable[[int, int | None, int], Iterator[Ticket]]] = {}
        self._routing = Routing(plan.mix)
        self._writers = [
            prompt_writers(plan.mix, target, endpoint.fit, target_content_seed(plan.content_seed, place))
            for place, (endpoint, target) in enumerate(zip(plan.endpoints, plan.mix.all_targets, strict=True))
        ]
        self._classes = [
            _ClassDraws(one, mixed_seed(plan.mix.seed, _CHURN, place)) for place, one in enumerate(plan.mix.classes)
        ]
        self._own = {
            packed.class_index: OwnPrompts(
                packed,
                mixed_seed(plan.mix.seed, _ROWS, packed.class_index),
                worker_index=worker_index,
                worker_count=worker_count,
                joins_late=joins_late,
            )
            for packed in plan.prompts
        }
        self._spent: set[int] = set()
        """Classes whose own prompts were all sent, with none to be repeated."""
        self._fits = [endpoint.fit for endpoint in plan.endpoints]
        self._sessions = [None if one.session is None else SessionDraws(one, one.session) for one in plan.mix.classes]
        self._prefix_used: dict[tuple[int, int, int], tuple[int, int]] = {}
        """By class, group and target: the generation that was used last, and how much of it."""
        self._replays: dict[int, ReplayRows] = {}
        self._blocks_used: dict[tuple[str, int], bytearray] = {}
        for index, stage in enumerate(plan.stages):
            if isinstance(stage.load, Replay):
                rows = self._replays[index] = replay_rows(stage.load)
                for place in range(len(self._writers)):
                    used = self._blocks_used.setdefault((stage.load.trace, place), bytearray())
                    used.extend(bytes(max(0, max(rows.blocks, default=-1) + 1 - len(used))))

    @property
    def is_mirrored(self) -> bool:
        """Whether each ticket goes to all targets of its class, so that in a closed loop each has users of its own."""
        return self._routing.is_mirrored

    @property
    def share(self) -> Share:
        """What is this worker's of a stage that nobody leaves or joins."""
        return Share(worker_index=self._worker_index, worker_count=self._worker_count)

    def tickets(self, stage_index: int, elapsed_ns: Callable[[], int] = lambda: 0) -> Iterator[Ticket]:
        """This worker's tickets in order: endless in a closed loop, else until the stage or its trace ends.

        `elapsed_ns`: the time since the stage's start, asked for each ticket of a closed loop.
        """
        share = self.share
        if isinstance(self._plan.stages[stage_index].load, ClosedLoop):
            yield from self._closed(stage_index, share, None, elapsed_ns)
            return
        for arrival in self.arrivals(stage_index):
            if share.has(arrival.number):
                yield from self.tickets_of(stage_index, arrival)

    def arrivals(self, stage_index: int) -> Iterator[Arrival]:
        """When the requests of a stage are due over the whole fleet; nothing is due in a closed loop."""
        stage = self._plan.stages[stage_index]
        end_ns = round(stage.duration_s * 1e9)
        match stage.load:
            case OpenLoop() as load:
                due = stage_offsets_ns(self._plan.mix, stage_index, load)
                return (Arrival(number, due_ns) for number, due_ns in enumerate(takewhile(end_ns.__gt__, due)))
            case Replay() as replay:
                return self._replay(stage_index, replay, end_ns)
        return iter(())

    def tickets_of(self, stage_index: int, arrival: Arrival) -> Iterator[Ticket]:
        """What is sent when it is due: a ticket, or of mirrored traffic one for each target; nothing where a class
        of the stage has no prompts left.
        """
        load = self._plan.stages[stage_index].load
        if isinstance(load, Replay):
            return self._replayed(stage_index, load, arrival)
        if self._is_spent(stage_index):
            return iter(())
        return self._draw(stage_index)(arrival.number, arrival.due_ns, arrival.due_ns)

    def classes_of(self, stage_index: int, arrival: Arrival) -> list[int]:
        """The classes of the tickets that `tickets_of` draws, without drawing their texts."""
        stage = self._plan.stages[stage_index]
        class_index = REPLAY_CLASS_INDEX
        if not isinstance(stage.load, Replay):
            seed = mixed_seed(self._plan.mix.seed, _TICKETS, stage_index)
            rng = random.Random(mixed_seed(seed, arrival.number))  # noqa: S311 - reproducible
            class_index = Weighted(stage_class_weights(self._plan.mix, stage)).draw(rng)
        return [class_index] * len(self._routing.targets_of(class_index, stage_index, arrival.number))

    def lanes(self, stage_index: int, share: Share, elapsed_ns: Callable[[], int]) -> list[Iterator[Ticket]]:
        """For each target of the mix the tickets that its users send in a closed loop: all the same ones, but of
        mirrored traffic, where each target has users of its own. A target without any has an empty lane.

        `elapsed_ns`: the time since the stage's start, asked for each ticket.
        """
        if not self._routing.is_mirrored:
            return [self._closed(stage_index, share, None, elapsed_ns)] * len(self._writers)
        weights = stage_class_weights(self._plan.mix, self._plan.stages[stage_index])
        reached = {
            place
            for class_index, weight in enumerate(weights)
            if weight > 0
            for place in self._routing.targets_of(class_index, stage_index, 0)
        }
        return [
            self._closed(stage_index, share, place, elapsed_ns) if place in reached else iter(())
            for place in range(len(self._writers))
        ]

    def session(self, stage_index: int, first: Ticket) -> Session | None:
        """The session that this ticket begins; None when it stands alone."""
        draws = self._sessions[first.class_index]
        if first.turn is None or draws is None:
            return None
        seed = mixed_seed(self._plan.mix.seed, _SESSIONS, stage_index, first.index)
        writer = self._writers[first.target_index][first.class_index]
        return Session(draws, first, seed=seed, key=(stage_index, first.index), writer=writer)

    def _closed(
        self, stage_index: int, share: Share, only: int | None, elapsed_ns: Callable[[], int]
    ) -> Iterator[Ticket]:
        """`only`: leaves out what goes to other targets than this."""
        draw = self._draw(stage_index, only)
        for index in count((share.part << PART_BITS) + share.worker_index, share.worker_count):
            yield from draw(index, None, elapsed_ns())
            if self._is_spent(stage_index):
                return

    def _is_spent(self, stage_index: int) -> bool:
        """Whether a class of the stage has no prompts left: without it the mix would be another."""
        if not self._spent:
            return False
        weights = stage_class_weights(self._plan.mix, self._plan.stages[stage_index])
        return any(weights[class_index] > 0 for class_index in self._spent)

    def _replay(self, stage_index: int, replay: Replay, end_ns: int) -> Iterator[Arrival]:
        rows = self._replays[stage_index]
        for index, due_ns in enumerate(rows.due_ns):
            if due_ns >= end_ns:
                return
            cached: tuple[int, ...] = ()
            for target_index in self._routing.targets_of(REPLAY_CLASS_INDEX, stage_index, index):
                blocks = self._blocks_of(rows, index, replay, target_index)
                used = self._blocks_used[replay.trace, target_index]
                cached += (_leading_run(blocks, used),)
                for block in blocks:
                    used[block] = 1
            yield Arrival(index, due_ns, cached)

    def _replayed(self, stage_index: int, replay: Replay, arrival: Arrival) -> Iterator[Ticket]:
        rows, index = self._replays[stage_index], arrival.number
        tokens = rows.prompt_tokens[index]
        targets = self._routing.targets_of(REPLAY_CLASS_INDEX, stage_index, index)
        for target_index, cached in zip(targets, arrival.cached_blocks, strict=True):
            yield Ticket(
                index=index,
                class_index=REPLAY_CLASS_INDEX,
                target_index=target_index,
                due_ns=arrival.due_ns,
                prompt=self._writers[target_index][REPLAY_CLASS_INDEX].with_blocks(
                    tokens,
                    (stage_index, index),
                    trace=replay.trace,
                    block_tokens=replay.block_tokens,
                    blocks=self._blocks_of(rows, index, replay, target_index),
                ),
                prompt_tokens=tokens,
                max_tokens=rows.output_tokens[index],
                ideal_cached_tokens=min(tokens, cached * replay.block_tokens),
            )

    def _blocks_of(self, rows: ReplayRows, index: int, replay: Replay, target_index: int) -> Sequence[int]:
        """The leading blocks of a row that fit whole into its prompt."""
        known = rows.blocks_of(index)
        writer = self._writers[target_index][REPLAY_CLASS_INDEX]
        whole = writer.whole_blocks(rows.prompt_tokens[index], replay.block_tokens, len(known))
        return known[:whole]

    def _draw(self, stage_index: int, only: int | None = None) -> Callable[[int, int | None, int], Iterator[Ticket]]:
        if only is None and stage_index in self._draws:
            return self._draws[stage_index]
        seed = mixed_seed(self._plan.mix.seed, _TICKETS, stage_index)
        rng = random.Random()  # noqa: S311 - reseeded for each ticket, to be reproducible
        pick_class = Weighted(stage_class_weights(self._plan.mix, self._plan.stages[stage_index]))
        begins_ns = stage_begins_ns(self._plan.stages, stage_index)

        def draw(index: int, due_ns: int | None, elapsed_ns: int) -> Iterator[Ticket]:
            ticket_seed = mixed_seed(seed, index)
            rng.seed(ticket_seed)
            class_index = pick_class.draw(rng)
            first, *others = self._routing.targets_of(class_index, stage_index, index)
            at_ns = begins_ns + elapsed_ns
            if only is None or first == only:
                yield from self._drawn(rng, class_index, (stage_index, index), first, due_ns=due_ns, at_ns=at_ns)
            for target_index in others:
                if only is None or target_index == only:
                    rng.seed(ticket_seed)
                    pick_class.draw(rng)  # again, so that each target's ticket has the same lengths
                    yield from self._drawn(
                        rng, class_index, (stage_index, index), target_index, due_ns=due_ns, at_ns=at_ns
                    )

        if only is None:
            self._draws[stage_index] = draw
        return draw

    def _drawn(
        self,
        rng: random.Random,
        class_index: int,
        key: tuple[int, int],
        target_index: int,
        *,
        due_ns: int | None,
        at_ns: int,
    ) -> Iterator[Ticket]:
        """A ticket, or none where the class has no prompts left. `at_ns`: in the time of the run's stages."""
        writer = self._writers[target_index][class_index]
        draws = self._classes[class_index]
        tokens = draws.prompt_tokens.draw(rng)
        max_tokens = draws.max_tokens.draw(rng)
        ideal = 0
        groups, own = draws.groups, self._own.get(class_index)
        if own is not None:
            taken = own.take(target_index if self._routing.is_mirrored else 0)
            if taken is None:
                self._spent.add(class_index)
                return
            prompt, tokens = taken.text, taken.tokens(self._fits[target_index])
            ideal = tokens if taken.is_again else 0
        elif groups is None:
            prompt = writer.unique(tokens, key)
        else:
            text = groups.draw(rng, at_ns)
            prefix_tokens = min(groups.tokens, tokens)
            known = self._use_prefix(class_index, text, target_index, groups.tokens, prefix_tokens)
            ideal = min(known, prefix_tokens)
            prompt = writer.with_prefix(
                tokens,
                key,
                prefix_tokens=groups.tokens,
                class_index=class_index,
                group=groups.text_number(text),
            )
        yield Ticket(
            index=key[1],
            class_index=class_index,
            target_index=target_index,
            due_ns=due_ns,
            prompt=prompt,
            prompt_tokens=tokens,
            max_tokens=max_tokens,
            ideal_cached_tokens=ideal,
            turn=None if self._sessions[class_index] is None else 1,
        )

    def _use_prefix(self, class_index: int, text: GroupText, target_index: int, tokens: int, used: int) -> int:
        """How much of a group's text an unlimited cache of the target had before this use of its first `used` tokens.

        Somebody in the fleet pays for each text once. Workers do not hear of each other's requests, so
        the group's number says whose first use it is; for all others the prefix counts as known.
        """
        if self._joins_late or text.group % self._worker_count != self._worker_index:
            return tokens
        of_group = (class_index, text.group, target_index)
        generation, known = self._prefix_used.get(of_group, (text.generation, 0))
        if generation != text.generation:
            known = 0
        self._prefix_used[of_group] = (text.generation, max(known, used))
        return known


class _ClassDraws:
    """What is drawn for each request of one class."""

    def __init__(self, traffic_class: TrafficClass, churn_seed: int) -> None:
        self.prompt_tokens = Sampler(traffic_class.prompt.lengths)
        self.max_tokens = Sampler(traffic_class.output.max_tokens)
        prefix = traffic_class.prompt.shared_prefix
        self.groups = None if prefix is None else PrefixGroups(prefix, churn_seed)


def stage_offsets_ns(mix: Mix, stage_index: int, load: OpenLoop) -> Iterator[int]:
    """When the requests of an open-loop stage are due over the whole fleet; endless."""
    return offsets_ns(load, random.Random(mixed_seed(mix.seed, _ARRIVALS, stage_index)))  # noqa: S311 - reproducible


def _leading_run(blocks: Sequence[int], used: bytearray) -> int:
    """How many of the first blocks were used before; `used` has a 1 at the number of each block that was."""
    for run, block in enumerate(blocks):
        if not used[block]:
            return run
    return len(blocks)
