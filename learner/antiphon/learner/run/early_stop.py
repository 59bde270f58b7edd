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
        self.last: float | None = None
        """The value of the last row with the metric; None before the first."""
        self.rows_since_best = 0
        """Rows with the metric since the best one."""

    @property
    def seen(self) -> bool:
        """Whether any row had the metric."""
        return self.best is not None

    @property
    def metric(self) -> str:
        """The metric that is read."""
        return self._rule.metric

    @property
    def reason(self) -> str | None:
        """Why the run is to end, None while it is not."""
        rule, last = self._rule, self.last
        if rule.value is not None and last is not None:
            reached = last >= rule.value if rule.larger_is_better else last <= rule.value
            if reached:
                sign = "at least" if rule.larger_is_better else "at most"
                return f"{rule.metric} is {last:.6g}, {sign} {rule.value:g}"
        if rule.patience is not None and self.rows_since_best >= rule.patience:
            return (
                f"{rule.metric} has not become better than {self.best:.6g} for "
                f"{self.rows_since_best} rows of the metrics"
            )
        return None

    def observe(self, figures: Mapping[str, float]) -> None:
        """Take a row of the metrics in."""
        value = figures.get(self._rule.metric)
        if value is None or not math.isfinite(value) or self.reason is not None:
            return
        self.last = value
        if self._better(value):
            self.best, self.rows_since_best = value, 0
        else:
            self.rows_since_best += 1

    def state_dict(self) -> dict[str, Any]:
        """What goes on after a resume."""
        return {
            "metric": self._rule.metric,
            "mode": self._mode,
            "best": self.best,
            "last": self.last,
            "rows_since_best": self.rows_since_best,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave, under the rule as it is now.

        Another metric or mode begins anew. A state that names neither, nor the last value, is of an
        earlier version: it was of this rule, and its last value is known where that was the best.
        """
        own = (self._rule.metric, self._mode)
        if (state.get("metric", own[0]), state.get("mode", own[1])) != own:
            return
        self.best = state["best"]
        self.rows_since_best = int(state["rows_since_best"])
        self.last = state.get("last", None if self.rows_since_best else self.best)

    @property
    def _mode(self) -> str:
        return "max" if self._rule.larger_is_better else "min"

    def _better(self, value: float) -> bool:
        if self.best is None:
            return True
        gain = value - self.best if self._rule.larger_is_better else self.best - value
        return gain > self._rule.min_delta
