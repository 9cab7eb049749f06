"""Prompts as lists of token ids have the asked length to the token, by the server's own count."""

from endpoints import simulator

from tokswarm.master.preflight import preflight
from tokswarm.measure.record import Outcome
from tokswarm.traffic.mix import Distribution, Mix, Output, Prompt, Stage, Target, TrafficClass
from tokswarm.traffic.prompt import PromptWriter, vocabulary_of
from tokswarm.traffic.units import Duration
from tokswarm.wire.api import RequestWriter
from tokswarm.wire.client import LoadClient
from tokswarm.wire.target import ResolvedTarget


def test_the_server_counts_the_tokens_that_were_asked_for() -> None:
    one = Distribution(fixed=1)
    with simulator() as base_url:
        target = Target(base_url=base_url, api="completions", prompt_format="token_ids")
        mix = Mix(
            name="ids",
            target=target,
            classes=[TrafficClass(name="c", prompt=Prompt(tokens=one), output=Output(max_tokens=one))],
            load=[Stage(concurrency=1, for_=Duration.parse("1s"))],
        )
        found = preflight(mix)
        client = LoadClient(ResolvedTarget(target, {}))
        prompts = PromptWriter(found.fit, 3, vocabulary_of(target))
        requests = RequestWriter(client.target, found.model)
        try:
            for tokens in (1, 17, 500):
                call = requests.write(prompts.unique(tokens, (0, tokens)), max_tokens=2, ignore_eos=True)
                exchange = client.ask(call, timeout_s=10)
                assert exchange.outcome is Outcome.OK
                assert exchange.answer.usage is not None
                assert exchange.answer.usage.prompt == tokens
        finally:
            client.close()
    assert found.fit.source == "token_ids"
