"""What a scrape finds, whenever it comes."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Gauge

from antiphon.services.generation.metrics import GenerationMetrics


def agents(registry: CollectorRegistry) -> list[str]:
    """The agents that a scrape finds in the info metric."""
    return [
        sample.labels["agent"]
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "antiphon_generation_info"
    ]


def test_whom_the_service_plays_is_there_in_every_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape right after a series has gone still finds one, and only what changes is told."""
    registry = CollectorRegistry()
    metrics = GenerationMetrics(registry)
    scrapes: list[list[str]] = []

    def scraped_after(name: str) -> None:
        original = getattr(Gauge, name)

        def wrapper(gauge: Gauge, *args: str) -> None:
            original(gauge, *args)
            scrapes.append(agents(registry))

        monkeypatch.setattr(Gauge, name, wrapper)

    metrics.tell_info(None, "model", "transformers")
    for name in ("clear", "remove"):
        scraped_after(name)
    assert agents(registry) == [""]
    metrics.tell_info(1, "model", "transformers")
    metrics.tell_info(1, "model", "transformers")
    assert scrapes == [["1"]]
    assert agents(registry) == ["1"]
