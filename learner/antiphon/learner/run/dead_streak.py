"""Ends a run in which nothing trains any more: every group is dead, for a long time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.learner.policy.updates import AgentUpdate


class DeadStreak:
    """Counts dead groups in a row, over all policies; a live one begins anew.

    Args:
        most: So many end the run; None counts only.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self.groups = 0
        """Dead groups since the last live one."""

    @property
    def reason(self) -> str | None:
        """Why the run ends, None while it goes on."""
        if self._most is None or self.groups < self._most:
            return None
        return (
            f"dead_groups_limit: the last {self.groups} groups were dead, their returns were equal "
            "or missing, so that nothing trains; look at the rewards, or set another limit"
        )

    def observe(self, updates: Sequence[AgentUpdate]) -> None:
        """Take in the steps of a rollout batch, one update per policy."""
        for update in updates:
            for _, stats in update.steps:
                self.groups = 0 if stats.live_nodes else self.groups + stats.dead_nodes

    def state_dict(self) -> dict[str, Any]:
        """What goes on after a resume."""
        return {"groups": self.groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.groups = int(state["groups"])
