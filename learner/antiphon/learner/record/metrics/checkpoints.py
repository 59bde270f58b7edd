"""When the run was saved."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.learner.record.metrics.making import SECONDS_BUCKETS, Maker


class CheckpointMetrics:
    """Checkpoints, and those that could not be written."""

    def __init__(self, make: Maker, now: Callable[[], float]) -> None:
        self._now = now
        self._checkpoint = make.gauge(
            "checkpoint_timestamp_seconds",
            "When the last checkpoint was complete, seconds since 1970; 0 before the first.",
        )
        self._checkpoint_seconds = make.histogram(
            "checkpoint_seconds", "Seconds of writing a checkpoint.", SECONDS_BUCKETS
        )
        self._checkpoint_failures = make.counter(
            "checkpoint_failures", "Checkpoints that could not be written."
        )

    def written(self, seconds: float) -> None:
        """Tell that a checkpoint is complete, and how long it took."""
        self._checkpoint.set(self._now())
        self._checkpoint_seconds.observe(seconds)

    def failed(self) -> None:
        """Tell that a checkpoint could not be written."""
        self._checkpoint_failures.inc()
