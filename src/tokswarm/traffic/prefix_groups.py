"""The groups of a shared prefix: which one a request belongs to, and which text the group has by then. Pure.

With churn a group is replaced at even distances of time, and the groups are spread evenly over that
distance in a seeded order: in any time the share that the mix asks for is replaced, to within one group.
The time is all that a text depends on, so that workers agree without hearing of each other.
"""

import random
from typing import NamedTuple

from tokswarm.traffic.distribution import Weighted
from tokswarm.traffic.mix import SharedPrefix
from tokswarm.traffic.permutation import Permutation
from tokswarm.traffic.plan import PlannedStage


class GroupText(NamedTuple):
    """A group's text at an instant."""

    group: int
    generation: int
    """How often the group has been replaced by then."""


class PrefixGroups:
    """The groups of one class."""

    def __init__(self, prefix: SharedPrefix, seed: int) -> None:
        """`seed`: orders the replacements."""
        self.tokens = prefix.tokens
        self._groups = prefix.groups
        self._popularity = Weighted([rank**-prefix.popularity.zipf for rank in range(1, prefix.groups + 1)])
        self._life_ns = None if prefix.churn is None else round(1e9 / prefix.churn.per_s)
        """From one replacement of a group to its next."""
        self._order = None if prefix.churn is None else Permutation(prefix.groups, seed)

    def draw(self, rng: random.Random, at_ns: int) -> GroupText:
        """The group of a request, by its popularity, and its text at this time of the run's stages."""
        group = self._popularity.draw(rng)
        return GroupText(group, self.generation(group, at_ns))

    def generation(self, group: int, at_ns: int) -> int:
        """How often the group has been replaced by then."""
        if self._life_ns is None or self._order is None:
            return 0
        place = self._order.at(group)
        # The first replacement of the group at `place` is at life * (place + 1) / groups.
        return (at_ns * self._groups + self._life_ns * (self._groups - 1 - place)) // (self._life_ns * self._groups)

    def text_number(self, text: GroupText) -> int:
        """One for each text that any group ever has."""
        return text.generation * self._groups + text.group


def stage_begins_ns(stages: list[PlannedStage], stage_index: int) -> int:
    """When a stage begins in the time of the run's stages: pauses between them do not count, each has its whole time.

    Stages that are decided while the run goes on stand after those of the plan.
    """
    return round(sum(stage.duration_s for stage in stages[:stage_index]) * 1e9)
