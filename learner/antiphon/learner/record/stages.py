"""Where the time goes: seconds in which work of a stage was under way, and spans of traces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from antiphon.clients import tracing

GENERATE, SCORE, TRANSITION = "generate", "score", "transition"
UPDATE, PUSH = "update", "push"
EVALUATE = "evaluate"
"""Measured as a whole, outside of rollout batches; none of `STAGES`."""
STAGES = (GENERATE, SCORE, TRANSITION, UPDATE, PUSH)


class StageClock:
    """Adds up, by stage, the seconds in which at least one piece of its work was under way.

    Pieces of one stage that overlap count once; stages that overlap each count in full. Used from
    one thread, the event loop's.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._running: dict[str, int] = dict.fromkeys(STAGES, 0)
        self._since: dict[str, float] = {}
        self._seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Work of `stage` is under way within the block."""
        if self._running[stage] == 0:
            self._since[stage] = self._now()
        self._running[stage] += 1
        try:
            with tracing.span(stage):
                yield
        finally:
            self._running[stage] -= 1
            if self._running[stage] == 0:
                self._seconds[stage] += self._now() - self._since.pop(stage)

    def take(self) -> dict[str, float]:
        """Seconds by stage since the last call, of work still under way those up to now."""
        now = self._now()
        for stage, since in self._since.items():
            self._seconds[stage] += now - since
            self._since[stage] = now
        seconds, self._seconds = self._seconds, dict.fromkeys(STAGES, 0.0)
        return seconds
