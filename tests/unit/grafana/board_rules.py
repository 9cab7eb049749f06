"""The rules our boards obey so that every Grafana from 11 to 13 imports them: one function names each breach."""

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from tokswarm.measure.schema import MEASUREMENTS, Measurement

CORE_PANELS = {"timeseries", "stat", "table", "heatmap", "bargauge", "state-timeline", "text", "xychart"}
DATA_SOURCE = {"type": "influxdb", "uid": "${ds}"}
KNOWN_MACROS = {"timeFilter", "__interval", "__interval_ms"}
_BY_NAME: dict[str, Measurement] = {measurement.name: measurement for measurement in MEASUREMENTS}
_FUNCTIONS = {
    "mean",
    "median",
    "max",
    "min",
    "sum",
    "count",
    "percentile",
    "last",
    "first",
    "top",
    "time",
    "fill",
    "now",
}
_TIMES = ("$timeFilter", "time > now() - 90d")
"""Each part of a query is bounded in time: by the picker, or where two runs are compared by a long past."""
_FORBIDDEN = re.compile(r"\b(SHOW DATABASES|CREATE|DELETE|DROP|INTO|HOLT_WINTERS|SAMPLE|ON)\b")


def problems(board: dict[str, Any]) -> list[str]:
    """Every breach, in words; an empty list is a good board."""
    return [*_whole(board), *_variables(board), *_annotations(board), *_panels(board), *_layout(board)]


def queries(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every query with where it stands."""
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]
    for annotation in board["annotations"]["list"]:
        yield f"annotation {annotation['name']}", annotation["target"]["query"]
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']}", target["query"]


def query_problems(query: str, variables: set[str]) -> list[str]:
    """What is wrong with one query: names that the schema lacks, forms that not every InfluxDB takes."""
    found = []
    measurements = re.findall(r'FROM "(\w+)"', query)
    if not measurements:
        return ["reads no measurement"]
    unknown = [name for name in measurements if name not in _BY_NAME]
    if unknown:
        return [f"unknown measurement {name}" for name in unknown]
    known = {name for m in measurements for name in (*_BY_NAME[m].tags, *(field.name for field in _BY_NAME[m].fields))}
    aliases = set(re.findall(r'AS "([^"]+)"', query))
    for name in re.findall(r'"([^"]+)"', query):
        if name not in known | aliases | set(measurements):
            found.append(f"{name} is no tag or field of {', '.join(measurements)}")
    for tag in re.findall(r'"(\w+)" =~', query):
        if not any(tag in _BY_NAME[m].tags for m in measurements):
            found.append(f"{tag} is no tag of {', '.join(measurements)}")
    found += [
        f"function {name} is not in the safe dialect"
        for name in re.findall(r"(\w+)\(", query)
        if name not in _FUNCTIONS
    ]
    found += [f"{word} does not work on every InfluxDB" for word in _FORBIDDEN.findall(query)]
    names = set(re.findall(r"\$(\w+)", query))
    found += [f"unknown variable ${name}" for name in sorted(names - KNOWN_MACROS - variables)]
    bounds = sum(query.count(time) for time in _TIMES)
    inner, _, outer = query.rpartition(")")
    if _makes_steps(inner) and any(time in outer for time in _TIMES):
        found.append("a time range around steps: InfluxDB answers nothing when the first step begins before it")
    for part in re.split(r"\bSELECT\b|\bSHOW\b", query)[1:]:
        if not any(time in part for time in _TIMES) and not part.rstrip().endswith("FROM ("):
            found.append("a part without $timeFilter")
    if query.startswith("SELECT") and query.count("SELECT") > bounds + _makes_steps(inner):
        found.append("a sub-query without $timeFilter")
    if _makes_steps(inner) and "fill(null)" in outer:
        found.append("empty steps from 1970 on")
    if "GROUP BY" in query and "time(" in query and "fill(" not in query:
        found.append("GROUP BY time without fill")
    if query.startswith("SHOW") and bounds != 1:
        found.append("a variable query has $timeFilter exactly once")
    return found


def _makes_steps(inner: str) -> bool:
    """Whether a sub-query groups by a time longer than the second that all its points lie on."""
    return bool(re.search(r"FROM \(SELECT .*GROUP BY time\((?!1s)", inner))


def _whole(board: dict[str, Any]) -> Iterator[str]:
    if board.get("id", 0) is not None:
        yield "id must be null"
    if not re.fullmatch(r"[a-z0-9-]{8,40}", board.get("uid", "")):
        yield "uid must be fixed, 8 to 40 characters"
    if board["schemaVersion"] != 41:
        yield "schemaVersion must be 41"
    for key in ("version", "__inputs", "__elements", "__requires", "libraryPanel"):
        if key in board:
            yield f"{key} must be absent"
    if board.get("timezone") != "browser":
        yield "timezone must be browser"
    reads_tokens = any('FROM "llm_token"' in query for _, query in queries(board))
    if board.get("refresh") not in (["", None] if reads_tokens else board["timepicker"]["refresh_intervals"]):
        yield "refresh must be one of the picker's, and none for a board that reads every token of its time range"
    if not any(link["includeVars"] and link["keepTime"] and "tokswarm" in link["tags"] for link in board["links"]):
        yield "no link to the other boards that keeps time and variables"
    if "tokswarm" not in board["tags"]:
        yield "the tag that the links look for is missing"


def _variables(board: dict[str, Any]) -> Iterator[str]:
    variables = board["templating"]["list"]
    first = variables[0]
    if (first["name"], first["type"], first["query"]) != ("ds", "datasource", "influxdb"):
        yield "the first variable must be the data source"
    missing = {"ds", "run", "class", "stage", "target", "worker"} - {variable["name"] for variable in variables}
    if missing:
        yield f"links from other boards carry {', '.join(sorted(missing))}, which are no variables here"
    for variable in variables[1:]:
        if not variable.get("description"):
            yield f"variable {variable['name']} has no description"
        if variable["type"] != "query":
            continue
        if variable.get("datasource") != DATA_SOURCE:
            yield f"variable {variable['name']} does not use the data source variable"
        if variable.get("refresh") != 2:
            yield f"variable {variable['name']} is not read again when the time range moves"
        if variable.get("includeAll") and (variable.get("allValue"), variable["current"]["value"]) != (
            ".*",
            ["$__all"],
        ):
            yield f"variable {variable['name']} does not begin with All"
    run = next((variable for variable in variables if variable["name"] == "run"), None)
    if run is None or run.get("sort") != 2 or run.get("multi") or "current" in run:
        yield "run must offer the newest run first and choose it by itself"


def _annotations(board: dict[str, Any]) -> Iterator[str]:
    if not board["annotations"]["list"]:
        yield "no annotations"
    for annotation in board["annotations"]["list"]:
        target = annotation["target"]
        if annotation["datasource"] != DATA_SOURCE or target["datasource"] != DATA_SOURCE:
            yield f"annotation {annotation['name']} does not use the data source variable"
        if not target["query"].startswith("SELECT") or not target.get("fromAnnotations"):
            yield f"annotation {annotation['name']} is no InfluxQL annotation"


def _panels(board: dict[str, Any]) -> Iterator[str]:
    names = {variable["name"] for variable in board["templating"]["list"]}
    ids = [panel["id"] for panel in board["panels"]]
    if len(ids) != len(set(ids)):
        yield "panel ids are not unique"
    for where, query in queries(board):
        for problem in query_problems(query, names):
            yield f"{where}: {problem}"
    for panel in board["panels"]:
        if panel["type"] == "row":
            continue
        title = panel.get("title") or f"panel {panel['id']}"
        if panel["type"] not in CORE_PANELS:
            yield f"{title}: {panel['type']} is no core panel"
        if not panel.get("title"):
            yield f"{title}: no title"
        if len(panel.get("description", "")) < 80:
            yield f"{title}: no description that says what it shows and what to do"
        if not panel["fieldConfig"]["defaults"].get("unit"):
            yield f"{title}: no unit"
        if "pluginVersion" in panel:
            yield f"{title}: pluginVersion must be absent"
        if not panel.get("interval"):
            yield f"{title}: no shortest step, so a data source's default of 10 s would hide seconds"
        if not panel.get("targets"):
            yield f"{title}: no query"
        if any(
            reference != DATA_SOURCE
            for reference in (panel.get("datasource"), *(t.get("datasource") for t in panel["targets"]))
        ):
            yield f"{title}: does not use the data source variable"
        if any(not target.get("rawQuery") for target in panel["targets"]):
            yield f"{title}: is no raw query"
        if len({target["refId"] for target in panel["targets"]}) != len(panel["targets"]):
            yield f"{title}: refIds are not unique"


def _layout(board: dict[str, Any]) -> Iterator[str]:
    boxes = [(panel["title"], panel["gridPos"]) for panel in board["panels"]]
    for title, box in boxes:
        if box["x"] + box["w"] > 24:
            yield f"{title}: wider than the grid"
    for (one, a), (other, b) in combinations(boxes, 2):
        if (
            a["x"] < b["x"] + b["w"]
            and b["x"] < a["x"] + a["w"]
            and a["y"] < b["y"] + b["h"]
            and b["y"] < a["y"] + a["h"]
        ):
            yield f"{one} and {other} overlap"
