"""The page in Chromium: start a run, watch it, stop it, find it again.

The tests of the first part hold against any master: set TOKSWARM_PAGE_URL to the address of one with
workers and nothing running, and TOKSWARM_PAGE_MIX to a mix that goes on for at least 20 seconds.
Without, they run against a scripted master that `page_server.py` serves beside Locust's own page.
"""

import contextlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright is not installed: pip install 'tokswarm[test]'")

from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_MS = 30_000

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}: apt-get install chromium")


@contextlib.contextmanager
def scripted_master(*options: str) -> Iterator[str]:
    """The address of a scripted master, in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("page_server.py")), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that may log no error and break no policy while the test goes on."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    # A refused request (409, 422, …) is logged by Chromium itself; that is no fault of the page.
    assert [text for text in complaints if "Failed to load resource" not in text] == []


@pytest.fixture
def scripted_url() -> Iterator[str]:
    with scripted_master() as url:
        yield url


@pytest.fixture
def base_url(request: pytest.FixtureRequest) -> str:
    """A master with workers on which nothing runs."""
    real = os.environ.get("TOKSWARM_PAGE_URL")
    return real.rstrip("/") if real else request.getfixturevalue("scripted_url")


def start(page: Page) -> str:
    """Start the mix of these tests and give the run's id."""
    page.get_by_label("Traffic mix").select_option(os.environ.get("TOKSWARM_PAGE_MIX", "chat-sweep"))
    with page.expect_response(
        lambda r: r.url.endswith("/runs") and r.request.method == "POST", timeout=WAIT_MS
    ) as started:
        page.get_by_role("button", name="Start").click()
    assert started.value.status == 201, started.value.text()
    run_id: str = started.value.json()["run_id"]
    return run_id


def start_elsewhere(url: str) -> None:
    """Start a run as curl does."""
    body = json.dumps({"mix": "chat-sweep"}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/api/v1/runs", data=body, method="POST")) as answer:
        assert answer.status == 201


# --- against any master --------------------------------------------------------------------------


def test_a_run_is_started_watched_stopped_and_found_in_the_list(page: Page, base_url: str) -> None:
    page.goto(base_url)
    run_id = start(page)
    live = page.get_by_role("region", name="Live")
    expect(live.locator('[data-part="badge"]')).to_have_text("running", timeout=WAIT_MS)
    expect(live.locator(".stage")).not_to_contain_text("warm-up", timeout=WAIT_MS)  # it is in no result

    tokens = page.locator('[data-tile="tok-per-s"]')
    expect(tokens).to_have_text(re.compile("[1-9]"), timeout=WAIT_MS)
    seen = {tokens.inner_text()}
    for _ in range(3):
        expect(tokens).not_to_have_text(tokens.inner_text(), timeout=WAIT_MS)
        seen.add(tokens.inner_text())
    assert len(seen) >= 3
    expect(page.locator('[data-tile="in-flight"]')).to_have_text(re.compile("[1-9]"))
    curve = page.locator(".chart", has_text="Output tokens").locator("path.line")
    assert curve.get_attribute("d").count("L") >= 2

    live.get_by_role("button", name="Stop").click()
    row = page.locator(f'#runs tr[data-run="{run_id}"]')
    expect(row.locator(".badge")).to_have_text(re.compile("valid|suspect|invalid|finished"), timeout=WAIT_MS)
    cells = {cell.get_attribute("data-label"): cell.inner_text() for cell in row.locator("td").all()}
    assert re.match(r"[1-9]", cells["Best second (tok/s)"])
    assert re.match(r"[1-9]", cells["Output (tokens)"])
    assert re.match(r"[1-9]", cells["Requests"])

    row.get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(run_id)
    expect(page.locator("#stages tbody tr").first).to_be_visible(timeout=WAIT_MS)


def test_a_bad_mix_is_told_in_words_and_starts_nothing(page: Page, base_url: str) -> None:
    page.goto(base_url)
    page.get_by_text("Edit the mix").click()
    before = page.locator("#runs tbody tr").count()
    text = page.get_by_label("Mix as YAML")
    expect(text).not_to_have_value("")
    text.fill(text.input_value() + "\nclases: []\n")

    page.get_by_role("button", name="Start").click()

    problem = page.get_by_role("alert")
    expect(problem).to_contain_text("clases", timeout=WAIT_MS)
    expect(problem).to_contain_text("classes")
    expect(text).to_have_attribute("aria-invalid", "true")
    assert page.locator("#runs tbody tr").count() == before


# --- against the scripted master -----------------------------------------------------------------


def test_a_page_without_runs_says_what_to_do(page: Page, scripted_url: str) -> None:
    page.goto(scripted_url)

    expect(page.get_by_text("No runs yet.")).to_be_visible()
    expect(page.get_by_text("Choose a mix, say which endpoint")).to_be_visible()
    expect(page.locator("#workers tbody tr")).to_have_count(2)


def test_a_page_without_workers_says_how_to_start_one(page: Page) -> None:
    with scripted_master("--workers", "0") as url:
        page.goto(url)
        expect(page.locator("#workers")).to_contain_text("tokswarm worker --join")
        page.get_by_role("button", name="Start").click()
        expect(page.get_by_role("alert")).to_contain_text("no worker is connected")


def test_a_run_can_be_started_with_the_keyboard_alone(page: Page, scripted_url: str) -> None:
    page.goto(scripted_url)
    expect(page.get_by_label("Traffic mix")).to_have_value("chat-sweep")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "submit":
            break
    page.keyboard.press("Enter")

    expect(page.locator('[data-part="badge"]')).to_have_text("running")


def test_a_run_started_elsewhere_appears_by_itself_and_keeps_the_form_shut(page: Page, scripted_url: str) -> None:
    page.goto(scripted_url)
    expect(page.get_by_role("button", name="Start")).to_be_enabled()

    start_elsewhere(scripted_url)

    expect(page.locator('[data-part="badge"]')).to_have_text("running")
    expect(page.get_by_role("button", name="Start")).to_be_disabled()


def test_a_page_opened_late_shows_the_seconds_before(page: Page, scripted_url: str) -> None:
    start_elsewhere(scripted_url)
    page.wait_for_timeout(1500)

    page.goto(scripted_url)

    line = page.locator(".chart", has_text="Output tokens").locator("path.line")
    expect(line).to_have_attribute("d", re.compile("(L.*){5}"))
    of_server = page.locator(".chart", has_text="KV cache").locator("path.line")
    expect(of_server).to_have_attribute("d", re.compile("(L.*){5}"))
    expect(page.locator(".chart", has_text="In flight").locator(".legend")).to_contain_text("server queue")


def test_a_page_outlives_its_master(page: Page) -> None:
    with scripted_master() as url:
        page.goto(url)
        expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator("#connection")).to_contain_text("connection lost", timeout=WAIT_MS)
    with scripted_master("--port", url.rsplit(":", 1)[1]):
        expect(page.locator("#connection")).to_have_text("live", timeout=WAIT_MS)
        page.get_by_role("button", name="Start").click()
        expect(page.locator('[data-part="badge"]')).to_have_text("running", timeout=WAIT_MS)


def test_a_run_page_shows_the_curve_of_each_class(page: Page) -> None:
    with scripted_master("--second", "0.02") as url:
        page.goto(url)
        run_id = start(page)
        page.goto(f"{url}/runs/{run_id}")
        rows = page.locator("#stages tbody tr")
        expect(rows).to_have_count(6, timeout=WAIT_MS)
        expect(rows.last).to_contain_text("47.5 %")
        expect(page.locator(".verdict")).to_contain_text("worker-0 used 93 % of its core")
        page.get_by_label("Traffic class").select_option("report")
        tokens = page.locator(".chart", has_text="Output tokens")
        expect(tokens.locator(".legend b")).to_have_text(re.compile(r"^2\d\d tok/s$"))
        with page.expect_popup() as popup:
            page.get_by_role("link", name="Curve page").click()
        expect(popup.value.get_by_role("heading", name="The curve")).to_be_visible()


def test_the_load_is_changed_on_the_page_of_the_run(page: Page, scripted_url: str) -> None:
    page.goto(scripted_url)
    page.goto(f"{scripted_url}/runs/{start(page)}")
    expect(page.get_by_label("How much")).to_be_visible(timeout=WAIT_MS)
    page.get_by_label("Go on with").select_option("a rate")
    page.get_by_label("How much").fill("12")
    page.get_by_role("button", name="Change").click()
    expect(page.locator(".load .problem")).to_contain_text("has no unit; write a rate as 12/s", timeout=WAIT_MS)
    page.get_by_label("How much").fill("12/s")
    page.get_by_role("button", name="Change").click()
    expect(page.locator(".load")).to_contain_text("the rest of its time is a stage of its own", timeout=WAIT_MS)
    expect(page.get_by_text("the load is changed")).to_be_visible(timeout=WAIT_MS)


def test_an_unknown_run_is_told(page: Page, scripted_url: str) -> None:
    page.goto(f"{scripted_url}/runs/nope")

    expect(page.get_by_role("alert")).to_contain_text("there is no run 'nope'")


@pytest.mark.parametrize("path", ["/", "/runs/"])
def test_nothing_is_wider_than_a_phone(page: Page, path: str) -> None:
    with scripted_master("--second", "0.02") as url:
        page.goto(url)
        run_id = start(page)
        expect(page.locator(f'#runs tr[data-run="{run_id}"] .badge')).to_have_text("suspect", timeout=WAIT_MS)
        page.set_viewport_size({"width": 360, "height": 800})
        page.goto(url + (path if path == "/" else path + run_id))
        page.locator(".chart svg.plot").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_locust_page_works_behind_the_gate_and_stops_the_run(page: Page, scripted_url: str) -> None:
    page.goto(scripted_url)
    start(page)

    page.goto(f"{scripted_url}/locust/")
    page.get_by_role("button", name=re.compile("start", re.IGNORECASE)).last.wait_for(timeout=WAIT_MS)
    stopped = page.evaluate("fetch('./stop', {method: 'POST'}).then(answer => answer.json())")

    assert stopped["success"] is True
    assert page.request.get(f"{scripted_url}/api/v1/runs").json()[0]["state"] in ("stopping", "reporting", "finished")


ATTACKS = """async (target) => {
  const body = JSON.stringify({mix: "chat-sweep"});
  const tries = [
    fetch(target + "/api/v1/runs", {method: "POST", body, mode: "no-cors", credentials: "include"}),
    fetch(target + "/api/v1/runs", {method: "POST", body, headers: {"X-CSRF": "x"}, credentials: "include"}),
    fetch(target + "/locust/stop", {method: "POST", mode: "no-cors", credentials: "include"}),
    fetch(target + "/api/v1/runs", {credentials: "include"}).then((answer) => answer.json()),
  ];
  const form = document.createElement("form");
  Object.assign(form, {method: "post", enctype: "text/plain", action: target + "/api/v1/runs", target: "_blank"});
  document.body.append(form);
  form.submit();
  const said = await Promise.allSettled(tries);
  return said.map((each) => (each.status === "fulfilled" ? each.value.type ?? "read" : "failed"));
}"""


class BlankPage(http.server.BaseHTTPRequestHandler):
    """A page of somebody else's on this machine."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title><body>")

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""


@contextlib.contextmanager
def page_elsewhere(name: str) -> Iterator[str]:
    """The address of a page on another port, under a name of this host."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), BlankPage) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{name}:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_page_of_another_port_or_name_can_start_stop_and_read_nothing(
    browser: Browser, tmp_path: Path, name: str
) -> None:
    log = tmp_path / "requests.log"
    context = browser.new_context()
    try:
        with scripted_master("--log", str(log)) as url, page_elsewhere(name) as elsewhere:
            own, evil = context.new_page(), context.new_page()
            own.goto(url)
            start(own)
            own.goto("about:blank")
            evil.goto(elsewhere)
            log.write_text("")
            outcome = evil.evaluate(ATTACKS, url)
            with urllib.request.urlopen(f"{url}/api/v1/runs") as answer:
                runs = json.load(answer)
            evil.context.pages[-1].wait_for_load_state()
    finally:
        context.close()

    assert outcome == ["failed"] * 4
    assert [run["state"] for run in runs] == ["running"]
    answers = re.findall(r'"(GET|POST) (\S+) HTTP/1.1" (\d+)', log.read_text())
    # The no-cors posts and the form arrive and are refused; the others end at the preflight, or as reads.
    assert answers.count(("POST", "/api/v1/runs", "403")) == 2
    assert answers.count(("POST", "/locust/stop", "403")) == 1
    assert {status for method, _, status in answers if method == "POST"} == {"403"}
