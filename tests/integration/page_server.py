"""Serves the pages and the API over a scripted run control, on Locust's own web app, until it is ended.

Prints the address it listens on. Started as a process of its own by test_page.py, or by hand:

    python tests/integration/page_server.py --second 1.0
"""

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402

import gevent  # noqa: E402
from gevent.pywsgi import WSGIServer  # noqa: E402
from locust import User, constant, task  # noqa: E402
from locust.env import Environment  # noqa: E402

from tokswarm.testing.run_control import ScriptedControl  # noqa: E402
from tokswarm.web.app import WebSettings, install  # noqa: E402


class Placeholder(User):
    wait_time = constant(1)

    @task
    def nothing(self) -> None:
        """Locust wants a task."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--second", type=float, default=0.2, help="real seconds for one of the script's")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--log", type=Path, default=None, help="a file for one line a request")
    options = parser.parse_args()
    del sys.argv[1:]  # Locust's web page reads it for options of its own
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory() as root:
        control = ScriptedControl(Path(root), workers=options.workers)
        environment = Environment(user_classes=[Placeholder])
        environment.create_local_runner()
        ui = environment.create_web_ui("127.0.0.1", 0, web_base_path="/locust", delayed_start=True)
        listener = gevent.socket.create_server(("127.0.0.1", options.port))
        port = listener.getsockname()[1]
        install(ui.app, control, WebSettings(port=port))
        log = None if options.log is None else options.log.open("a", buffering=1)
        server = WSGIServer(listener, ui.app, log=log)
        server.start()
        print(f"http://127.0.0.1:{port}", flush=True)
        while True:
            gevent.sleep(options.second)
            control.advance()


if __name__ == "__main__":
    main()
