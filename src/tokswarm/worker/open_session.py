"""A session while its turns are sent: what the traffic says of it, and the connection that is its own."""

from collections.abc import Iterator

from tokswarm.measure.record import RequestRecord
from tokswarm.traffic.json_text import json_text
from tokswarm.traffic.session import Session
from tokswarm.traffic.ticket import Ticket
from tokswarm.wire.answer import Answer
from tokswarm.wire.api import RequestWriter
from tokswarm.wire.client import Call
from tokswarm.wire.connection import SessionConnection
from tokswarm.wire.kept_answer import KeptChatAnswer, KeptResponsesAnswer


class OpenSession:
    """One session of this worker."""

    __slots__ = ("_answer", "_connection", "_name", "_session")

    def __init__(self, session: Session, connection: SessionConnection | None) -> None:
        """`connection`: its own, where it is sticky by that."""
        self._session = session
        self._connection = connection
        self._name = session.name if session.spec.sticky == "header" else None
        self._answer: bytes | None = None

    @property
    def left(self) -> int:
        """Turns after this one."""
        return self._session.left

    def think_ns(self) -> int:
        """How long the user thinks now; to be asked once before each later turn."""
        return self._session.think_ns()

    def call(self, writer: RequestWriter, ticket: Ticket, *, ignore_eos: bool) -> Call:
        """The request of a turn."""
        return writer.write_turn(
            ticket.prompt,
            ticket.history,
            max_tokens=ticket.max_tokens,
            ignore_eos=ignore_eos,
            keep_text=self._session.spec.history == "server",
            session_name=self._name,
            connection=self._connection,
        )

    def reading(self, answer: Answer) -> Iterator[None]:
        """Reads the answer's text where the next turn carries it, a millisecond or less in each step."""
        self._answer = None
        if isinstance(answer, KeptChatAnswer | KeptResponsesAnswer):
            texts = []
            for text in answer.texts():
                texts.append(json_text(text))
                yield
            self._answer = b"".join(texts)

    def answered(self, record: RequestRecord) -> None:
        """The turn is over, and its answer was read."""
        self._session.answered(
            prompt_tokens=record.prompt_tokens_planned if record.prompt_tokens is None else record.prompt_tokens,
            answer_tokens=max(0, record.output_tokens - (record.reasoning_tokens or 0)),
            answer=self._answer,
        )

    def next_ticket(self) -> Ticket:
        """The next turn."""
        return self._session.next_ticket()

    def close(self) -> None:
        """Give its connection up."""
        if self._connection is not None:
            self._connection.close()
