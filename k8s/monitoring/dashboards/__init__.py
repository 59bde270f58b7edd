"""The Grafana dashboards as code; the JSON beside it is written by `k8s.monitoring.generate`."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard
from k8s.monitoring.dashboards import learning, overview, rollouts, services, weights


def all_dashboards() -> list[Dashboard]:
    """Every dashboard, in the order in which they are read."""
    return [
        overview.dashboard(),
        learning.dashboard(),
        rollouts.dashboard(),
        services.dashboard(),
        weights.dashboard(),
    ]
