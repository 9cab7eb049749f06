"""A Grafana for tests: the routes that publishing uses, with the answers Grafana's HTTP API documents for 10 to 13.

The rules it keeps:
- no or another token: 401. Role Viewer: 403 on every change; Editor: 403 on data sources and alert rules.
- `GET /folders/UID`, `/datasources/uid/UID`, `/dashboards/uid/UID`: 404 when there is none.
- `POST /folders`: 409 when uid or title is taken.
- `POST /dashboards/db`: 400 without a title, with a bad uid, for an unknown folder and for a provisioned board;
  an `id` that is not null must exist (404); a board of the uid is replaced when `overwrite` is set or `version` is
  the stored one, else 412 version-mismatch; the same title in a folder is allowed. It keeps `id` and counts
  `version` up.
- `POST /datasources`: 409 when the name or uid is taken. `PUT`: 403 for a provisioned one. What is secure is never
  given out, only that it is set.
- Data sources by numeric id: 404, as in 13.
- `GET /dashboards/uid/UID/versions`: newest first, each with its message; a bare list in 10, in an object later.
- 13 reads boards back lifted to its own schema, which is not what was sent.
- `GET` and `PUT /v1/provisioning/folder/UID/rule-groups/NAME`: 404 for none; a rule whose uid another group has, or
  that a file provides, is refused with 409; rules come back with keys of Grafana's own.
"""

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

TOKEN = "glsa_not-a-real-token"


class Answer(NamedTuple):
    """One answer; `body` None is an empty one, text goes out as HTML."""

    status: int
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()


class FakeGrafana:
    """State and rules; `next_answers` come first when they are set, keyed by verb and path."""

    def __init__(self, major: int = 13) -> None:
        self.major = major
        """The version it answers as: 10 to 13."""
        self.role = "Editor"
        self.folders: dict[str, dict[str, Any]] = {}
        self.boards: dict[str, dict[str, Any]] = {}
        self.provisioned: set[str] = set()
        self.sources: dict[str, dict[str, Any]] = {}
        self.messages: dict[str, list[str]] = {}
        """What the history of each board says, oldest first."""
        self.rule_groups: dict[tuple[str, str], dict[str, Any]] = {}
        self.provisioned_rules: set[str] = set()
        self.requests: list[tuple[str, str]] = []
        self.next_answers: dict[tuple[str, str], list[Answer]] = {}
        self.before_save: list[str] = []
        """Uids of boards that somebody else saves just before our next save."""
        self.prefix = ""
        self.url = ""

    @property
    def changes(self) -> list[tuple[str, str]]:
        """The requests that change something."""
        return [(verb, path) for verb, path in self.requests if verb != "GET"]

    def edit(self, uid: str, title: str) -> None:
        """What a person does in the browser."""
        stored = self.boards[uid]["dashboard"]
        stored["title"] = title
        stored["version"] += 1
        self.messages[uid].append("")

    def answer(self, verb: str, path: str, token: str | None, body: Any) -> Answer:
        """The answer to one request, `path` without `/api`."""
        self.requests.append((verb, path))
        planned = self.next_answers.get((verb, path))
        if planned:
            return planned.pop(0)
        if token != f"Bearer {TOKEN}":
            return Answer(401, {"message": "Invalid API key"})
        route = path.partition("?")[0]
        for_admins = route.startswith(("/datasources", "/v1/provisioning"))
        if verb != "GET" and self.role != "Admin" and (self.role == "Viewer" or for_admins):
            return Answer(
                403,
                {
                    "accessErrorId": "ACE1234567890",
                    "message": "You'll need additional permissions to perform this action. Permissions needed: any",
                    "title": "Access denied",
                },
            )
        if verb == "GET" and route == "/folders":
            return Answer(200, list(self.folders.values()))
        if verb == "POST" and route == "/folders":
            return self._make_folder(body)
        if verb == "POST" and route == "/dashboards/db":
            return self._save(body)
        if verb == "POST" and route == "/datasources":
            return self._make_source(body)
        found = re.fullmatch(r"/(folders|dashboards/uid|datasources/uid)/([\w-]+)", route)
        if found and verb == "GET":
            store = {"folders": self.folders, "dashboards/uid": self.boards, "datasources/uid": self.sources}[found[1]]
            if found[1] == "dashboards/uid" and found[2] in store:
                return Answer(200, self._read_back(store[found[2]]))
            if found[2] in store:
                return Answer(200, {k: v for k, v in store[found[2]].items() if k != "secureJsonData"})
            return Answer(404, {"message": "not found"})
        if found and verb == "PUT" and found[1] == "datasources/uid":
            return self._put_source(found[2], body)
        history = re.fullmatch(r"/dashboards/uid/([\w-]+)/versions", route)
        if history and verb == "GET":
            newest_first = [{"message": message} for message in reversed(self.messages.get(history[1], []))]
            return Answer(200, newest_first if self.major < 11 else {"continueToken": "", "versions": newest_first})
        group = re.fullmatch(r"/v1/provisioning/folder/([\w-]+)/rule-groups/([\w-]+)", route)
        if group:
            return self._rule_group(verb, (group[1], group[2]), body)
        return Answer(404, {"message": "Not found"})

    def _read_back(self, stored: dict[str, Any]) -> dict[str, Any]:
        if self.major < 13:
            return stored
        lifted = {**stored["dashboard"], "schemaVersion": 42, "preload": False}
        return {**stored, "dashboard": lifted}

    def _rule_group(self, verb: str, place: tuple[str, str], body: Any) -> Answer:
        if verb == "GET":
            found = self.rule_groups.get(place)
            return Answer(404, {"message": "rule group not found"}) if found is None else Answer(200, found)
        if place[0] not in self.folders:
            return Answer(400, {"message": "folder does not exist"})
        elsewhere = {
            rule["uid"] for other, group in self.rule_groups.items() if other != place for rule in group["rules"]
        }
        for rule in body["rules"]:
            if rule["uid"] in elsewhere | self.provisioned_rules:
                message = f"cannot change provenance of rule {rule['uid']} from 'file' to 'api'"
                return Answer(409, {"message": message})
        rules = [
            {
                **rule,
                "id": number,
                "updated": "2026-12-01T12:00:00Z",
                "provenance": "api",
                "isPaused": False,
                "data": [{"queryType": "", **query} for query in rule["data"]],
            }
            for number, rule in enumerate(body["rules"], 1)
        ]
        self.rule_groups[place] = {**body, "rules": rules}
        return Answer(200, self.rule_groups[place])

    def _make_folder(self, body: dict[str, Any]) -> Answer:
        if any(body["uid"] == uid or body["title"] == folder["title"] for uid, folder in self.folders.items()):
            return Answer(409, {"message": "a folder with the same name already exists in the current location"})
        self.folders[body["uid"]] = {"id": len(self.folders) + 1, **body, "version": 1}
        return Answer(200, self.folders[body["uid"]])

    def _save(self, body: dict[str, Any]) -> Answer:
        board = body["dashboard"]
        uid = board.get("uid") or ""
        for other in [each for each in self.before_save if each == uid][:1]:
            self.before_save.remove(other)
            self.edit(other, "edited meanwhile")
        if not board.get("title"):
            return Answer(400, {"message": "Dashboard title cannot be empty"})
        if not re.fullmatch(r"[\w-]{1,40}", uid):
            return Answer(400, {"message": "uid contains illegal characters or is too long"})
        if body["folderUid"] not in self.folders:
            return Answer(400, {"message": "folder not found", "status": "not-found"})
        if uid in self.provisioned:
            return Answer(400, {"message": "Cannot save provisioned dashboard"})
        if board.get("id") is not None and all(each["dashboard"]["id"] != board["id"] for each in self.boards.values()):
            return Answer(404, {"message": "Dashboard not found", "status": "not-found"})
        stored = self.boards.get(uid)
        if stored and not body.get("overwrite") and board.get("version") != stored["dashboard"]["version"]:
            return Answer(
                412, {"message": "The dashboard has been changed by someone else", "status": "version-mismatch"}
            )
        number = stored["dashboard"]["id"] if stored else len(self.boards) + 1
        version = stored["dashboard"]["version"] + 1 if stored else 1
        self.messages.setdefault(uid, []).append(body.get("message", ""))
        self.boards[uid] = {
            "dashboard": {**board, "id": number, "version": version},
            "meta": {"folderUid": body["folderUid"], "provisioned": False, "version": version},
        }
        return Answer(200, {"id": number, "uid": uid, "status": "success", "version": version, "url": f"/d/{uid}/x"})

    def _make_source(self, body: dict[str, Any]) -> Answer:
        if any(body["uid"] == uid or body["name"] == source["name"] for uid, source in self.sources.items()):
            return Answer(409, {"message": "data source with the same name already exists"})
        self._keep_source(body)
        return Answer(200, {"datasource": {"uid": body["uid"]}, "message": "Datasource added"})

    def _put_source(self, uid: str, body: dict[str, Any]) -> Answer:
        if uid not in self.sources:
            return Answer(404, {"message": "Data source not found"})
        if self.sources[uid].get("readOnly"):
            return Answer(403, {"message": "Cannot update read-only data source"})
        self._keep_source(body)
        return Answer(200, {"datasource": {"uid": uid}, "message": "Datasource updated"})

    def _keep_source(self, body: dict[str, Any]) -> None:
        secure = dict.fromkeys(body.get("secureJsonData", {}), True)
        self.sources[body["uid"]] = {**body, "readOnly": False, "secureJsonFields": secure}


@contextlib.contextmanager
def fake_grafana(prefix: str = "", major: int = 13) -> Iterator[FakeGrafana]:
    """A running one on a free loopback port, under a sub-path when `prefix` is set."""
    grafana = FakeGrafana(major)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body are two writes

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            path = self.path.removeprefix(f"{prefix}/api")
            answer = (
                grafana.answer(self.command, path, self.headers.get("Authorization"), body)
                if path != self.path
                else Answer(404, "<html>nothing here</html>")
            )
            is_text = isinstance(answer.body, str)
            sent = b"" if answer.body is None else answer.body.encode() if is_text else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in answer.headers:
                self.send_header(name, value)
            self.send_header("Content-Type", "text/html" if is_text else "application/json")
            if answer.status != 204:
                self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = do_PUT = _serve  # noqa: N815 - named so by the standard library

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named so by the standard library
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    grafana.prefix = prefix
    grafana.url = f"http://127.0.0.1:{server.server_address[1]}{prefix}"
    try:
        yield grafana
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
