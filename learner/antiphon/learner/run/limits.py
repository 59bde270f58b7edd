"""What may end a run before its last epoch: a number of optimiser steps, or a metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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
    """

    def __init__(
        self,
        policies: Sequence[StepCount] = (),
        *,
        max_steps: int | None = None,
        early_stop: EarlyStop | None = None,
    ) -> None:
        self._policies = policies
        self._max_steps = max_steps
        self._early_stop = early_stop

    @property
    def reached(self) -> str | None:
        """Why the run ends now, None where it goes on."""
        most = max((policy.optimizer_steps for policy in self._policies), default=0)
        if self._max_steps is not None and most >= self._max_steps:
            return f"max_steps: {most} optimiser steps are taken"
        return None if self._early_stop is None else self._early_stop.reason

    @property
    def unread(self) -> str | None:
        """The metric that was to end the run and never came; None where there is none."""
        stop = self._early_stop
        return None if stop is None or stop.seen else stop.metric
