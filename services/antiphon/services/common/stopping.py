"""How a serving process is told to end, and ends in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from antiphon.services.common.forks import undone_in_children

if TYPE_CHECKING:
    from antiphon.services.common.server import Server

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Turns SIGTERM, SIGINT and, where wanted, the end of standard input into one request to stop.

    The first signal asks; a second one ends the process at once. A thread of its own sees them,
    whatever the main thread and the event loop are busy with. Entered on the main thread; handlers
    are put back when it is left, and in children that user code forks.

    Args:
        exit_with_parent: Ask to stop when standard input ends, and ignore SIGINT, which a
            terminal sends to the parent too.
    """

    def __init__(self, *, exit_with_parent: bool = False) -> None:
        self._exit_with_parent = exit_with_parent
        self._reason: str | None = None
        self._exit_code = 0
        self.signalled = False
        """Whether a signal has come; the next one ends the process at once."""
        self._listener: Callable[[], object] | None = None
        self._previous: dict[int, Any] = {}
        self._previous_wakeup = -1
        self._forks = contextlib.ExitStack()

    def __enter__(self) -> StopSignals:
        # The interpreter writes each signal's number to this socket at once; its own handlers run
        # only when the main thread gets to them.
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._previous_wakeup = self._take_wakeups()
        for number in _SIGNALS:
            ignored = self._exit_with_parent and number == signal.SIGINT
            handler = signal.SIG_IGN if ignored else self._on_handler
            self._previous[number] = signal.signal(number, handler)
        self._forks.enter_context(undone_in_children(self._put_back))
        self._thread = threading.Thread(target=self._watch, name="stop-signals", daemon=True)
        self._thread.start()
        if self._exit_with_parent:
            threading.Thread(target=self._watch_parent, name="watch-parent", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._forks.close()
        self._put_back()
        self._writer.close()
        self._thread.join()
        self._reader.close()

    def _put_back(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup)

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
        self._listener = lambda: loop.call_soon_threadsafe(asked.set)
        try:
            if self._reason is None:
                await asked.wait()
        finally:
            self._listener = None
        assert self._reason is not None
        return self._reason

    def _take_wakeups(self) -> int:
        return signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def _on_handler(self, number: int, _frame: FrameType | None) -> None:
        # Where user code has taken the wakeups, the thread has not seen this signal.
        if self._take_wakeups() != self._writer.fileno():
            self._on_signal(number)

    def _watch(self) -> None:
        while numbers := self._reader.recv(64):
            for number in numbers:
                if number in self._previous:
                    self._on_signal(number)

    def _on_signal(self, number: int) -> None:
        if self.signalled:
            os._exit(128 + number)
        self.signalled = True
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
