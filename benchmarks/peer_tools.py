"""The load generators that `peers.py` measures: how each is installed and called, and where it says what it saw."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL = "mock-model"
PROMPT_TOKENS = 20
LAST_WAVE = 0.1
"""Sending by time ends this share of a wave before its end."""
ALIVE_TIMEOUT_S = 60
INSTALL_TIMEOUT_S = 1800
OTHER_PYTHONS = ("python3.12", "python3.13", "python3.14")
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class UnavailableError(Exception):
    """A tool that cannot be installed or run here, and why."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One load: `requests` answers of `tokens` tokens, `streams` at a time, `gap_us` between tokens."""

    base_url: str
    """Without the /v1."""
    streams: int
    requests: int
    tokens: int
    gap_us: int
    ttft_us: int
    folder: Path
    """Where the tool writes; empty at first."""
    tokenizer: Path

    @property
    def request_s(self) -> float:
        """How long an answer takes; the server draws a phase of up to one gap."""
        return (self.ttft_us + self.gap_us * (self.tokens - 0.5)) / 1e6


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a tool says it saw, read from its own files."""

    requests: int
    ttft_mean_ms: float
    ttft_p99_ms: float
    itl_mean_ms: float
    """Mean over requests of (last token - first token) / (tokens - 1)."""
    itl_p99_ms: float
    """Over the same means of requests."""
    gap_p99_ms: float | None
    """Over all gaps between tokens; None: the tool reports none."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A load generator."""

    name: str
    version: str
    """Empty: the tokswarm of this interpreter."""
    command: Callable[[Path, Job], list[str]]
    """From the folder of its programs and a job, its command line; may write files into the job's folder."""
    report: Callable[[Job], Report]
    environ: Mapping[str, str]
    oldest_python: tuple[int, int] = (3, 11)


# --- installation ---------------------------------------------------------------------------------


def install(tool: Tool, venvs: Path) -> Path:
    """The folder of the tool's programs; its venv is made when it is not there. UnavailableError."""
    if not tool.version:
        return Path(sys.executable).parent
    venv = (venvs / tool.name).absolute()
    python = venv / "bin" / "python"
    if not python.exists():
        _run([_interpreter(tool.oldest_python), "-m", "venv", str(venv)])
    if _installed(python, tool.name) != tool.version:
        _run([str(python), "-m", "pip", "install", "--quiet", f"{tool.name}=={tool.version}"])
    if not (program := venv / "bin" / tool.name).exists():
        raise UnavailableError(f"{tool.name} {tool.version} installed no program {program.name}")
    return venv / "bin"


def _installed(python: Path, name: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=ALIVE_TIMEOUT_S)
    return done.stdout.strip()


def _interpreter(oldest: tuple[int, int]) -> str:
    for name in (sys.executable, *OTHER_PYTHONS):
        code = f"import sys; sys.exit(sys.version_info < {oldest})"
        try:
            done = subprocess.run([name, "-c", code], capture_output=True, timeout=ALIVE_TIMEOUT_S)
        except OSError:
            continue
        if done.returncode == 0:
            return name
    raise UnavailableError(f"it needs Python {oldest[0]}.{oldest[1]} or newer, and none is on the PATH")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"not installed within {INSTALL_TIMEOUT_S} s: {' '.join(command)}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        said = [line for line in lines if line.startswith("ERROR")] or lines
        raise UnavailableError(f"not installed: {said[-1] if said else f'exit code {done.returncode}'}")


TRAIN = """
import json, pathlib, pydoc_data.topics, sys
from tokenizers import ByteLevelBPETokenizer
english = [text for topic in pydoc_data.topics.topics.values() for text in topic.splitlines()]
tokenizer = ByteLevelBPETokenizer()
tokenizer.train_from_iterator(
    [*english, *[" tok" * 50] * 500], vocab_size=4096, special_tokens=["<s>", "</s>"], show_progress=False)
assert len(tokenizer.encode(" tok" * 200).ids) == 200
folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
tokenizer.save(str(folder / "tokenizer.json"))
chat = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\\n{% endfor %}"
settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
            "chat_template": chat, "model_max_length": 131072}
(folder / "tokenizer_config.json").write_text(json.dumps(settings))
"""


def train_tokenizer(programs: Path, folder: Path) -> None:
    """Write a small tokenizer that knows the server's token as one token: the peers count with one."""
    done = subprocess.run(
        [programs / "python", "-c", TRAIN, folder], capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
    )
    if done.returncode:
        raise SystemExit(f"no tokenizer for the peers:\n{done.stderr[-2000:]}")


# --- tokswarm -------------------------------------------------------------------------------------


def _tokswarm_command(_: Path, job: Job) -> list[str]:
    # Sending ends in the last wave, which is drained: as many requests as the others send, unless waves came late by
    # most of one in all.
    waves = job.requests / job.streams
    mix = {
        "name": "peers",
        "target": {"base_url": f"{job.base_url}/v1", "model": MODEL},
        "classes": [
            {
                "name": "all",
                "prompt": {"tokens": {"fixed": PROMPT_TOKENS}},
                "output": {"max_tokens": {"fixed": job.tokens}},
            }
        ],
        "load": [{"concurrency": job.streams, "for": f"{round((waves - LAST_WAVE) * job.request_s * 1e3)}ms"}],
    }
    path = job.folder / "mix.yaml"
    path.write_text(json.dumps(mix))  # JSON is YAML
    data = str(job.folder / "data")
    return [sys.executable, "-m", "tokswarm", "run", str(path), "--workers", "1", "--data-dir", data]


def _tokswarm_report(job: Job) -> Report:
    import polars as pl

    [run] = (job.folder / "data" / "runs").iterdir()
    [stage] = json.loads((run / "summary.json").read_text())["stages"]
    ok = pl.read_parquet(run / "requests.parquet").filter(pl.col("outcome") == "ok")
    return Report(
        requests=len(ok),
        ttft_mean_ms=_mean(ok["ttft_ms"]),
        ttft_p99_ms=stage["ttft_ms"]["p99"],
        itl_mean_ms=_mean(ok["tpot_ms"]),
        itl_p99_ms=stage["tpot_ms"]["p99"],
        gap_p99_ms=stage["itl_ms"]["p99"],
    )


def _mean(column: Any) -> float:
    mean = column.mean()
    if not isinstance(mean, float):
        raise UnavailableError(f"no {column.name} in the records")
    return mean


# --- aiperf ---------------------------------------------------------------------------------------


def _aiperf_command(programs: Path, job: Job) -> list[str]:
    options = {
        "--model": MODEL,
        "--url": job.base_url,
        "--endpoint-type": "chat",
        "--tokenizer": str(job.tokenizer),
        "--concurrency": str(job.streams),
        "--request-count": str(job.requests),
        "--isl": str(PROMPT_TOKENS),
        "--osl": str(job.tokens),
        "--num-dataset-entries": str(job.streams),
        "--ui": "none",
        "--artifact-dir": str(job.folder),
    }
    flags = ["--streaming", "--no-gpu-telemetry", "--no-server-metrics"]
    return [str(programs / "aiperf"), "profile", *_flat(options), *flags]


def _aiperf_report(job: Job) -> Report:
    said = json.loads((job.folder / "profile_export_aiperf.json").read_text())
    ttft, itl = said["time_to_first_token"], said["inter_token_latency"]
    return Report(
        requests=round(said["request_count"]["avg"]),
        ttft_mean_ms=ttft["avg"],
        ttft_p99_ms=ttft["p99"],
        itl_mean_ms=itl["avg"],
        itl_p99_ms=itl["p99"],
        gap_p99_ms=said["inter_chunk_latency"]["p99"],
    )


# --- guidellm -------------------------------------------------------------------------------------


def _guidellm_command(programs: Path, job: Job) -> list[str]:
    backend = {
        "kind": "openai_http",
        "target": job.base_url,
        "model": MODEL,
        "request_format": "/v1/chat/completions",
    }
    spec = {
        "backend": backend,
        "profile": {"kind": "concurrent", "streams": [job.streams]},
        "constraints": [{"kind": "max_requests", "count": job.requests}],
        "tokenizer": {"kind": "huggingface_auto", "model": str(job.tokenizer)},
        "data": [{"kind": "synthetic_text", "prompt_tokens": PROMPT_TOKENS, "output_tokens": job.tokens}],
        "outputs": [{"kind": "json", "path": str(job.folder / "benchmarks.json")}],
    }
    path = job.folder / "spec.json"
    path.write_text(json.dumps({"spec": spec}))
    return [str(programs / "guidellm"), "run", "--config", str(path), "--disable-console-interactive"]


def _guidellm_report(job: Job) -> Report:
    [benchmark] = json.loads((job.folder / "benchmarks.json").read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    ttft = metrics["time_to_first_token_ms"]["successful"]
    itl = metrics["inter_token_latency_ms"]["successful"]
    return Report(
        requests=metrics["request_totals"]["successful"],
        ttft_mean_ms=ttft["mean"],
        ttft_p99_ms=ttft["percentiles"]["p99"],
        itl_mean_ms=itl["mean"],
        itl_p99_ms=itl["percentiles"]["p99"],
        gap_p99_ms=None,
    )


# --- inference-perf -------------------------------------------------------------------------------


def _inference_perf_command(programs: Path, job: Job) -> list[str]:
    def always(tokens: int) -> dict[str, int]:
        return {"min": tokens, "max": tokens, "mean": tokens, "std_dev": 0, "total_count": job.requests}

    settings = {
        "api": {"type": "completion", "streaming": True},  # its random data refuses the chat API
        "data": {
            "type": "random",
            "input_distribution": always(PROMPT_TOKENS),
            "output_distribution": always(job.tokens),
        },
        "load": {
            "type": "concurrent",
            "stages": [{"num_requests": job.requests, "concurrency_level": job.streams}],
            "num_workers": 1,
            "worker_max_concurrency": 2 * job.streams,
        },
        "server": {"type": "vllm", "model_name": MODEL, "base_url": job.base_url},
        "tokenizer": {"pretrained_model_name_or_path": str(job.tokenizer)},
        "report": {"request_lifecycle": {"summary": True, "per_stage": True}},
        "storage": {"local_storage": {"path": str(job.folder)}},
    }
    path = job.folder / "settings.yml"
    path.write_text(json.dumps(settings))
    return [str(programs / "inference-perf"), "-c", str(path)]


def _inference_perf_report(job: Job) -> Report:
    [path] = job.folder.rglob("summary_lifecycle_metrics.json")
    said = json.loads(path.read_text())["successes"]
    latency = said["latency"]
    # It reports times in seconds.
    ttft, itl, gaps = (
        latency[name] for name in ("time_to_first_token", "time_per_output_token", "inter_token_latency")
    )
    return Report(
        requests=said["count"],
        ttft_mean_ms=ttft["mean"] * 1e3,
        ttft_p99_ms=ttft["p99"] * 1e3,
        itl_mean_ms=itl["mean"] * 1e3,
        itl_p99_ms=itl["p99"] * 1e3,
        gap_p99_ms=gaps["p99"] * 1e3,
    )


# --- genai-bench ----------------------------------------------------------------------------------


def _genai_bench_command(programs: Path, job: Job) -> list[str]:
    options = {
        "--api-backend": "openai",
        "--api-base": job.base_url,
        "--api-key": "none",
        "--api-model-name": MODEL,
        "--model-tokenizer": str(job.tokenizer),
        "--task": "text-to-text",
        "--traffic-scenario": f"D({PROMPT_TOKENS},{job.tokens})",
        "--num-concurrency": str(job.streams),
        "--max-time-per-run": "2",
        "--max-requests-per-run": str(job.requests),
        "--experiment-base-dir": str(job.folder),
        "--metrics-time-unit": "ms",
    }
    return [str(programs / "genai-bench"), "benchmark", *_flat(options)]


def _genai_bench_report(job: Job) -> Report:
    for path in job.folder.rglob("*.json"):
        said = json.loads(path.read_text())
        if isinstance(said, dict) and "aggregated_metrics" in said:
            break
    else:
        raise UnavailableError("it wrote no aggregated metrics")
    metrics = said["aggregated_metrics"]
    ttft, tpot = metrics["stats"]["ttft"], metrics["stats"]["tpot"]
    return Report(
        requests=metrics["num_completed_requests"],
        ttft_mean_ms=ttft["mean"],
        ttft_p99_ms=ttft["p99"],
        itl_mean_ms=tpot["mean"],
        itl_p99_ms=tpot["p99"],
        gap_p99_ms=None,
    )


def _flat(options: dict[str, str]) -> list[str]:
    return [part for option in options.items() for part in option]


TOOLS = (
    Tool(name="tokswarm", version="", command=_tokswarm_command, report=_tokswarm_report, environ={}),
    Tool(
        name="aiperf",
        version="0.13.0",
        command=_aiperf_command,
        report=_aiperf_report,
        # Offline it takes the tokenizer's folder for the name of a published one, and fails.
        environ={name: value for name, value in OFFLINE.items() if not name.endswith("_OFFLINE")},
    ),
    Tool(name="guidellm", version="0.8.1", command=_guidellm_command, report=_guidellm_report, environ=OFFLINE),
    Tool(
        name="inference-perf",
        version="0.7.0",
        command=_inference_perf_command,
        report=_inference_perf_report,
        environ=OFFLINE,
        oldest_python=(3, 12),
    ),
    Tool(
        name="genai-bench",
        version="0.0.5",
        command=_genai_bench_command,
        report=_genai_bench_report,
        environ=OFFLINE,
    ),
)
