"""SIGINT and SIGTERM while a run trains: the first ends it in order, the second at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from antiphon.services.common.forks import undone_in_children

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class RunSignals:
    """Owns SIGINT and SIGTERM while it is entered; the handlers before are put back afterwards.

    The first signal goes to who is connected, now or later; the second runs `last_act` and ends
    the process with code 128 + its number. Children that user code forks have the handlers before.

    Args:
        last_act: Run on the main thread before the process ends at once; must not block.
    """

    def __init__(self, last_act: Callable[[], None] = lambda: None) -> None:
        self._last_act = last_act
        self._before: dict[int, Any] = {}
        self._stop: Callable[[str], None] | None = None
        self._forks = contextlib.ExitStack()
        self.received: signal.Signals | None = None
        """The first signal, None while there was none."""

    def __enter__(self) -> RunSignals:
        require_main_thread()
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        self._forks.enter_context(undone_in_children(self._put_back))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._forks.close()
        self._put_back()

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def connect(self, stop: Callable[[str], None]) -> None:
        """Tell `stop` about the first signal, on the running event loop; at once if it has come."""
        loop = asyncio.get_running_loop()

        def tell(reason: str) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(stop, reason)

        self._stop = tell
        if self.received is not None:
            tell(self.received.name)

    def raise_received(self) -> None:
        """End as the first signal wants it; returns where there was none.

        Raises:
            KeyboardInterrupt: SIGINT came.
            SystemExit: SIGTERM came; the code is 143.
        """
        if self.received is signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            raise SystemExit(128 + self.received)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.received is not None:
            self._last_act()
            os._exit(128 + number)
        self.received = signal.Signals(number)
        if self._stop is not None:
            self._stop(self.received.name)


def require_main_thread() -> None:
    """Refuse to train elsewhere.

    Raises:
        RuntimeError: This is not the main thread.
    """
    thread = threading.current_thread()
    if thread is not threading.main_thread():
        raise RuntimeError(
            "training must run on the main thread, which owns SIGINT and SIGTERM while it does and "
            f"runs your functions; got thread {thread.name!r}"
        )
