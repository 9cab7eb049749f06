"""The engine is sent what the run sent: the same lengths, and the same blocks where prompts began alike."""

from array import array

import msgspec
import pytest
from known_server import mix_of, run_of, sweep

from tokswarm.errors import ConfigError
from tokswarm.predict.measured import MeasuredRun
from tokswarm.predict.workload import Draft, Workload
from tokswarm.simulator.kv import block_keys
from tokswarm.traffic.plan import OpenLoop, TokenFit
from tokswarm.traffic.schedule import TicketSource

FIT_OF_TEXT = TokenFit(tokens_per_word=1.3, overhead_tokens=8.0, source="usage")


def drafts(run: MeasuredRun, count: int = 60, stage: int = 0) -> list[Draft]:
    workload = Workload(run, block_tokens=32, max_model_len=2_048)
    return [draft for place in range(count) if (draft := workload.draft(stage, place)) is not None]


def test_lengths_are_those_of_the_tickets_in_their_order() -> None:
    run = run_of(sweep(4))
    tickets = TicketSource(run.plan, 0, 1).tickets(0)
    for draft, ticket in zip(drafts(run, 600), tickets, strict=False):
        assert (draft.prompt_tokens, draft.output_tokens) == (ticket.prompt_tokens, ticket.max_tokens)


def test_blocks_are_shared_exactly_where_prompts_of_token_ids_are() -> None:
    run = run_of(sweep(4))
    tickets = TicketSource(run.plan, 0, 1).tickets(0)
    ours = [draft.block_keys for draft in drafts(run)]
    theirs = [block_keys(array("I", map(int, next(tickets).prompt.split(b","))), 32) for _ in ours]
    alike = 0
    for a in range(len(ours)):
        for b in range(a):
            common = sum(1 for left, right in zip(theirs[a], theirs[b], strict=False) if left == right)
            assert sum(1 for left, right in zip(ours[a], ours[b], strict=False) if left == right) == common
            alike += common > 0
    assert alike > 50, "six groups share two blocks"


def test_blocks_of_text_are_shared_as_far_as_the_prefix_reaches() -> None:
    found = drafts(run_of(sweep(4), mix=mix_of(api="chat", prompt_format="text"), fit=FIT_OF_TEXT))
    firsts = {draft.block_keys[1] for draft in found if draft.prompt_tokens >= 64}
    thirds = [draft.block_keys[2] for draft in found if draft.prompt_tokens >= 96]
    assert len(firsts) == 6, "two blocks lie within the 70 shared tokens"
    assert len(set(thirds)) == len(thirds), "the third does not"


def test_answers_fill_blocks_of_their_own() -> None:
    found = drafts(run_of(sweep(4)))
    assert all(len(draft.block_keys) == (draft.prompt_tokens + draft.output_tokens) // 32 for draft in found)
    own = [key for draft in found for key in draft.block_keys[draft.prompt_tokens // 32 :]]
    assert len(set(own)) == len(own)


def test_answers_that_end_by_themselves_are_as_long_as_those_that_were_seen() -> None:
    run = run_of(sweep(4), mix=mix_of(ignore_eos=False))
    run = msgspec.structs.replace(run, answer_tokens={"chat": [5, 20]})
    assert {draft.output_tokens for draft in drafts(run)} == {5, 8, 20}, "20 where 40 were allowed, 8 where 8 were"


def test_an_open_loop_ends_and_says_when_each_is_due() -> None:
    found = drafts(run_of([OpenLoop(10.0, "constant")]), 100)
    assert [draft.due_ns for draft in found] == [place * 100_000_000 for place in range(40)]


def test_a_request_the_server_has_no_context_for_is_refused_with_words() -> None:
    workload = Workload(run_of(sweep(4)), block_tokens=32, max_model_len=256)
    with pytest.raises(ConfigError, match=r"max_model_len is 256"):
        workload.draft(0, 0)
