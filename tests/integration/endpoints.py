"""Endpoints for tests: started as processes of their own on free ports, stopped by process id."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

START_TIMEOUT_S = 20.0


@contextlib.contextmanager
def simulator(
    profile: str | Path = "fast",
    *,
    model: str | None = "tiny",
    seed: int = 1,
    api_key: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """A simulated endpoint; gives its base URL, `http://127.0.0.1:PORT/v1`.

    `profile` is a preset or a YAML file; `model` None leaves names to it. `api_key` is a reference such as
    `env:NAME`, with the variable in `environment`, which replaces the inherited one when given.
    """
    with TemporaryDirectory(prefix="tokswarm-sim-") as folder:
        port_file = Path(folder, "port")
        arguments = ["--port", "0", "--port-file", str(port_file), "--profile", str(profile)]
        arguments += ["--seed", str(seed)]
        if model is not None:
            arguments += ["--model", model]
        if api_key is not None:
            arguments += ["--api-key", api_key]
        with Path(folder, "stderr").open("w+", encoding="utf-8") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "tokswarm.simulator", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env=None if environment is None else dict(environment),
            )
            try:
                yield f"http://127.0.0.1:{_await_port(process, port_file, stderr)}/v1"
            finally:
                stop(process)


def stop(process: "subprocess.Popen[bytes]", timeout_s: float = 10.0) -> int:
    """End a process: first politely, then not. Its exit code."""
    process.terminate()
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(timeout_s)


def _await_port(process: "subprocess.Popen[bytes]", port_file: Path, stderr: IO[str]) -> int:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not port_file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            stderr.seek(0)
            state = f"ended with {process.returncode}" if process.returncode is not None else "did not open its port"
            raise RuntimeError(f"the simulated endpoint {state}: {stderr.read()}")
        time.sleep(0.02)
    return int(port_file.read_text())
