"""A worker that runs out of what its machine gives it says so, and does not blame the server."""

import socket
import subprocess
import sys

import msgspec

LIMIT = 64
REQUESTS = 100

SEND = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
import gevent, msgspec
from tokswarm.traffic.mix import Target
from tokswarm.wire.answer import LiveRow
from tokswarm.wire.api import RequestWriter
from tokswarm.wire.client import LoadClient
from tokswarm.wire.target import ResolvedTarget
spec = Target(base_url="http://127.0.0.1:{port}/v1", model="m")
client = LoadClient(ResolvedTarget(spec, {{}}))
ended = []
call = RequestWriter(client.target, "m").write(b"hello", max_tokens=3, ignore_eos=False)
for _ in range({requests}):
    client.start(call, LiveRow(), ended.append, None)
gevent.sleep(0.2)
early = [(each.outcome, each.error) for each in ended]
client.abort_all("over")
gevent.sleep(0.1)
sys.stdout.buffer.write(msgspec.json.encode([early, [each.outcome for each in ended]]))
"""


def test_out_of_descriptors_is_the_clients_limit_and_no_error_of_the_server() -> None:
    """Fault 35: a limit of 64 open files, a hundred requests to a server that takes them all and is silent."""
    with socket.create_server(("127.0.0.1", 0), backlog=REQUESTS) as server:
        port = server.getsockname()[1]
        program = SEND.format(limit=LIMIT, port=port, requests=REQUESTS)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    early, outcomes = msgspec.json.decode(done.stdout)
    assert REQUESTS - LIMIT < len(early) < REQUESTS
    assert {(outcome, error) for outcome, error in early} == {
        ("client_limit", f"this machine is out of file descriptors while connecting (127.0.0.1:{port})")
    }
    assert sorted(set(outcomes)) == ["aborted", "client_limit"]
    assert len(outcomes) == REQUESTS
