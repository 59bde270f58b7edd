"""Steering a run: pause, resume and stop, between rollout batches."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from antiphon.learner.evaluation.requests import EvaluationRequests

T = TypeVar("T")


class StoppedError(Exception):
    """The run was asked to stop while a rollout was under way, which was dropped."""


class RunControl:
    """What somebody asked of the run. Used from the event loop only.

    Attributes:
        evaluations: Who waits for an evaluation.
        waits: Whether the run does nothing at the moment, as somebody has paused it.
    """

    def __init__(self) -> None:
        self._may_go = asyncio.Event()
        self._may_go.set()
        self._stop = asyncio.Event()
        self.stop_reason = ""
        self.evaluations = EvaluationRequests()
        self.waits = False
        self._checkpoint_asked = asyncio.Event()
        self._checkpoint_requests: list[asyncio.Future[str]] = []
        self._ended = False

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

    def ask_checkpoint(self) -> asyncio.Future[str]:
        """Have a checkpoint saved at the next publish; its path once it is written.

        The future fails with StoppedError where the run ends without one.
        """
        request: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if self._ended:
            request.set_exception(StoppedError("the run has ended"))
        else:
            self._checkpoint_requests.append(request)
            self._checkpoint_asked.set()
        return request

    def take_checkpoint_requests(self) -> list[asyncio.Future[str]]:
        """Those who wait for a checkpoint; whoever takes them answers them."""
        requests, self._checkpoint_requests = self._checkpoint_requests, []
        self._checkpoint_asked.clear()
        return requests

    def end(self) -> None:
        """The run has ended: nobody need wait for a checkpoint or an evaluation any more."""
        self._ended = True
        self.evaluations.refuse("the run has ended")
        for request in self.take_checkpoint_requests():
            if not request.done():
                request.set_exception(StoppedError("the run has ended"))

    async def wait_while_paused(self) -> None:
        """Return once the run may go on or is to stop, or something is asked for."""
        events = (self._may_go, self._checkpoint_asked, self.evaluations.asked)
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        self.waits = True
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.waits = False
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

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
