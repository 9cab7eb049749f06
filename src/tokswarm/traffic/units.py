"""Durations and rates as people write them (`800ms`, `12/s`): values with a canonical text.

A bare number is refused: nobody should have to guess its unit. The hooks let msgspec carry both
types in any encoding as their text, for which they must not be dataclasses: those it encodes itself.
"""

import math
import re
from decimal import Decimal
from functools import total_ordering
from typing import Any, Self

_NS_PER = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)")
_S_PER = {"s": 1, "m": 60, "h": 3600}
_RATE = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*/\s*(s|m|h)")
_BARE_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
_LONGEST_NS = 366 * 24 * _NS_PER["h"]


@total_ordering
class Duration:
    """A length of time ≥ 0, kept in whole nanoseconds."""

    __slots__ = ("_nanoseconds",)

    def __init__(self, nanoseconds: int) -> None:
        self._nanoseconds = nanoseconds

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read `800ms`, `5s`, `1.5m`, `1h30m`. ValueError says what is wrong with anything else."""
        if isinstance(text, int | float) or (isinstance(text, str) and _BARE_NUMBER.fullmatch(text.strip())):
            raise ValueError(f"{text!r} has no unit; write a duration as {text}s or {text}ms")
        compact = text.strip() if isinstance(text, str) else ""
        parts = _DURATION_PART.findall(compact)
        if not parts or "".join(number + unit for number, unit in parts) != compact:
            raise ValueError(f"{text!r} is no duration; write it as 800ms, 5s, 2m, 1h or 1h30m")
        nanoseconds = sum(round(Decimal(number) * _NS_PER[unit]) for number, unit in parts)
        if nanoseconds > _LONGEST_NS:
            raise ValueError(f"{text!r} is longer than a year")
        return cls(nanoseconds)

    @property
    def nanoseconds(self) -> int:
        """Its length."""
        return self._nanoseconds

    @property
    def seconds(self) -> float:
        """The same in seconds."""
        return self._nanoseconds / 1e9

    def __eq__(self, other: object) -> bool:
        return self._nanoseconds == other._nanoseconds if isinstance(other, Duration) else NotImplemented

    def __lt__(self, other: "Duration") -> bool:
        return self._nanoseconds < other._nanoseconds

    def __hash__(self) -> int:
        return hash((Duration, self._nanoseconds))

    def __str__(self) -> str:
        """The canonical text: the largest unit that gives a whole number, else microseconds."""
        for unit in ("h", "m", "s", "ms"):
            whole, rest = divmod(self.nanoseconds, _NS_PER[unit])
            if rest == 0 and (whole > 0 or unit == "s"):
                return f"{whole}{unit}"
        whole, rest = divmod(self.nanoseconds, _NS_PER["us"])
        return f"{whole}us" if rest == 0 else f"{whole}.{rest:03d}us"

    def __repr__(self) -> str:
        return f"Duration.parse({str(self)!r})"


@total_ordering
class Rate:
    """Arrivals per second, > 0."""

    __slots__ = ("_per_s",)

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read `12/s`, `600/m`, `30/h`. ValueError says what is wrong with anything else."""
        if isinstance(text, int | float) or (isinstance(text, str) and _BARE_NUMBER.fullmatch(text.strip())):
            raise ValueError(f"{text!r} has no unit; write a rate as {text}/s or {text}/m")
        match = _RATE.fullmatch(text.strip() if isinstance(text, str) else "")
        if match is None:
            raise ValueError(f"{text!r} is no rate; write it as 12/s, 600/m or 30/h")
        per_s = float(match[1]) / _S_PER[match[2]]
        if not 0 < per_s < math.inf:
            raise ValueError(f"{text!r} is no rate; it must be above 0")
        return cls(per_s)

    @property
    def per_s(self) -> float:
        """How many in a second."""
        return self._per_s

    def __eq__(self, other: object) -> bool:
        return self._per_s == other._per_s if isinstance(other, Rate) else NotImplemented

    def __lt__(self, other: "Rate") -> bool:
        return self._per_s < other._per_s

    def __hash__(self) -> int:
        return hash((Rate, self._per_s))

    def __str__(self) -> str:
        """The canonical text: per second, unless only per minute or hour has a short number."""
        for unit, seconds in _S_PER.items():
            number = f"{self.per_s * seconds:.10g}"
            if float(number) / seconds == self.per_s:
                return f"{number}/{unit}"
        return f"{self.per_s!r}/s"

    def __repr__(self) -> str:
        return f"Rate.parse({str(self)!r})"


class Rates:
    """What stands at a stage's `rate`: one rate, or a list of them (even of one) for a sweep."""

    __slots__ = ("_is_sweep", "_values")

    def __init__(self, values: tuple[Rate, ...], *, is_sweep: bool) -> None:
        self._values = values
        self._is_sweep = is_sweep

    @classmethod
    def parse(cls, written: object) -> Self:
        """Read `12/s` or `[5/s, 10/s]`. ValueError as for a Rate."""
        if isinstance(written, list):
            if not written:
                raise ValueError("expected at least one rate, came an empty list")
            return cls(tuple(Rate.parse(item) for item in written), is_sweep=True)
        return cls((Rate.parse(written),), is_sweep=False)

    @property
    def values(self) -> tuple[Rate, ...]:
        """In the order written."""
        return self._values

    @property
    def is_sweep(self) -> bool:
        """Whether it was written as a list."""
        return self._is_sweep

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rates):
            return NotImplemented
        return (self._values, self._is_sweep) == (other._values, other._is_sweep)

    def __hash__(self) -> int:
        return hash((Rates, self._values, self._is_sweep))

    def __repr__(self) -> str:
        written = [str(rate) for rate in self._values]
        return f"Rates.parse({written if self._is_sweep else written[0]!r})"


def enc_hook(value: Any) -> Any:
    """Turn our types into what msgspec can encode; TypeError for any other type."""
    if isinstance(value, Duration | Rate):
        return str(value)
    if isinstance(value, Rates):
        texts = [str(rate) for rate in value.values]
        return texts if value.is_sweep else texts[0]
    raise TypeError(f"{type(value).__name__} cannot be encoded")


def dec_hook(type_: type, value: Any) -> Any:
    """Turn decoded text back into our types; ValueError for a wrong text, TypeError for any other type."""
    if issubclass(type_, Duration | Rate | Rates):
        return type_.parse(value)
    raise TypeError(f"{type_.__name__} cannot be decoded")
