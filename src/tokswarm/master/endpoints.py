"""Looks at every target of a mix before any load, and says which of them a finding is about where there are several."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from tokswarm.errors import PreflightError
from tokswarm.traffic.context import context_notes
from tokswarm.traffic.mix import Mix, NamedTarget, Target
from tokswarm.traffic.plan import Endpoint, PlannedStage, Replay, TokenFit
from tokswarm.traffic.routing import places_of_class
from tokswarm.traffic.schedule import REPLAY_CLASS_INDEX, stage_class_weights


class PreflightResult(Protocol):
    """What the preflight found out about a target."""

    @property
    def model(self) -> str:
        """The model that will be asked for."""
        ...

    @property
    def fit(self) -> TokenFit:
        """How words become tokens there."""
        ...

    @property
    def dropped_fields(self) -> list[str]:
        """Optional request fields that are refused there."""
        ...

    @property
    def context_tokens(self) -> int | None:
        """Longest prompt and answer together; None: the endpoint does not say."""
        ...

    @property
    def notes(self) -> list[str]:
        """What a reader of the run should know."""
        ...


def look_at_targets(
    mix: Mix, stages: list[PlannedStage], preflight: Callable[[Mix, Target], PreflightResult]
) -> tuple[list[Endpoint], list[str]]:
    """What was found out about each target, and the notes on them. PreflightError for one that does not do."""
    endpoints, notes = [], []
    for place, target in enumerate(mix.all_targets):
        whose = f"target {target.name}: " if isinstance(target, NamedTarget) else ""
        try:
            found = preflight(mix, target)
            said = [*found.notes, *context_notes(mix, stages_of_target(mix, stages, place), found.context_tokens)]
        except PreflightError as error:
            raise PreflightError(f"{whose}{error}", hint=error.hint) from error
        endpoints.append(Endpoint(model=found.model, fit=found.fit, dropped_fields=found.dropped_fields))
        notes += [f"{whose}{note}" for note in said]
    return endpoints, notes


def stages_of_target(mix: Mix, stages: list[PlannedStage], place: int) -> list[PlannedStage]:
    """The stages as far as they concern one target: only with the classes that go to it."""
    goes = [place in places_of_class(mix, one) for one in mix.classes]
    concerned = []
    for stage in stages:
        if isinstance(stage.load, Replay):
            if goes[REPLAY_CLASS_INDEX]:
                concerned.append(stage)
            continue
        weights = [weight if here else 0.0 for weight, here in zip(stage_class_weights(mix, stage), goes, strict=True)]
        if any(weights):
            concerned.append(msgspec.structs.replace(stage, class_weights=weights))
    return concerned
