"""Puts the gate, the API and our pages on a Flask app: Locust's, or a bare one."""

from pathlib import Path

import msgspec
from flask import Blueprint, Flask, Response, request, send_file
from werkzeug.exceptions import HTTPException, NotFound

from tokswarm.errors import UnknownRunError
from tokswarm.master.run import RunControl
from tokswarm.version import VERSION
from tokswarm.web import api as http_api
from tokswarm.web.gate import LOCUST_PATH, install_gate, session_token
from tokswarm.web.live import LiveFeed
from tokswarm.web.locust_ui import install_locust_ui
from tokswarm.web.starts import Starts

_STATIC = Path(__file__).parent / "static"
_MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_ANY_ADDRESS = frozenset({"", "0.0.0.0", "::", "*"})  # noqa: S104 - compared with, not bound to


class WebSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the master's web server listens, as far as the pages need to know."""

    port: int
    host: str = "127.0.0.1"
    """The address it is bound to."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names, without port, by which browsers may reach it: of the machine, or of a proxy before it."""

    @property
    def allowed_names(self) -> tuple[str, ...]:
        """Every name it answers for besides loopback."""
        bound = () if self.host in _ANY_ADDRESS else (self.host,)
        return (*bound, *self.allowed_hosts)


def install(app: Flask, control: RunControl, settings: WebSettings) -> None:
    """Put all of it on the app; before its first request."""
    starts = Starts(control)
    install_gate(app, port=settings.port, allowed_names=settings.allowed_names)
    install_locust_ui(app, control, starts)
    app.register_blueprint(http_api.blueprint(http_api.Api(control, starts, LiveFeed(control.ticks))))
    app.register_blueprint(_pages(control, has_locust="locust.index" in app.view_functions))
    app.register_error_handler(HTTPException, _http_error)


def _pages(control: RunControl, *, has_locust: bool) -> Blueprint:
    pages = Blueprint("tokswarm_pages", __name__)
    shell = (_STATIC / "index.html").read_text().replace("{{version}}", VERSION)
    shell = shell.replace("{{locust}}", f"{LOCUST_PATH}/" if has_locust else "")
    files = {path.name: path for path in _STATIC.iterdir() if path.suffix in _MEDIA_TYPES}

    def page(status: int = 200) -> Response:
        html = shell.replace("{{csrf}}", session_token())
        return Response(html, status=status, mimetype="text/html", headers={"Cache-Control": "no-store"})

    def run_page(run_id: str) -> Response:
        try:
            control.run(run_id)
        except UnknownRunError:
            return page(404)
        return page()

    def static_file(name: str) -> Response:
        if name not in files:
            raise NotFound
        path = files[name]
        answer = send_file(path, mimetype=_MEDIA_TYPES[path.suffix], conditional=True)
        answer.headers["Cache-Control"] = "no-cache"
        return answer

    pages.add_url_rule("/", endpoint="home", view_func=page)
    pages.add_url_rule("/runs/<run_id>", endpoint="run", view_func=run_page)
    pages.add_url_rule("/app/<name>", endpoint="file", view_func=static_file)
    return pages


def _http_error(error: HTTPException) -> Response | HTTPException:
    """Paths that belong to no blueprint: the API's answer in its form, other pages in Werkzeug's."""
    return http_api.http_problem(error) if request.path.startswith("/api/") else error
