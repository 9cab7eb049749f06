"""What the parts of a metrics text are called: host and port, and whatever tells them apart."""

from collections.abc import Collection

from tokswarm.scrape.reading import Part

_ALWAYS = ("provider", "replica", "pod")
"""Labels that name a replica as such."""


class PartNames:
    """Names for the parts of one text; a part keeps its name whatever comes later."""

    def __init__(self, place: str) -> None:
        """`place` is the host and port of the text."""
        self.place = place
        self._names: dict[Part, str] = {}

    def name(self, part: Part, parts: Collection[Part]) -> str:
        """The name of a part among all parts of the text."""
        known = self._names.get(part)
        if known is None:
            known = self._names[part] = self._new(part, {*parts, *self._names} - {part})
        return known

    def _new(self, part: Part, others: set[Part]) -> str:
        engines = {other.engine for other in others}
        labels = [
            f"{label} {value}" if label not in _ALWAYS else value
            for label, value in part.identity
            if label in _ALWAYS
            or any(dict(other.identity).get(label) != value for other in others if other.engine == part.engine)
        ]
        words = [self.place, *([part.engine] if engines - {part.engine} else []), *labels]
        name = " ".join(words)
        taken = set(self._names.values())
        if name not in taken:
            return name
        return next(numbered for n in range(2, len(taken) + 3) if (numbered := f"{name} ({n})") not in taken)
