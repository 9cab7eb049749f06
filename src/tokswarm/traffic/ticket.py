"""One request to be sent: what the schedule hands to the engine."""

import msgspec


class Ticket(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything decided about a request before it is sent."""

    index: int
    """Place in the stage's global schedule, the same whatever the number of workers. Of mirrored traffic each
    target has one ticket of it."""
    class_index: int
    target_index: int = 0
    """Place of its target among those of the mix."""
    due_ns: int | None
    """From the start of the stage; None in a closed loop: as soon as a user is free."""
    prompt: bytes
    """The text as it stands in JSON."""
    prompt_tokens: int
    """Planned length."""
    max_tokens: int
    ideal_cached_tokens: int
    """Prompt tokens that an unlimited prefix cache would have by now, were all earlier tickets done."""
    turn: int | None = None
    """Which turn of its session it is, from 1; None: it belongs to none. The session's number is `index`."""
    history: tuple[bytes, ...] = ()
    """What was said before in its session, a user's text and an answer in turn, each as it stands in JSON."""
