"""The data source of the boards, from the settings the workers use."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tokswarm.errors import ConfigError

DATA_SOURCE_UID = "tokswarm-influxdb"
DATA_SOURCE_NAME = "tokswarm InfluxQL"
"""As in the provisioning files, so that a Grafana fed both ways has one."""


class DataSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where Grafana finds the database."""

    url: str
    database: str
    token: str | None
    """None: the database asks for none."""

    def __repr__(self) -> str:
        return f"DataSource(url={self.url!r}, database={self.database!r})"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "DataSource":
        """From the settings the workers use. ConfigError when one is missing."""
        missing = [name for name in ("INFLUXDB_V2_URL", "INFLUXDB_V2_BUCKET") if not environ.get(name)]
        if missing:
            raise ConfigError(
                f"a data source cannot be created: {' and '.join(missing)} not set",
                hint="set what the workers use; the address must be one that Grafana can reach",
            )
        # A bucket of InfluxDB 1.x is `database/retention policy`; InfluxQL is told the database.
        database = environ["INFLUXDB_V2_BUCKET"].partition("/")[0]
        return cls(url=environ["INFLUXDB_V2_URL"], database=database, token=environ.get("INFLUXDB_V2_TOKEN") or None)

    def payload(self) -> dict[str, Any]:
        """As Grafana takes it: InfluxQL, which every InfluxDB from 1.8 to 3 answers."""
        payload: dict[str, Any] = {
            "uid": DATA_SOURCE_UID,
            "name": DATA_SOURCE_NAME,
            "type": "influxdb",
            "access": "proxy",
            "url": self.url,
            "jsonData": {"version": "InfluxQL", "dbName": self.database, "httpMode": "POST", "timeInterval": "1s"},
        }
        if self.token is not None:
            payload["jsonData"]["httpHeaderName1"] = "Authorization"
            payload["secureJsonData"] = {"httpHeaderValue1": f"Token {self.token}"}
        return payload
