"""What was published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.learner.record.metrics.making import SECONDS_BUCKETS, Maker

if TYPE_CHECKING:
    from antiphon.learner.weights.publisher import Publication


class WeightsMetrics:
    """Versions, bytes, seconds and pauses of publishes."""

    def __init__(self, make: Maker) -> None:
        self._players: dict[int, tuple[int, ...]] = {}
        self._version = make.gauge(
            "weights_version", "Version that every replica applied.", "agent"
        )
        self._push_bytes = make.counter("push_bytes", "Bytes of weights sent.", "agent", "kind")
        self._push_seconds = make.histogram(
            "push_seconds",
            "Seconds of a publish, from encoding to the last answer.",
            SECONDS_BUCKETS,
            "agent",
            "kind",
        )
        self._push_pause = make.histogram(
            "push_pause_seconds",
            "Longest time of a publish in which a replica could not generate.",
            SECONDS_BUCKETS,
            "agent",
            "kind",
        )

    def begin(self, policies: Sequence[tuple[int, ...]]) -> None:
        """Tell that no agent of these policies has a version yet."""
        self._players = {agents[0]: agents for agents in policies}
        for agents in policies:
            for agent in agents:
                self._version.labels(agent).set(0)

    def batch(self, publications: Sequence[Publication]) -> None:
        """Tell the publishes of a batch."""
        for publication in publications:
            agent = publication.agent
            for player in self._players.get(agent, (agent,)):
                self._version.labels(player).set(publication.version)
            kind = publication.kind.value
            self._push_bytes.labels(agent, kind).inc(publication.nbytes)
            self._push_seconds.labels(agent, kind).observe(publication.seconds)
            self._push_pause.labels(agent, kind).observe(publication.pause_seconds)
