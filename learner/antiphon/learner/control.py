"""Steering a run: pause, resume and stop, between rollout batches."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class StoppedError(Exception):
    """The run was asked to stop while a rollout was under way, which was dropped."""


class RunControl:
    """What somebody asked of the run. Used from the event loop only."""

    def __init__(self) -> None:
        self._may_go = asyncio.Event()
        self._may_go.set()
        self._stop = asyncio.Event()
        self.stop_reason = ""

    @property
    def pause_asked(self) -> bool:
        """Whether the run is to wait before its next rollout batch."""
        return not self._may_go.is_set()

    @property
    def stop_asked(self) -> bool:
        """Whether the run is to end."""
        return self._stop.is_set()

    def pause(self) -> None:
        """Wait before the next rollout batch until `resume`; without effect on a stopping run."""
        if not self.stop_asked:
            self._may_go.clear()

    def resume(self) -> None:
        """Go on."""
        self._may_go.set()

    def stop(self, reason: str) -> None:
        """End the run: rollouts under way are dropped, updates and publishing finish."""
        if not self.stop_asked:
            self.stop_reason = reason
            self._stop.set()
            self._may_go.set()

    async def wait_while_paused(self) -> None:
        """Return once the run may go on or is to stop."""
        await self._may_go.wait()

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is cancelled once the run is to stop.

        Raises:
            StoppedError: The run is to stop.
        """
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise StoppedError(self.stop_reason)
            return task.result()
        finally:
            for waiting in (task, stop):
                waiting.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)
