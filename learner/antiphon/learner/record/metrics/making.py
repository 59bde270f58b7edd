"""How the metrics of a learner are made: one prefix, one registry."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "antiphon_learner_"
SECONDS_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)


class Maker:
    """Makes metrics in one registry, their names behind the learner's prefix.

    Args:
        registry: Where they are exported from.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """What only grows."""
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """What is at the moment."""
        return Gauge(PREFIX + name, text, labels, registry=self.registry)

    def histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        """How often which values came."""
        return Histogram(PREFIX + name, text, labels, buckets=buckets, registry=self.registry)
