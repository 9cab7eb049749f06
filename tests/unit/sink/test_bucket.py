import pytest

from tokswarm.sink.bucket import create_command


@pytest.mark.parametrize(
    ("version", "bucket", "command"),
    [
        ("1.8.10", "tokswarm", "influx -execute 'CREATE DATABASE \"tokswarm\"'"),
        ("1.8.10", "tokswarm/autogen", "influx -execute 'CREATE DATABASE \"tokswarm\"'"),
        ("1.11.8", "load/month", 'influx -execute \'CREATE DATABASE "load" WITH DURATION 30d NAME "month"\''),
        ("v2.7.11", "load tests", "influx bucket create --org sre --name 'load tests' --retention 30d"),
        ("2.0.9", "tokswarm", "influx bucket create --org sre --name tokswarm --retention 30d"),
        ("3.1.0-core", "tokswarm", "influxdb3 create database tokswarm"),
        ("", "tokswarm", None),
        ("victoria", "tokswarm", None),
    ],
)
def test_each_server_has_its_command(version: str, bucket: str, command: str | None) -> None:
    assert create_command(version, bucket=bucket, org="sre") == command
