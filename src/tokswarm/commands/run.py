"""`tokswarm run` and `tokswarm demo`: one run from start to report, in one process tree."""

import contextlib
import ctypes
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from gevent import subprocess
from rich.console import Console

from tokswarm.commands.progress import Progress
from tokswarm.errors import TokswarmError
from tokswarm.insight.report import SUMMARY_FILE, read_summary
from tokswarm.insight.table import end_table
from tokswarm.insight.verdict import State
from tokswarm.master.course import BY_PLAN
from tokswarm.master.run import RunInfo, RunState, StartRequest
from tokswarm.master.service import Service, ServiceSettings
from tokswarm.resources import resource_dir
from tokswarm.traffic.mixfile import load_mix

EXIT_INVALID_RUN = 4
EXIT_ABORTED = 5
SIMULATOR_START_S = 20.0
DEFAULT_DATA_DIR = Path("tokswarm-data")
DEMO_WEB_PORT = 8089
PR_SET_PDEATHSIG = 1
"""Of Linux's prctl."""

data_dir_option = click.option(
    "--data-dir",
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DATA_DIR,
    show_default=True,
    help="Where runs, logs and the run store are kept.",
)


@click.command(
    epilog="""\b
Examples:
  tokswarm run demo --base-url http://127.0.0.1:8100/v1
  tokswarm run locustfiles/mixes/mooncake-conversation.yaml --workers 2
  OPENAI_BASE_URL=http://127.0.0.1:8000/v1 tokswarm run chat-sweep --json > summary.json

\b
Exit codes: 0 the run is valid or suspect, 1 it failed, 2 bad input or endpoint, 4 it is invalid, 5 stopped early."""
)
@click.argument("mix")
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Worker processes here.")
@data_dir_option
@click.option("--base-url", help="Endpoint, instead of the mix's.")
@click.option("--model", help="Model, instead of the mix's.")
@click.option("--web-port", type=click.IntRange(0, 65535), help="Serve the page at this port meanwhile; 0: a free one.")
@click.option("--json", "as_json", is_flag=True, help="Print summary.json instead of the table.")
def run(
    *,
    mix: str,
    workers: int,
    data_dir: Path,
    base_url: str | None,
    model: str | None,
    web_port: int | None,
    as_json: bool,
) -> int:
    """Run a MIX (a file, or the name of one that ships) on local workers, without a page; report at the end."""
    path = mix_path(mix)
    load_mix(path, os.environ)  # its mistakes are said with the file's name, before anything is started
    request = StartRequest(mix_yaml=path.read_text(encoding="utf-8"), base_url=base_url, model=model)
    settings = ServiceSettings(
        data_dir=data_dir,
        bind_port=0,
        web_host=None if web_port is None else "127.0.0.1",
        web_port=web_port or 0,
        local_workers=workers,
    )
    info, _ = _carry_out(settings, request, path.parent)
    summary = Path(info.run_dir) / SUMMARY_FILE
    if as_json and summary.is_file():
        click.echo(summary.read_text(encoding="utf-8"), nl=False)
    elif as_json:
        click.echo(f"error: {info.error}", err=True)
    else:
        _print_end(info)
    return _exit_code(info)


@click.command(
    epilog="""\b
Examples:
  tokswarm demo
  tokswarm demo --workers 4 --data-dir /tmp/demo

Afterwards `tokswarm up` shows the run on its page."""
)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Worker processes here.")
@data_dir_option
@click.option(
    "--web-port", type=click.IntRange(0, 65535), default=DEMO_WEB_PORT, show_default=True, help="Port of the page."
)
def demo(*, workers: int, data_dir: Path, web_port: int) -> int:
    """Simulator, master, workers and page; the demo sweep; where the curve bends."""
    path = resource_dir("locustfiles") / "mixes" / "demo.yaml"
    with simulator() as base_url:
        request = StartRequest(mix_yaml=path.read_text(encoding="utf-8"), base_url=base_url)
        settings = ServiceSettings(data_dir=data_dir, bind_port=0, web_port=web_port, local_workers=workers)
        info, page = _carry_out(settings, request, path.parent)
    _print_end(info)
    click.echo(f"page:    {page} (served while the demo ran; again with: tokswarm up --data-dir {data_dir})")
    return _exit_code(info)


def mix_path(mix: str) -> Path:
    """The file of a mix given by path or by the name of one that ships. TokswarmError when there is none."""
    shipped = resource_dir("locustfiles") / "mixes"
    for candidate in (Path(mix), shipped / f"{mix}.yaml"):
        if candidate.is_file():
            return candidate
    names = ", ".join(sorted(path.stem for path in shipped.glob("*.yaml")))
    raise click.BadParameter(f"{mix!r} is neither a file nor a mix that ships ({names})", param_hint="MIX")


@contextlib.contextmanager
def simulator() -> Iterator[str]:
    """The simulated endpoint in a process of its own, on a free port; its base URL."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        command = [sys.executable, "-m", "tokswarm", "sim", "--port", "0", "--port-file", str(port_file)]
        with (Path(folder) / "output").open("wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_ends_with_parent(),
            )
        try:
            deadline_s = time.monotonic() + SIMULATOR_START_S
            while not (port_file.is_file() and port_file.read_text().strip()):
                if process.poll() is not None or time.monotonic() > deadline_s:
                    said = (Path(folder) / "output").read_text(errors="replace").strip()
                    raise TokswarmError(f"the simulated endpoint did not start: {said[-500:]}")
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port_file.read_text().strip()}/v1"
        finally:
            process.terminate()
            process.wait()


def _ends_with_parent() -> Callable[[], None]:
    """What a child does before it begins: be told to end when this process is gone, even by a second Ctrl-C."""
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _carry_out(settings: ServiceSettings, request: StartRequest, mix_dir: Path) -> tuple[RunInfo, str | None]:
    """Start everything, run, wait; how the run ended, and where its page was."""
    console = Console(stderr=True)
    service = Service(settings)
    with _ending(service):
        service.start()
        service.handle_signals()
        if service.web_url is not None:
            console.print(f"page: {service.web_url}", highlight=False)
        service.wait_ready(settings.local_workers)
        if service.told_to_end:
            raise click.Abort
        started = service.control.start(request, mix_dir=mix_dir, environ=os.environ)
        what = f"run {started.run_id}: {started.mix_name} against {started.base_url}"
        console.print(what, highlight=False, soft_wrap=True)
        _print_notes(console, started.notes)
        with Progress(service.control, console):
            info = service.control.wait(started.run_id)
        _print_notes(console, tuple(note for note in info.notes if note not in started.notes))
        return info, service.web_url


def _print_notes(console: Console, notes: tuple[str, ...]) -> None:
    for note in notes:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def _ending(service: Service) -> Iterator[None]:
    try:
        yield
    finally:
        service.stop()


def _print_end(info: RunInfo) -> None:
    if info.error:
        click.echo(f"error: {info.error}", err=True)
    run_dir = Path(info.run_dir)
    if (run_dir / SUMMARY_FILE).is_file():
        Console().print(end_table(read_summary(run_dir)))
    click.echo(f"run:     {_relative(run_dir)}  (summary.json, curve.html, requests.parquet)")


def _relative(path: Path) -> str:
    here = os.path.relpath(path)
    return here if len(here) < len(str(path)) else str(path)


def _exit_code(info: RunInfo) -> int:
    if info.state is RunState.FAILED:
        return 1
    if read_summary(Path(info.run_dir)).stopped_by != BY_PLAN:
        return EXIT_ABORTED  # whoever stopped it knows why its numbers may be few
    return EXIT_INVALID_RUN if info.verdict == State.INVALID else 0
