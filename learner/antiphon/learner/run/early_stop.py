"""Ends a run early by one of its metrics: once it is good enough, or gets no better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StopRule:
    """When to end.

    Attributes:
        metric: A name of the metrics, such as ``turn_2/reward_mean``.
        value: End once a row has this or better; None does not end by it.
        patience: End after so many rows in a row without a better value; None does not end by it.
        min_delta: By how much a value must be better than the best one to count as better.
        larger_is_better: The direction.
    """

    metric: str
    value: float | None = None
    patience: int | None = None
    min_delta: float = 0.0
    larger_is_better: bool = True


class EarlyStop:
    """Reads the rows of the metrics; rows without the metric are passed over."""

    def __init__(self, rule: StopRule) -> None:
        self._rule = rule
        self.best: float | None = None
        """The best value so far; None before the first."""
        self.rows_since_best = 0
        """Rows with the metric since then."""
        self.reason: str | None = None
        """Why the run is to end, None while it is not."""

    @property
    def seen(self) -> bool:
        """Whether any row had the metric."""
        return self.best is not None

    @property
    def metric(self) -> str:
        """The metric that is read."""
        return self._rule.metric

    def observe(self, figures: Mapping[str, float]) -> None:
        """Take a row of the metrics in."""
        value = figures.get(self._rule.metric)
        if value is None or not math.isfinite(value) or self.reason is not None:
            return
        if self._better(value):
            self.best, self.rows_since_best = value, 0
        else:
            self.rows_since_best += 1
        self.reason = self._verdict(value)

    def state_dict(self) -> dict[str, Any]:
        """What goes on after a resume."""
        return {
            "best": self.best,
            "rows_since_best": self.rows_since_best,
            "reason": self.reason,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave, under the rule as it is now."""
        self.best = state["best"]
        self.rows_since_best = int(state["rows_since_best"])
        self.reason = state["reason"]

    def _better(self, value: float) -> bool:
        if self.best is None:
            return True
        gain = value - self.best if self._rule.larger_is_better else self.best - value
        return gain > self._rule.min_delta

    def _verdict(self, value: float) -> str | None:
        rule = self._rule
        if rule.value is not None:
            reached = value >= rule.value if rule.larger_is_better else value <= rule.value
            if reached:
                sign = "at least" if rule.larger_is_better else "at most"
                return f"{rule.metric} is {value:.6g}, {sign} {rule.value:g}"
        if rule.patience is not None and self.rows_since_best >= rule.patience:
            return (
                f"{rule.metric} has not become better than {self.best:.6g} for "
                f"{self.rows_since_best} rows of the metrics"
            )
        return None
