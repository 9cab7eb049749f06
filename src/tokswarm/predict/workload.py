"""The requests of a run as the engine knows them: lengths, and the identity of each block."""

import random
from collections.abc import Hashable, Iterator
from hashlib import blake2b
from itertools import islice

import msgspec

from tokswarm.errors import ConfigError
from tokswarm.predict.measured import MeasuredRun
from tokswarm.simulator.engine import Request
from tokswarm.traffic.mix import Target
from tokswarm.traffic.plan import Plan, TokenFit
from tokswarm.traffic.schedule import TicketSource
from tokswarm.traffic.seed import mixed_seed
from tokswarm.traffic.ticket import Ticket

_CHUNK = 256
"""Tickets drawn at a time."""


class Draft:
    """A request before it is sent: the engine's request but for its arrival."""

    __slots__ = ("block_keys", "due_ns", "output_tokens", "prompt_tokens")

    def __init__(self, due_ns: int | None, prompt_tokens: int, output_tokens: int, keys: tuple[Hashable, ...]) -> None:
        self.due_ns = due_ns
        """From the start of the stage; None in a closed loop."""
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.block_keys = keys

    def arriving(self, request_id: int, arrival_ns: int) -> Request:
        """The request, arriving at this time."""
        return Request(
            request_id=request_id,
            arrival_ns=arrival_ns,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            block_keys=self.block_keys,
        )


class Workload:
    """The requests of each stage, drawn once and kept: every simulation of a fit sends the same ones."""

    def __init__(self, run: MeasuredRun, *, block_tokens: int, max_model_len: int) -> None:
        plan = _of_token_ids(run.plan)
        if len(run.mix.all_targets) > 1:
            raise ConfigError(
                "the run has several targets; a prediction is of one", hint="measure each in a run of its own"
            )
        for one in run.mix.classes:
            if one.session is not None:
                raise ConfigError(
                    f"the class {one.name} of the run comes in sessions, which a prediction does not know",
                    hint="measure a run whose requests stand alone",
                )
            if one.prompt.rows is not None:
                raise ConfigError(
                    f"the class {one.name} of the run has prompts of its own, which are not kept with it",
                    hint="measure a run with prompts of tokswarm's",
                )
            if one.prompt.shared_prefix is not None and one.prompt.shared_prefix.churn is not None:
                raise ConfigError(
                    f"the class {one.name} of the run replaces its prefixes, which a prediction does not know",
                    hint="measure a run without churn",
                )
        self.stages = plan.stages
        self._run = run
        self._block_tokens = block_tokens
        self._max_model_len = max_model_len
        self._overhead_tokens = round(run.fit.overhead_tokens)
        self._source = TicketSource(plan, 0, 1)
        self._drawn: dict[int, tuple[list[Draft], Iterator[Ticket]]] = {}

    def draft(self, stage_index: int, place: int) -> Draft | None:
        """The request at this place of a stage; None: an open loop or a trace has no more."""
        if stage_index not in self._drawn:
            self._drawn[stage_index] = ([], self._source.tickets(stage_index))
        drafts, tickets = self._drawn[stage_index]
        if place >= len(drafts):
            drafts.extend(self._draft(stage_index, ticket) for ticket in islice(tickets, _CHUNK))
        return drafts[place] if place < len(drafts) else None

    def _draft(self, stage_index: int, ticket: Ticket) -> Draft:
        output_tokens = self._output_tokens(stage_index, ticket)
        if ticket.prompt_tokens + output_tokens > self._max_model_len:
            raise ConfigError(
                f"the run asks for {ticket.prompt_tokens:,} + {output_tokens:,} tokens,"
                f" the profile's max_model_len is {self._max_model_len:,}",
                hint="give a profile with the settings of the server that was measured",
            )
        own = (self._run.run_id, stage_index, ticket.index)
        full = (ticket.prompt_tokens + output_tokens) // self._block_tokens
        prompt_keys = self._prompt_keys(ticket)
        keys = (*prompt_keys, *((own, place) for place in range(len(prompt_keys), full)))
        return Draft(ticket.due_ns, ticket.prompt_tokens, output_tokens, keys)

    def _output_tokens(self, stage_index: int, ticket: Ticket) -> int:
        """What was asked for, where the answer does not end before; else a length that class's answers had."""
        seen = self._run.answer_tokens.get(self._run.mix.classes[ticket.class_index].name)
        if not seen:
            return ticket.max_tokens
        rng = random.Random(mixed_seed(self._run.mix.seed, stage_index, ticket.index))  # noqa: S311 - reproducible
        return max(1, min(ticket.max_tokens, rng.choice(seen)))

    def _prompt_keys(self, ticket: Ticket) -> tuple[Hashable, ...]:
        """One key for each full block of the prompt, over the token ids that reach into it from the start."""
        ids = ticket.prompt.split(b",")
        chain = blake2b(digest_size=16)
        keys = []
        done = 0
        for block in range(1, ticket.prompt_tokens // self._block_tokens + 1):
            end = min(max(block * self._block_tokens - self._overhead_tokens, done), len(ids))
            chain.update(b",".join((b"", *ids[done:end])))
            done = end
            keys.append(chain.digest())
        return tuple(keys)


def _of_token_ids(plan: Plan) -> Plan:
    """The same requests with prompts of token ids: as long, and alike up to the same token, whatever the text was."""
    fit = TokenFit(tokens_per_word=1.0, overhead_tokens=round(plan.fit.overhead_tokens), source="token_ids")

    def ids(target: Target) -> Target:
        return msgspec.structs.replace(target, prompt_format="token_ids")

    mix = plan.mix
    mix = msgspec.structs.replace(
        mix,
        target=None if mix.target is None else ids(mix.target),
        targets=None if mix.targets is None else [ids(target) for target in mix.targets],
    )
    return msgspec.structs.replace(plan, mix=mix, fit=fit)
