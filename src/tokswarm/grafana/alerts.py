"""Alert rules: limits missed, failures, a run that cannot be believed, records that do not reach the database.

One declaration in three shapes: a rule group as Grafana's API takes it, the same as a provisioning file, and the
pages. Rules take no template variables and name their data source, so they watch every run that is going on; the
run, and where it helps class or worker, come as labels.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml

from tokswarm.measure.schema import EVENT, FLEET, REQUEST, WORKER
from tokswarm.measure.window import ALL_CLASSES

GROUP = "tokswarm"
INTERVAL_S = 10
"""How often the rules are asked: a stage of a load test lasts seconds, and 10 s is the shortest Grafana takes."""

EXPRESSION = "__expr__"
"""The data source of what Grafana computes itself."""


class Watch(NamedTuple):
    """One query of a rule: its last value over a time range, for each combination of labels."""

    query: str
    range_s: int


class AlertRule(NamedTuple):
    """One rule: it fires while every watched value is above the threshold, for as long as it has to."""

    uid: str
    title: str
    watches: Sequence[Watch]
    above: float
    for_s: int
    severity: str
    summary: str
    description: str
    board_uid: str


_MISSED = (
    f'SELECT 1 - sum("slo_met") * 1.0 / count("slo_met") AS "missed" FROM "{REQUEST.name}"'  # noqa: S608 - our schema
    ' WHERE "slo_met" >= 0 AND $timeFilter GROUP BY "run", "class"'
)

RULES = (
    AlertRule(
        uid="tokswarm-slo-burn",
        title="tokswarm: limits are missed",
        watches=(Watch(_MISSED, 60), Watch(_MISSED, 300)),
        above=0.1,
        for_s=0,
        severity="warning",
        summary="{{ $labels.class }} of {{ $labels.run }}: {{ humanizePercentage $values.R0.Value }} of the requests of"
        " the last minute missed their limits",
        description="More than a tenth of the class's requests missed its limits in the last minute and in the last"
        " five: ten times what a promise of 99 % allows, and no single bad moment. Lower the load to the last stage"
        " whose goodput held, or find what bent: the latency board, then queue wait and cache churn.",
        board_uid="tokswarm-latency",
    ),
    AlertRule(
        uid="tokswarm-error-share",
        title="tokswarm: requests fail",
        watches=(
            Watch(
                'SELECT sum("failed_per_s") * 1.0 / sum("finished_per_s") AS "failed"'  # noqa: S608 - our schema
                f' FROM "{FLEET.name}" WHERE "class" = \'{ALL_CLASSES}\' AND $timeFilter GROUP BY "run"',
                60,
            ),
        ),
        above=0.05,
        for_s=20,
        severity="critical",
        summary="{{ $labels.run }}: {{ humanizePercentage $values.R0.Value }} of the requests of the last minute"
        " failed",
        description="More than one request in twenty of the last minute did not end ok. Latencies now describe the"
        " ones that got through. Kinds and texts are in Last failures on the overview; rate_limited alone means the"
        " endpoint sheds load on purpose.",
        board_uid="tokswarm-overview",
    ),
    AlertRule(
        uid="tokswarm-invalid-run",
        title="tokswarm: a run is invalid",
        watches=(
            Watch(
                f'SELECT count("text") AS "verdicts" FROM "{EVENT.name}" WHERE "kind" = \'verdict\''  # noqa: S608
                ' AND "title" = \'the run is invalid\' AND $timeFilter GROUP BY "run"',
                600,
            ),
        ),
        above=0,
        for_s=0,
        severity="warning",
        summary="{{ $labels.run }} is invalid: do not share its numbers",
        description="The master judged the run invalid when it ended: the load generator was the bottleneck, workers"
        " were lost, or records are missing. The reasons and the seconds are in Events of the run and on the"
        " generator-health board. Mend them and repeat the run.",
        board_uid="tokswarm-generator",
    ),
    AlertRule(
        uid="tokswarm-sink-backlog",
        title="tokswarm: records do not reach the database",
        watches=(
            Watch(
                f'SELECT min("sink_backlog_bytes") AS "backlog" FROM "{WORKER.name}"'  # noqa: S608 - our schema
                ' WHERE $timeFilter GROUP BY "run", "worker"',
                60,
            ),
        ),
        above=16 * 1024 * 1024,
        for_s=20,
        severity="warning",
        summary="{{ $labels.worker }} of {{ $labels.run }}: {{ humanize1024 $values.R0.Value }}B of records wait for"
        " the database",
        description="For a minute at least 16 MiB of records were logged on the worker and not in the database: boards"
        " lag behind. Nothing is lost: the log keeps all, and `tokswarm export RUN` sends what is left. Look at the"
        " database's disk and CPU; when it is away altogether, this rule cannot be asked and shows an error.",
        board_uid="tokswarm-generator",
    ),
)


def rule_group(*, data_source_uid: str, folder_uid: str) -> dict[str, Any]:
    """All rules as the API takes and gives them."""
    return {
        "title": GROUP,
        "folderUid": folder_uid,
        "interval": INTERVAL_S,
        "rules": [
            {**_rule(rule, data_source_uid), "orgID": 1, "folderUID": folder_uid, "ruleGroup": GROUP} for rule in RULES
        ],
    }


def provisioning_file(*, data_source_uid: str, folder: str) -> str:
    """All rules as a file below `provisioning/alerting`; its dollar signs are doubled, since Grafana fills it in."""
    group = {
        "orgId": 1,
        "name": GROUP,
        "folder": folder,
        "interval": f"{INTERVAL_S}s",
        "rules": [_rule(rule, data_source_uid) for rule in RULES],
    }
    text = yaml.safe_dump({"apiVersion": 1, "groups": [group]}, sort_keys=False, width=118, allow_unicode=True)
    return (
        "# tokswarm's alert rules, made by `python -m tokswarm.grafana.build dashboards` from src/tokswarm/grafana.\n"
        "# Copy to /etc/grafana/provisioning/alerting/. They ask the data source of the uid named here, and notify\n"
        "# whoever the notification policies of this Grafana name: the labels are product=tokswarm and severity.\n"
    ) + text.replace("$", "$$")


def _rule(rule: AlertRule, data_source_uid: str) -> dict[str, Any]:
    asked = [_asked(watch, place, data_source_uid) for place, watch in enumerate(rule.watches)]
    reduced = [_reduced(place) for place, _ in enumerate(rule.watches)]
    condition = " && ".join(f"$R{place} > {rule.above:g}" for place, _ in enumerate(rule.watches))
    return {
        "uid": rule.uid,
        "title": rule.title,
        "condition": "C",
        "data": [*asked, *reduced, _computed("C", {"type": "math", "expression": condition})],
        "noDataState": "OK",
        "execErrState": "Error",
        "for": f"{rule.for_s}s",
        "annotations": {
            "summary": rule.summary,
            "description": rule.description,
            "__dashboardUid__": rule.board_uid,
        },
        "labels": {"product": "tokswarm", "severity": rule.severity},
    }


def _asked(watch: Watch, place: int, data_source_uid: str) -> dict[str, Any]:
    ref_id = f"Q{place}"
    return {
        "refId": ref_id,
        "datasourceUid": data_source_uid,
        "relativeTimeRange": {"from": watch.range_s, "to": 0},
        "model": {
            "refId": ref_id,
            "datasource": {"type": "influxdb", "uid": data_source_uid},
            "rawQuery": True,
            "query": watch.query,
            "resultFormat": "time_series",
            **_STEPS,
        },
    }


def _reduced(place: int) -> dict[str, Any]:
    reduce = {
        "type": "reduce",
        "expression": f"Q{place}",
        "reducer": "last",
        "settings": {"mode": "dropNN"},
    }
    return _computed(f"R{place}", reduce)


def _computed(ref_id: str, model: dict[str, Any]) -> dict[str, Any]:
    return {
        "refId": ref_id,
        "datasourceUid": EXPRESSION,
        "relativeTimeRange": {"from": 0, "to": 0},
        "model": {"refId": ref_id, "datasource": {"type": EXPRESSION, "uid": EXPRESSION}, **model, **_STEPS},
    }


_STEPS = {"intervalMs": 1000, "maxDataPoints": 43200}
"""What Grafana would put in itself, so that a rule that is as it should be reads back the same."""
