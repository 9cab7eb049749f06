"""Durations and rates are read with their unit, keep a canonical text, and travel as it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokswarm.traffic.rates import Rates
from tokswarm.traffic.units import Duration, Rate, ShareRate, dec_hook, enc_hook


@pytest.mark.parametrize(
    ("text", "seconds", "canonical"),
    [
        pytest.param("800ms", 0.8, "800ms", id="milliseconds"),
        pytest.param("5s", 5.0, "5s", id="seconds"),
        pytest.param("2m", 120.0, "2m", id="minutes"),
        pytest.param("1h", 3600.0, "1h", id="hours"),
        pytest.param("1h30m", 5400.0, "90m", id="compound"),
        pytest.param("1.5s", 1.5, "1500ms", id="fraction"),
        pytest.param("250us", 0.00025, "250us", id="microseconds"),
        pytest.param("60s", 60.0, "1m", id="largest-whole-unit"),
        pytest.param("0s", 0.0, "0s", id="zero"),
    ],
)
def test_a_duration_is_read_and_written_canonically(text: str, seconds: float, canonical: str) -> None:
    duration = Duration.parse(text)
    assert duration.seconds == seconds
    assert str(duration) == canonical


@pytest.mark.parametrize(
    ("text", "per_s", "canonical"),
    [
        pytest.param("12/s", 12.0, "12/s", id="per-second"),
        pytest.param("600/m", 10.0, "10/s", id="per-minute"),
        pytest.param("1/m", 1 / 60, "1/m", id="only-short-per-minute"),
        pytest.param("30/h", 30 / 3600, "0.5/m", id="per-hour"),
        pytest.param("12.5 / s", 12.5, "12.5/s", id="spaces"),
    ],
)
def test_a_rate_is_read_and_written_canonically(text: str, per_s: float, canonical: str) -> None:
    rate = Rate.parse(text)
    assert rate.per_s == per_s
    assert str(rate) == canonical


@pytest.mark.parametrize(
    ("text", "per_s", "canonical"),
    [
        pytest.param("10%/m", 0.1 / 60, "10%/m", id="per-minute"),
        pytest.param(" 0.5 % / s", 0.005, "30%/m", id="per-second"),
        pytest.param("100%/s", 1.0, "100%/s", id="most"),
        pytest.param("1%/h", 0.01 / 3600, "1%/h", id="only-short-per-hour"),
        pytest.param("50%/h", 0.5 / 3600, "50%/h", id="per-hour"),
    ],
)
def test_a_share_in_a_time_is_read_and_written_canonically(text: str, per_s: float, canonical: str) -> None:
    share = ShareRate.parse(text)
    assert share.per_s == pytest.approx(per_s)
    assert str(share) == canonical
    assert ShareRate.parse(str(share)) == share


@pytest.mark.parametrize(
    ("parse", "written", "words"),
    [
        pytest.param(ShareRate.parse, "10%", "'10%' is no share in a time; write it as 10%/m", id="share-of-no-time"),
        pytest.param(ShareRate.parse, 0.1, "0.1 is no share in a time", id="bare-share"),
        pytest.param(ShareRate.parse, "0%/m", "must be above 0% and at most 100%/s", id="no-share"),
        pytest.param(ShareRate.parse, "101%/s", "must be above 0% and at most 100%/s", id="too-large-a-share"),
        pytest.param(Duration.parse, "5", "'5' has no unit; write a duration as 5s or 5ms", id="bare-duration"),
        pytest.param(Duration.parse, 5, "5 has no unit; write a duration as 5s or 5ms", id="bare-number"),
        pytest.param(Duration.parse, "5 sec", "'5 sec' is no duration", id="unknown-unit"),
        pytest.param(Duration.parse, "-5s", "'-5s' is no duration", id="negative"),
        pytest.param(Duration.parse, "", "'' is no duration", id="empty"),
        pytest.param(Duration.parse, "9999999h", "longer than a year", id="too-long"),
        pytest.param(Rate.parse, "12", "'12' has no unit; write a rate as 12/s or 12/m", id="bare-rate"),
        pytest.param(Rate.parse, "0/s", "must be above 0", id="no-rate"),
        pytest.param(Rate.parse, "12/d", "'12/d' is no rate", id="unknown-rate-unit"),
        pytest.param(Rate.parse, "1e999/s", "must be above 0", id="infinite-rate"),
        pytest.param(Rates.parse, [], "at least one rate", id="no-rates"),
    ],
)
def test_what_is_no_duration_or_rate_is_refused_with_a_hint(parse: object, written: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(written)  # type: ignore[operator]


@given(st.integers(min_value=0, max_value=10**16))
def test_every_duration_is_its_canonical_text(nanoseconds: int) -> None:
    assert Duration.parse(str(Duration(nanoseconds))) == Duration(nanoseconds)


@given(st.floats(min_value=1e-6, max_value=1e9))
def test_every_rate_is_its_canonical_text(per_s: float) -> None:
    assert Rate.parse(str(Rate(per_s))) == Rate(per_s)


def test_values_are_compared_and_hashed_by_length() -> None:
    assert {Duration.parse("60s"), Duration.parse("1m")} == {Duration.parse("1m")}
    assert Duration.parse("800ms") < Duration.parse("1s") <= Duration.parse("1000ms")
    assert Rate.parse("60/m") == Rate.parse("1/s") != Rate.parse("2/s")
    assert Rates.parse("1/s") != Rates.parse(["1/s"])


class _Carrier(msgspec.Struct):
    wait: Duration | None
    rate: Rates
    one: Rate


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
@pytest.mark.parametrize("rate", ["2/s", ["2/s", "1/m"]], ids=["one", "sweep"])
def test_units_travel_as_text(codec: object, rate: object) -> None:
    sent = _Carrier(Duration.parse("800ms"), Rates.parse(rate), Rate.parse("1/m"))
    data = codec.encode(sent, enc_hook=enc_hook)  # type: ignore[attr-defined]
    assert codec.decode(data) == {"wait": "800ms", "rate": rate, "one": "1/m"}  # type: ignore[attr-defined]
    assert codec.decode(data, type=_Carrier, dec_hook=dec_hook) == sent  # type: ignore[attr-defined]


def test_a_wrong_text_is_a_validation_error_with_its_path() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"has no unit.*\$\.wait"):
        msgspec.json.decode(b'{"wait": "5", "rate": "1/s", "one": "1/s"}', type=_Carrier, dec_hook=dec_hook)
