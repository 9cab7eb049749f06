"""Stages of requests on the simulator's engine in virtual time, as the seconds a master would have of them."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tokswarm.insight.cliff import CliffSecond, Demand
from tokswarm.simulator.deployment import load_deployment
from tokswarm.simulator.engine import Engine, Request, Step
from tokswarm.simulator.limits import Limiter
from tokswarm.simulator.virtual import open_loop
from tokswarm.traffic.mix import Mix
from tokswarm.traffic.mixfile import load_mix
from tokswarm.traffic.plan import OpenLoop
from tokswarm.traffic.planning import plan_stages

MIXES = Path(__file__).parents[3] / "locustfiles" / "mixes"
LEAD_S = 0.5
BLOCK_TOKENS = 16


class Drawn:
    """Requests of a mix's classes, drawn as often as asked."""

    def __init__(self, mix: Mix, seed: int) -> None:
        self._classes = {each.name: each for each in mix.classes}
        self._chance = random.Random(seed)
        self._made = 0

    def gap_s(self, rate_per_s: float) -> float:
        return self._chance.expovariate(rate_per_s)

    def request(self, weights: list[float], arrival_ns: int) -> Request:
        name = self._chance.choices(list(self._classes), weights)[0]
        each = self._classes[name]
        self._made += 1
        prompt_tokens, output_tokens = each.prompt.lengths.fixed, each.output.max_tokens.fixed
        assert prompt_tokens is not None
        assert output_tokens is not None
        shared = each.prompt.shared_prefix
        blocks = 0 if shared is None else shared.tokens // BLOCK_TOKENS
        group = 0 if shared is None else self._chance.randrange(shared.groups)
        own = range(prompt_tokens // BLOCK_TOKENS - blocks)
        keys = (*((name, group, block) for block in range(blocks)), *((self._made, block) for block in own))
        return Request(
            request_id=self._made,
            arrival_ns=arrival_ns,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            block_keys=keys,
        )


class Ledger:
    """What happened in each second."""

    def __init__(self) -> None:
        self.output: Counter[int] = Counter()
        self.begun: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        self.prompt: Counter[int] = Counter()
        self.cached: Counter[int] = Counter()
        self.demand: dict[int, Demand] = {}
        self.server: dict[int, tuple[int, int, int, int, int]] = {}
        """Waiting, evictions, preemptions, lookups and hits so far."""
        self.waits_ms: defaultdict[int, list[float]] = defaultdict(list)
        self.stage_begin_s: dict[str, int] = {}

    def seconds(self, *, with_server: bool) -> Iterator[CliffSecond]:
        in_flight = 0
        before = (0, 0, 0, 0, 0)
        for second in range(max(self.output) + 1):
            in_flight += self.begun[second] - self.ended[second]
            now = self.server.get(second, before)
            lookups, hits = now[3] - before[3], now[4] - before[4]
            waits_ms = sorted(self.waits_ms[second])
            of_server = {
                "waiting": now[0],
                "evictions_per_s": now[1] - before[1],
                "preemptions_per_s": now[2] - before[2],
                "hit_ratio": hits / lookups if lookups else None,
                "replicas": frozenset({"h:1"}),
            }
            prompt = self.prompt[second]
            yield CliffSecond(
                second_unix=second,
                demand=self.demand.get(second),
                output_tok_per_s=self.output[second],
                in_flight=in_flight,
                ended=self.ended[second] + self.refused[second],
                refused=self.refused[second],
                failed=0,
                workers=1,
                cached_ratio=self.cached[second] / prompt if prompt else None,
                queue_wait_ms=waits_ms[len(waits_ms) // 2] if waits_ms else None,
                **(of_server if with_server else {}),
            )
            before = now


def run(mix_name: str, *, seed: int, stages: tuple[str, ...], rate_factor: float = 1.0) -> Ledger:
    """Run these open stages of a shipped mix on the deployment of its name, one after the other."""
    mix = load_mix(MIXES / f"{mix_name}.yaml", environ={})
    provider = load_deployment(mix_name).models[0].providers[0]
    engine, drawn, ledger = Engine(provider.profile), Drawn(mix, seed), Ledger()
    now_ns = 0
    limiter = Limiter(provider.limits, lambda: now_ns) if provider.limits.on else None

    def on_step(step: Step) -> None:
        counts = engine.counts
        ledger.server[step.end_ns // 1_000_000_000] = (
            engine.waiting_count,
            engine.pool.evictions,
            counts.preemptions,
            counts.prefix_queries_tokens,
            counts.prefix_hits_tokens,
        )

    at_s = 0.0
    for stage in plan_stages(mix, MIXES):
        if stage.name not in stages:
            continue
        assert isinstance(stage.load, OpenLoop)
        begin_s, end_s = at_s, at_s + stage.duration_s
        ledger.stage_begin_s[stage.name] = int(begin_s)
        demand = Demand(is_open=True, level=stage.load.rate_per_s)
        ledger.demand.update(dict.fromkeys(range(int(begin_s), int(end_s)), demand))
        requests = []
        weights = stage.class_weights or [1.0] * len(mix.classes)
        while (at_s := at_s + drawn.gap_s(stage.load.rate_per_s * rate_factor)) < end_s:
            now_ns = int(at_s * 1e9)
            if limiter is not None and limiter.refusal(tokens=60, in_flight=0, waiting=0) is not None:
                ledger.refused[int(at_s)] += 1
                continue
            requests.append(drawn.request(weights, now_ns))
        last_s = end_s
        for served in open_loop(engine, requests, on_step):
            ended = served.ended_ns // 1_000_000_000
            ledger.begun[served.request.arrival_ns // 1_000_000_000] += 1
            ledger.ended[ended] += 1
            ledger.prompt[ended] += served.request.prompt_tokens
            ledger.cached[ended] += served.cached_tokens
            ledger.waits_ms[ended].append(served.queue_ns / 1e6)
            ledger.output.update(stamp // 1_000_000_000 for stamp in served.token_ns)
            last_s = max(last_s, served.ended_ns / 1e9)
        at_s = last_s + LEAD_S
    return ledger
