"""Writes what Grafana and Kubernetes read of the dashboards and rules.

python -m k8s.monitoring.generate           write it
python -m k8s.monitoring.generate --check   fail where a file differs from what would be written
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from k8s.monitoring.dashboards import all_dashboards

FOLDER = Path(__file__).parent
RULES = ("recording", "alerts")
HEADER = "# Written from rules/*.yaml by `make monitoring`; do not edit.\n"


def files() -> dict[Path, str]:
    """Every generated file and its content."""
    encoder = JSONEncoder(indent=2, sort_keys=True)
    written = {
        FOLDER / "dashboards" / f"{board.uid}.json": encoder.encode(board) + "\n"
        for board in all_dashboards()
    }
    written[FOLDER / "prometheus-rule.yaml"] = HEADER + yaml.safe_dump(
        prometheus_rule(), sort_keys=False, width=100
    )
    return written


def prometheus_rule() -> dict[str, object]:
    """The rules as the Prometheus operator takes them."""
    groups = [group for name in RULES for group in rules(name)]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "antiphon", "labels": {"app.kubernetes.io/part-of": "antiphon"}},
        "spec": {"groups": groups},
    }


def rules(name: str) -> list[dict[str, object]]:
    """The groups of rules/`name`.yaml."""
    text = (FOLDER / "rules" / f"{name}.yaml").read_text(encoding="utf-8")
    groups: list[dict[str, object]] = yaml.safe_load(text)["groups"]
    return groups


def main(arguments: list[str]) -> int:
    """Write or check every file and return the exit code."""
    check = arguments == ["--check"]
    if arguments and not check:
        print(__doc__, file=sys.stderr)
        return 2
    stale = []
    for path, text in files().items():
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            stale.append(path.name)
        elif not check:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"stale: {', '.join(stale)}; run: make monitoring", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
