"""What Prometheus sees of a learner, by subject."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import REGISTRY, CollectorRegistry

from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.record.metrics.checkpoints import CheckpointMetrics
from antiphon.learner.record.metrics.evaluations import EvaluationMetrics
from antiphon.learner.record.metrics.making import Maker
from antiphon.learner.record.metrics.rollouts import RolloutMetrics
from antiphon.learner.record.metrics.run import RunMetrics
from antiphon.learner.record.metrics.updates import UpdateMetrics
from antiphon.learner.record.metrics.weights import WeightsMetrics


class LearnerMetrics:
    """A learner's metrics in one registry. One per registry: use `learner_metrics`.

    Args:
        registry: Where they are exported from.
        now: Seconds since 1970.
    """

    def __init__(self, registry: CollectorRegistry, now: Callable[[], float] = time.time) -> None:
        make = Maker(registry)
        self.run = RunMetrics(make, now)
        self.rollouts = RolloutMetrics(make)
        self.updates = UpdateMetrics(make)
        self.weights = WeightsMetrics(make)
        self.evaluations = EvaluationMetrics(make)
        self.checkpoints = CheckpointMetrics(make, now)

    def begin(self, run: str, config: MAGRPOConfig, num_agents: int, prompts_total: int) -> None:
        """Tell how a run is set up, and begin its clock."""
        self.run.begin(run, config, num_agents, prompts_total)
        self.rollouts.begin(num_agents)
        self.weights.begin(config.policies(num_agents))


_made: dict[CollectorRegistry, LearnerMetrics] = {}


def learner_metrics(registry: CollectorRegistry = REGISTRY) -> LearnerMetrics:
    """The learner's metrics in `registry`, made when first asked for."""
    if registry not in _made:
        _made[registry] = LearnerMetrics(registry)
    return _made[registry]
