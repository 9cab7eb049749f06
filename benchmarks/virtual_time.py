"""How much faster than real time the engine runs in virtual time.

A closed loop of streams over a profile: prompts and answers of fixed seeds, every stamp of every token
kept. The ratio is the time the model lived through over the CPU time that took.

    python benchmarks/virtual_time.py [--profile h100x4-70b] [--streams 64] [--requests 1000]
        [--prompt-tokens 200 3000] [--rounds 3] [--json]
"""

import argparse
import json
import random
import statistics
import time

from tokswarm.simulator.engine import Engine, Request, Step
from tokswarm.simulator.profile import Profile, load_profile
from tokswarm.simulator.virtual import closed_loop

PROMPT_TOKENS = (200, 3_000)
"""Overridden by --prompt-tokens: short prompts make steps short in the model, and so the ratio small."""
OUTPUT_TOKENS = (50, 500)


def measure(profile: Profile, streams: int, requests: int, prompt_tokens: tuple[int, int]) -> dict[str, float]:
    """One run: what the model lived through, and what it cost."""
    random_source = random.Random(1)
    left = requests

    def draw(_: int, arrival_ns: int) -> Request | None:
        nonlocal left
        left -= 1
        prompt, output = random_source.randint(*prompt_tokens), random_source.randint(*OUTPUT_TOKENS)
        keys = tuple((left, place) for place in range((prompt + output) // profile.block_tokens))
        return (
            Request(request_id=left, arrival_ns=arrival_ns, prompt_tokens=prompt, output_tokens=output, block_keys=keys)
            if left >= 0
            else None
        )

    steps = tokens = sequences = last_ns = 0

    def count(step: Step) -> None:
        nonlocal steps, sequences
        steps += 1
        sequences += step.sequences

    start_s = time.process_time()
    for served in closed_loop(Engine(profile), streams, draw, on_step=count):
        tokens += len(served.token_ns)
        last_ns = served.ended_ns
    cpu_s = time.process_time() - start_s
    return {
        "ratio": last_ns / 1e9 / cpu_s,
        "model_s": last_ns / 1e9,
        "cpu_s": cpu_s,
        "steps": steps,
        "mean_batch": sequences / steps,
        "tokens": tokens,
        "model_tokens_per_s": tokens / (last_ns / 1e9),
        "cpu_us_per_step": cpu_s / steps * 1e6,
        "cpu_us_per_token": cpu_s / tokens * 1e6,
    }


def main() -> None:
    """Measure some rounds; the median by its ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="h100x4-70b")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--prompt-tokens", type=int, nargs=2, default=PROMPT_TOKENS, metavar=("LEAST", "MOST"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    profile = load_profile(options.profile)
    rounds = sorted(
        (
            measure(profile, options.streams, options.requests, tuple(options.prompt_tokens))
            for _ in range(options.rounds)
        ),
        key=lambda one: one["ratio"],
    )
    median = rounds[len(rounds) // 2]
    result = {
        "profile": profile.name,
        "streams": options.streams,
        "requests": options.requests,
        "prompt_tokens": list(options.prompt_tokens),
        "ratios": [round(one["ratio"], 1) for one in rounds],
        "median_ratio": statistics.median(one["ratio"] for one in rounds),
        **median,
    }
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"{profile.name}, {options.streams} streams: {median['ratio']:.0f} times faster than real time"
        f" ({median['model_s']:.0f} s of the model in {median['cpu_s']:.2f} s of CPU,"
        f" {median['cpu_us_per_step']:.0f} µs a step of {median['mean_batch']:.0f} sequences)"
    )


if __name__ == "__main__":
    main()
