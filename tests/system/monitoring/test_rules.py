"""Rules and alerts on made-up series: each fires where it should, and not on a healthy run."""

from __future__ import annotations

import subprocess

import pytest
import yaml
from k8s.monitoring.generate import FOLDER, RULES, rules

pytestmark = pytest.mark.system

TESTS = FOLDER / "rules" / "tests" / "alerts.yaml"


def promtool(*arguments: str) -> str:
    done = subprocess.run(
        ["promtool", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_rules_are_sound() -> None:
    files = [str(FOLDER / "rules" / f"{name}.yaml") for name in RULES]
    assert promtool("check", "rules", "--lint-fatal", *files).count("SUCCESS") == len(RULES)


def test_alerts_fire_where_they_should_and_only_there() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(TESTS))


def test_every_alert_is_shown_to_fire_and_to_be_silent_on_a_healthy_run() -> None:
    alerts = {rule["alert"] for group in rules("alerts") for rule in group["rules"]}
    healthy, *others = yaml.safe_load(TESTS.read_text())["tests"]
    asked = [test for test in healthy["alert_rule_test"] if not test.get("exp_alerts")]
    assert {test["alertname"] for test in asked} == alerts
    fired = [test for one in others for test in one["alert_rule_test"] if test.get("exp_alerts")]
    assert {test["alertname"] for test in fired} == alerts
