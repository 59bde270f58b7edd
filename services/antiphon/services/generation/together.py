"""Things that arrive one by one, handed on by as many as are there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TypeVar

T = TypeVar("T")


async def together(
    items: AsyncIterator[T], size: Callable[[T], int], *, most: int
) -> AsyncGenerator[list[T]]:
    """Yield items as soon as there is one, each time all that have arrived meanwhile.

    Args:
        items: Read ahead, in a task of its own, which ends when this generator is closed.
        size: Of an item.
        most: A list ends with the item that brings its size to it.

    Raises:
        Exception: What `items` raised, after all that came before.
    """
    arrived: list[T] = []
    news = asyncio.Event()

    async def read() -> None:
        try:
            async for item in items:
                arrived.append(item)
                news.set()
        finally:
            news.set()

    reading = asyncio.create_task(read())
    try:
        while arrived or not reading.done():
            await news.wait()
            news.clear()
            while arrived:
                count, total = 0, 0
                while count < len(arrived) and total < most:
                    total += size(arrived[count])
                    count += 1
                some, arrived[:count] = arrived[:count], []
                yield some
        await reading
    finally:
        reading.cancel()
        await asyncio.wait((reading,))
        if not reading.cancelled():
            reading.exception()  # Whoever closed this does not ask any more.
