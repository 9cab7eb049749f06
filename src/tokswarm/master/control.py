"""Run control: the one way in for web page, API, Locust's own UI and command line to start, stop and see runs."""

import difflib
import logging
import random
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gevent
import msgspec
from gevent.event import Event as _Event

from tokswarm.errors import BusyError, ConfigError, FleetError, TokswarmError
from tokswarm.master.account import RunJournal
from tokswarm.master.clock import Clock
from tokswarm.master.course import BY_USER, LEAD_S, Course
from tokswarm.master.endpoints import PreflightResult, look_at_targets
from tokswarm.master.finish import read_summary
from tokswarm.master.link import FleetLink, FleetWorker, Received
from tokswarm.master.live import Live
from tokswarm.master.load_change import load_asked_for
from tokswarm.master.run import LiveTick, LoadRequest, MixFile, RunDetail, RunInfo, StartRequest, WorkerInfo
from tokswarm.master.server_look import ServerLook
from tokswarm.master.store import Store
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond
from tokswarm.traffic.mix import Mix, Target
from tokswarm.traffic.mixfile import check_mix, parse_mix, read_mix_text
from tokswarm.traffic.own_prompts import once_notes
from tokswarm.traffic.plan import Endpoint, Plan, PlannedStage, PromptSet
from tokswarm.traffic.planning import plan_stages
from tokswarm.traffic.prompt_file import plan_prompts
from tokswarm.traffic.routing import places_line

_log = logging.getLogger(__name__)

TICK_S = 1.0
CLOCK_PATIENCE_S = 5.0
"""A stalled message makes a clock look late; that long more pings are waited for."""
CLOCK_PINGS = 3
SUBMITTED_MAY_READ = ("OPENAI_BASE_URL",)
TICK_EVENTS = 1000
"""Bound on events between two ticks."""

OpenJournal = Callable[[str, Path, Callable[[Sequence[FleetSecond | ServerSecond | Event]], None]], RunJournal]


class ControlOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where things are."""

    data_dir: Path
    mixes_dir: Path
    """Mixes that can be started by name, `*.yaml`."""


class RunControl:
    """Satisfies `tokswarm.master.run.RunControl`; one per master."""

    def __init__(
        self,
        options: ControlOptions,
        *,
        fleet: FleetLink,
        store: Store,
        preflight: Callable[[Mix, Target], PreflightResult],
        watch_servers: Callable[[Mix], ServerLook],
        open_journal: OpenJournal,
        report: Callable[[Path], dict[str, Any]],
        new_clock: Callable[[], Clock],
        environ: Mapping[str, str],
    ) -> None:
        """`environ` fills the `${NAME}`s of mixes; `new_clock` makes the clock of one run.

        `watch_servers` makes what reads the metrics of a mix's servers.
        """
        self._options = options
        self._fleet = fleet
        self._store = store
        self._preflight = preflight
        self._watch_servers = watch_servers
        self._open_journal = open_journal
        self._report = report
        self._new_clock = new_clock
        self._environ = environ
        self._live = Live()
        self._starting = False
        self._ending: str | None = None
        self._course: Course | None = None
        self._last: RunInfo | None = None
        self._driver: gevent.Greenlet | None = None
        self._idle = _Event()
        self._idle.set()
        self._ticker: gevent.Greenlet | None = None
        self._new_seconds: list[FleetSecond] = []
        self._new_server: list[ServerSecond] = []
        self._new_events: deque[Event] = deque(maxlen=TICK_EVENTS)

    def open(self) -> None:
        """Take up where the last master ended, and begin to tick."""
        for info in self._store.end_interrupted_runs():
            _log.warning("run %s was under way when the last master ended; it is marked as failed", info.run_id)
        self._last = next(iter(self._store.runs()), None)
        self._ticker = gevent.spawn(self._tick)

    def end(self, *, stopped_by: str) -> None:
        """Stop a run under way, or just starting, and take no other."""
        self._ending = self._ending or stopped_by
        if self._course is not None:
            self._course.ask_stop(self._ending)

    def close(self, *, timeout_s: float) -> None:
        """Stop a run under way, wait for it in bounded time, end the ticks. May be called again."""
        self.end(stopped_by=BY_USER)
        self._idle.wait(timeout_s)
        if self._driver is not None:
            self._driver.kill()
        if self._ticker is not None:
            self._ticker.kill()
        self._live.close()

    def receive(self, received: Received) -> None:
        """A message from a worker; what belongs to no run is dropped."""
        if self._course is not None:
            self._course.receive(received)

    # --- start and stop -------------------------------------------------------------------------

    def start(
        self, request: StartRequest, *, mix_dir: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> RunInfo:
        """Start a run; returns once every worker has its shard. `mix_dir`: where the mix's traces are.

        `environ` fills the `${NAME}`s of a mix given as text; None: of the master's own variables only
        `SUBMITTED_MAY_READ`, because such a text may come from whoever reaches the page, and is kept.

        ConfigError for a bad mix, PreflightError for an endpoint that does not do, BusyError while a
        run is going on, FleetError without workers or when one does not answer.
        """
        if self._ending is not None:
            raise BusyError("this master is ending", hint="start it again first")
        if self._starting or self._course is not None:
            going_on = self._course.info.run_id if self._course is not None else "another one is just starting"
            raise BusyError(f"a run is going on ({going_on})", hint="stop it, or wait for its end")
        self._starting = True
        self._idle.clear()
        try:
            course = self._prepare(request, mix_dir or self._options.mixes_dir, environ)
        except BaseException:
            self._idle.set()
            raise
        finally:
            self._starting = False
        self._course = course
        if self._ending is not None:  # told to in the meantime
            course.ask_stop(self._ending)
        try:
            course.gather()
        except BaseException as error:
            course.fail(str(error))
            self._rest(course)
            raise
        self._driver = gevent.spawn(self._drive, course)
        return course.info

    def stop(self, run_id: str, *, stopped_by: str = BY_USER) -> RunInfo:
        """End a run early, draining; asking twice is fine. UnknownRunError."""
        if self._course is not None and self._course.info.run_id == run_id:
            self._course.ask_stop(stopped_by)
            return self._course.info
        return self._store.run(run_id)[0]

    def change_load(self, run_id: str, request: LoadRequest) -> RunInfo:
        """Go on with another load for the rest of the stage under way, as a stage of its own.

        ConfigError for a request that makes no sense, BusyError when nothing can be changed now, UnknownRunError.
        """
        load = load_asked_for(request)
        course = self._course
        if course is None or course.info.run_id != run_id:
            info = self._store.run(run_id)[0]
            raise BusyError(f"run {run_id} is over ({info.state})", hint="start a run with that load")
        course.change_load(load)
        return course.info

    def wait(self, run_id: str, *, timeout_s: float | None = None) -> RunInfo:
        """Wait for a run to be over (or the timeout); its state then. UnknownRunError."""
        if self._course is not None and self._course.info.run_id == run_id:
            self._idle.wait(timeout_s)
        return self.info(run_id)

    def active(self) -> RunInfo | None:
        """The run under way."""
        return self._course.info if self._course is not None else None

    # --- look -------------------------------------------------------------------------------------

    def info(self, run_id: str) -> RunInfo:
        """One run in short. UnknownRunError."""
        if self._course is not None and self._course.info.run_id == run_id:
            return self._course.info
        return self._store.run(run_id)[0]

    def runs(self) -> list[RunInfo]:
        """All runs, newest first."""
        active = self.active()
        return [active if active is not None and info.run_id == active.run_id else info for info in self._store.runs()]

    def run(self, run_id: str) -> RunDetail:
        """One run. UnknownRunError."""
        stored, mix_yaml = self._store.run(run_id)
        active = self.active()
        info = active if active is not None and active.run_id == run_id else stored
        self._store.flush()
        try:
            summary = read_summary(Path(info.run_dir)) if info.state.is_over else None
        except TokswarmError:
            summary = None  # the report was never made; the run's own error says why
        return RunDetail(info=info, mix_yaml=mix_yaml, summary=summary, events=self._store.events(run_id))

    def seconds(self, run_id: str) -> list[FleetSecond]:
        """All seconds of a run, for the charts of past runs. UnknownRunError."""
        self._store.flush()
        return self._store.seconds(run_id)

    def server_seconds(self, run_id: str) -> list[ServerSecond]:
        """What the servers of a run said of themselves, all of it. UnknownRunError."""
        self._store.flush()
        return self._store.server_seconds(run_id)

    def mixes(self) -> list[MixFile]:
        """The mixes that can be started by name; one that cannot be read says so in its description."""
        return [self._mix_file(path) for path in sorted(self._options.mixes_dir.glob("*.yaml"))]

    def workers(self) -> list[WorkerInfo]:
        """The fleet now."""
        health = self._course.health() if self._course is not None else {}
        return [
            WorkerInfo(worker=w.worker, state=w.state, host=w.host, health=health.get(w.client))
            for w in self._fleet.workers()
        ]

    def ticks(self) -> Iterator[LiveTick]:
        """Blocks and yields once a second for as long as the reader goes on; a slow reader skips seconds."""
        return self._live.ticks()

    # --- inside -------------------------------------------------------------------------------------

    def _prepare(self, request: StartRequest, mix_dir: Path, environ: Mapping[str, str] | None) -> Course:
        text, source = self._mix_text(request)
        if environ is None:
            submitted = request.mix_yaml is not None
            environ = {
                name: value for name, value in self._environ.items() if not submitted or name in SUBMITTED_MAY_READ
            }
        mix = with_changes(parse_mix(text, source=source, environ=environ, mix_dir=mix_dir), request)
        stages = plan_stages(mix, mix_dir)
        prompts = plan_prompts(mix, mix_dir)
        clock = self._new_clock()
        workers = self._workers_in_time(clock)
        endpoints, notes = look_at_targets(mix, stages, self._preflight)
        plan = self._plan(mix, stages, endpoints, prompts)
        notes += once_notes(mix, prompts)
        look = self._watch_servers(mix)
        notes += look.find()
        run_dir = self._options.data_dir / "runs" / plan.run_id
        journal = self._open_journal(plan.run_id, run_dir, self._show)
        course = Course(
            plan=plan,
            mix_yaml=text,
            run_dir=run_dir,
            workers=workers,
            notes=notes,
            fleet=self._fleet,
            journal=journal,
            servers=look,
            clock=clock,
            report=self._report,
            on_change=self._keep,
        )
        try:
            self._store.add_run(course.info, text)
        except TokswarmError:
            look.stop()
            journal.close()
            raise
        self._last = course.info
        return course

    def _mix_text(self, request: StartRequest) -> tuple[str, str]:
        if (request.mix is None) == (request.mix_yaml is None):
            raise ConfigError(
                "a run needs one mix: `mix` (a name) or `mix_yaml` (its text)",
                hint="give one of the two; the names are in the list of mixes",
            )
        if request.mix_yaml is not None:
            return request.mix_yaml, "mix"
        paths = {path.stem: path for path in self._options.mixes_dir.glob("*.yaml")}
        path = paths.get(request.mix or "")
        if path is None:
            near = difflib.get_close_matches(request.mix or "", paths, n=1)
            raise ConfigError(
                f"no mix has the name {request.mix!r}",
                hint=f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(paths)) or 'none'}",
            )
        return read_mix_text(path), str(path)

    def _workers_in_time(self, clock: Clock) -> list[FleetWorker]:
        """The workers of the run; FleetError when there is none, or one has a clock that is off."""
        deadline_s = clock.monotonic_s() + CLOCK_PATIENCE_S
        while True:
            workers = [worker for worker in self._fleet.workers() if worker.state != "silent"]
            if not workers:
                raise FleetError(
                    "no worker is connected", hint="start one: tokswarm worker --join … (or --workers 2 here)"
                )
            off = [worker for worker in workers if abs(worker.clock_ahead_s) > LEAD_S / 2]
            if not off:
                return workers
            if all(worker.pings >= CLOCK_PINGS for worker in off) or clock.monotonic_s() >= deadline_s:
                said = ", ".join(f"{worker.worker} by {worker.clock_ahead_s:+.2f} s" for worker in off)
                raise FleetError(
                    f"clocks differ from the master's: {said}; a stage would not begin everywhere at once",
                    hint="set the clocks by NTP (chrony or systemd-timesyncd), or stop these workers",
                )
            clock.wait(TICK_S)

    def _plan(self, mix: Mix, stages: list[PlannedStage], endpoints: list[Endpoint], prompts: list[PromptSet]) -> Plan:
        first, *others = endpoints
        return Plan(
            run_id=new_run_id(mix.name, time.gmtime(), random.SystemRandom()),
            mix=mix,
            model=first.model,
            stages=stages,
            fit=first.fit,
            dropped_fields=first.dropped_fields,
            further_endpoints=others,
            content_seed=secrets.randbits(48),
            prompts=prompts,
        )

    def _drive(self, course: Course) -> None:
        try:
            self._drive_to_the_end(course)
        finally:
            self._rest(course)

    def _rest(self, course: Course) -> None:
        """The run is over: another may start."""
        self._last = course.info
        self._course = None
        self._idle.set()

    def _drive_to_the_end(self, course: Course) -> None:
        try:
            course.drive()
        except TokswarmError as error:
            course.stop_by_error(str(error))
        except Exception as error:  # noqa: BLE001 -- root of a greenlet: the load must end and the logs be kept
            _log.exception("run %s: the master's own error", course.info.run_id)
            course.stop_by_error(f"the master's own error: {error!r}")
        try:
            course.wind_down()
        except Exception as error:  # noqa: BLE001 -- root of a greenlet: nothing is left to try
            _log.exception("run %s: the master's own error while winding down", course.info.run_id)
            course.fail(f"the master's own error: {error!r}")

    def _keep(self, info: RunInfo) -> None:
        self._last = info
        try:
            self._store.update_run(info)
        except TokswarmError as error:
            _log.warning("run %s: %s; the run goes on", info.run_id, error)

    def _show(self, entries: Sequence[FleetSecond | ServerSecond | Event]) -> None:
        for entry in entries:
            match entry:
                case FleetSecond():
                    self._new_seconds.append(entry)
                case ServerSecond():
                    self._new_server.append(entry)
                case Event():
                    self._new_events.append(entry)

    def _tick(self) -> None:
        due_s = time.monotonic()
        while True:
            due_s = max(due_s + TICK_S, time.monotonic())
            gevent.sleep(max(due_s - time.monotonic(), 0.001))
            seconds, self._new_seconds = self._new_seconds, []
            server, self._new_server = self._new_server, []
            events = list(self._new_events)
            self._new_events.clear()
            self._live.publish(
                LiveTick(
                    run=self.active() or self._last,
                    seconds=seconds,
                    workers=self.workers(),
                    events=events,
                    server=server,
                )
            )

    def _mix_file(self, path: Path) -> MixFile:
        try:
            text = read_mix_text(path)
            mix = parse_mix(text, source=str(path), environ=self._environ, mix_dir=path.parent)
        except TokswarmError as error:
            return MixFile(name=path.stem, description=f"cannot be used: {error}", base_url="", text="")
        return MixFile(name=path.stem, description=mix.description, base_url=places_line(mix.all_targets), text=text)


def with_changes(mix: Mix, request: StartRequest) -> Mix:
    """The mix with the target the user asked for. ConfigError when a mix may not have that target."""
    changes: dict[str, str] = {}
    if request.base_url:
        changes["base_url"] = request.base_url
    if request.model:
        changes["model"] = request.model
    if not changes:
        return mix
    if mix.target is None:
        names = ", ".join(target.name for target in mix.targets or ())
        raise ConfigError(
            f"the mix has several targets ({names}); neither address nor model can be given for all of them",
            hint="change them in the mix, or write ${NAME:-default} there",
        )
    changed = msgspec.structs.replace(mix, target=msgspec.structs.replace(mix.target, **changes))
    check_mix(changed, source="as asked for at the start")
    return changed


def new_run_id(mix_name: str, at: time.struct_time, chance: random.Random) -> str:
    """Time (UTC), mix and four random digits: sorts by time, is safe as a file name and a tag."""
    name = re.sub(r"[^a-z0-9]+", "-", mix_name.lower()).strip("-")[:24].strip("-") or "mix"
    return f"{time.strftime('%Y%m%d-%H%M%S', at)}-{name}-{chance.getrandbits(16):04x}"
