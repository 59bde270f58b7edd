"""Calls that may hang, such as those to files on a network mount, each in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_own_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that may hang in a thread of its own, which ends with the process.

    `asyncio.to_thread` would have the loop, and the interpreter, wait for it at their end, and a
    few calls that hang would leave it no thread for others.
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

    name = f"antiphon-{getattr(function, '__name__', 'call')}"
    threading.Thread(target=call, name=name, daemon=True).start()
    return await done
