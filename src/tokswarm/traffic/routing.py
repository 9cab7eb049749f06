"""Which of a mix's targets the requests of each class go to.

The choice has a seeded stream of its own: classes, lengths and times are the same whatever the targets are.
"""

import random
from collections.abc import Sequence

from tokswarm.traffic.distribution import Weighted
from tokswarm.traffic.mix import Mix, NamedTarget, Target, TrafficClass
from tokswarm.traffic.seed import mixed_seed

_TARGETS = 3
"""Keeps this stream apart from those of the schedule."""


class Routing:
    """Where tickets go."""

    def __init__(self, mix: Mix) -> None:
        self._seed = mixed_seed(mix.seed, _TARGETS)
        self._rng = random.Random()  # noqa: S311 - reseeded for each ticket, to be reproducible
        self.is_mirrored = mix.split == "mirror"
        """Every ticket goes to each target of its class, else to one of them."""
        self._places = [places_of_class(mix, one) for one in mix.classes]
        self._choices = [
            Weighted([weight_of(target) if place in places else 0.0 for place, target in enumerate(mix.all_targets)])
            for places in self._places
        ]

    def targets_of(self, class_index: int, stage_index: int, index: int) -> tuple[int, ...]:
        """The places of the targets that a ticket of the stage goes to: one, or of mirrored traffic all of its class.

        All turns of a session go where its first one does.
        """
        places = self._places[class_index]
        if self.is_mirrored or len(places) == 1:
            return places
        self._rng.seed(mixed_seed(self._seed, stage_index, index))
        return (self._choices[class_index].draw(self._rng),)


def places_of_class(mix: Mix, one: TrafficClass) -> tuple[int, ...]:
    """The places of the targets that a class may go to."""
    if one.target is None:
        return tuple(range(len(mix.all_targets)))
    names = [one.target] if isinstance(one.target, str) else one.target
    return tuple(place for place, target in enumerate(mix.targets or ()) if target.name in names)


def places_line(targets: Sequence[Target]) -> str:
    """Where requests go, for people: one address, or names with addresses."""
    return ", ".join(
        f"{each.name} {each.base_url}" if isinstance(each, NamedTarget) else each.base_url for each in targets
    )


def targets_reached(mix: Mix, class_weights: Sequence[float]) -> set[int]:
    """The places of the targets that requests of classes with these weights may go to."""
    return {
        place
        for one, weight in zip(mix.classes, class_weights, strict=True)
        if weight > 0
        for place in places_of_class(mix, one)
    }


def weight_of(target: Target) -> float:
    """Its share against the others."""
    return target.weight if isinstance(target, NamedTarget) else 1.0
