"""A run's Parquet tables, cut to what is chosen on a board, and how they are compared with a database's answer."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl
from grafana_macros import TimeRange

from tokswarm.sink.token_budget import is_drawn

ALL_CLASSES = "_all"
S = 1_000_000_000
TAGS = ("class", "worker", "outcome", "stage", "target", "replica", "run", "kind")


DRAWN = pl.struct("request_id", share=pl.col("token_share").fill_null(1.0)).map_elements(
    lambda one: is_drawn(one["request_id"], one["share"]), return_dtype=pl.Boolean
)
"""Whether a request has its tokens in the database: a draw by its id, within the worker's budget."""


class Chosen(NamedTuple):
    """What stands in a board's variables (None: All), and the step of the panel."""

    step_s: int
    picked: Mapping[str, Sequence[str] | None] = {}
    during: TimeRange | None = None
    """The part of the run that is looked at, from a whole second to the end of one; None: all of it."""

    def of(self, tag: str) -> Sequence[str] | None:
        return self.picked.get(tag)


@lru_cache
def _table(folder: Path, name: str) -> pl.DataFrame:
    frame = pl.read_parquet(folder / f"{name}.parquet").with_columns(run=pl.lit(folder.name))
    return frame.rename({"class_name": "class"}) if "class_name" in frame.columns else frame


class Seen:
    """The tables of one run as far as they are chosen; `step` is the time bucket, s since 1970."""

    def __init__(self, folder: Path, chosen: Chosen, *, other: Path | None = None) -> None:
        self.folder = folder
        self.chosen = chosen
        self._other = other

    @cached_property
    def whole(self) -> "Seen":
        """The same run, whatever time is looked at."""
        return Seen(self.folder, self.chosen._replace(during=None))

    @cached_property
    def other(self) -> "Seen":
        """The run it is compared with, whole."""
        assert self._other is not None
        return Seen(self._other, self.chosen._replace(during=None))

    def _read(self, name: str) -> pl.DataFrame:
        return _table(self.folder, name)

    def _cut(self, frame: pl.DataFrame, *tags: str) -> pl.DataFrame:
        for tag in tags:
            values = self.chosen.of(tag)
            if values is not None:
                frame = frame.filter(pl.col(tag).is_in(list(values)))
        return frame

    def _stepped(self, frame: pl.DataFrame, time_ns: pl.Expr) -> pl.DataFrame:
        frame = frame.with_columns(time_ns.alias("time_ns"))
        if self.chosen.during is not None:
            from_ms, to_ms = self.chosen.during
            frame = frame.filter(pl.col("time_ns").is_between(from_ms * 1_000_000, to_ms * 1_000_000))
        return frame.with_columns(
            second=pl.col("time_ns") // S, step=pl.col("time_ns") // (self.chosen.step_s * S) * self.chosen.step_s
        )

    @cached_property
    def every_request(self) -> pl.DataFrame:
        """Whatever class, stage and target; at the moment each ended."""
        done = pl.col("sent_unix_ns") + pl.col("done_ns") - pl.col("sent_ns")
        return self._stepped(self._read("requests"), done)

    @cached_property
    def requests(self) -> pl.DataFrame:
        """Those chosen."""
        return self._cut(self.every_request, "class", "stage", "target")

    @property
    def of_any_target(self) -> pl.DataFrame:
        """Those of the classes and stages chosen: windows do not tell targets apart."""
        return self._cut(self.every_request, "class", "stage")

    @property
    def ok(self) -> pl.DataFrame:
        """Those chosen that ended ok."""
        return self.requests.filter(pl.col("outcome") == "ok")

    @cached_property
    def request_id(self) -> int:
        """The request to look at: of those with tokens in the database the one with the most."""
        drawn = self.every_request.filter(DRAWN)
        longest = drawn.sort(pl.col("arrivals_ns").list.len(), descending=True)
        return int(longest["request_id"][0])

    @cached_property
    def _fleet(self) -> pl.DataFrame:
        frame = self._cut(self._read("fleet"), "stage").rename(
            {"finished_total": "finished_per_s", "rate_limited": "rate_limited_per_s"}
        )
        frame = frame.with_columns(failed_per_s=pl.col("finished_per_s") - pl.col("finished_ok"))
        return self._stepped(frame, pl.col("second_unix") * S)

    @property
    def fleet(self) -> pl.DataFrame:
        """All classes together, one row per stage and second."""
        return self._fleet.filter(pl.col("class") == ALL_CLASSES)

    @property
    def fleet_by_class(self) -> pl.DataFrame:
        """One row per class, stage and second."""
        return self._cut(self._fleet.filter(pl.col("class") != ALL_CLASSES), "class")

    @cached_property
    def workers(self) -> pl.DataFrame:
        """What the workers chosen said of themselves."""
        return self._stepped(self._cut(self._read("workers"), "worker"), pl.col("second_unix") * S)

    @cached_property
    def server(self) -> pl.DataFrame:
        """What the replicas of the targets chosen said of themselves."""
        return self._stepped(self._cut(self._read("server"), "target"), pl.col("unix_ns"))

    def arrivals(self, *tags: str) -> pl.DataFrame:
        """One row per token arrival: when, how many tokens, the gap before it in ms (None: the first).

        Of requests whose `tags` are chosen, also those that end after the time looked at.
        """
        arrived = (
            self._cut(self._read("requests"), *tags)
            .filter(pl.col("arrivals_ns").list.len() > 0)
            .with_columns(gap_ns=pl.col("arrivals_ns").list.diff())
            .explode("arrivals_ns", "arrival_tokens", "gap_ns")
            .with_columns(
                before=pl.col("arrival_tokens").cast(pl.Int64).cum_sum().over("request_id") - pl.col("arrival_tokens")
            )
        )
        return self._stepped(arrived, pl.col("sent_unix_ns") + pl.col("arrivals_ns")).with_columns(
            gap_ms=pl.col("gap_ns") / 1e6
        )

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """All events, oldest first."""
        found: list[dict[str, Any]] = msgspec.json.decode((self.folder / "events.json").read_bytes())
        if self.chosen.during is None:
            return found
        from_ms, to_ms = self.chosen.during
        return [event for event in found if from_ms * 1_000_000 <= event["unix_ns"] <= to_ms * 1_000_000]


class Rows(NamedTuple):
    """What a table shows, row by row."""

    rows: list[dict[str, Any]]
    in_order: bool = True


Expected = pl.DataFrame | Rows

Cells = dict[tuple[Any, ...], Any]
"""Tags, time bucket and column to value."""


def cells_of_frame(frame: pl.DataFrame) -> Cells:
    """Each value of the frame that is not null by where it stands."""
    tags = sorted(set(frame.columns) & set(TAGS))
    return {
        (*((tag, row[tag]) for tag in tags), row.get("step"), column): value
        for row in frame.iter_rows(named=True)
        for column, value in row.items()
        if column not in (*tags, "step") and value is not None
    }


def cells_of_series(series: list[dict[str, Any]], *, by_time: bool) -> Cells:
    """Each value of a database's answer that is not null by where it stands."""
    cells: Cells = {}
    for one in series:
        tags = sorted(one.get("tags", {}).items())
        for row in one["values"]:
            values = dict(zip(one["columns"], row, strict=True))
            time_ns = values.pop("time")
            for column, value in values.items():
                if value is not None:
                    cells[*tags, time_ns // S if by_time else None, column] = value
    return cells


def rows_of_series(series: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of an answer, without their time."""
    return [
        {**one.get("tags", {}), **{k: v for k, v in zip(one["columns"], row, strict=True) if k != "time"}}
        for one in series
        for row in one["values"]
    ]


def equal(one: Any, other: Any) -> bool:
    """The same value; floats up to what the order of adding makes of them."""
    if isinstance(one, bool) or isinstance(other, bool):
        return int(one) == int(other)
    if isinstance(one, int | float) and isinstance(other, int | float):
        if isinstance(one, int) and isinstance(other, int):
            return one == other
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other)


def differences(got: Cells, want: Cells) -> list[str]:
    """Where an answer and the tables differ, in words; empty when they agree."""
    return [
        f"{key}: the database has {got.get(key)!r}, the tables have {want.get(key)!r}"
        for key in sorted(got.keys() | want.keys(), key=repr)
        if key not in got or key not in want or not equal(got[key], want[key])
    ]
