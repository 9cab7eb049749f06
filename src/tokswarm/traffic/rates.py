"""What stands at a stage's `rate`: one rate, a list of them for a sweep, or a course it takes within the stage."""

from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from tokswarm.traffic.units import Duration, Rate, Written, dec_hook, enc_hook

Level = Annotated[float, Meta(ge=0)]


class Diurnal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A day's curve: levels at even distances over a period, straight lines between, then over again."""

    levels: Annotated[list[Level], Meta(min_length=2)]
    """Against each other, e.g. one for each hour; the last is followed by the first."""
    peak: Rate | None = None
    """The rate at the highest level; this or `mean`."""
    mean: Rate | None = None
    """The mean rate over a period; this or `peak`."""
    period: Duration | None = None
    """How long the levels last together; None: as long as the stage."""


class RateCourse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rate that changes within a stage: exactly one of a ramp (`from` and `to`), `steps` and `diurnal`."""

    from_: Rate | None = msgspec.field(name="from", default=None)
    """Where a ramp begins."""
    to: Rate | None = None
    """Where it ends, at the end of the stage; straight between."""
    steps: list[Rate] | None = None
    """Rates one after the other, each for an equal part of the stage, without waiting for open requests between."""
    diurnal: Diurnal | None = None


class Rates(Written):
    """One rate, a list of them (even of one) for a sweep, or a course."""

    __slots__ = ("_course", "_is_sweep", "_values")

    def __init__(self, values: tuple[Rate, ...], *, is_sweep: bool, course: RateCourse | None = None) -> None:
        self._values = values
        self._is_sweep = is_sweep
        self._course = course

    @classmethod
    def parse(cls, written: object) -> Self:
        """Read `12/s`, `[5/s, 10/s]` or `{from: 2/s, to: 40/s}`. ValueError as for a Rate."""
        if isinstance(written, dict):
            return cls((), is_sweep=False, course=msgspec.convert(written, RateCourse, dec_hook=dec_hook))
        if isinstance(written, list):
            if not written:
                raise ValueError("expected at least one rate, came an empty list")
            return cls(tuple(Rate.parse(item) for item in written), is_sweep=True)
        return cls((Rate.parse(written),), is_sweep=False)

    @property
    def values(self) -> tuple[Rate, ...]:
        """In the order written; none of a course."""
        return self._values

    @property
    def is_sweep(self) -> bool:
        """Whether it was written as a list."""
        return self._is_sweep

    @property
    def course(self) -> RateCourse | None:
        """How the rate changes within the stage; None: it does not."""
        return self._course

    def plain(self) -> Any:
        """As it is written in a mix."""
        if self._course is not None:
            return msgspec.to_builtins(self._course, enc_hook=enc_hook)
        texts = [str(rate) for rate in self._values]
        return texts if self._is_sweep else texts[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rates):
            return NotImplemented
        return (self._values, self._is_sweep, self._course) == (other._values, other._is_sweep, other._course)

    def __hash__(self) -> int:
        return hash((Rates, repr(self)))

    def __repr__(self) -> str:
        return f"Rates.parse({self.plain()!r})"
