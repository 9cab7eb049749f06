"""What `tokswarm sim` serves: models, each by one or more providers, each a pool of replicas of one profile.

A deployment is a YAML file, or one of those in the folder `deployments`. A bare profile, preset or file, is a
deployment of one replica. docs/simulator.md#deployments explains every key.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tokswarm.errors import ConfigError
from tokswarm.simulator.fault_gate import FaultShare
from tokswarm.simulator.limits import Limits
from tokswarm.simulator.profile import Profile, load_profile

DEFAULT_MODEL = "tiny"
_FOLDER = Path(__file__).parent / "deployments"
_HINT = "keys and their meaning: docs/simulator.md#deployments"
_MOST_REPLICAS = 64
"""Each is an engine and a timer of its own on one event loop."""

_T = TypeVar("_T")


class Routing(StrEnum):
    """How a pool chooses a replica."""

    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"
    PREFIX_AWARE = "prefix_aware"


class ReplicaGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas that are alike in where they are and when they come."""

    count: int = 1
    region: str | None = None
    joins_after_s: float | None = None
    """Seconds after the model's first request at which they start to boot; None: they serve from the beginning."""


class ColdStart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a replica goes through that is started later: booting, then slower steps, with an empty cache."""

    boot_s: float = 0.0
    """From its start to its first request."""
    warmup_s: float = 0.0
    """How long its steps are slower after that."""
    warmup_factor: float = 2.0
    """How many times longer they take."""


class Autoscale(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a pool grows and shrinks, one replica at a time."""

    max_replicas: int
    min_replicas: int = 1
    up_waiting: float = 2.0
    """Grow when more requests than this wait per replica (those that boot are counted) …"""
    up_after_s: float = 5.0
    """… for so long."""
    down_in_flight: float = 0.0
    """Shrink when nothing waits and so many requests per replica or fewer are in flight …"""
    down_after_s: float = 30.0
    """… for so long. The replica takes no new requests and ends with its last one."""


class ProviderPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pool of replicas of one profile behind a router, and how reaching it goes."""

    name: str = "main"
    profile: Profile = Profile()
    replicas: int | tuple[ReplicaGroup, ...] = 1
    router: Routing = Routing.ROUND_ROBIN
    load_guard: int = 8
    """With `prefix_aware`: how many requests more than the least loaded the replica with the best cache may have."""
    cold_start: ColdStart = ColdStart()
    autoscale: Autoscale | None = None
    limits: Limits = Limits()
    latency_ms: float = 0.0
    """Added before the queue by every attempt at this provider."""
    error_share: float = 0.0
    """Share of attempts it fails, 0 to 1, drawn by the seed."""
    error_status: int = 503
    """What a failed attempt is answered with."""

    @property
    def groups(self) -> tuple[ReplicaGroup, ...]:
        """The replicas it begins with or that join; without those of autoscaling."""
        return (ReplicaGroup(count=self.replicas),) if isinstance(self.replicas, int) else self.replicas

    @property
    def most_replicas(self) -> int:
        """How many there may be at a time."""
        planned = sum(group.count for group in self.groups)
        return planned if self.autoscale is None else max(planned, self.autoscale.max_replicas)

    def __post_init__(self) -> None:
        """Refuse what cannot run, all faults at a time."""
        faults = [*self._out_of_range(), *self._inconsistent()]
        if faults:
            raise ConfigError(f"provider {self.name!r}: " + "; ".join(faults), hint=_HINT)

    def _out_of_range(self) -> list[str]:
        cold, scale = self.cold_start, self.autoscale
        at_least: list[tuple[str, float, float]] = [
            *((f"replicas[{place}].count", group.count, 1) for place, group in enumerate(self.groups)),
            *(
                (f"replicas[{place}].joins_after_s", group.joins_after_s, 0)
                for place, group in enumerate(self.groups)
                if group.joins_after_s is not None
            ),
            ("load_guard", self.load_guard, 0),
            ("cold_start.boot_s", cold.boot_s, 0),
            ("cold_start.warmup_s", cold.warmup_s, 0),
            ("cold_start.warmup_factor", cold.warmup_factor, 1),
            ("latency_ms", self.latency_ms, 0),
        ]
        if scale is not None:
            at_least += [
                ("autoscale.min_replicas", scale.min_replicas, 1),
                ("autoscale.max_replicas", scale.max_replicas, scale.min_replicas),
                ("autoscale.up_waiting", scale.up_waiting, 0),
                ("autoscale.up_after_s", scale.up_after_s, 0),
                ("autoscale.down_in_flight", scale.down_in_flight, 0),
                ("autoscale.down_after_s", scale.down_after_s, 0),
            ]
        return [f"{name} is {value:g}, expected ≥ {least:g}" for name, value, least in at_least if not value >= least]

    def _inconsistent(self) -> list[str]:
        faults = []
        if not 0 <= self.error_share <= 1:
            faults.append(f"error_share is {self.error_share:g}, expected 0 to 1")
        if self.error_status not in (429, 500, 502, 503, 504):
            faults.append(f"error_status is {self.error_status}, expected 429, 500, 502, 503 or 504")
        if not self.groups:
            faults.append("replicas is an empty list, expected at least one")
        if self.autoscale is not None:
            planned = sum(group.count for group in self.groups)
            if any(group.joins_after_s is not None for group in self.groups):
                faults.append("joins_after_s and autoscale cannot be combined")
            if not self.autoscale.min_replicas <= planned <= self.autoscale.max_replicas:
                faults.append(
                    f"{planned} replicas to begin with, expected min_replicas to max_replicas"
                    f" ({self.autoscale.min_replicas} to {self.autoscale.max_replicas})"
                )
        return faults


class ModelPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A model and who serves it: the first provider that does not refuse, in this order."""

    name: str
    providers: tuple[ProviderPlan, ...]

    @property
    def max_model_len(self) -> int:
        """Longest prompt and answer together that all of them serve, tokens."""
        return min(provider.profile.max_model_len for provider in self.providers)

    def limited(self, rates: Mapping[str, float]) -> "ModelPlan":
        """The same with these limits at the first provider."""
        first, *others = self.providers
        limits = msgspec.structs.replace(first.limits, **rates)
        return msgspec.structs.replace(self, providers=(msgspec.structs.replace(first, limits=limits), *others))

    def __post_init__(self) -> None:
        """Refuse a model without providers, or with two of one name."""
        if not self.providers:
            raise ConfigError(f"model {self.name!r}: providers is an empty list, expected at least one", hint=_HINT)
        names = [provider.name for provider in self.providers]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"model {self.name!r}: providers are named {', '.join(names)}, expected different names",
                hint="give each provider a `name`",
            )


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one simulated endpoint serves."""

    name: str
    description: str = ""
    models: tuple[ModelPlan, ...]
    """The first one also answers requests that name none."""
    faults: tuple[FaultShare, ...] = ()
    """What goes wrong with a share of the answers."""

    def __post_init__(self) -> None:
        """Refuse no models, or more replicas than one process can drive."""
        if not self.models:
            raise ConfigError(f"deployment {self.name!r}: models is empty, expected at least one", hint=_HINT)
        most = sum(provider.most_replicas for model in self.models for provider in model.providers)
        if most > _MOST_REPLICAS:
            raise ConfigError(
                f"deployment {self.name!r}: up to {most} replicas, expected at most {_MOST_REPLICAS}", hint=_HINT
            )

    def with_rates(self, requests_per_minute: float | None, tokens_per_minute: float | None) -> "Deployment":
        """The same with these rate limits at each model's first provider; None leaves a limit as it is."""
        rates = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
        given = {name: rate for name, rate in rates.items() if rate is not None}
        return msgspec.structs.replace(self, models=tuple(model.limited(given) for model in self.models))

    def with_faults(self, faults: Sequence[FaultShare]) -> "Deployment":
        """The same with these faults besides its own."""
        return msgspec.structs.replace(self, faults=(*self.faults, *faults))


def single(profile: Profile, model: str = DEFAULT_MODEL) -> Deployment:
    """One replica of this profile."""
    plan = ModelPlan(name=model, providers=(ProviderPlan(profile=profile),))
    return Deployment(name=profile.name, description=profile.description, models=(plan,))


def replica_prefix(deployment: Deployment, model: ModelPlan, provider: ProviderPlan) -> str:
    """What the names of a pool's replicas begin with: as much as tells pools apart."""
    parts = [
        *([model.name] if len(deployment.models) > 1 else []),
        *([provider.name] if len(model.providers) > 1 else []),
    ]
    return "-".join(parts) or "replica"


def outline(deployment: Deployment) -> str:
    """One line: its name, and for each model its providers, their profiles and replicas."""
    models = []
    for model in deployment.models:
        pools = []
        for provider in model.providers:
            now = sum(group.count for group in provider.groups if group.joins_after_s is None)
            most = "" if provider.most_replicas == now else f" to {provider.most_replicas}"
            plural = "" if provider.most_replicas == 1 else "s"
            name = f"{provider.name}: " if len(model.providers) > 1 else ""
            pools.append(f"{name}{now}{most} replica{plural} of {provider.profile.name}")
        models.append(f"model {model.name}: {', then '.join(pools)}")
    return f"deployment {deployment.name}; {'; '.join(models)}"


def deployment_presets() -> dict[str, Path]:
    """The deployments that ship, by name."""
    return {path.stem: path for path in sorted(_FOLDER.glob("*.yaml"))}


def load_deployment(source: str, *, model: str | None = None) -> Deployment:
    """The deployment of this name or in this YAML file; a profile's name or file gives one replica of it.

    `model` names the model of a deployment that has one and does not name it. ConfigError says what is wrong.
    """
    path = deployment_presets().get(source, Path(source))
    if not path.is_file():
        return single(load_profile(source), model or DEFAULT_MODEL)
    content = _content(path)
    if not content.keys() & _DEPLOYMENT_KEYS:
        return single(load_profile(source), model or DEFAULT_MODEL)
    try:
        return _deployment(content, path, model)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", hint=error.hint or _HINT) from error


_DEPLOYMENT_KEYS = {"models", "providers", "faults", *ProviderPlan.__struct_fields__} - {"name"}
"""A file with one of these keys is a deployment; any other is a profile."""


def _content(path: Path) -> dict[str, Any]:
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, OSError) as error:
        raise ConfigError(f"{path}: {error}", hint=_HINT) from error


def _deployment(content: dict[str, Any], path: Path, model: str | None) -> Deployment:
    head: dict[str, Any] = {
        "name": path.stem,
        **{key: content.pop(key) for key in ("name", "description", "faults") if key in content},
    }
    plans: tuple[ModelPlan, ...]
    if "models" not in content:
        plans = (_model(model or DEFAULT_MODEL, content, path.parent, ""),)
    else:
        models = _named(content.pop("models"))
        if content:
            raise ConfigError(f"beside models stands {', '.join(content)}, expected only name, description and faults")
        if model is not None:
            raise ConfigError(
                f"it names its models ({', '.join(models)}), so --model {model} has no meaning",
                hint="leave --model out; a client chooses one by name",
            )
        plans = tuple(_model(name, one, path.parent, f"models.{name}") for name, one in models.items())
    whole: dict[str, Any] = {**head, "models": plans}
    return _converted(whole, Deployment, "")


def _named(value: object) -> dict[str, dict[str, Any]]:
    models: dict[str, dict[str, Any]] = _converted(value, dict[str, dict[str, Any]], "models")
    return models


def _model(name: str, content: dict[str, Any], folder: Path, where: str) -> ModelPlan:
    """A model from its `providers`, or from the keys of its only one."""
    if "providers" not in content:
        return ModelPlan(name=name, providers=(_provider(content, folder, where),))
    others = [key for key in content if key != "providers"]
    if others:
        raise ConfigError(f"{where or 'the file'}: beside providers stands {', '.join(others)}, expected only them")
    place = f"{where}.providers" if where else "providers"
    providers = _converted(content["providers"], list[dict[str, Any]], place)
    return ModelPlan(
        name=name,
        providers=tuple(_provider(one, folder, f"{place}[{number}]") for number, one in enumerate(providers)),
    )


def _provider(content: Mapping[str, Any], folder: Path, where: str) -> ProviderPlan:
    place = f"{where}.profile" if where else "profile"
    profile = _profile(content.get("profile", "demo"), folder, place)
    return _converted({**content, "profile": profile}, ProviderPlan, where)


def _profile(value: object, folder: Path, where: str) -> Profile:
    """A preset's name, a file beside the deployment's, or parameters over a `preset` (by default `demo`)."""
    if isinstance(value, str):
        beside = folder / value
        return load_profile(str(beside) if beside.is_file() else value)
    parameters = _converted(value, dict[str, str | int | float | bool | None], where)
    base = load_profile(str(parameters.pop("preset", "demo")))
    return _converted({**msgspec.structs.asdict(base), **parameters}, Profile, where)


def _converted(value: object, kind: type[_T], where: str) -> _T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, _, inner = str(error).partition(" - at `$")
        inner = inner.rstrip("`")
        place = f"{where}{inner}" if where else inner.lstrip(".")
        raise ConfigError(f"{place}: {text}" if place else text, hint=_HINT) from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error), hint=error.hint) from error
