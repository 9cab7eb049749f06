"""Reads the metrics of every server behind a run's targets, once a second, for as long as the run sends.

It only watches: what goes wrong here is said once and never disturbs the run. Requests go the way of the
load (same TLS, same parser), each on a connection of its own, in bounded time. Found once, before the run,
so that a reader knows what will be there; a server that stops answering is asked on.
"""

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence

import gevent

from tokswarm.errors import TokswarmError
from tokswarm.master.metrics_source import TIMEOUT_S, USUAL_PATHS, MetricsSource, metrics_sources
from tokswarm.measure.server_second import ServerSecond
from tokswarm.scrape.engines import ENGINES, Engine
from tokswarm.scrape.part_names import PartNames
from tokswarm.scrape.rates import server_second
from tokswarm.scrape.reading import Snapshot, read_text
from tokswarm.traffic.mix import Mix, Target
from tokswarm.wire.api import plain_call
from tokswarm.wire.client import LoadClient
from tokswarm.wire.exchange import Exchange
from tokswarm.wire.target import ResolvedTarget

_log = logging.getLogger(__name__)

INTERVAL_S = 1.0
FIND_S = 8.0
"""So long a run's start waits for what is mute."""
REDIRECTS = (301, 302, 307, 308)
FAILURES_SAID = 3
"""So many in a row are said; one alone may be a server that was busy."""
MAX_TEXT_BYTES = 8 << 20
"""A longer text would hold up the master's loop."""
MAX_PROCESSES = 16
"""Processes behind one address that are told apart."""

TITLES = {engine.name: engine.title for engine in ENGINES}


class NoMetricsError(TokswarmError):
    """An address gave no metrics of a known engine."""


class Scraper:
    """One address: fetches its text and makes points of it."""

    def __init__(self, target: str, address: Target) -> None:
        """ConfigError for a bad key reference, PreflightError for a host without address."""
        resolved = ResolvedTarget(address)
        self.url = address.base_url
        self._target = target
        self._client = LoadClient(resolved)
        self._path = resolved.path or "/"
        self._names = PartNames(resolved.name)
        self._before: dict[float | None, tuple[Snapshot, float]] = {}
        self._newest: float | None = None
        self._last_names: list[str] = []
        self.version: str | None = None
        """As the server says it; None: it does not."""
        self.alternates = False
        """Whether several processes answer behind the address in turn."""

    def read(self) -> list[ServerSecond]:
        """The points of now; the first time without rates. NoMetricsError."""
        begun_s = time.monotonic()
        body = self._metrics()
        now_s, unix_ns = time.monotonic(), time.time_ns()
        snapshot = read_text(body.decode("utf-8", "replace"))
        if not snapshot.parts:
            raise NoMetricsError(f"{self.url} has no metrics of an engine that is known")
        last = self._taken_before(snapshot, now_s)
        self._last_names = [self._names.name(part, snapshot.parts) for part in snapshot.parts]
        seconds = []
        for part, reading in snapshot.parts.items():
            before, before_s = (None, now_s) if last is None else (last[0].parts.get(part), last[1])
            second = server_second(
                reading,
                before,
                elapsed_s=now_s - before_s,
                unix_ns=unix_ns,
                target=self._target,
                replica=self._names.name(part, snapshot.parts),
                version=self.version,
                scrape_ms=(now_s - begun_s) * 1e3,
            )
            seconds.append(second)
        return seconds

    def silent(self) -> list[ServerSecond]:
        """The points of an address that does not answer: what it had is not up."""
        unix_ns = time.time_ns()
        return [
            ServerSecond(unix_ns=unix_ns, target=self._target, replica=name, up=0)
            for name in self._last_names or [self._names.place]
        ]

    def ask_version(self, engine: Engine) -> None:
        """Ask the server for its version, where the engine has a place for it; without an answer it has none."""
        if engine.version is None:
            return
        path, key = engine.version
        target = self._client.target
        tail = next((each for each in sorted(USUAL_PATHS, key=len, reverse=True) if target.path.endswith(each)), "")
        root = target.path.removesuffix(tail)
        with contextlib.suppress(NoMetricsError, ValueError, KeyError, TypeError):
            said = json.loads(self._ask(f"{root}{path}").raw_body)[key]
            self.version = str(said)[:40]

    def close(self) -> None:
        """Close its sockets."""
        self._client.close()

    def _taken_before(self, snapshot: Snapshot, now_s: float) -> tuple[Snapshot, float] | None:
        """The last snapshot of the same process; this one takes its place."""
        process = snapshot.process
        last = self._before.pop(process, None)
        if last is not None and process != self._newest:
            self.alternates = True
        self._newest = process
        self._before[process] = (snapshot, now_s)
        if len(self._before) > MAX_PROCESSES:
            del self._before[next(iter(self._before))]
        return last

    def _metrics(self) -> bytes:
        answer = self._ask(self._path)
        if answer.status in REDIRECTS and not self._path.endswith("/"):
            self._path += "/"  # where frameworks that mount an application send whoever comes without the slash
            answer = self._ask(self._path)
        if answer.status != 200:
            raise NoMetricsError(f"{self.url} answered {answer.status}")
        if len(answer.raw_body) > MAX_TEXT_BYTES:
            raise NoMetricsError(f"{self.url} answered with more than {MAX_TEXT_BYTES >> 20} MiB")
        return answer.raw_body

    def _ask(self, path: str) -> Exchange:
        answer = self._client.ask(plain_call(self._client.target, "GET", path), timeout_s=TIMEOUT_S)
        if answer.status is None:
            raise NoMetricsError(f"{self.url} does not answer: {answer.error}")
        return answer


class ServerWatch:
    """All servers of a run. `find` before it, `start` when it sends, `stop` at its end."""

    def __init__(self, sources: Sequence[MetricsSource]) -> None:
        self._sources = list(sources)
        self._scrapers: list[Scraper] = []
        self._greenlets: list[gevent.Greenlet] = []
        self._said: set[str] = set()

    def find(self) -> list[str]:
        """Look which addresses have metrics, all at once; notes on what was found and what was not."""
        looks = [gevent.spawn(self._find_one, source) for source in self._sources]
        gevent.joinall(looks, timeout=FIND_S)
        gevent.killall(looks)
        notes: list[str] = []
        for look, source in zip(looks, self._sources, strict=True):
            if not isinstance(look.value, tuple):  # it was killed
                notes.append(_absent_note([f"{source.addresses[0].base_url} says nothing"], asked_on=False))
                continue
            scraper, note = look.value
            notes.append(note)
            if scraper is not None:
                self._scrapers.append(scraper)
        return list(dict.fromkeys(notes))

    def start(self, on_seconds: Callable[[list[ServerSecond]], None], on_trouble: Callable[[str, str], None]) -> None:
        """Read each second. `on_trouble` hears once of each address that fails, and why."""
        self._greenlets = [
            gevent.spawn(self._read_each_second, scraper, on_seconds, on_trouble) for scraper in self._scrapers
        ]

    def stop(self) -> None:
        """End it; may be called again."""
        gevent.killall(self._greenlets)
        self._greenlets = []
        scrapers, self._scrapers = self._scrapers, []
        for scraper in scrapers:
            scraper.close()

    def _find_one(self, source: MetricsSource) -> tuple[Scraper | None, str]:
        reasons: list[str] = []
        for address in source.addresses:
            try:
                scraper = Scraper(source.target, address)
            except TokswarmError as error:
                reasons.append(str(error))
                continue
            try:
                seconds = scraper.read()
                for engine in {second.engine for second in seconds}:
                    scraper.ask_version(next(each for each in ENGINES if each.name == engine))
                return scraper, _found_note(scraper, seconds)
            except NoMetricsError as error:
                reasons.append(str(error))
            except gevent.GreenletExit:
                scraper.close()
                raise
            if source.named and len(source.addresses) == 1:
                return scraper, _absent_note(reasons, asked_on=True)
            scraper.close()
        return None, _absent_note(reasons, asked_on=False)

    def _read_each_second(
        self,
        scraper: Scraper,
        on_seconds: Callable[[list[ServerSecond]], None],
        on_trouble: Callable[[str, str], None],
    ) -> None:
        due_s, failures = time.monotonic(), 0
        while True:
            try:
                seconds = scraper.read()
                failures = 0
            except NoMetricsError as error:
                failures += 1
                seconds = scraper.silent()
                if failures == FAILURES_SAID:
                    self._say(on_trouble, f"the metrics of {scraper.url} cannot be read", str(error))
            except Exception as error:  # noqa: BLE001 -- root of a greenlet: the run goes on without these metrics
                _log.exception("the metrics of %s are given up", scraper.url)
                self._say(on_trouble, f"the metrics of {scraper.url} are given up", repr(error))
                return
            on_seconds(seconds)
            if scraper.alternates:
                self._say(
                    on_trouble,
                    f"several servers answer for {scraper.url} in turn",
                    "name the metrics of each replica as target.metrics to see them all each second",
                )
            due_s = max(due_s + INTERVAL_S, time.monotonic())
            gevent.sleep(max(0.001, due_s - time.monotonic()))

    def _say(self, on_trouble: Callable[[str, str], None], title: str, text: str) -> None:
        if title not in self._said:
            self._said.add(title)
            on_trouble(title, text)


def watch_servers(mix: Mix) -> ServerWatch:
    """The watch over all servers behind a mix's targets."""
    return ServerWatch([source for target in mix.all_targets for source in metrics_sources(target)])


def _found_note(scraper: Scraper, seconds: Iterable[ServerSecond]) -> str:
    found = list(seconds)
    engines = " and ".join(
        f"{TITLES[name]}{'' if version is None else f' {version}'}"
        for name, version in sorted({(second.engine or "", scraper.version) for second in found})
    )
    parts = f", {len(found)} replicas or engines" if len(found) > 1 else ""
    return f"server metrics: {scraper.url} ({engines}{parts}), read each second"


def _absent_note(reasons: Sequence[str], *, asked_on: bool) -> str:
    on = "; it is asked on" if asked_on else "; what the server knows of its queue and cache is not recorded"
    return f"server metrics: none ({'; '.join(dict.fromkeys(reasons))}){on}"
