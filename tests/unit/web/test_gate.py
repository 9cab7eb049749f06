"""The gate's rules, each with the attack it stops."""

from collections.abc import Iterator

import pytest
from flask import Flask, Response
from flask_cors import CORS
from werkzeug.datastructures import Headers

from tokswarm.web.gate import LOCUST_POLICY, OWN_POLICY, host_name, install_gate, is_loopback, judge, session_token

HERE = "127.0.0.1:8089"
TOKEN = "the-session's-token"
COOKIE = {"Cookie": "tokswarm_8089=abc"}
PAGE = {"Origin": f"http://{HERE}", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", **COOKIE}


def refused(method: str, path: str, headers: dict[str, str], *, allowed: tuple[str, ...] = ()) -> int | None:
    refusal = judge(
        method=method, path=path, headers=Headers({"Host": HERE} | headers), allowed_names=allowed, token=TOKEN
    )
    return None if refusal is None else refusal.status


@pytest.mark.parametrize(
    ("method", "path", "headers", "want"),
    [
        pytest.param("GET", "/", {"Host": "evil.example:8089"}, 421, id="dns-rebinding-read"),
        pytest.param("POST", "/api/v1/runs", {"Host": "evil.example:8089"}, 421, id="dns-rebinding-change"),
        pytest.param("GET", "/", {"Host": ""}, 421, id="no-host"),
        pytest.param("GET", "/", {"Host": "127.0.0.1:8089,evil.example"}, 421, id="two-hosts"),
        pytest.param("GET", "/", {"Host": "127.0.0.1@evil.example"}, 421, id="host-with-user"),
        pytest.param("GET", "/", {"Host": "localhost.evil.example"}, 421, id="host-that-begins-like-ours"),
        pytest.param("GET", "/", {"Host": "127.0.0.1.nip.io"}, 421, id="name-that-resolves-to-loopback"),
        pytest.param(
            "POST",
            "/api/v1/runs",
            {"Origin": "http://127.0.0.1:9999", "Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", **COOKIE},
            403,
            id="fetch-no-cors-from-another-port",
        ),
        pytest.param(
            "POST",
            "/api/v1/runs",
            {"Origin": "http://127.0.0.1:9999", "Sec-Fetch-Site": "same-site", "X-CSRF": TOKEN, **COOKIE},
            403,
            id="another-port-even-with-the-token",
        ),
        pytest.param(
            "POST",
            "/locust/swarm",
            {
                "Origin": "http://127.0.0.1:9999",
                "Sec-Fetch-Site": "same-site",
                "Sec-Fetch-Mode": "navigate",
                "Sec-Fetch-Dest": "document",
            },
            403,
            id="form-post-from-another-port",
        ),
        pytest.param(
            "POST",
            "/locust/stop",
            {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
            403,
            id="evil-site",
        ),
        pytest.param("POST", "/locust/stop", {"Origin": "https://evil.example"}, 403, id="evil-site-old-browser"),
        pytest.param("POST", "/locust/stop", {"Origin": "null"}, 403, id="sandboxed-frame"),
        pytest.param(
            "POST", "/locust/stop", {"Origin": f"http://{HERE}.evil.example"}, 403, id="origin-begins-like-ours"
        ),
        pytest.param("POST", "/locust/stop", {"Origin": "http://localhost:8089"}, 403, id="other-name-of-this-host"),
        pytest.param(
            "POST", "/locust/stop", {"Referer": "https://evil.example/page"}, 403, id="only-a-foreign-referer"
        ),
        pytest.param("POST", "/locust/stop", COOKIE, 403, id="cookie-and-nothing-else"),
        pytest.param("POST", "/locust/stop", {"Sec-Fetch-Site": "none"}, 403, id="change-from-the-address-bar"),
        pytest.param("POST", "/api/v1/runs", PAGE, 403, id="own-page-without-token"),
        pytest.param("POST", "/api/v1/runs", PAGE | {"X-CSRF": "guess"}, 403, id="own-page-wrong-token"),
        pytest.param("POST", "/", PAGE, 403, id="token-is-asked-for-everywhere-but-under-locust"),
        pytest.param("POST", "/locustfoo", PAGE, 403, id="path-that-begins-like-locust"),
        pytest.param("DELETE", "/api/v1/runs", PAGE, 403, id="any-changing-method"),
        pytest.param(
            "GET",
            "/api/v1/live",
            {"Origin": "http://127.0.0.1:9999", "Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
            403,
            id="read-by-a-script-of-another-port",
        ),
        pytest.param(
            "GET",
            "/api/v1/runs",
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
            403,
            id="read-by-a-script-element",
        ),
        pytest.param(
            "GET",
            "/",
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
            403,
            id="framed",
        ),
        pytest.param(
            "GET",
            "/runs/1",
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
            None,
            id="link-from-a-dashboard",
        ),
        pytest.param("GET", "/", {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, None, id="typed-address"),
        pytest.param("GET", "/api/v1/runs", {}, None, id="curl-reads"),
        pytest.param("POST", "/api/v1/runs", {}, None, id="curl-changes"),
        pytest.param("POST", "/api/v1/runs", PAGE | {"X-CSRF": TOKEN}, None, id="own-page-with-token"),
        pytest.param(
            "POST",
            "/api/v1/runs",
            {"Origin": f"http://{HERE}", "X-CSRF": TOKEN, **COOKIE},
            None,
            id="own-page-without-fetch-metadata",
        ),
        pytest.param("POST", "/locust/stop", PAGE, None, id="locust's-own-page"),
        pytest.param("POST", "/locust/stop", {"Referer": f"http://{HERE}/locust/"}, None, id="referer-is-ours"),
        pytest.param("GET", "/", {"Host": "localhost"}, None, id="localhost-without-port"),
        pytest.param("GET", "/", {"Host": "[::1]:8089"}, None, id="ipv6-loopback"),
    ],
)
def test_the_gate_lets_through_what_its_rules_say(
    method: str, path: str, headers: dict[str, str], want: int | None
) -> None:
    assert refused(method, path, headers) == want


def test_an_allowed_host_is_answered_but_takes_changes_from_browsers_only() -> None:
    host = {"Host": "load.example:8089"}
    allowed = ("load.example",)
    page = host | {"Origin": "http://load.example:8089", "Sec-Fetch-Site": "same-origin", "X-CSRF": TOKEN, **COOKIE}

    assert refused("GET", "/", host, allowed=allowed) is None
    assert refused("POST", "/api/v1/runs", page, allowed=allowed) is None
    assert refused("POST", "/api/v1/runs", host, allowed=allowed) == 403


def test_without_a_session_no_token_fits() -> None:
    headers = Headers({"Host": HERE, "Origin": f"http://{HERE}", "X-CSRF": ""})

    refusal = judge(method="POST", path="/api/v1/runs", headers=headers, allowed_names=(), token="")

    assert refusal is not None
    assert refusal.problem.field == "X-CSRF"


@pytest.mark.parametrize(
    ("host", "want"),
    [
        pytest.param("LOCALHOST:80", "localhost", id="case-and-port"),
        pytest.param("[::1]:8089", "::1", id="ipv6"),
        pytest.param("a b", None, id="space"),
        pytest.param("", None, id="empty"),
        pytest.param("host:port", None, id="port-is-no-number"),
    ],
)
def test_a_host_name_comes_without_port_and_brackets(host: str, want: str | None) -> None:
    assert host_name(host) == want


@pytest.mark.parametrize(
    ("name", "want"), [("localhost", True), ("127.9.9.9", True), ("::1", True), ("10.0.0.1", False)]
)
def test_loopback_is_the_machine_itself(name: str, want: bool) -> None:
    assert is_loopback(name) is want


@pytest.fixture
def app() -> Iterator[Flask]:
    """An app as Locust makes it: with CORS for everybody and debugging on."""
    app = Flask("gated")
    CORS(app)
    app.debug = True
    views = {
        "/": session_token,
        "/fail": lambda: 1 / 0,
        "/locust/": lambda: "locust",
        "/policy": lambda: Response("x", headers={"Content-Security-Policy": "sandbox"}),
    }
    for path, view in views.items():
        app.add_url_rule(path, endpoint=path, view_func=view)
    install_gate(app, port=8089, allowed_names=())
    return app


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/none", 404), ("/fail", 500)])
def test_no_answer_may_be_read_by_another_origin(app: Flask, path: str, status: int) -> None:
    answer = app.test_client().get(path, headers={"Host": HERE, "Origin": "https://evil.example"})

    assert answer.status_code == status
    assert [name for name in answer.headers.keys() if name.startswith("Access-Control")] == []  # noqa: SIM118


def test_a_preflight_gives_no_leave(app: Flask) -> None:
    asked = {"Host": HERE, "Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}

    answer = app.test_client().options("/", headers=asked)

    assert [name for name in answer.headers.keys() if name.startswith("Access-Control")] == []  # noqa: SIM118


def test_an_inner_error_shows_nothing_inner(app: Flask) -> None:
    answer = app.test_client().get("/fail", headers={"Host": HERE})

    assert app.debug is False
    assert "division" not in answer.text
    assert "Traceback" not in answer.text


def test_the_cookie_is_named_for_the_port_and_closed_to_scripts_and_other_sites(app: Flask) -> None:
    cookie = app.test_client().get("/", headers={"Host": HERE}).headers["Set-Cookie"]

    assert cookie.startswith("tokswarm_8089=")
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie


def test_a_session_keeps_its_token(app: Flask) -> None:
    client = app.test_client()
    other = app.test_client()

    first = client.get("/", headers={"Host": HERE}).text

    assert client.get("/", headers={"Host": HERE}).text == first
    assert other.get("/", headers={"Host": HERE}).text != first


@pytest.mark.parametrize(
    ("path", "policy"),
    [
        pytest.param("/", OWN_POLICY, id="own-page"),
        pytest.param("/none", OWN_POLICY, id="error"),
        pytest.param("/locust/", LOCUST_POLICY, id="locust"),
        pytest.param("/policy", "sandbox", id="an-answer's-own"),
    ],
)
def test_every_answer_says_what_its_page_may_do(app: Flask, path: str, policy: str) -> None:
    headers = app.test_client().get(path, headers={"Host": HERE}).headers

    assert headers["Content-Security-Policy"] == policy
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_own_pages_may_run_nothing_inline() -> None:
    assert "unsafe-inline" not in OWN_POLICY
    assert "script-src 'self'" in OWN_POLICY


def test_the_gate_comes_before_hooks_that_were_there_first() -> None:
    app = Flask("hooked")
    seen: list[str] = []
    app.before_request(lambda: seen.append("hook"))
    install_gate(app, port=1, allowed_names=())

    answer = app.test_client().get("/", headers={"Host": "evil.example"})

    assert (answer.status_code, seen) == (421, [])
