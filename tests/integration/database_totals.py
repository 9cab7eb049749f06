"""What a database of the tests is written to by, and what it holds of a log."""

from databases import Influxd, VictoriaMetrics
from synthetic_log import Totals

from tokswarm.sink.settings import InfluxSettings


def settings_of(database: Influxd | VictoriaMetrics) -> InfluxSettings:
    settings = InfluxSettings.from_environ(database.environ())
    assert settings is not None
    return settings


def held(database: Influxd) -> Totals:
    return Totals(
        requests=database.value("SELECT count(request) FROM llm_request") or 0,
        output_tokens=database.value("SELECT sum(n) FROM llm_token") or 0,
        ok=database.value("SELECT count(request) FROM llm_request WHERE outcome = 'ok'") or 0,
        windows=database.value("SELECT count(started) FROM llm_window") or 0,
    )
