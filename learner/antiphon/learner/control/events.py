"""What happened in a run, in order, for those who watch."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from antiphon.clients.types import MetricsLogged, Note, Run, RunEvent

KEPT_EVENTS = 10_000


class EventLog:
    """The last events of this learner process, numbered from 1. Used from the event loop only.

    Args:
        kept: Events that are kept; older ones are dropped and counted as missed.
        now: Seconds since 1970.
    """

    def __init__(self, kept: int = KEPT_EVENTS, now: Callable[[], float] = time.time) -> None:
        self._events: deque[RunEvent] = deque(maxlen=kept)
        self._now = now
        self._last = 0
        self._closed = False
        self._changed = asyncio.Event()

    def append(self, event: Run | MetricsLogged | Note) -> None:
        """Tell everybody who watches."""
        self._last += 1
        self._events.append(RunEvent(self._last, self._now(), event))
        self._wake()

    def close(self) -> None:
        """Nothing more will happen: watching ends after the events that are there."""
        self._closed = True
        self._wake()

    async def follow(self, after_sequence: int) -> AsyncIterator[RunEvent]:
        """Events above `after_sequence` as they come, until the log is closed.

        `missed` of an event counts those between it and the one before (or `after_sequence`) that
        are no longer kept. A number above the last event's is one of an earlier process: all kept
        events follow.
        """
        seen = after_sequence if after_sequence <= self._last else 0
        while True:
            changed = self._changed
            for event in self._above(seen):
                yield replace(event, missed=event.sequence - seen - 1)
                seen = event.sequence
            if self._last > seen:
                continue
            if self._closed:
                return
            await changed.wait()

    def _above(self, sequence: int) -> list[RunEvent]:
        return [event for event in self._events if event.sequence > sequence]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
