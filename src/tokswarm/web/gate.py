"""The gate every request passes before any view: it keeps other web pages from driving this master.

There is no login: whoever can connect may use the master, and it listens on loopback unless told
otherwise. What the gate keeps out are the *pages* a user of the machine happens to have open, whose
scripts can reach 127.0.0.1 as well. Its rules, in this order:

1.  `Host` must name this master: loopback, the address it is bound to, or one of `allowed_hosts`,
    on any port (tunnels change it). Else 421. This ends DNS rebinding.
2.  `Sec-Fetch-Site`, when a browser sends it, must be `same-origin` or `none`. From elsewhere only
    opening a page in a tab is allowed (GET, `navigate`, `document`). Else 403. Another port of this
    host is elsewhere.
3.  A request that changes something (not GET, HEAD or OPTIONS) must come from this very origin:
    `Sec-Fetch-Site` may not be `none`; `Origin`, else `Referer`, must carry the same host and port
    as `Host` (`null` does not); and a cookie with neither `Origin` nor `Sec-Fetch-Site` is refused.
    Else 403.
4.  A changing request of a browser (any of `Origin`, `Referer`, `Sec-Fetch-*`, `Cookie` came) must
    carry the session's token in `X-CSRF`. Else 403. Locust's own page, under /locust/, cannot send
    it: there rules 1 to 3 are the defence.
5.  A changing request of anything else (curl, CI) needs no token, but a loopback `Host`. Else 403.

Nothing allows other origins to read answers: flask-cors, which Locust adds, is taken out in all
three places it hooks into. Sessions carry the token and nothing else.
"""

import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable

import msgspec
from flask import Flask, Response, request, session
from werkzeug.datastructures import Headers

from tokswarm.web import problem
from tokswarm.web.problem import Problem

LOCUST_PATH = "/locust"
"""Where Locust's own pages are."""

CSRF_HEADER = "X-CSRF"

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_BROWSER_HEADERS = ("Origin", "Referer", "Cookie", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
_ORIGIN = re.compile(r"https?://([^/?#@\s]+)")

OWN_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Content-Security-Policy of our own pages: nothing inline, nothing from elsewhere."""

LOCUST_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
"""Of Locust's pages, which carry their data in an inline script and style elements inline."""

REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Of a run's stored report: self-contained, in an origin of its own, without any connection."""

_HEADERS = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request may not pass."""

    status: int
    problem: Problem


def host_name(host: str) -> str | None:
    """The name in a Host header, lower case, without port and brackets; None: it is no host."""
    found = _HOST.fullmatch(host.strip().lower())
    return found.group(1).strip("[]") if found else None


def is_loopback(name: str) -> bool:
    """Whether a host name always means the machine itself."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def judge(*, method: str, path: str, headers: Headers, allowed_names: Iterable[str], token: str) -> Refusal | None:
    """Apply the rules of this module's head; None: the request may pass. `token` is the session's, "" without one."""
    host = headers.get("Host", "").strip().lower()
    name = host_name(host)
    if name is None or not (is_loopback(name) or name in allowed_names):
        return _refuse(
            f"this master does not answer for the host {host!r}",
            status=421,
            field="Host",
            hint="open it by the address it listens on, or start it with this name among its allowed hosts",
        )
    site = headers.get("Sec-Fetch-Site")
    changes = method not in _SAFE_METHODS
    if site not in (None, "same-origin", "none") and (changes or not _opens_a_page(headers)):
        return _refuse(f"the request was sent by a page of another site ({site})", field="Sec-Fetch-Site")
    if not changes:
        return None
    return _judge_origin(site, host, headers) or _judge_token(path, name, headers, token)


def _opens_a_page(headers: Headers) -> bool:
    return headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"


def _judge_origin(site: str | None, host: str, headers: Headers) -> Refusal | None:
    if site == "none":
        return _refuse("a change must be asked for by this master's own page", field="Sec-Fetch-Site")
    source = next((name for name in ("Origin", "Referer") if name in headers), None)
    if source is not None:
        found = _ORIGIN.match(headers[source].strip().lower())
        if found is None or found.group(1) != host:
            return _refuse(f"the request was sent by a page of {headers[source]!r}, not of {host!r}", field=source)
    if "Cookie" in headers and site is None and "Origin" not in headers:
        return _refuse("a cookie came, but nothing that says which page sent the request", field="Origin")
    return None


def _judge_token(path: str, name: str, headers: Headers, token: str) -> Refusal | None:
    if not any(header in headers for header in _BROWSER_HEADERS):
        if is_loopback(name):
            return None
        return _refuse(
            f"changes without a browser are taken on a loopback address only, not on {name!r}",
            field="Host",
            hint="run the command on the master's machine, or through a tunnel to its loopback address",
        )
    if path.startswith(f"{LOCUST_PATH}/"):
        return None
    sent = headers.get(CSRF_HEADER, "")
    if token and hmac.compare_digest(sent.encode(), token.encode()):
        return None
    return _refuse(
        f"the token in {CSRF_HEADER} is not this session's", field=CSRF_HEADER, hint="load the page again and repeat it"
    )


def _refuse(error: str, *, field: str, hint: str = "", status: int = 403) -> Refusal:
    hint = hint or "open this master's own page and do it there, or send it with a tool that is no browser"
    return Refusal(status=status, problem=Problem(error=error, field=field, hint=hint))


def session_token() -> str:
    """The token of this browser's session, made when it has none; a page carries it to its scripts."""
    token: str | None = session.get("csrf")
    if token is None:
        token = secrets.token_urlsafe(24)
        session["csrf"] = token
    return token


def install_gate(app: Flask, *, port: int, allowed_names: Iterable[str]) -> None:
    """Put the gate before all views of the app, the headers on all answers, and take CORS and debugging out."""
    names = frozenset(name.lower() for name in allowed_names)
    _remove_cors(app)
    app.debug = False
    app.secret_key = secrets.token_bytes(32)
    app.config.update(
        SESSION_COOKIE_NAME=f"tokswarm_{port}",  # cookies ignore ports: two masters must not share a name
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Lax",
        PROPAGATE_EXCEPTIONS=False,
    )

    def gate() -> Response | None:
        refusal = judge(
            method=request.method,
            path=request.path,
            headers=request.headers,
            allowed_names=names,
            token=session.get("csrf", "") if request.method not in _SAFE_METHODS else "",
        )
        return None if refusal is None else problem.response(refusal.problem, refusal.status)

    app.before_request_funcs.setdefault(None, []).insert(0, gate)
    app.after_request(_protect)


def _protect(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers[name] = value
    policy = LOCUST_POLICY if request.path.startswith(f"{LOCUST_PATH}/") else OWN_POLICY
    response.headers.setdefault("Content-Security-Policy", policy)
    return response


def _remove_cors(app: Flask) -> None:
    hooks = app.after_request_funcs.get(None, [])
    hooks[:] = [hook for hook in hooks if not hook.__module__.startswith("flask_cors")]
    for wrapped in ("handle_exception", "handle_user_exception"):
        app.__dict__.pop(wrapped, None)
