"""How many streamed tokens one worker core takes, at what CPU, and how true the stamps are.

The product's own worker (engine, records, log and windows on) runs against a truth server that puts
the CLOCK_MONOTONIC nanosecond of each send into the token's id, beside the physical bound (a C client
that parses nothing) and the openai SDK under gevent, in interleaved rounds on one core.

    python benchmarks/receive_path.py --server mocksse.c --bound cclient.c [--json] [--rounds 5]

Figures: a *maximum* is the highest offered rate of which 98 % was received over whole seconds;
*stamp error* is our arrival stamp minus the server's send stamp.
"""

import argparse
import contextlib
import json
import os
import resource
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOKENS = 200
WARM_S = 2.0
MEASURE_S = 3
HELD_SHARE = 0.98
HIGHEST_NICE = -20
RATE_STEP = 1.12
FIRST_RATES = {"tokswarm": 90_000, "openai": 3_000}


# --- the driver -----------------------------------------------------------------------------------


def build(source: Path, folder: Path, *libraries: str) -> Path:
    """Compile one C program."""
    program = folder / source.stem
    subprocess.run(["cc", "-O2", "-o", str(program), str(source), *libraries], check=True)
    return program


def certificate(folder: Path) -> dict[str, str]:
    """A certificate for localhost, by its files: as the TLS server's environment names them."""
    names = {"MOCK_CERT": str(folder / "server.pem"), "MOCK_KEY": str(folder / "server.key")}
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", names["MOCK_KEY"], "-out", names["MOCK_CERT"]]
    subprocess.run(command, check=True, capture_output=True)
    return names


@contextlib.contextmanager
def truth_server(program: Path, port: int, core: int, names: dict[str, str] | None = None) -> Iterator[None]:
    """The truth server, pinned, until the block ends. `names`: the certificate of one that speaks TLS."""
    process = subprocess.Popen(
        [str(program), "-p", str(port), "-c", str(core)], preexec_fn=favour, env={**os.environ, **(names or {})}
    )
    ca_file = None if names is None else names["MOCK_CERT"]
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), ask(port, "/stats", ca_file):
                break
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def ask(port: int, path: str, ca_file: str | None) -> Any:
    """Ask the truth server; over TLS with a CA file."""
    if ca_file is None:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5)
    context = ssl.create_default_context(cafile=ca_file)
    return urllib.request.urlopen(f"https://localhost:{port}{path}", timeout=5, context=context)


def favour() -> None:
    """Run undisturbed where we may; the figures say nothing of niceness otherwise."""
    with contextlib.suppress(OSError):
        os.nice(HIGHEST_NICE)


def interval_us(streams: int, rate: float) -> int:
    """The gap between tokens of a stream at which `streams` of them give `rate` tokens/s."""
    return max(1, round(streams / rate * 1e6))


def child(mode: str, *, port: int, core: int, streams: int, rate: float, ca_file: str | None = None) -> dict[str, Any]:
    """One round of a Python client in a process of its own, pinned to a core."""
    command = [sys.executable, __file__, "--child", mode, "--port", str(port), "--streams", str(streams)]
    command += ["--rate", str(rate)]
    if ca_file is not None:
        command += ["--ca-file", ca_file]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: (favour(), os.sched_setaffinity(0, {core})),
    )
    if done.returncode:
        raise SystemExit(f"{mode} at {rate:.0f} tokens/s failed:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def bound_round(program: Path, *, port: int, core: int, streams: int, rate: float) -> dict[str, Any]:
    """One round of the C client."""
    gap = interval_us(streams, rate)
    command = [str(program), str(port), str(core), str(streams), str(gap), str(TOKENS), str(WARM_S), str(MEASURE_S)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, preexec_fn=favour)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def maximum(
    mode: str, start: float, *, port: int, core: int, streams: int, ca_file: str | None = None
) -> dict[str, Any]:
    """Climb from `start` until the offered rate is no longer held; the best round. A miss gets one more try."""
    best: dict[str, Any] | None = None
    rate = start
    while True:
        for _ in range(2):
            got = child(mode, port=port, core=core, streams=streams, rate=rate, ca_file=ca_file)
            if got["tok_per_s"] >= HELD_SHARE * got["offered"]:
                break
        else:
            if best is not None:
                return best
            rate /= 1.5
            continue
        best = got
        rate *= RATE_STEP


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """All rounds, interleaved; medians."""
    core, server_core = 0, 1 % (os.cpu_count() or 1)
    rounds: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        rounds.setdefault(name, []).append(value)
        print(f"  {name} = {value:.4g}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        server = build(arguments.server, Path(folder))
        bound = build(arguments.bound, Path(folder))
        port = arguments.port
        place = {"port": port, "core": core}
        starts = dict(FIRST_RATES)
        with truth_server(server, port, server_core):
            for number in range(arguments.rounds):
                print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
                at_100k = child("tokswarm", streams=200, rate=100_000, **place)
                note("cpu_us_per_token_100k", at_100k["cpu_us_per_token"])
                stamps = child("tokswarm-stamps", streams=200, rate=100_000, **place)
                note("stamp_error_p50_us_100k", stamps["stamp_error_p50_us"])
                note("stamp_error_p99_us_100k", stamps["stamp_error_p99_us"])
                best = maximum("tokswarm", starts["tokswarm"], streams=200, **place)
                starts["tokswarm"] = best["tok_per_s"] / RATE_STEP**2
                note("max_tok_per_s_200", best["tok_per_s"])
                note("cpu_us_per_token_max_200", best["cpu_us_per_token"])
                note(
                    "bound_cpu_us_per_token",
                    bound_round(bound, streams=200, rate=best["offered"], **place)["cpu_us_tok"],
                )
                many = maximum("tokswarm", starts.get("many", 80_000), streams=1000, **place)
                starts["many"] = many["tok_per_s"] / RATE_STEP**2
                note("max_tok_per_s_1000", many["tok_per_s"])
                sdk = maximum("openai", starts["openai"], streams=50, **place)
                starts["openai"] = sdk["tok_per_s"] / RATE_STEP
                note("openai_max_tok_per_s", sdk["tok_per_s"])
                note("ratio_openai_sdk", best["tok_per_s"] / sdk["tok_per_s"])
                note("ratio_bound", rounds["cpu_us_per_token_max_200"][-1] / rounds["bound_cpu_us_per_token"][-1])
    return {name: statistics.median(values) for name, values in rounds.items()}


def measure_tls(arguments: argparse.Namespace) -> dict[str, float]:
    """The same worker over TLS 1.3: one token, one record, one send."""
    core, server_core = 0, 1 % (os.cpu_count() or 1)
    rounds: dict[str, list[float]] = {}
    start = FIRST_RATES["tokswarm"]
    with tempfile.TemporaryDirectory() as folder:
        names = certificate(Path(folder))
        server = build(arguments.tls_server, Path(folder), "-lssl", "-lcrypto")
        place: dict[str, Any] = {"port": arguments.port, "core": core, "ca_file": names["MOCK_CERT"], "streams": 200}
        with truth_server(server, arguments.port, server_core, names):
            for number in range(arguments.rounds):
                at_50k = child("tokswarm", rate=50_000, **place)
                stamps = child("tokswarm-stamps", rate=50_000, **place)
                best = maximum("tokswarm", start, **place)
                start = best["tok_per_s"] / RATE_STEP**2
                got = {
                    "tls_cpu_us_per_token_50k": at_50k["cpu_us_per_token"],
                    "tls_stamp_error_p50_us_50k": stamps["stamp_error_p50_us"],
                    "tls_stamp_error_p99_us_50k": stamps["stamp_error_p99_us"],
                    "tls_max_tok_per_s_200": best["tok_per_s"],
                    "tls_kib_per_connection": at_50k["grown_bytes"] / 200 / 1024,
                    "tls_resumed_ratio": at_50k["resumed_ratio"],
                }
                print(f"TLS round {number + 1} of {arguments.rounds}: {got}", file=sys.stderr, flush=True)
                for name, value in got.items():
                    rounds.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in rounds.items()}


LABELS = {
    "max_tok_per_s_200": "maximum at 200 streams, tokens/s on one core",
    "max_tok_per_s_1000": "maximum at 1,000 streams, tokens/s on one core",
    "cpu_us_per_token_100k": "CPU per token at 100k tokens/s, µs",
    "stamp_error_p50_us_100k": "stamp error p50 at 100k tokens/s, µs",
    "stamp_error_p99_us_100k": "stamp error p99 at 100k tokens/s, µs",
    "cpu_us_per_token_max_200": "CPU per token at the maximum, µs",
    "bound_cpu_us_per_token": "CPU per token of the C client there, µs",
    "ratio_bound": "CPU per token over the C client's",
    "openai_max_tok_per_s": "openai SDK under gevent, maximum at 50 streams, tokens/s",
    "ratio_openai_sdk": "our maximum over the openai SDK's",
    "tls_max_tok_per_s_200": "TLS: maximum at 200 streams, tokens/s on one core",
    "tls_cpu_us_per_token_50k": "TLS: CPU per token at 50k tokens/s, µs",
    "tls_stamp_error_p50_us_50k": "TLS: stamp error p50 at 50k tokens/s, µs",
    "tls_stamp_error_p99_us_50k": "TLS: stamp error p99 at 50k tokens/s, µs",
    "tls_kib_per_connection": "TLS: memory grown per connection, KiB",
    "tls_resumed_ratio": "TLS: share of new connections that resumed, of those after the first answer",
}


# --- one round in its own process -------------------------------------------------------------------


def set_server(port: int, gap_us: int, ca_file: str | None) -> None:
    """Tell the truth server the gap between tokens."""
    with ask(port, f"/ctl?interval_us={gap_us}&ttft_us=1000&tokens={TOKENS}", ca_file) as answer:
        answer.read()


def run_tokswarm(port: int, streams: int, *, stamps: bool, ca_file: str | None) -> dict[str, Any]:
    """The product's worker, driven by messages as a master would."""
    from tokswarm.traffic.mix import Distribution, Mix, Output, Prompt, Stage, Target, Tls, TrafficClass, Uniform
    from tokswarm.traffic.plan import ClosedLoop, Plan, PlannedStage, Shard, TokenFit
    from tokswarm.traffic.units import Duration
    from tokswarm.worker.health import rss_bytes
    from tokswarm.worker.messages import Message, PlanMessage, Second, StageGo
    from tokswarm.worker.session import WorkerRun

    errors_ns = _tap_stamps() if stamps else []
    lengths = Distribution(uniform=Uniform(low=TOKENS * 0.75, high=TOKENS * 1.25))
    duration_s = WARM_S + MEASURE_S + 2
    if ca_file is None:
        target = Target(base_url=f"http://127.0.0.1:{port}/v1", model="mock-model")
    else:
        target = Target(base_url=f"https://localhost:{port}/v1", model="mock-model", tls=Tls(ca_file=ca_file))
    mix = Mix(
        name="receive-path",
        target=target,
        classes=[
            TrafficClass(name="chat", prompt=Prompt(tokens=Distribution(fixed=50)), output=Output(max_tokens=lengths))
        ],
        load=[Stage(concurrency=streams, for_=Duration.parse(f"{duration_s:g}s"))],
    )
    stage = PlannedStage(
        name="all", load=ClosedLoop(concurrency=streams), duration_s=duration_s, drain_s=0.0, warmup=False
    )
    fit = TokenFit(tokens_per_word=1.0, overhead_tokens=0.0, source="assumed")
    plan = Plan(run_id="bench", mix=mix, model="mock-model", stages=[stage], fit=fit, content_seed=1)
    seconds: list[Second] = []

    def keep(message: Message) -> None:
        if isinstance(message, Second):
            seconds.append(message)

    with tempfile.TemporaryDirectory() as folder:
        message = PlanMessage(
            run_id="bench", shard=Shard(plan=plan, worker_index=0, worker_count=1), deadline_s=duration_s + 10
        )
        run = WorkerRun(message, worker="bench", log_dir=Path(folder), send=keep)
        run.open()
        ready_bytes = rss_bytes()
        run.run_stage(StageGo(run_id="bench", index=0, start_unix_ns=time.time_ns() + 100_000_000))
        run.finish()
    first = seconds[0].window.second_unix + 1 + int(WARM_S)
    measured = [each for each in seconds if first <= each.window.second_unix < first + MEASURE_S]
    tokens = sum(row.output_tokens for each in measured for row in each.window.rows)
    cpu_s = sum(each.health.cpu_ratio for each in measured)
    result = {
        "tok_per_s": tokens / len(measured),
        "cpu_us_per_token": cpu_s * 1e6 / tokens,
        "merged_share": sum(each.health.merged_arrivals for each in measured) / tokens,
        "rss_bytes": max(each.health.rss_bytes for each in measured),
        "grown_bytes": max(each.health.rss_bytes for each in measured) - ready_bytes,
    }
    if ca_file is not None:
        result["resumed_ratio"] = _resumed_ratio(port, ca_file)
    if stamps:
        errors_ns.sort()
        result["stamp_error_p50_us"] = errors_ns[len(errors_ns) // 2] / 1e3
        result["stamp_error_p99_us"] = errors_ns[int(len(errors_ns) * 0.99)] / 1e3
    return result


def _resumed_ratio(port: int, ca_file: str) -> float:
    """Of ten connections opened one after the other, the share that resumed of those that could."""
    import gevent

    from tokswarm.traffic.mix import Target, Tls
    from tokswarm.wire.answer import LiveRow
    from tokswarm.wire.api import RequestWriter
    from tokswarm.wire.client import LoadClient
    from tokswarm.wire.target import ResolvedTarget

    spec = Target(base_url=f"https://localhost:{port}/v1", connections="new", tls=Tls(ca_file=ca_file))
    client = LoadClient(ResolvedTarget(spec))
    call = RequestWriter(client.target, "mock-model").write(b"hello", max_tokens=2, ignore_eos=False)
    over: list[Any] = []
    for number in range(10):
        client.start(call, LiveRow(), over.append, None)
        while len(over) <= number:
            gevent.sleep(0.001)
    settings = client.target.tls
    client.close()
    return 0.0 if settings is None else settings.resumed / (settings.handshakes - 1)


def _tap_stamps() -> "list[int]":
    """Compare each read's stamp with the send stamp in the id of its last token; costs CPU, so in rounds of its own."""
    from tokswarm.wire.chat_answer import ChatAnswer

    errors_ns: list[int] = []
    feed = ChatAnswer.feed
    begin_ns = time.monotonic_ns() + int((WARM_S + 1) * 1e9)
    end_ns = begin_ns + MEASURE_S * 1_000_000_000

    def tapped(self: ChatAnswer, body: bytes, at_ns: int, stamped: bool) -> None:
        feed(self, body, at_ns, stamped)
        if begin_ns <= at_ns < end_ns:
            at = body.rfind(b"chatcmpl-")
            if at > 0 and (sent_ns := int(body[at + 9 : at + 29])):
                errors_ns.append(at_ns - sent_ns)

    ChatAnswer.feed = tapped  # type: ignore[method-assign]
    return errors_ns


def run_openai(port: int, streams: int) -> dict[str, Any]:
    """The official SDK, one greenlet per stream, parsed chunks."""
    import gevent
    import openai

    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    tokens = 0

    def user() -> None:
        nonlocal tokens
        while True:
            stream = client.chat.completions.create(
                model="mock-model", messages=[{"role": "user", "content": "hi"}], stream=True, max_tokens=TOKENS
            )
            for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    tokens += 1

    users = [gevent.spawn(user) for _ in range(streams)]
    gevent.sleep(WARM_S + 1)
    began, tokens_before, cpu_before = time.monotonic(), tokens, _cpu_s()
    gevent.sleep(MEASURE_S)
    counted, passed_s, cpu_s = tokens - tokens_before, time.monotonic() - began, _cpu_s() - cpu_before
    gevent.killall(users, block=False)
    return {"tok_per_s": counted / passed_s, "cpu_us_per_token": cpu_s * 1e6 / counted}


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run_child(arguments: argparse.Namespace) -> None:
    """Entry of a round's process."""
    from gevent import monkey

    monkey.patch_all()
    gap_us = interval_us(arguments.streams, arguments.rate)
    set_server(arguments.port, gap_us, arguments.ca_file)
    if arguments.child == "openai":
        result = run_openai(arguments.port, arguments.streams)
    else:
        stamps = arguments.child == "tokswarm-stamps"
        result = run_tokswarm(arguments.port, arguments.streams, stamps=stamps, ca_file=arguments.ca_file)
    # Between requests a stream waits for its first token and for its turn: that much less is on offer.
    result["offered"] = arguments.streams * TOKENS / ((TOKENS * gap_us + 1000) / 1e6)
    print(json.dumps(result), flush=True)
    os._exit(0)


def main() -> None:
    """Parse, run, print."""
    shared = Path(__file__).resolve().parents[2] / "shared" / "bench"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, default=shared / "mocksse.c", help="C source of the truth server")
    parser.add_argument("--bound", type=Path, default=shared / "cclient.c", help="C source of the bound client")
    parser.add_argument("--tls-server", type=Path, help="C source of the truth server over TLS: measure that instead")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--port", type=int, default=8900)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--streams", type=int, default=200, help=argparse.SUPPRESS)
    parser.add_argument("--ca-file", help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=0.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(arguments)
        return
    for source in (arguments.server, arguments.bound):
        if not source.is_file():
            raise SystemExit(f"{source} is not there; name the C source with --server and --bound")
    figures = measure(arguments) if arguments.tls_server is None else measure_tls(arguments)
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, label in LABELS.items():
        if name in figures:
            print(f"{label:<58} {figures[name]:>12.4g}")


if __name__ == "__main__":
    main()
