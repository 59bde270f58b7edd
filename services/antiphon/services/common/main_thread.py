"""The process's main thread as the one that runs user code, while the event loop has another.

User code may rely on being on the main thread: `signal.alarm`, GUI toolkits, closures that a
script goes on with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Ignored by default, so that one which arrives late does no harm.
_INTERRUPT = signal.SIGURG
_INTERRUPT_AGAIN = 0.5
_LONGEST_WAIT = 0.2


class CallTimeoutError(Exception):
    """A call on the main thread did not return in time. It has been interrupted."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what} did not return within {seconds:g} s")
        self.what = what
        self.seconds = seconds


class _InterruptedCall(BaseException):
    """Raised inside a call that nobody waits for any more."""


class _Call(Generic[T]):
    def __init__(self, fn: Callable[[], T], what: str) -> None:
        self.fn = fn
        self.what = what
        self.loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = self.loop.create_future()
        self.done: asyncio.Future[T] = self.loop.create_future()
        self.abandoned = False
        self.ended = threading.Event()
        self._begun = False
        self._lock = threading.Lock()

    def begin(self) -> bool:
        """On the main thread: whether the call is still wanted; from now on it has begun."""
        with self._lock:
            self._begun = not self.abandoned
            return self._begun

    def drop(self) -> None:
        """On the loop: nobody waits any more, so the call does not begin if it has not yet."""
        with self._lock:
            self.abandoned = not self._begun

    def tell_started(self) -> None:
        self._settle(self.started, None, None)

    def tell_done(self, result: T | None, error: Exception | None) -> None:
        self._settle(self.done, result, error)

    def _settle(self, future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        def settle() -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
                future.exception()  # whoever waited may be gone
            else:
                future.set_result(result)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self.loop.call_soon_threadsafe(settle)


class MainThread:
    """Runs a coroutine on an event loop in a thread of its own, and calls on the main thread.

    Args:
        stuck_seconds: How long an interrupted call may take to end. Past it, or when the
            coroutine has ended and the call still runs, the process is ended by `os._exit` with
            `stuck_exit_code`, after the call has been named in the log.
        stuck_exit_code: See there.
    """

    def __init__(self, *, stuck_seconds: float = 5.0, stuck_exit_code: int = 70) -> None:
        self._stuck_seconds = stuck_seconds
        self._stuck_exit_code = stuck_exit_code
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        self._current: _Call[Any] | None = None
        self._thread_id: int | None = None
        self._interruptible = False

    @property
    def current(self) -> str | None:
        """What is being called now."""
        call = self._current
        return call.what if call is not None else None

    def serve(self, coroutine_function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs the coroutine to its end and returns what it returns, or raises what it raises.

        Meanwhile this thread runs the calls given to `run`, one at a time. KeyboardInterrupt
        cancels the coroutine, lets it end, and is raised then.
        """
        outcome: list[T] = []
        failure: list[BaseException] = []
        task_ready = threading.Event()
        cancel: list[Callable[[], None]] = []

        async def main() -> T:
            loop = asyncio.get_running_loop()
            task = asyncio.current_task()
            assert task is not None
            cancel.append(lambda: loop.call_soon_threadsafe(task.cancel))  # type: ignore[arg-type]
            task_ready.set()
            return await coroutine_function()

        def run_loop() -> None:
            try:
                outcome.append(asyncio.run(main()))
            except BaseException as error:  # noqa: BLE001 - raised again on the main thread
                failure.append(error)
            finally:
                task_ready.set()
                self._calls.put(None)
                # No call may outlive the coroutine.
                call = self._current
                if call is not None:
                    self._interrupt(call)

        self._thread_id = threading.get_ident()
        thread = threading.Thread(target=run_loop, name="event-loop")
        interrupt: BaseException | None = None
        with self._interrupts():
            thread.start()
            while True:
                try:
                    self._work(thread)
                    thread.join()
                    break
                except KeyboardInterrupt as error:
                    interrupt = error
                    task_ready.wait()
                    for stop in cancel:
                        with contextlib.suppress(RuntimeError):
                            stop()
        if interrupt is not None:
            raise interrupt
        if failure:
            raise failure[0]
        return outcome[0]

    async def run(self, fn: Callable[[], T], *, timeout: float | None, what: str) -> T:
        """Calls `fn` on the main thread and returns its result.

        Args:
            fn: Called once.
            timeout: Seconds that it may take once it has begun; None for no limit.
            what: What is called, for errors and logs.

        Raises:
            CallTimeoutError: It ran longer. It is interrupted where Python can be.
        """
        call = _Call(fn, what)
        self._calls.put(call)
        try:
            await call.started
            await asyncio.wait((call.done,), timeout=timeout)
        except asyncio.CancelledError:
            # Not begun: dropped. Begun: left to end, since what it does is the user's.
            call.drop()
            raise
        if call.done.done():
            return call.done.result()
        assert timeout is not None
        logger.error("%s did not return within %g s; interrupting it", what, timeout)
        self._interrupt(call)
        raise CallTimeoutError(what, timeout)

    def _work(self, loop_thread: threading.Thread) -> None:
        """Runs calls until the coroutine has ended."""
        while True:
            try:
                # A signal that arrives just before a wait begins does not end it, so none is long.
                call = self._calls.get(timeout=_LONGEST_WAIT)
                if call is None:
                    return
                if call.begin():
                    self._run(call)
            except queue.Empty:
                if not loop_thread.is_alive():
                    return
            except _InterruptedCall:
                # It arrived as its call was ending: there is nothing left to interrupt.
                continue

    def _run(self, call: _Call[Any]) -> None:
        error: Exception | None = None
        result: Any = None
        try:
            self._current = call
            call.tell_started()
            result = call.fn()
        except Exception as raised:  # noqa: BLE001 - goes to whoever awaits the call
            error = raised
        except _InterruptedCall:
            logger.warning("%s was interrupted", call.what)
            error = RuntimeError(f"{call.what} was interrupted")
        except KeyboardInterrupt:
            call.tell_done(None, RuntimeError(f"{call.what} was interrupted by the keyboard"))
            raise
        except BaseException as raised:  # noqa: BLE001 - must not reach the event loop as it is
            error = RuntimeError(f"{call.what} raised {type(raised).__name__}: {raised}")
        finally:
            self._current = None
            call.ended.set()
        call.tell_done(result, error)

    @contextlib.contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Handles the interrupting signal while open; does nothing off the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            call = self._current
            if call is not None and call.abandoned:
                raise _InterruptedCall

        previous = signal.signal(_INTERRUPT, on_signal)
        self._interruptible = True
        try:
            yield
        finally:
            self._interruptible = False
            signal.signal(_INTERRUPT, previous)

    def _interrupt(self, call: _Call[Any]) -> None:
        """Interrupts a call that nobody waits for, until it ends; ends the process in the end."""
        call.abandoned = True
        thread = threading.Thread(target=self._insist, args=(call,), daemon=True)
        thread.start()

    def _insist(self, call: _Call[Any]) -> None:
        deadline = time.monotonic() + self._stuck_seconds
        while self._current is call:
            left = deadline - time.monotonic()
            if left <= 0:
                logger.critical("%s cannot be interrupted; this process ends", call.what)
                logging.shutdown()
                os._exit(self._stuck_exit_code)
            if self._interruptible and self._thread_id is not None:
                signal.pthread_kill(self._thread_id, _INTERRUPT)
            call.ended.wait(min(left, _INTERRUPT_AGAIN))
