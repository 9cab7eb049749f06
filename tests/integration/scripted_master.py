"""A master process that a test drives by lines on its standard input: one JSON command, one JSON answer.

    python scripted_master.py PORT DATA_DIR LOCAL_WORKERS REPORT

REPORT: `counted` (what the logs hold) or `real` (the product's own, in its child process).
"""

import locust  # noqa: F401, I001 -- first: it patches the process
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import msgspec
from gevent.fileobject import FileObject

from tokswarm.errors import TokswarmError
from tokswarm.master.finish import finish_in_child
from tokswarm.master.run import StartRequest
from tokswarm.master.service import Service, ServiceSettings
from tokswarm.measure.record import RequestRecord
from tokswarm.sink.record_log import read_log
from tokswarm.traffic.plan import TokenFit

WORKER = Path(__file__).with_name("scripted_worker.py")


def check_endpoint(mix: object, target: object) -> Any:
    fit = TokenFit(tokens_per_word=1.0, overhead_tokens=0.0, source="assumed")
    return SimpleNamespace(model="tiny", fit=fit, dropped_fields=[], context_tokens=None, notes=["not probed"])


def report(run_dir: Path) -> dict[str, Any]:
    """What the logs hold, by worker: enough to see that they are whole."""
    records = {
        path.stem: sum(isinstance(entry, RequestRecord) for entry, _ in read_log(path))
        for path in sorted((run_dir / "logs").glob("*.log"))
    }
    summary = {"records": records, "verdict": {"state": "valid", "reasons": []}, "bend": {"line": "none"}}
    (run_dir / "summary.json").write_text(json.dumps(summary))
    return summary


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    port, data_dir, local_workers = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    service = Service(
        ServiceSettings(data_dir=data_dir, bind_port=port, web_port=0, local_workers=local_workers),
        check_endpoint=check_endpoint,
        report=finish_in_child if sys.argv[4] == "real" else report,
        local_command=lambda name: [sys.executable, str(WORKER), str(service.fleet.port), str(data_dir), name],
    )
    try:
        service.start()
    except TokswarmError as error:
        logging.exception("%s", error.hint)
        return error.exit_code
    service.handle_signals()
    control = service.control
    commands: dict[str, Callable[..., Any]] = {
        "port": lambda: service.fleet.port,
        "url": lambda: service.web_url,
        "pids": lambda: service.local.pids() if service.local else {},
        "ready": service.wait_ready,
        "start": lambda mix_yaml: control.start(StartRequest(mix_yaml=mix_yaml)),
        "stop": control.stop,
        "wait": lambda run_id, timeout_s: control.wait(run_id, timeout_s=timeout_s),
        "run": control.run,
        "runs": control.runs,
        "seconds": control.seconds,
        "workers": control.workers,
        "locust": lambda: {
            "state": service.fleet.environment.runner.state,
            "requests": service.fleet.environment.stats.total.num_requests,
        },
    }

    def answer(line: str) -> None:
        number, name, arguments = json.loads(line)
        try:
            result: Any = {"result": commands[name](*arguments)}
        except TokswarmError as error:
            result = {"error": type(error).__name__, "message": str(error), "hint": error.hint}
        sys.stdout.write(msgspec.json.encode([number, result]).decode() + "\n")
        sys.stdout.flush()

    for line in FileObject(sys.stdin.buffer, "rb"):
        gevent.spawn(answer, line.decode())
    service.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
