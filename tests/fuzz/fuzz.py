"""Fuzz the readers of foreign bytes with atheris, and keep what it grows.

    python tests/fuzz/fuzz.py [--minutes 10] [--keep] [TARGET…]

The minutes are shared out over the targets. An input that breaks a law is left in `tests/fuzz/found/`, and the
exit code is 1: mend the code, then move the input to `tests/fuzz/corpus/TARGET/` under a name that says what it
was. `--keep` packs the inputs that reach new code into the corpus (at most 300 of each target, the shortest).
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzz_corpus

HERE = Path(__file__).parent
FOUND = HERE / "found"
KEPT = 300
MAX_INPUT_BYTES = 2048
_DONE = re.compile(r"Done (\d+) runs in (\d+) second")

WORDS = {
    "http1": [
        "HTTP/1.1 200 OK\r\n", "HTTP/1.0 200 OK\r\n", "HTTP/1.1 103 \r\n", "HTTP/1.1 204 \r\n", "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n", "Connection: close\r\n", "Connection: keep-alive\r\n", "\r\n\r\n",
        "0\r\n\r\n", "5;a=b\r\n", "\n", "\r", ", ", ": ", "gzip", "0x", "_", "+", "-", " ", "\t", "ffffffffffffffff",
    ],
    "headers": [
        "Retry-After: ", "retry-after-ms: ", "Date: ", "openai-processing-ms: ", "x-ratelimit-remaining-requests: ",
        "x-ratelimit-remaining-tokens: ", "x-served-by: ", "Wed, 02 Dec 2026 16:00:00 GMT", "1e308", "nan", "inf", "-1",
        "12ms", "1h2m", "\r\n", "+0000", "-9999", "99999999999999999999",
    ],
    "sse": ["data", "data:", "data: ", "event", "event: error", "id: 1", "retry: 1", ":", "\r\n", "\n\n", "\ufeff"],
    "chat": [
        "data: ", "\n\n", "[DONE]", "event: error\n", "choices", "delta", "content", "reasoning_content", "reasoning",
        "tool_calls", "function_call", "refusal", "text", "message", "finish_reason", "usage", "prompt_tokens",
        "completion_tokens", "prompt_tokens_details", "cached_tokens", "metrics", "queue_time_ms", "timings",
        "predicted_n", "cache_n", "x_groq", "error", "code", "null", "true", "-1", "1e308", "4294967296", "\\ud800",
    ],
    "responses": [
        "data: ", "\n\n", "[DONE]", "type", "delta", "response", "response.completed", "response.failed", "error",
        "response.output_text.delta", "response.reasoning_text.delta", "status", "usage", "input_tokens",
        "output_tokens", "incomplete_details", "reason", "output", "message", "null", "-1", "1e308", "\\ud800",
    ],
    "record_log": ["TSWL", "r1", "w1", "h1", "f1", "e1"],
}  # fmt: skip


# --- the driver -----------------------------------------------------------------------------------


def fuzz(target: str, seconds: int, *, keep: bool) -> dict[str, Any]:
    """Fuzz one target in a process of its own; what it did."""
    FOUND.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tokswarm-fuzz-") as folder:
        grown = Path(folder, "grown")
        grown.mkdir()
        for number, (_, data) in enumerate(fuzz_corpus.inputs(target)):
            Path(grown, f"kept-{number}").write_bytes(data)
        words = Path(folder, "words")
        lines = [json.dumps(word) for word in WORDS[target]]
        words.write_text("".join(f"{_quoted(json.loads(line))}\n" for line in lines), encoding="ascii")
        command = [sys.executable, __file__, "--child", target]
        options = [f"-max_len={MAX_INPUT_BYTES}", f"-dict={words}", f"-artifact_prefix={FOUND}/{target}-"]
        options += ["-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1"]
        run = [*command, str(grown), f"-max_total_time={seconds}", *options]
        done = subprocess.run(run, check=False, capture_output=True)
        text = (done.stdout + done.stderr).decode(errors="replace")
        matched = _DONE.search(text)
        runs = int(matched[1]) if matched else 0
        if done.returncode:
            print(text[-4000:], file=sys.stderr)
        elif keep:
            by_hand = {data for name, data in fuzz_corpus.inputs(target) if not name.startswith(f"{target}.zip")}
            new = sorted({path.read_bytes() for path in grown.iterdir()} - by_hand, key=lambda each: (len(each), each))
            fuzz_corpus.pack(target, {f"{zlib.crc32(each):08x}": each for each in new[:KEPT]})
        return {"target": target, "seconds": seconds, "runs": runs, "clean": done.returncode == 0}


def _quoted(word: str) -> str:
    """A line of a libFuzzer dictionary."""
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}" for byte in word.encode()
    )
    return f'"{escaped}"'


# --- one target, in its own process ------------------------------------------------------------------


def run_child(target: str, arguments: list[str]) -> None:
    """Hand the target to atheris."""
    import atheris  # noqa: PLC0415 - only the fuzzing process needs it

    with atheris.instrument_imports(
        include=["tokswarm.wire", "tokswarm.sink.record_log", "tokswarm.sink.log_reader", "tokswarm.worker.record_of"]
    ):
        from fuzz_targets import TARGETS  # noqa: PLC0415 - instrumented

    mutate = {"chat": mutate_events, "responses": mutate_events, "record_log": mutate_frames}.get(target)
    options: dict[str, Any] = {}
    if mutate is not None:

        def mutator(data: bytes, max_size: int, seed: int) -> bytes:
            chance = random.Random(seed)
            changed = None if chance.random() < 0.3 else mutate(data, chance, atheris.Mutate)
            return (atheris.Mutate(data, max_size) if changed is None else changed)[:max_size]

        options["custom_mutator"] = mutator
    atheris.Setup([sys.argv[0], *arguments], TARGETS[target], **options)
    atheris.Fuzz()


Mutate = Callable[[bytes, int], bytes]
VALUES: list[Any] = [
    None, True, 0, -1, 1, 1.5, -0.5, 1e308, 1 << 31, 1 << 32, 1 << 63, 1 << 64, 1 << 70, "", "a", "1", "nan", "inf",
    "中", [], {}, [None], [[]], [{}], {"a": 1}, {"message": "maximum context length"}, {"text": "a"}, [{"text": "a"}],
]  # fmt: skip


def mutate_events(data: bytes, chance: random.Random, mutate: Mutate) -> bytes | None:
    """Change the JSON of one event, which stays JSON; or the order of events; None: no event is JSON."""
    events = data.split(b"\n\n")
    at = chance.randrange(len(events))
    choice = chance.random()
    if choice < 0.15:
        events.insert(chance.randrange(len(events) + 1), events[at])
    elif choice < 0.25:
        del events[at]
    else:
        head, mark, text = events[at].rpartition(b"data:")
        try:
            value = json.loads(text)
            events[at] = head + mark + b" " + json.dumps(_changed(value, chance, mutate)).encode("utf-8", "replace")
        except (ValueError, RecursionError):
            return None
    return b"\n\n".join(events)


def _changed(value: Any, chance: random.Random, mutate: Mutate) -> Any:
    """The value with one part of it replaced, renamed, doubled or dropped."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            value[chance.choice(WORDS["chat"] + WORDS["responses"])] = value[key]
        elif chance.random() < 0.1:
            del value[key]
        else:
            value[key] = _changed(value[key], chance, mutate)
        return value
    if isinstance(value, list) and value and chance.random() < 0.85:
        at = chance.randrange(len(value))
        if chance.random() < 0.1:
            value.insert(at, value[at])
        else:
            value[at] = _changed(value[at], chance, mutate)
        return value
    if isinstance(value, str) and chance.random() < 0.3:
        return mutate(value.encode("utf-8", "replace"), len(value) + 16).decode("utf-8", "replace")
    return chance.choice(VALUES)


def mutate_frames(data: bytes, chance: random.Random, mutate: Mutate) -> bytes | None:
    """Change one entry of a log and mend its length and CRC, so that the change is read; None: it is no log."""
    from fuzz_targets import log_of  # noqa: PLC0415 - after instrumentation

    from tokswarm.sink.record_log import FRAME, MAGIC  # noqa: PLC0415 - after instrumentation

    payloads, at = [], len(MAGIC)
    while at + FRAME.size <= len(data):
        length, _ = FRAME.unpack_from(data, at)
        payloads.append(data[at + FRAME.size : at + FRAME.size + length])
        at += FRAME.size + length
    if len(payloads) < 2:
        return None
    at = chance.randrange(1, len(payloads))
    if chance.random() < 0.2:
        payloads.append(payloads[at])
    else:
        payloads[at] = mutate(payloads[at], len(payloads[at]) + 32)
    return log_of(payloads[1:])


def main() -> int:
    """Fuzz, print the counts, say whether all was clean."""
    if sys.argv[1:2] == ["--child"]:
        run_child(sys.argv[2], sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(WORDS))
    parser.add_argument("--minutes", type=float, default=10.0, help="in all  [default: 10]")
    parser.add_argument("--keep", action="store_true", help="pack what it grows into the corpus")
    arguments = parser.parse_args()
    targets = arguments.targets or list(WORDS)
    if unknown := set(targets) - set(WORDS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(WORDS)}")
    seconds = max(1, round(arguments.minutes * 60 / len(targets)))
    results = [fuzz(target, seconds, keep=arguments.keep) for target in targets]
    for each in results:
        outcome = "clean" if each["clean"] else f"a law is broken: see {FOUND}"
        print(f"{each['target']:<12} {each['runs']:>12,} inputs in {each['seconds']} s: {outcome}")
    return 0 if all(each["clean"] for each in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
