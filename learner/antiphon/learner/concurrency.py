"""Tasks that belong together: the first failure ends the others and travels as it is.

A task in the background, which nobody awaits, tells its failure to the log. A call that may hang
gets a thread that nobody waits for at the end.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, ParamSpec, TypeVar

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """An `asyncio.TaskGroup` that raises its first failure alone, not inside an ExceptionGroup."""
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        failure = _first(errors)
    if failure is not None:
        raise failure


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def log_failure(task: asyncio.Task[Any]) -> None:
    """A task's done-callback that logs the error with which it ended, if it did."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s ended with an error", task.get_name(), exc_info=error)


async def in_own_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that may hang in a thread of its own, which ends with the process.

    `asyncio.to_thread` would have the loop, and the interpreter, wait for it at their end.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():  # nobody waits any more
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def call() -> None:
        result, failure = None, None
        try:
            result = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - it travels, whatever it is
            failure = error
        with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=call, name=f"antiphon-{function.__name__}", daemon=True).start()
    return await done
