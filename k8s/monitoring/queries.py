"""The queries of the dashboards and rules, with what Grafana puts in for its variables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from k8s.monitoring.generate import FOLDER, RULES, rules

_VARIABLE = re.compile(r"\$(namespace|job|agent|turn)\b")
_OURS = re.compile(
    r"(?<![\w:])(?:antiphon_|grpc_server_|grpc_client_|process_|agent:|method:|replica:)[\w:]*"
)
_SELECTED = re.compile(r"[a-zA-Z_:][\w:]*(?=[{\[])")


@dataclass(frozen=True)
class PanelQuery:
    """One query of a panel, as Prometheus takes it."""

    dashboard: str
    panel: str
    expr: str
    legend: str
    unit: str


def panel_queries(interval: str) -> Iterator[PanelQuery]:
    """Every query of every committed dashboard, for all namespaces, jobs, agents and turns.

    Args:
        interval: In place of `$__rate_interval`, for example "1m".
    """
    for path in sorted((FOLDER / "dashboards").glob("*.json")):
        dashboard = json.loads(path.read_text(encoding="utf-8"))
        for panel in dashboard["panels"]:
            unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "none")
            for target in panel.get("targets", ()):
                expr = _VARIABLE.sub(".*", target["expr"].replace("$__rate_interval", interval))
                yield PanelQuery(
                    dashboard["title"], panel["title"], expr, target["legendFormat"], unit
                )


def rule_queries() -> Iterator[tuple[str, str]]:
    """Name and expression of every recording rule and alert."""
    for name in RULES:
        for group in rules(name):
            for rule in group["rules"]:  # type: ignore[attr-defined]
                yield rule.get("record") or rule["alert"], rule["expr"]


def metric_names(expr: str) -> set[str]:
    """The metrics that an expression names."""
    bare = re.sub(r'"[^"]*"', "", expr)
    return {name for pattern in (_OURS, _SELECTED) for name in pattern.findall(bare)} - {"ALERTS"}
