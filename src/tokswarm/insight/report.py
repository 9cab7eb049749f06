"""From a run's folder to its report: the one module here that touches files."""

import os
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from tokswarm.errors import ReportError
from tokswarm.insight import tables
from tokswarm.insight.cliff_list import read_cliffs
from tokswarm.insight.curve_page import curve_page
from tokswarm.insight.measures import Measures
from tokswarm.insight.run_file import RUN_FILE, RunFile
from tokswarm.insight.server_stage import server_stages
from tokswarm.insight.summary import SCHEMA_VERSION, Summary, summarise
from tokswarm.traffic.units import dec_hook

REQUESTS_FILE = "requests.parquet"
WORKERS_FILE = "workers.parquet"
FLEET_FILE = "fleet.parquet"
SERVER_FILE = "server.parquet"
SUMMARY_FILE = "summary.json"
CURVE_FILE = "curve.html"


def write_report(run_dir: Path) -> Summary:
    """Read `run.json` and the Parquet files of a run and write `summary.json` and `curve.html` beside them.

    Tables that are not there count as empty and are named in `missing`. ReportError without a
    readable `run.json`, or with tables of another version.
    """
    run = read_run_file(run_dir / RUN_FILE)
    absent = [name for name in (REQUESTS_FILE, WORKERS_FILE, FLEET_FILE) if not (run_dir / name).is_file()]
    requests = _open_table(run_dir / REQUESTS_FILE, tables.REQUESTS)
    workers = _open_table(run_dir / WORKERS_FILE, tables.WORKERS)
    fleet = None if FLEET_FILE in absent else _open_table(run_dir / FLEET_FILE, tables.FLEET)
    try:
        summary = summarise(run, requests, workers, fleet)
        servers = tables.conform(_open_table(run_dir / SERVER_FILE, tables.SERVER), tables.SERVER, "server").collect()
        summary = msgspec.structs.replace(
            summary,
            cliffs=read_cliffs(run_dir, run.stage_times),
            servers=server_stages(servers, run.stage_times),
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(run_dir, error) from error
    if absent:
        summary = msgspec.structs.replace(summary, missing=[f"no {name}" for name in absent] + summary.missing)
    _write(run_dir / SUMMARY_FILE, encode_summary(summary))
    _write(run_dir / CURVE_FILE, curve_page(summary).encode())
    return summary


def encode_summary(summary: Summary) -> bytes:
    """The summary as JSON for people and programs: indented, keys in a fixed order."""
    content = msgspec.to_builtins(summary)
    content["stages"] = [_in_reading_order(stage) for stage in content["stages"]]
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def _in_reading_order(stage: dict[str, Any]) -> dict[str, Any]:
    """What a stage is, then what was measured of it, then its classes: a subclass has its own fields last."""
    measured = Measures.__struct_fields__
    identity = [key for key in stage if key not in measured and key != "classes"]
    return {key: stage[key] for key in (*identity, *measured, "classes")}


def read_summary(path: Path) -> Summary:
    """Read a `summary.json`, or the one in a run's folder. ReportError when there is none of this version."""
    path = path / SUMMARY_FILE if path.is_dir() else path
    content = _read(path)
    try:
        version = msgspec.json.decode(content, type=_Versioned).schema_version
        if version != SCHEMA_VERSION:
            raise ReportError(
                f"{path}: schema_version is {version}, this tokswarm reads {SCHEMA_VERSION}",
                hint="write it again from the run's folder with `tokswarm report`",
            )
        return msgspec.json.decode(content, type=Summary)
    except msgspec.MsgspecError as error:
        raise ReportError(f"{path}: no summary: {error}", hint="write it again with `tokswarm report`") from error


def read_run_file(path: Path) -> RunFile:
    """Read a `run.json`. ReportError when there is none of this version."""
    try:
        return msgspec.json.decode(_read(path), type=RunFile, dec_hook=dec_hook)
    except msgspec.MsgspecError as error:
        raise ReportError(
            f"{path}: not a run of this version of tokswarm: {error}", hint="report it with the version that wrote it"
        ) from error


class _Versioned(msgspec.Struct):
    schema_version: int


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}", hint="a run's folder has run.json and Parquet files") from error


def _open_table(path: Path, columns: dict[str, pl.DataType]) -> pl.LazyFrame:
    """A table that is read as it is used; an empty one when the file is not there."""
    if not path.is_file():
        return tables.empty(columns).lazy()
    try:
        pl.read_parquet_schema(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from error
    return pl.scan_parquet(path)


def _unreadable(path: Path, error: Exception) -> ReportError:
    return ReportError(
        f"{path}: no readable Parquet: {error}",
        hint="delete the Parquet files and report the run again: they are made from the record logs in its folder",
    )


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: a reader never meets half a file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)
