"""Put folder, boards and, if asked, the data source and alert rules into a Grafana, by uid.

Doing it again changes nothing that is as it should be. Grafana keeps the version a board had before.
"""

import enum
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import requests

from tokswarm.errors import ConfigError, PublishError
from tokswarm.grafana.alerts import GROUP, rule_group
from tokswarm.grafana.board_diff import board_changes, rule_changes
from tokswarm.grafana.data_source import DATA_SOURCE_NAME, DATA_SOURCE_UID, DataSource
from tokswarm.grafana.server import GrafanaServer, RefusedError
from tokswarm.grafana.shipped import Board, opening_with, pinned_to
from tokswarm.version import VERSION

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
    changes: tuple[str, ...] = ()
    """What differs from what is there, a line each."""


class Source(NamedTuple):
    """The data source the boards are to use."""

    uid: str
    is_pinned: bool = False
    """Written into the boards, which then offer no other; else they open with it."""


def publish(
    server: GrafanaServer,
    *,
    boards: Sequence[Board],
    folder: str,
    source: Source | None = None,
    create: DataSource | None = None,
    alerts: bool = False,
    dry_run: bool = False,
) -> Iterator[Step]:
    """Publish, and say of each thing what was done, as it is done. PublishError at the first that does not go.

    Without a `source` Grafana chooses the first InfluxDB it has. `create` creates one or brings it up to date first,
    and is the source unless another is named. `alerts` publishes the alert rules too; they need to be told a source.
    """
    if alerts and source is None and create is None:
        raise ConfigError(
            "alert rules need to be told their data source",
            hint="add --datasource-uid UID, --pin-datasource UID or --create-datasource",
        )
    if create is not None:
        yield _data_source(server, create, dry_run=dry_run)
    chosen = _chosen(server, source, create)
    folder_uid, step = _folder(server, folder, dry_run=dry_run)
    yield step
    for given in boards:
        board = given
        if chosen is not None:
            uid, name = chosen
            is_pinned = source is not None and source.is_pinned
            board = pinned_to(board, uid) if is_pinned else opening_with(board, uid=uid, name=name)
        yield _board(server, board, folder_uid, dry_run=dry_run)
    if alerts:
        assert chosen is not None
        yield _alerts(server, chosen[0], folder_uid, dry_run=dry_run)


def _chosen(server: GrafanaServer, source: Source | None, create: DataSource | None) -> tuple[str, str] | None:
    """Uid and name of the data source; None leaves the choice to Grafana."""
    if source is not None and not (create is not None and source.uid == DATA_SOURCE_UID):
        return _existing_data_source(server, source.uid)
    return None if create is None else (DATA_SOURCE_UID, DATA_SOURCE_NAME)


def _existing_data_source(server: GrafanaServer, uid: str) -> tuple[str, str]:
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
    return found["uid"], found["name"]


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


def _board(server: GrafanaServer, board: Board, folder_uid: str, *, dry_run: bool) -> Step:
    url = f"{server.url}/d/{board['uid']}"
    for attempt in range(_ATTEMPTS):
        found = server.get(f"/dashboards/uid/{board['uid']}")
        changes: list[str] = []
        if found is not None:
            changes = board_changes(found["dashboard"], board)
            was_in = found["meta"].get("folderUid", "")
            if was_in != folder_uid:
                changes.append(f"~ folder: {was_in!r} becomes {folder_uid!r}")
            if not changes or (was_in == folder_uid and _is_our_last_word(server, board)):
                return Step("board", board["title"], Action.UNCHANGED, url)
        step = Step("board", board["title"], Action.CREATED if found is None else Action.UPDATED, url, tuple(changes))
        if dry_run:
            return step
        version = {} if found is None else {"version": found["dashboard"]["version"]}
        body = {
            "dashboard": {**board, **version},
            "folderUid": folder_uid,
            "overwrite": False,
            "message": _message(board),
        }
        try:
            server.post("/dashboards/db", body)
        except RefusedError as refusal:
            if refusal.status in _CONFLICTS and attempt + 1 < _ATTEMPTS:
                continue  # saved by somebody else since we read it: read again
            raise _explained(refusal, board) from refusal
        return step
    raise AssertionError("the last attempt returns or raises")


def _message(board: Board) -> str:
    """What the board's history says of this version: who saved it, and a digest of what was sent."""
    digest = hashlib.sha256(json.dumps(board, sort_keys=True).encode()).hexdigest()[:12]
    return f"tokswarm {VERSION}, {digest}"


def _is_our_last_word(server: GrafanaServer, board: Board) -> bool:
    """Whether the newest version is this board as we sent it: Grafana 13 lifts what it keeps to its own schema."""
    answer = server.get(f"/dashboards/uid/{board['uid']}/versions?limit=1")
    versions = answer.get("versions") if isinstance(answer, dict) else answer  # a bare list before Grafana 11.4
    return isinstance(versions, list) and [each.get("message") for each in versions[:1]] == [_message(board)]


def _alerts(server: GrafanaServer, data_source_uid: str, folder_uid: str, *, dry_run: bool) -> Step:
    wanted = rule_group(data_source_uid=data_source_uid, folder_uid=folder_uid)
    path = f"/v1/provisioning/folder/{folder_uid}/rule-groups/{GROUP}"
    found = server.get(path)
    changes: list[str] = []
    if found is not None:
        changes = rule_changes(found, wanted)
        if not changes:
            return Step("alert rules", GROUP, Action.UNCHANGED)
    if not dry_run:
        try:
            server.put(path, wanted)
        except RefusedError as refusal:
            raise _alerts_explained(refusal) from refusal
    return Step("alert rules", GROUP, Action.CREATED if found is None else Action.UPDATED, None, tuple(changes))


def _alerts_explained(refusal: RefusedError) -> PublishError:
    if refusal.status == requests.codes.forbidden:
        hint = "alert rules need a service account with the role Admin; the boards are published, leave out --alerts"
    elif refusal.status in _CONFLICTS or "provenance" in str(refusal):
        hint = "these rules come from a provisioning file or were made otherwise: change them there, or remove them"
    else:
        hint = refusal.hint
    return PublishError(str(refusal), hint=hint)


def _explained(refusal: RefusedError, board: Board) -> PublishError:
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


def _path_part(uid: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", uid):
        raise ConfigError(
            f"the data source is {uid!r}, expected letters, digits, - and _", hint="copy its uid from Grafana"
        )
    return uid
