import pytest

from tokswarm.errors import ConfigError
from tokswarm.sink.settings import InfluxSettings, Secret, log_limit_bytes


def test_without_a_url_there_is_no_database() -> None:
    assert InfluxSettings.from_environ({}) is None
    assert InfluxSettings.from_environ({"INFLUXDB_V2_URL": " ", "INFLUXDB_V2_TOKEN": "t"}) is None


def test_all_variables_are_read() -> None:
    assert InfluxSettings.from_environ(
        {
            "INFLUXDB_V2_URL": "https://db.example:8086/",
            "INFLUXDB_V2_TOKEN": "t0ps3cret",
            "INFLUXDB_V2_ORG": "sre",
            "INFLUXDB_V2_BUCKET": "launch/autogen",
            "TOKSWARM_TOKEN_POINTS": "off",
        }
    ) == InfluxSettings(
        url="https://db.example:8086",
        token=Secret("t0ps3cret"),
        org="sre",
        bucket="launch/autogen",
        token_points=False,
    )


def test_a_url_alone_is_enough() -> None:
    settings = InfluxSettings.from_environ({"INFLUXDB_V2_URL": "http://127.0.0.1:8086"})
    assert settings == InfluxSettings(
        url="http://127.0.0.1:8086", token=Secret(""), org="-", bucket="tokswarm", token_points=True
    )


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        pytest.param({"INFLUXDB_V2_URL": "db.example:8086"}, "expected http://HOST:PORT", id="no scheme"),
        pytest.param({"INFLUXDB_V2_URL": "http://:8086"}, "expected http://HOST:PORT", id="no host"),
        pytest.param({"INFLUXDB_V2_URL": "http://me:t0ps3cret@db:port"}, "expected http://HOST:PORT", id="no port"),
        pytest.param({"INFLUXDB_V2_URL": "http://me:t0ps3cret@db"}, "holds a user or a password", id="password in url"),
        pytest.param(
            {"INFLUXDB_V2_URL": "http://db", "TOKSWARM_TOKEN_POINTS": "maybe"},
            "'maybe', expected on, off, or at most so many a second as 20k/s",
            id="switch",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_refused(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        InfluxSettings.from_environ(environ)
    assert "t0ps3cret" not in str(caught.value)


def test_the_token_is_in_no_repr() -> None:
    settings = InfluxSettings(url="http://db", token=Secret("t0ps3cret"))
    assert "t0ps3cret" not in f"{settings!r} {settings} {settings.token!r} {settings.token}"
    assert settings.token.reveal() == "t0ps3cret"


@pytest.mark.parametrize(
    ("written", "limit_bytes"),
    [("", None), ("500M", 500_000_000), ("20G", 20_000_000_000), ("1.5 GB", 1_500_000_000), ("2000k", 2_000_000)],
)
def test_the_limit_of_a_record_log_is_a_size(written: str, limit_bytes: int | None) -> None:
    assert log_limit_bytes({"TOKSWARM_RECORD_LOG_LIMIT": written}) == limit_bytes


@pytest.mark.parametrize("written", ["20", "1M", "much", "-5G", "0G"])
def test_a_limit_that_is_no_size_or_too_small_for_a_log_is_refused(written: str) -> None:
    with pytest.raises(ConfigError, match="expected a size as 500M or 20G"):
        log_limit_bytes({"TOKSWARM_RECORD_LOG_LIMIT": written})


@pytest.mark.parametrize(
    ("written", "points", "per_s"),
    [
        ("", True, None),
        ("on", True, None),
        ("OFF", False, None),
        ("20k/s", True, 20_000.0),
        ("1.5k / s", True, 1_500.0),
        ("800/s", True, 800.0),
    ],
)
def test_token_points_are_on_off_or_so_many_a_second(written: str, points: bool, per_s: float | None) -> None:
    settings = InfluxSettings.from_environ({"INFLUXDB_V2_URL": "http://db", "TOKSWARM_TOKEN_POINTS": written})
    assert settings is not None
    assert (settings.token_points, settings.token_points_per_s) == (points, per_s)


@pytest.mark.parametrize("written", ["20k", "0/s", "-5/s", "5/m", "k/s"])
def test_a_budget_of_token_points_needs_a_rate(written: str) -> None:
    with pytest.raises(ConfigError, match="expected on, off"):
        InfluxSettings.from_environ({"INFLUXDB_V2_URL": "http://db", "TOKSWARM_TOKEN_POINTS": written})
