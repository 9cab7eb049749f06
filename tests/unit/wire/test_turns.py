"""A turn of a session as each API wants it."""

from typing import Any

import msgspec
import pytest

from tokswarm.traffic.mix import Target
from tokswarm.wire.api import RequestWriter
from tokswarm.wire.chat_answer import ChatAnswer
from tokswarm.wire.kept_answer import KeptChatAnswer
from tokswarm.wire.target import ResolvedTarget


def turn(history: tuple[bytes, ...], **target: Any) -> tuple[list[str], dict[str, Any]]:
    """Head lines and body of a turn that says `now`, in a session called `s1`."""
    resolved = ResolvedTarget(Target(base_url="http://127.0.0.1:1/v1", **target), {})
    call = RequestWriter(resolved, "m").write_turn(
        b"3" if "prompt_format" in target else b"now",
        history,
        max_tokens=9,
        ignore_eos=False,
        keep_text=True,
        session_name="s1",
        connection=None,
    )
    head, _, body = call.request.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert f"Content-Length: {len(body)}" in lines
    return lines, msgspec.json.decode(body)


HISTORY = (b"one", b'said \\"so\\"', b"two", b"yes")


def test_chat_gets_messages() -> None:
    _, body = turn(HISTORY)
    assert body["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": 'said "so"'},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "now"},
    ]
    assert body["max_tokens"] == 9


def test_responses_get_a_list_of_inputs_and_a_text_on_the_first_turn() -> None:
    _, body = turn(HISTORY[:2], api="responses")
    assert [item["role"] for item in body["input"]] == ["user", "assistant", "user"]
    assert turn((), api="responses")[1]["input"] == "now"


def test_completions_get_one_text_or_one_list_of_ids() -> None:
    assert turn(HISTORY, api="completions")[1]["prompt"] == 'one said "so" two yes now'
    ids = turn((b"1,2", b"7"), api="completions", prompt_format="token_ids")[1]["prompt"]
    assert ids == [1, 2, 7, 3]


def test_a_first_turn_is_written_as_a_request_that_stands_alone() -> None:
    lines, body = turn(())
    writer = RequestWriter(ResolvedTarget(Target(base_url="http://127.0.0.1:1/v1"), {}), "m")
    alone = writer.write(b"now", max_tokens=9, ignore_eos=False).request
    assert alone.partition(b"\r\n\r\n")[2] == msgspec.json.encode(body)
    assert [line for line in lines if line != "x-session-id: s1"] == alone.split(b"\r\n\r\n")[0].decode().split("\r\n")


@pytest.mark.parametrize(("keep", "dialect"), [(True, KeptChatAnswer), (False, ChatAnswer)])
def test_only_an_answer_that_is_wanted_is_kept(keep: bool, dialect: type) -> None:
    writer = RequestWriter(ResolvedTarget(Target(base_url="http://127.0.0.1:1/v1"), {}), "m")
    call = writer.write_turn(
        b"now", (), max_tokens=1, ignore_eos=False, keep_text=keep, session_name=None, connection=None
    )
    assert call.dialect is dialect
    assert b"x-session-id" not in call.request
