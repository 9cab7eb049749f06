"""GET /metrics of a whole deployment: one text with the samples of every replica, and what gateways count.

With one replica it is that replica's text, as one server gives it. With several, each sample has the label
`replica`, as Prometheus would add one for each target, and `provider` where a model has several.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tokswarm.simulator.gateway import Gateway
from tokswarm.simulator.lifecycle import ReplicaState
from tokswarm.simulator.replica import Replica


class Exposition(Collector):
    """Everything a deployment counts."""

    def __init__(self, gateways: list[Gateway]) -> None:
        self._gateways = gateways
        self._replicas = [replica for gateway in gateways for pool in gateway.pools for replica in pool.replicas]
        self._with_provider = any(len(gateway.pools) > 1 for gateway in gateways)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        """The text."""
        return generate_latest(self._registry)

    def replica(self, name: str) -> Replica | None:
        """The replica of this name."""
        return next((one for one in self._replicas if one.name == name), None)

    def collect(self) -> Iterator[Metric]:
        """Everything, for the registry."""
        families: dict[str, Metric] = {}
        for replica in self._replicas:
            for family in replica.metrics.families(self._labels(replica)):
                families.setdefault(family.name, family)
                if families[family.name] is not family:
                    families[family.name].samples += family.samples
        yield from families.values()
        yield self._states()
        yield self._attempts()
        yield self._fallbacks()

    def _labels(self, replica: Replica) -> dict[str, str]:
        if len(self._replicas) == 1:
            return {}
        return {"replica": replica.name, **({"provider": replica.provider} if self._with_provider else {})}

    def _states(self) -> Metric:
        family = GaugeMetricFamily("sim:replicas", "Replicas by state.", labels=["model_name", "provider", "state"])
        for gateway in self._gateways:
            for pool in gateway.pools:
                states = [replica.state for replica in pool.replicas]
                for state in ReplicaState:
                    family.add_metric([gateway.plan.name, pool.plan.name, state], states.count(state))
        return family

    def _attempts(self) -> Metric:
        family = CounterMetricFamily(
            "sim:provider_attempts",
            "Requests that reached a provider, by the status it took or refused them with.",
            labels=["model_name", "provider", "status"],
        )
        for gateway in self._gateways:
            for (provider, status), count in gateway.attempts.items():
                family.add_metric([gateway.plan.name, provider, str(status)], count)
        return family

    def _fallbacks(self) -> Metric:
        family = CounterMetricFamily(
            "sim:fallbacks", "Requests that another provider than the first took.", labels=["model_name"]
        )
        for gateway in self._gateways:
            family.add_metric([gateway.plan.name], gateway.fallbacks)
        return family
