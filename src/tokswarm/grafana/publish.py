"""`tokswarm grafana publish`: put folder, boards and, if asked, the data source into a Grafana, by uid.

Doing it again changes nothing that is as it should be. Grafana keeps the version a board had before.
"""

import enum
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import requests

from tokswarm.errors import ConfigError, PublishError
from tokswarm.grafana.server import GrafanaServer, RefusedError
from tokswarm.resources import resource_dir
from tokswarm.version import VERSION

DATA_SOURCE_UID = "tokswarm-influxdb"
DATA_SOURCE_NAME = "tokswarm InfluxQL"
"""As in the provisioning files, so that a Grafana fed both ways has one."""

_CONFLICTS = (requests.codes.conflict, requests.codes.precondition_failed)
_ATTEMPTS = 2


class Action(enum.StrEnum):
    """What was done, or with --dry-run would be."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


class Step(NamedTuple):
    """One thing published."""

    kind: str
    name: str
    action: Action
    url: str | None = None


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


def shipped_boards() -> list[dict[str, Any]]:
    """The boards of this installation, by file name."""
    files = sorted(resource_dir("dashboards").glob("*.json"), key=lambda path: path.name)
    return [json.loads(Path(path).read_text(encoding="utf-8")) for path in files]


def publish(
    server: GrafanaServer,
    *,
    folder: str,
    data_source_uid: str | None = None,
    create: DataSource | None = None,
    dry_run: bool = False,
) -> Iterator[Step]:
    """Publish, and say of each thing what was done, as it is done. PublishError at the first that does not go.

    `data_source_uid` is the data source the boards open with; None leaves the choice to Grafana, which takes
    the first InfluxDB it has. `create` creates one or brings it up to date first.
    """
    pinned: dict[str, Any] | None = None
    if create is not None:
        yield _data_source(server, create, dry_run=dry_run)
        pinned = {"uid": DATA_SOURCE_UID, "name": DATA_SOURCE_NAME}
    if data_source_uid is not None:
        pinned = _existing_data_source(server, data_source_uid)
    folder_uid, step = _folder(server, folder, dry_run=dry_run)
    yield step
    for board in shipped_boards():
        if pinned is not None:
            _open_with(board, pinned)
        yield _board(server, board, folder_uid, dry_run=dry_run)


def _existing_data_source(server: GrafanaServer, uid: str) -> dict[str, Any]:
    found = server.get(f"/datasources/uid/{_path_part(uid)}")
    if found is None:
        raise PublishError(
            f"Grafana has no data source with uid {uid!r}",
            hint="the uid is the last part of the address of the data source's page; --create-datasource makes one",
        )
    language = found.get("jsonData", {}).get("version") or "InfluxQL"
    if found.get("type") != "influxdb" or language != "InfluxQL":
        raise PublishError(
            f"the data source {uid!r} is {found.get('type')} with {language}, the boards need influxdb with InfluxQL",
            hint="add a second data source for the same database with the query language InfluxQL",
        )
    return {"uid": found["uid"], "name": found["name"]}


def _data_source(server: GrafanaServer, wanted: DataSource, *, dry_run: bool) -> Step:
    path = f"/datasources/uid/{DATA_SOURCE_UID}"
    found = server.get(path)
    action = Action.CREATED if found is None else Action.UPDATED
    if not dry_run:
        if found is None:
            server.post("/datasources", wanted.payload())
        elif found.get("readOnly"):
            raise PublishError(
                f"the data source {DATA_SOURCE_UID!r} comes from a provisioning file and cannot be changed here",
                hint="leave --create-datasource out, or change the file",
            )
        else:
            # The token cannot be read back, so there is no telling whether it is the same.
            server.put(path, wanted.payload())
    return Step("data source", DATA_SOURCE_NAME, action)


def _folder(server: GrafanaServer, title: str, *, dry_run: bool) -> tuple[str, Step]:
    uid = _folder_uid(title)
    if server.get(f"/folders/{uid}") is not None:
        return uid, Step("folder", title, Action.UNCHANGED)
    for other in server.get("/folders?limit=1000") or []:
        if other.get("title") == title:
            return str(other["uid"]), Step("folder", title, Action.UNCHANGED)
    if not dry_run:
        try:
            server.post("/folders", {"uid": uid, "title": title})
        except RefusedError as refusal:
            # Somebody made it between our look and our post.
            if refusal.status not in _CONFLICTS or server.get(f"/folders/{uid}") is None:
                raise
    return uid, Step("folder", title, Action.CREATED)


def _folder_uid(title: str) -> str:
    uid = re.sub(r"[^a-z0-9_-]+", "-", title.lower()).strip("-")[:40]
    if not uid:
        raise ConfigError(
            f"the folder is {title!r}, expected a name with letters or digits", hint="such as --folder tokswarm"
        )
    return uid


def _board(server: GrafanaServer, board: dict[str, Any], folder_uid: str, *, dry_run: bool) -> Step:
    url = f"{server.url}/d/{board['uid']}"
    for attempt in range(_ATTEMPTS):
        found = server.get(f"/dashboards/uid/{board['uid']}")
        if found is None:
            action = Action.CREATED
        elif _same(found["dashboard"], board) and found["meta"].get("folderUid", "") == folder_uid:
            return Step("board", board["title"], Action.UNCHANGED, url)
        else:
            action = Action.UPDATED
        if dry_run:
            return Step("board", board["title"], action, url)
        version = {} if found is None else {"version": found["dashboard"]["version"]}
        body = {
            "dashboard": {**board, **version},
            "folderUid": folder_uid,
            "overwrite": False,
            "message": f"tokswarm {VERSION}",
        }
        try:
            server.post("/dashboards/db", body)
        except RefusedError as refusal:
            if refusal.status in _CONFLICTS and attempt + 1 < _ATTEMPTS:
                continue  # saved by somebody else since we read it: read again
            raise _explained(refusal, board) from refusal
        return Step("board", board["title"], action, url)
    raise AssertionError("the last attempt returns or raises")


def _same(stored: dict[str, Any], wanted: dict[str, Any]) -> bool:
    own = ("id", "version")
    return {k: v for k, v in stored.items() if k not in own} == {k: v for k, v in wanted.items() if k not in own}


def _explained(refusal: RefusedError, board: dict[str, Any]) -> PublishError:
    said = str(refusal)
    if "provisioned" in said:
        hint = "this board comes from a provisioning file: update the files, or use another Grafana organisation"
    elif "name-exists" in said:
        hint = f"another board of the folder is named {board['title']!r}: rename it, or choose another --folder"
    elif refusal.status in _CONFLICTS:
        hint = "somebody saves this board at the same moment; publish again"
    else:
        hint = refusal.hint
    return PublishError(said, hint=hint)


def _open_with(board: dict[str, Any], data_source: dict[str, Any]) -> None:
    for variable in board["templating"]["list"]:
        if variable["type"] == "datasource":
            variable["current"] = {"selected": True, "text": data_source["name"], "value": data_source["uid"]}


def _path_part(uid: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", uid):
        raise ConfigError(
            f"--datasource-uid is {uid!r}, expected letters, digits, - and _", hint="copy it from Grafana"
        )
    return uid


_EPILOG = """\b
Examples:
  GRAFANA_URL=https://grafana.example.org GRAFANA_TOKEN=... tokswarm grafana publish --dry-run
  tokswarm grafana publish --url http://127.0.0.1:3000 --datasource-uid tokswarm-influxdb
"""


def command() -> click.Command:
    """The command `publish`, for the command line to mount under `tokswarm grafana`."""

    @click.command("publish", epilog=_EPILOG)
    @click.option("--url", envvar="GRAFANA_URL", show_envvar=True, help="Address of Grafana.")
    @click.option("--folder", default="tokswarm", show_default=True, help="Folder for the boards; made if missing.")
    @click.option("--datasource-uid", metavar="UID", help="Data source the boards open with; must speak InfluxQL.")
    @click.option(
        "--create-datasource",
        is_flag=True,
        help=f"Create or update the data source {DATA_SOURCE_UID} from INFLUXDB_V2_URL, _TOKEN and _BUCKET.",
    )
    @click.option("--dry-run", is_flag=True, help="Only say what would be done.")
    def publish_command(
        url: str | None, folder: str, datasource_uid: str | None, *, create_datasource: bool, dry_run: bool
    ) -> None:
        """Put the boards into Grafana; doing it again changes nothing that is as it should be.

        The token of a service account is read from GRAFANA_TOKEN.
        """
        if not url:
            raise ConfigError("no address of Grafana", hint="set GRAFANA_URL or --url")
        server = GrafanaServer(url, os.environ.get("GRAFANA_TOKEN", ""))
        create = DataSource.from_environ(os.environ) if create_datasource else None
        for step in publish(server, folder=folder, data_source_uid=datasource_uid, create=create, dry_run=dry_run):
            would = "would be " if dry_run and step.action is not Action.UNCHANGED else ""
            click.echo(f"{step.kind} {step.name!r}: {would}{step.action}" + (f"  {step.url}" if step.url else ""))

    return publish_command
