"""How far an engine's log-probabilities are from the learner's at the same weights.

An engine in bf16, or with other kernels, samples from a policy that is not quite the one that is
trained. Of each update the first step shows by how much, where its nodes were sampled under the
weights that it begins with; at later steps the weights have moved on. For a sampled token

    gap = |log pi_learner - log pi_engine|      ratio = pi_learner / pi_engine, 1 for no gap
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.learner.policy.policy import StepStats
    from antiphon.learner.policy.updates import AgentUpdate


def engine_gap(update: AgentUpdate) -> StepStats | None:
    """The step of an update that shows the gap; None where there is none."""
    for nodes, stats in update.steps:
        if stats.stepped:
            # A node's staleness is that of its entering the buffer, where it may have waited since.
            same = all(node.oldest_version == update.published for node in nodes)
            return stats if same else None
    return None


class GapWatch:
    """Warns of each agent once.

    Args:
        bound: Mean gap in nats above which there is a warning; None for never.
    """

    def __init__(self, bound: float | None) -> None:
        self._bound = bound
        self._told: set[int] = set()

    def observe(self, updates: Sequence[AgentUpdate]) -> list[str]:
        """What is to be said of these updates."""
        notes = []
        for update in updates:
            stats = engine_gap(update)
            if self._bound is None or stats is None or update.agent in self._told:
                continue
            if stats.logprob_gap_mean > self._bound:
                self._told.add(update.agent)
                notes.append(
                    f"warning: the engine of agent {update.agent} samples from another policy than "
                    f"the one that is trained: log-probabilities at the same weights differ by "
                    f"{stats.logprob_gap_mean:.3g} on average, {stats.logprob_gap_max:.3g} at most "
                    f"(importance ratio {stats.ratio_mean:.3g} on average, {stats.ratio_max:.3g} "
                    f"at most); engine_gap_bound is {self._bound:g}. Compute in the number format "
                    "that the learner computes in, or see docs/engines.md"
                )
        return notes
