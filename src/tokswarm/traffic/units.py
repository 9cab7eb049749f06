"""Durations and rates as people write them (`800ms`, `12/s`): values with a canonical text.

A bare number is refused: nobody should have to guess its unit. The hooks let msgspec carry such
types in any encoding as they are written, for which they must not be dataclasses: those it encodes itself.
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


_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kMG])")
_TIMES = {"k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
_PRICE = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*([kM])")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_SHARE_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*%\s*/\s*(s|m|h)")


def parse_count(text: str) -> int | None:
    """Read `5k`, `1.5M`, `2G` as a whole number; None when the text is nothing of the kind."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        return None
    value = Decimal(match[1]) * _TIMES[match[2]]
    return int(value) if value == value.to_integral_value() else None


def parse_percent(text: str) -> float | None:
    """Read `20%` as 0.2; None when the text is nothing of the kind."""
    match = _PERCENT.fullmatch(text.strip())
    return None if match is None else float(Decimal(match[1]) / 100)


class Written:
    """A value that people write as text, or as a list or mapping of such texts."""

    __slots__ = ()

    @classmethod
    def parse(cls, written: object) -> Self:
        """Read what was written. ValueError says what is wrong with it."""
        raise NotImplementedError

    def plain(self) -> Any:
        """As it is written."""
        return str(self)


@total_ordering
class Duration(Written):
    """A length of time ≥ 0, kept in whole nanoseconds."""

    __slots__ = ("_nanoseconds",)

    def __init__(self, nanoseconds: int) -> None:
        self._nanoseconds = nanoseconds

    @classmethod
    def parse(cls, written: object) -> Self:
        """Read `800ms`, `5s`, `1.5m`, `1h30m`. ValueError says what is wrong with anything else."""
        if isinstance(written, int | float) or (isinstance(written, str) and _BARE_NUMBER.fullmatch(written.strip())):
            raise ValueError(f"{written!r} has no unit; write a duration as {written}s or {written}ms")
        compact = written.strip() if isinstance(written, str) else ""
        parts = _DURATION_PART.findall(compact)
        if not parts or "".join(number + unit for number, unit in parts) != compact:
            raise ValueError(f"{written!r} is no duration; write it as 800ms, 5s, 2m, 1h or 1h30m")
        nanoseconds = sum(round(Decimal(number) * _NS_PER[unit]) for number, unit in parts)
        if nanoseconds > _LONGEST_NS:
            raise ValueError(f"{written!r} is longer than a year")
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
class Rate(Written):
    """Arrivals per second, > 0."""

    __slots__ = ("_per_s",)

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s

    @classmethod
    def parse(cls, written: object) -> Self:
        """Read `12/s`, `600/m`, `30/h`. ValueError says what is wrong with anything else."""
        if isinstance(written, int | float) or (isinstance(written, str) and _BARE_NUMBER.fullmatch(written.strip())):
            raise ValueError(f"{written!r} has no unit; write a rate as {written}/s or {written}/m")
        match = _RATE.fullmatch(written.strip() if isinstance(written, str) else "")
        if match is None:
            raise ValueError(f"{written!r} is no rate; write it as 12/s, 600/m or 30/h")
        per_s = float(match[1]) / _S_PER[match[2]]
        if not 0 < per_s < math.inf:
            raise ValueError(f"{written!r} is no rate; it must be above 0")
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


class ShareRate(Written):
    """A share of a whole in a time, > 0: `10%/m` is a tenth of it each minute."""

    __slots__ = ("_per_s",)

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s

    @classmethod
    def parse(cls, written: object) -> Self:
        """Read `10%/m`, `0.5%/s`, `20%/h`. ValueError says what is wrong with anything else."""
        match = _SHARE_RATE.fullmatch(written.strip() if isinstance(written, str) else "")
        if match is None:
            raise ValueError(f"{written!r} is no share in a time; write it as 10%/m, 1%/s or 50%/h")
        per_s = float(Decimal(match[1]) / 100) / _S_PER[match[2]]
        if not 0 < per_s <= 1:
            raise ValueError(f"{written!r} must be above 0% and at most 100%/s")
        return cls(per_s)

    @property
    def per_s(self) -> float:
        """The share in a second."""
        return self._per_s

    def __eq__(self, other: object) -> bool:
        return self._per_s == other._per_s if isinstance(other, ShareRate) else NotImplemented

    def __hash__(self) -> int:
        return hash((ShareRate, self._per_s))

    def __str__(self) -> str:
        """The canonical text: per minute, unless that is more than the whole, or only another has a short number."""
        for unit in ("m", "s", "h"):
            number = f"{Decimal(f'{self._per_s * 100 * _S_PER[unit]:.10g}'):f}"
            if Decimal(number) <= 100 and float(Decimal(number) / 100) / _S_PER[unit] == self._per_s:
                return f"{number}%/{unit}"
        return f"{Decimal(repr(self._per_s)) * 100:f}%/s"

    def __repr__(self) -> str:
        return f"ShareRate.parse({str(self)!r})"


class TokenPrice(Written):
    """US dollars for tokens, ≥ 0, as price lists give them: `0.15/M` is 15 cents for a million."""

    __slots__ = ("_usd_per_million",)

    def __init__(self, usd_per_million: float) -> None:
        self._usd_per_million = usd_per_million

    @classmethod
    def parse(cls, written: object) -> Self:
        """Read `0.15/M` or `0.002/k`. ValueError says what is wrong with anything else."""
        if isinstance(written, int | float) or (isinstance(written, str) and _BARE_NUMBER.fullmatch(written.strip())):
            raise ValueError(f"{written!r} does not say for how many tokens; write {written}/M for a million")
        match = _PRICE.fullmatch(written.strip() if isinstance(written, str) else "")
        if match is None:
            raise ValueError(f"{written!r} is no price; write USD for a million tokens as 0.15/M")
        return cls(float(Decimal(match[1]) * (1 if match[2] == "M" else 1000)))

    @property
    def usd_per_million(self) -> float:
        """For a million tokens."""
        return self._usd_per_million

    def usd(self, tokens: float) -> float:
        """What so many tokens cost."""
        return tokens * self._usd_per_million / 1e6

    def __eq__(self, other: object) -> bool:
        return self._usd_per_million == other._usd_per_million if isinstance(other, TokenPrice) else NotImplemented

    def __hash__(self) -> int:
        return hash((TokenPrice, self._usd_per_million))

    def __str__(self) -> str:
        """The canonical text: for a million."""
        return f"{Decimal(repr(self._usd_per_million)):f}/M"

    def __repr__(self) -> str:
        return f"TokenPrice.parse({str(self)!r})"


def enc_hook(value: Any) -> Any:
    """Turn our types into what msgspec can encode; TypeError for any other type."""
    if isinstance(value, Written):
        return value.plain()
    raise TypeError(f"{type(value).__name__} cannot be encoded")


def dec_hook(type_: type, value: Any) -> Any:
    """Turn decoded text back into our types; ValueError for a wrong text, TypeError for any other type."""
    if issubclass(type_, Written):
        return type_.parse(value)
    raise TypeError(f"{type_.__name__} cannot be decoded")
