"""Response headers in the forms servers and gateways send."""

import pytest

from tokswarm.wire.response_headers import NOTHING, retry_after_ms, server_word

DATE = "Wed, 02 Dec 2026 10:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "want"),
    [
        pytest.param({"retry-after": "2"}, 2000.0, id="seconds"),
        pytest.param({"retry-after": "0.5"}, 500.0, id="fraction"),
        pytest.param({"retry-after": "12ms"}, 12.0, id="duration"),
        pytest.param({"retry-after": "1m30s"}, 90_000.0, id="compound"),
        pytest.param({"retry-after-ms": "250", "retry-after": "1"}, 250.0, id="milliseconds-first"),
        pytest.param({"retry-after": "Wed, 02 Dec 2026 10:00:07 GMT", "date": DATE}, 7000.0, id="date"),
        pytest.param({"retry-after": "Wed, 02 Dec 2026 09:00:00 GMT", "date": DATE}, 0.0, id="past"),
        pytest.param({"retry-after": "soon"}, None, id="words"),
        pytest.param({"retry-after": "-1"}, None, id="negative"),
        pytest.param({"retry-after": "inf"}, None, id="infinite"),
        pytest.param({"retry-after": f"Mon, 01 Jan 0001 00:00:{'9' * 20}", "date": DATE}, None, id="no-such-second"),
        pytest.param({"retry-after": "1e308"}, None, id="beyond-all-time"),
        pytest.param({"retry-after": "9" * 400 + "h"}, None, id="a-duration-beyond-all-time"),
        pytest.param({}, None, id="absent"),
    ],
)
def test_retry_after_is_read_in_every_form(headers: dict[str, str], want: float | None) -> None:
    assert retry_after_ms(headers) == want


def test_limits_time_and_replica_are_read() -> None:
    word = server_word(
        {
            "x-inference-pod": "vllm-3",
            "openai-processing-ms": "41",
            "x-ratelimit-remaining-requests": "99",
            "x-ratelimit-remaining-tokens": "12000",
        }
    )
    assert word == ("vllm-3", None, 41.0, 99, 12000, None)


def test_unknown_limits_are_absent() -> None:
    assert server_word({"x-ratelimit-remaining-tokens": "-1", "x-ratelimit-remaining-requests": "many"}) == NOTHING


def test_a_limit_beyond_every_count_was_not_said() -> None:
    assert server_word({"x-ratelimit-remaining-tokens": "1e300"}) == NOTHING


@pytest.mark.parametrize(
    ("headers", "want"),
    [
        pytest.param({}, None, id="nobody-says"),
        pytest.param({"x-fallback": "true"}, True, id="yes"),
        pytest.param({"x-fallback": "False"}, False, id="no"),
        pytest.param({"x-litellm-attempted-fallbacks": "0"}, False, id="none-was-asked"),
        pytest.param({"x-litellm-attempted-fallbacks": "2"}, True, id="two-were-asked"),
        pytest.param({"x-fallback": "perhaps"}, None, id="neither"),
    ],
)
def test_a_gateway_says_whether_it_fell_back(headers: dict[str, str], want: bool | None) -> None:
    assert server_word(headers).fell_back is want
