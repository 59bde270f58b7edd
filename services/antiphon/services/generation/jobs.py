"""What the engine's thread does, and how the event loop hears of it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from antiphon.clients.types import Completion
from antiphon.services.generation.engine import EngineRequest


class Generation:
    """A request on its way through the engine's thread; made on the event loop.

    Completions arrive in `events`, then None, or the error that ended it.

    Args:
        request: What to sample.
        work: Decodes it in the engine's thread, giving up once `cancelled` is set.
    """

    def __init__(self, request: EngineRequest, work: Callable[[Generation], None]) -> None:
        self.request = request
        self.cancelled = threading.Event()
        self.events: asyncio.Queue[Completion | BaseException | None] = asyncio.Queue()
        self.submitted = time.perf_counter()
        self.sampled = False
        """Whether the first tokens are there."""
        self._work = work
        self._loop = asyncio.get_running_loop()

    def run(self) -> None:
        """Decodes the request and tells its end."""
        self._work(self)
        self.post(None)

    def fail(self, error: BaseException) -> None:
        """Ends the request with an error."""
        self.post(error)

    def post(self, *events: Completion | BaseException | None) -> None:
        """Hands completions, an error or the end to the event loop, which wakes once for all."""
        _call_soon(self._loop, self._arrived, events)

    def _arrived(self, events: tuple[Completion | BaseException | None, ...]) -> None:
        for event in events:
            self.events.put_nowait(event)


class Swap:
    """New weights on their way into the model; made on the event loop.

    Args:
        work: Applies them in the engine's thread.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[float] = self._loop.create_future()
        """Resolves to the pause in seconds."""

    def run(self) -> None:
        """Swaps, with no batch under way."""
        began = time.perf_counter()
        self.work()
        self.succeed(time.perf_counter() - began)

    def succeed(self, pause_seconds: float) -> None:
        """Tells whoever waits that the weights sample now."""
        _call_soon(self._loop, self._resolve, pause_seconds)

    def fail(self, error: BaseException) -> None:
        """Tells whoever waits that the swap failed."""
        _call_soon(self._loop, self._resolve, error)

    def _resolve(self, outcome: float | BaseException) -> None:
        if self.done.done():
            return
        if isinstance(outcome, BaseException):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)


def _call_soon(
    loop: asyncio.AbstractEventLoop, function: Callable[[Any], None], argument: object
) -> None:
    """Calls a function in the event loop; where that has closed, nobody waits any more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, argument)
