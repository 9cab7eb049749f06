"""What the preflight says to do; the probes themselves are tried against real servers."""

import pytest

from tokswarm.master.preflight import Listing, hint
from tokswarm.measure.record import Outcome
from tokswarm.traffic.mix import Target

URL = "http://127.0.0.1:8000/v1"
ONE = Listing(tried=f"GET {URL}/models", status=200, error=None, models={"tiny": 2048})
NONE = Listing(tried=f"GET {URL}/models", status=404, error="HTTP 404: Not Found", models={})
REFUSED = Listing(tried=f"GET {URL}/models", status=400, error="HTTP 400: No connected db.", models={})


@pytest.mark.parametrize(
    ("status", "outcome", "target", "listing", "words"),
    [
        pytest.param(401, Outcome.HTTP_ERROR, Target(base_url=URL), ONE, "set target.key to env:NAME", id="key"),
        pytest.param(429, Outcome.RATE_LIMITED, Target(base_url=URL), ONE, "ask for a higher limit", id="limit"),
        pytest.param(
            404,
            Outcome.HTTP_ERROR,
            Target(base_url=URL, model="tny"),
            ONE,
            "one that the endpoint lists: tiny",
            id="model",
        ),
        pytest.param(
            400, Outcome.HTTP_ERROR, Target(base_url=URL, model="tny"), ONE, "endpoint lists: tiny", id="model-as-400"
        ),
        pytest.param(
            404, Outcome.HTTP_ERROR, Target(base_url=URL, model="tiny"), ONE, "/chat/completions follow", id="path"
        ),
        pytest.param(
            404, Outcome.HTTP_ERROR, Target(base_url=URL[:-3], model="tiny"), NONE, "usually in /v1", id="without-v1"
        ),
        pytest.param(
            400,
            Outcome.HTTP_ERROR,
            Target(base_url=URL, key="env:KEY", model="tiny"),
            REFUSED,
            "No connected db.): does the endpoint refuse the key of env:KEY?",
            id="key-as-400",
        ),
        pytest.param(
            500,
            Outcome.HTTP_ERROR,
            Target(base_url=URL, model="tiny"),
            REFUSED,
            "does the endpoint refuse requests without a key?",
            id="no-key-as-500",
        ),
        pytest.param(
            400, Outcome.HTTP_ERROR, Target(base_url=URL, model="tiny"), ONE, "the same request with curl", id="else"
        ),
        pytest.param(
            None,
            Outcome.RESET,
            Target(base_url=URL, model="tiny"),
            REFUSED,
            "the same request with curl",
            id="no-answer",
        ),
    ],
)
def test_a_failed_probe_says_what_to_do(
    status: int | None, outcome: Outcome, target: Target, listing: Listing, words: str
) -> None:
    assert words in hint(status, outcome, target, listing)


def test_a_wrong_path_with_the_usual_prefix_is_not_told_to_add_it() -> None:
    target = Target(base_url=URL + "/chat/completions", model="tiny")
    assert "usually" in hint(404, Outcome.HTTP_ERROR, target, NONE)
    assert "usually" not in hint(404, Outcome.HTTP_ERROR, Target(base_url=URL, model="tiny"), NONE)
