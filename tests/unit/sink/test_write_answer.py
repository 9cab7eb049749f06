import pytest

from tokswarm.sink.write_answer import Answer, Refused, Rejected, Retry, TooLarge, Written, judge, retry_after_s

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("status", "headers", "body", "want"),
    [
        pytest.param(204, {}, "", Written(), id="written"),
        pytest.param(200, {}, "ok", Written(), id="written, said with 200"),
        pytest.param(
            400,
            {},
            '{"error":"partial write: field type conflict: x is type float dropped=3"}\n',
            Rejected("400 partial write: field type conflict: x is type float dropped=3", 3),
            id="partial write with a count",
        ),
        pytest.param(
            400,
            {},
            '{"error":"partial write: unable to parse \'m x\': invalid field format dropped=0"}\n',
            Rejected("400 partial write: unable to parse 'm x': invalid field format dropped=0", None),
            id="partial write that could not parse",
        ),
        pytest.param(
            422,
            {},
            '{"code":"unprocessable entity","message":"failure writing points: partial write: beyond dropped=7"}',
            Rejected("422 failure writing points: partial write: beyond dropped=7", 7),
            id="version 2's form",
        ),
        pytest.param(
            400,
            {"x-influxdb-error": "unable to parse"},
            "",
            Rejected("400 unable to parse", None),
            id="reason in a header",
        ),
        pytest.param(413, {}, "<html>big</html>", TooLarge("413 <html>big</html>"), id="too large, by a proxy"),
        pytest.param(429, {"Retry-After": "7"}, "", Retry("429", 7.0), id="throttled"),
        pytest.param(
            503, {}, "Server throttled\n", Retry("503 Server throttled", None), id="1.8 throttles in plain text"
        ),
        pytest.param(500, {}, '{"error":"timeout"}', Retry("500 timeout", None), id="server error"),
        pytest.param(
            401,
            {},
            '{"code":"unauthorized","message":"unauthorized access"}',
            Refused("401 unauthorized access (is INFLUXDB_V2_TOKEN right, and may it write to 'b'?)"),
            id="wrong token",
        ),
        pytest.param(
            404,
            {},
            '{"error":"database not found: \\"b\\""}',
            Refused("404 database not found: \"b\" (does the bucket 'b' exist, and is INFLUXDB_V2_ORG right?)"),
            id="no such bucket",
        ),
        pytest.param(302, {}, "", Refused("302 (is INFLUXDB_V2_URL the address of an InfluxDB?)"), id="a login page"),
    ],
)
def test_each_answer_means_one_thing(status: int, headers: dict[str, str], body: str, want: Answer) -> None:
    assert judge(status, headers, body, bucket="b", now_unix_s=NOW) == want


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param("2", 2.0, id="seconds"),
        pytest.param("0.5", 0.5, id="part of a second"),
        pytest.param("Tue, 14 Nov 2023 22:13:50 GMT", 30.0, id="date"),
        pytest.param("Tue, 14 Nov 2023 22:13:00 GMT", 0.0, id="date that is past"),
        pytest.param("86400", 300.0, id="longer than we wait"),
        pytest.param("soon", None, id="nonsense"),
        pytest.param("nan", None, id="not a number"),
        pytest.param("", None, id="empty"),
    ],
)
def test_retry_after_is_seconds_or_a_date_within_bounds(value: str, want: float | None) -> None:
    assert retry_after_s({"retry-after": value}, NOW) == want


def test_without_retry_after_the_wait_is_ours() -> None:
    assert retry_after_s({}, NOW) is None
