"""A scripted Locust user gets text and a record, and Locust counts each request once."""

import json
import subprocess
import sys
from pathlib import Path

from endpoints import simulator
from scripted_server import scripted_server
from test_wire import DONE, body_answer, stream, token, usage

LOCUSTFILES = Path(__file__).parents[2] / "locustfiles"


def run_locust(locustfile: Path, host: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "locust", "-f", str(locustfile), "--headless", "--host", host, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_shipped_shopper_runs_with_plain_locust_options() -> None:
    with simulator() as base_url:
        done = run_locust(LOCUSTFILES / "shopper.py", base_url, "-u", "2", "-r", "2", "-t", "3s", "--json")
    assert done.returncode == 0, done.stderr
    stats = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert set(stats) == {"ask", "refine"}
    assert all(entry["method"] == "LLM" and entry["num_failures"] == 0 for entry in stats.values())
    assert stats["ask"]["num_requests"] >= stats["refine"]["num_requests"] >= 2


SCRIPT = """
import json
from locust import constant, task
from tokswarm.user import LLMUser

class One(LLMUser):
    model = "m"
    wait_time = constant(1)

    @task
    def ask(self):
        reply = self.llm.chat([{"role": "user", "content": "hi"}], max_tokens=4, temperature=0)
        print(json.dumps({"text": reply.text, "ok": reply.ok, "outcome": reply.record.outcome,
                          "tokens": reply.record.output_tokens, "last": reply.messages[-1]}), flush=True)
        self.environment.runner.quit()
"""


def test_chat_returns_text_and_record(tmp_path: Path) -> None:
    script = tmp_path / "one.py"
    script.write_text(SCRIPT)
    with scripted_server(stream(token("Hel"), token("lo", "stop"), usage(completion=2), DONE)) as server:
        done = run_locust(script, f"http://127.0.0.1:{server.port}/v1", "-u", "1", "-t", "5s")
        assert b'"temperature":0' in server.requests[0]
    said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert said == {
        "text": "Hello",
        "ok": True,
        "outcome": "ok",
        "tokens": 2,
        "last": {"role": "assistant", "content": "Hello"},
    }


def test_a_failure_is_a_reply_that_is_not_ok(tmp_path: Path) -> None:
    script = tmp_path / "one.py"
    script.write_text(SCRIPT)
    with scripted_server(body_answer("503 Unavailable", b"overloaded")) as server:
        done = run_locust(script, f"http://127.0.0.1:{server.port}/v1", "-u", "1", "-t", "5s")
    said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert (said["ok"], said["outcome"], said["text"]) == (False, "http_error", "")
    assert "HTTP 503: overloaded" in done.stderr + done.stdout


def test_an_answer_that_breaks_off_inside_json_is_a_reply_with_the_text_so_far(tmp_path: Path) -> None:
    script = tmp_path / "one.py"
    script.write_text(SCRIPT)
    with scripted_server(stream(token("Hel"), b'data: {"choices":[{\n\n', DONE)) as server:
        done = run_locust(script, f"http://127.0.0.1:{server.port}/v1", "-u", "1", "-t", "5s")
    said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert (said["ok"], said["outcome"], said["text"]) == (False, "protocol", "Hel")


def test_an_answer_in_one_piece_has_its_text_too(tmp_path: Path) -> None:
    script = tmp_path / "one.py"
    script.write_text(SCRIPT.replace("temperature=0", "stream=False"))
    body = b'{"choices":[{"message":{"content":"Hello"},"finish_reason":"stop"}],"usage":{"completion_tokens":2}}'
    with scripted_server(body_answer("200 OK", body)) as server:
        done = run_locust(script, f"http://127.0.0.1:{server.port}/v1", "-u", "1", "-t", "5s")
    said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert (said["ok"], said["text"], said["tokens"]) == (True, "Hello", 2)
