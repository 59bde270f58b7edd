"""What optimiser steps came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.learner.policy.engine_gap import engine_gap
from antiphon.learner.record.metrics.making import Maker

if TYPE_CHECKING:
    from antiphon.learner.policy.updates import AgentUpdate


class UpdateMetrics:
    """Loss, gradient norm, clipping, entropy, gaps to the engine."""

    def __init__(self, make: Maker) -> None:
        self._steps = make.counter("optimizer_steps", "Optimiser steps.", "agent")
        self._trained = make.counter("trained_tokens", "Tokens trained on.", "agent")
        self._forced = make.counter(
            "forced_tokens", "Sampled tokens that the learner's own kept set had left out.", "agent"
        )
        self._loss = make.gauge("loss", "Loss of the last optimiser step.", "agent")
        self._grad_norm = make.gauge(
            "grad_norm", "Gradient norm of the last optimiser step.", "agent"
        )
        self._learning_rate = make.gauge(
            "learning_rate", "Learning rate of the last optimiser step.", "agent"
        )
        self._kl_loss = make.gauge(
            "reference_kl_loss", "What the reference KL added to the last step's loss.", "agent"
        )
        self._ratio = make.gauge("importance_ratio_mean", "Mean ratio of the last step.", "agent")
        self._clipped = make.gauge(
            "clipped_tokens_ratio",
            "Share of the last step's tokens whose ratio is clipped.",
            "agent",
        )
        self._truncated = make.gauge(
            "truncated_tokens_ratio",
            "Share of the last step's tokens whose ratio was above the cap.",
            "agent",
        )
        self._entropy = make.gauge(
            "entropy_nats", "Mean entropy of the sampling distribution in the last step.", "agent"
        )
        self._gap_mean = make.gauge(
            "logprob_gap_mean",
            "Mean difference of log-probability between learner and engine in the last step.",
            "agent",
        )
        self._gap = make.gauge(
            "logprob_gap_max",
            "Largest difference of log-probability between learner and engine in the last step.",
            "agent",
        )
        self._engine_gap = make.gauge(
            "engine_gap_mean",
            "Mean difference of log-probability between learner and engine at the same weights.",
            "agent",
        )
        self._engine_gap_max = make.gauge(
            "engine_gap_max",
            "Largest difference of log-probability between learner and engine at the same weights.",
            "agent",
        )
        self._staleness = make.gauge(
            "staleness_max",
            "Most publishes between the weights that a node of the last batch was sampled from and "
            "its entering the buffer.",
            "agent",
        )

    def batch(self, updates: Sequence[AgentUpdate]) -> None:
        """Tell the optimiser steps of a batch."""
        for update in updates:
            agent = update.agent
            if staleness := [node.staleness for nodes, _ in update.steps for node in nodes]:
                self._staleness.labels(agent).set(max(staleness))
            if (same_weights := engine_gap(update)) is not None:
                self._engine_gap.labels(agent).set(same_weights.logprob_gap_mean)
                self._engine_gap_max.labels(agent).set(same_weights.logprob_gap_max)
            for _, stats in update.steps:
                if not stats.stepped:
                    continue
                self._steps.labels(agent).inc()
                self._trained.labels(agent).inc(stats.tokens)
                self._forced.labels(agent).inc(stats.forced_tokens)
                self._loss.labels(agent).set(stats.loss)
                self._grad_norm.labels(agent).set(stats.grad_norm)
                self._learning_rate.labels(agent).set(stats.learning_rate)
                if stats.reference_kl_loss is not None:
                    self._kl_loss.labels(agent).set(stats.reference_kl_loss)
                if stats.truncated_fraction is not None:
                    self._truncated.labels(agent).set(stats.truncated_fraction)
                self._ratio.labels(agent).set(stats.ratio_mean)
                self._clipped.labels(agent).set(stats.clip_fraction)
                self._entropy.labels(agent).set(stats.entropy)
                self._gap_mean.labels(agent).set(stats.logprob_gap_mean)
                self._gap.labels(agent).set(stats.logprob_gap_max)
