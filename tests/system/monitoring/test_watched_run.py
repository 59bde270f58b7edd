"""Dashboards, rules and alerts against a real Prometheus that watched a real training."""

from __future__ import annotations

import math
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest
from k8s.monitoring.picture import PANELS, draw
from k8s.monitoring.queries import metric_names, panel_queries, rule_queries
from tests.system.monitoring.prometheus import Series
from tests.system.monitoring.watched_run import Watched, watched_run

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

UNHAPPY = r',?\s*(grpc_code|result)[=!]~?"[^"]*"'
"""Matchers of what a healthy run has none of."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched_run(tmp_path_factory.mktemp("watched"), scrapes=10) as run:
        yield run


@pytest.fixture(scope="module")
def names(watched: Watched) -> set[str]:
    """The metrics that there are."""
    data = watched.prometheus.get("label/__name__/values", start=watched.since, end=watched.until)
    return set(data)


def values(series: list[Series]) -> list[float]:
    return [v for one in series for _, text in one["values"] if not math.isnan(v := float(text))]


def test_every_query_of_every_panel_parses_names_what_exists_and_returns_data(
    watched: Watched, names: set[str]
) -> None:
    wrong, asked = [], 0
    for query in panel_queries("20s"):
        asked += 1
        found = metric_names(query.expr)
        data = values(watched.prometheus.over(query.expr, watched.since, watched.until))
        if not data or not found <= names:
            wrong.append(f"{query.dashboard}, {query.panel}: {query.expr}: {found - names}")
        if not found and "ALERTS" not in query.expr:
            wrong.append(f"{query.dashboard}, {query.panel}: no metric in {query.expr}")
    assert not wrong, "\n".join(wrong)
    assert asked > 80


def test_every_rule_is_evaluated_and_names_what_exists(watched: Watched, names: set[str]) -> None:
    groups = watched.prometheus.get("rules")["groups"]
    health = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
    rules = dict(rule_queries())
    assert health == dict.fromkeys(rules, "ok")
    for name, expr in rules.items():
        assert metric_names(expr), name
        assert metric_names(expr) <= names, f"{name}: {metric_names(expr) - names}"


def test_recording_rules_and_what_alerts_select_have_data(watched: Watched) -> None:
    def data(query: str) -> list[float]:
        return values(watched.prometheus.over(query, watched.since, watched.until))

    for name, expr in rule_queries():
        if ":" in name:
            assert data(name), f"{name} recorded nothing"
        for selector in re.findall(r"[\w:]+\{[^}]*\}", expr):
            assert data(re.sub(UNHAPPY, "", selector)), f"{name}: nothing is {selector}"


def test_a_healthy_run_sets_off_no_alert(watched: Watched) -> None:
    alerts = watched.prometheus.over('ALERTS{alertstate="firing"}', watched.since, watched.until)
    assert [one["metric"] for one in alerts] == []


def test_what_every_process_tells_is_clean(watched: Watched) -> None:
    assert watched.metrics.keys() == {"agent-0", "agent-1", "reward", "transition", "learner"}
    for name, text in watched.metrics.items():
        done = subprocess.run(
            ["promtool", "check", "metrics"],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), f"{name}: {done.stderr}"
        assert "antiphon_build_info" in text
        assert "process_resident_memory_bytes" in text


def test_the_picture_is_drawn_from_what_prometheus_has(watched: Watched) -> None:
    file = watched.prometheus.targets_file.with_name("picture.svg")
    draw(watched.prometheus.url, file, since=watched.since, until=watched.until)
    root = ET.fromstring(file.read_text())
    space = "{http://www.w3.org/2000/svg}"
    titles = [text.text for text in root.iter(f"{space}text") if text.get("class") == "title"]
    assert titles == [title for _, title in PANELS]
    assert len(list(root.iter(f"{space}polyline"))) >= len(PANELS)
