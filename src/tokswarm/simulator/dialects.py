"""Which class writes the answer of which API."""

from tokswarm.simulator.answers import Accepted, Api, OpenAnswer, StreamedAnswer, WholeAnswer
from tokswarm.simulator.http1 import Exchange
from tokswarm.simulator.responses import StreamedResponse, WholeResponse


def answer_for(accepted: Accepted, exchange: Exchange, *, stream: bool) -> OpenAnswer:
    """The answer to an accepted request, not yet begun."""
    if accepted.api is Api.RESPONSES:
        return StreamedResponse(accepted, exchange) if stream else WholeResponse(accepted, exchange)
    return StreamedAnswer(accepted, exchange) if stream else WholeAnswer(accepted, exchange)
