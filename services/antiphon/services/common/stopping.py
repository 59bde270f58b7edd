"""How a serving process is told to end, and ends in order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.services.common.server import Server

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Turns SIGTERM, SIGINT and, where wanted, the end of standard input into one request to stop.

    The first signal asks; a second one ends the process at once. Entered on the main thread;
    handlers are put back when it is left.

    Args:
        exit_with_parent: Ask to stop when standard input ends, and ignore SIGINT, which a
            terminal sends to the parent too.
    """

    def __init__(self, *, exit_with_parent: bool = False) -> None:
        self._exit_with_parent = exit_with_parent
        self._reason: str | None = None
        self._exit_code = 0
        self._listener: Callable[[], None] | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        for number in _SIGNALS:
            ignored = self._exit_with_parent and number == signal.SIGINT
            handler = signal.SIG_IGN if ignored else self._on_signal
            self._previous[number] = signal.signal(number, handler)
        if self._exit_with_parent:
            threading.Thread(target=self._watch_parent, name="watch-parent", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @property
    def exit_code(self) -> int:
        """What the process ends with: 0 unless a request to stop said otherwise."""
        return self._exit_code

    def request(self, reason: str, exit_code: int = 0) -> None:
        """Asks to stop, from any thread. Only the first request counts."""
        if self._reason is None:
            self._reason, self._exit_code = reason, exit_code
        listener = self._listener
        if listener is not None:
            listener()

    async def wait(self) -> str:
        """Returns the reason once a stop has been asked for."""
        loop = asyncio.get_running_loop()
        asked = asyncio.Event()
        self._listener = lambda: loop.call_soon_threadsafe(asked.set)  # type: ignore[assignment]
        try:
            if self._reason is None:
                await asked.wait()
        finally:
            self._listener = None
        assert self._reason is not None
        return self._reason

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._reason is not None:
            os._exit(128 + number)
        self.request(signal.Signals(number).name)

    def _watch_parent(self) -> None:
        try:
            while os.read(sys.__stdin__.fileno() if sys.__stdin__ else 0, 4096):
                pass
        except OSError:
            logger.info("standard input cannot be read; the parent counts as gone")
        self.request("standard input ended: the parent is gone")


async def run_until_stopped(server: Server, stop: StopSignals | None = None) -> int:
    """Serves until told to stop, then ends in order: NOT_SERVING, drain, close.

    Args:
        server: Not started yet.
        stop: Who tells; by default SIGTERM, SIGINT and the settings' `exit_with_parent`, which
            needs the event loop to run on the main thread.

    Returns:
        The exit code for the process.

    Raises:
        StartError: The server cannot start.
    """
    if stop is None:
        with StopSignals(exit_with_parent=server.settings.exit_with_parent) as own:
            return await run_until_stopped(server, own)
    await server.start()
    try:
        reason = await stop.wait()
        logger.info("%s stops: %s", server.name, reason)
    finally:
        # The rest of the grace is for what closes after the calls.
        await server.stop(server.settings.grace_seconds * 0.8)
    return stop.exit_code
