"""What may end a run before its last epoch: optimiser steps, a metric, or dead groups alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from antiphon.learner.policy.updates import AgentUpdate
from antiphon.learner.run.dead_streak import DeadStreak
from antiphon.learner.run.early_stop import EarlyStop


class StepCount(Protocol):
    """What counts optimiser steps, as `antiphon.learner.policy.policy.Policy`."""

    @property
    def optimizer_steps(self) -> int:
        """Optimiser steps so far."""
        ...


class Limits:
    """Says between rollout batches whether a run is at its end.

    Args:
        policies: The policies in training.
        max_steps: Optimiser steps after which the run ends; None sets no limit.
        early_stop: Reads the metrics; None where none ends the run.
        dead_streak: Counts dead groups; None where they end nothing.
    """

    def __init__(
        self,
        policies: Sequence[StepCount] = (),
        *,
        max_steps: int | None = None,
        early_stop: EarlyStop | None = None,
        dead_streak: DeadStreak | None = None,
    ) -> None:
        self._policies = policies
        self._max_steps = max_steps
        self._early_stop = early_stop
        self._dead_streak = dead_streak

    def observe(self, updates: Sequence[AgentUpdate]) -> None:
        """Take in what the policies made of a rollout batch."""
        if self._dead_streak is not None:
            self._dead_streak.observe(updates)

    @property
    def reached(self) -> str | None:
        """Why the run ends now, None where it goes on."""
        most = max((policy.optimizer_steps for policy in self._policies), default=0)
        if self._max_steps is not None and most >= self._max_steps:
            return f"max_steps: {most} optimiser steps are taken"
        rules = (self._early_stop, self._dead_streak)
        return next((rule.reason for rule in rules if rule and rule.reason), None)

    @property
    def unread(self) -> str | None:
        """The metric that was to end the run and never came; None where there is none."""
        stop = self._early_stop
        return None if stop is None or stop.seen else stop.metric
