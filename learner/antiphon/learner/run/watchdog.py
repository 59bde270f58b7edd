"""Ends a run that does not get on, with an error that says what it was waiting for.

Every call has a deadline and a bounded number of attempts, so a run rarely stands still. What is
left is what has no deadline of its own: a formatter or dataset that never returns, an update that
hangs, a file system that does not answer, retries that were allowed to go on for very long. A
thread of its own watches, so that it sees a blocked event loop too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from antiphon.clients.waiting import Wait, progress, progressed, waiting_for, waits
from antiphon.services.common.main_thread import MainThread

LOOK_SECONDS = 1.0
"""Longest pause between two looks."""
_LOOKS = 10
END_SECONDS = 60.0
"""How long a run may take to end once it was found to stand still; then the process is ended."""
EXIT_STUCK = 70
_WAITS_SHOWN = 5


class NoProgressError(RuntimeError):
    """Nothing got on for too long."""


class Watchdog:
    """Watches the progress of a run, which is told to `antiphon.clients.waiting`.

    Args:
        limit: Seconds without progress that end the run; None for no limit.
        doing: What the run is doing, as text, empty where it does nothing yet.
        paused: Whether the run waits because somebody wants it to.
        end_seconds: Seconds that the run may take to end afterwards.
        end_process: Ends the process at once.
        now: Seconds that only grow.
    """

    def __init__(
        self,
        limit: float | None,
        *,
        doing: Callable[[], str],
        paused: Callable[[], bool],
        end_seconds: float = END_SECONDS,
        end_process: Callable[[str], None] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._doing = doing
        self._paused = paused
        self._end_seconds = end_seconds
        self._end_process = end_process or _end_process
        self._now = now
        self._over = threading.Event()
        self._stuck = threading.Event()
        self._error: NoProgressError | None = None
        self._tell: Callable[[], object] = lambda: None

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch while the block runs.

        Once the run was found to stand still, what comes after the block is watched too, until
        `release`: the end of an event loop waits for every thread that it has started.
        """
        if self._limit is None:
            yield
            return
        loop, found = asyncio.get_running_loop(), asyncio.Event()
        self._found = found

        def tell() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(found.set)

        self._tell = tell
        thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            if self._error is None:
                self.release()

    def release(self) -> None:
        """Watch no longer, whatever was found: the run and its event loop have ended."""
        self._over.set()

    async def stuck(self) -> None:
        """Never return; fail once the run has stood still for too long.

        Raises:
            NoProgressError: Says what it was waiting for.
        """
        if self._limit is None:
            await asyncio.Event().wait()
        await self._found.wait()
        assert self._error is not None
        raise self._error

    def _watch(self) -> None:
        assert self._limit is not None
        look = min(LOOK_SECONDS, self._limit / _LOOKS)
        seen, idle, before = progress(), 0.0, self._now()
        while not self._over.wait(look):
            elapsed, before = self._now() - before, self._now()
            if progress() != seen or self._paused():
                seen, idle = progress(), 0.0
                continue
            # A look that comes late was kept waiting with the whole process, as by SIGSTOP.
            idle += min(elapsed, 2 * look)
            if idle >= self._limit:
                break
        else:
            return
        self._error = NoProgressError(self._message(waits()))
        self._tell()
        if not self._over.wait(self._end_seconds):
            self._end_process(
                f"{self._error}; it did not end within {self._end_seconds:g} s either, so the "
                "process ends at once"
            )

    def _message(self, waiting: Sequence[Wait]) -> str:
        now = time.monotonic()
        doing = self._doing() or "starting"
        shown = [f"{wait.what} (for {now - wait.since:.0f} s)" for wait in waiting[:_WAITS_SHOWN]]
        if len(waiting) > _WAITS_SHOWN:
            shown.append(f"{len(waiting) - _WAITS_SHOWN} more")
        return (
            f"the run made no progress for {self._limit:g} s (progress_timeout) while {doing}; "
            f"it was waiting for: {', '.join(shown) or 'nothing that it knows of'}"
        )


async def on_main_thread(main_thread: MainThread, function: Callable[[], Any], what: str) -> Any:
    """Run code of the user's, which has no deadline; it is waited for by name."""
    with waiting_for(f"{what}, your code on the main thread"):
        result = await main_thread.run(function, timeout=None, what=what)
    progressed()
    return result


def _end_process(message: str) -> None:
    sys.stderr.write(f"antiphon: {message}\n")
    sys.stderr.flush()
    os._exit(EXIT_STUCK)
