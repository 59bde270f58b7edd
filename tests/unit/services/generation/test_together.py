"""Items are handed on by as many as have arrived, none is lost, and errors come last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from antiphon.services.generation.together import together


class Source:
    """Yields what is put, until it is given an error or None."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[int | Exception | None] = asyncio.Queue()
        self.closed = False

    def put(self, *items: int | Exception | None) -> None:
        for item in items:
            self.items.put_nowait(item)

    async def read(self) -> AsyncGenerator[int]:
        try:
            while (item := await self.items.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.closed = True


def one(_: int) -> int:
    return 1


async def test_what_arrived_together_comes_together() -> None:
    source = Source()
    source.put(1, 2, 3)
    async with aclosing(together(source.read(), one, most=100)) as lists:
        assert await anext(lists) == [1, 2, 3]
        waiting = asyncio.create_task(anext(lists))
        source.put(4)
        assert await waiting == [4]
        source.put(5, None)
        assert [some async for some in lists] == [[5]]


async def test_a_list_ends_with_the_item_that_fills_it() -> None:
    source = Source()
    source.put(1, 5, 1, 9, 2, None)
    lists = together(source.read(), lambda item: item, most=6)
    assert [some async for some in lists] == [[1, 5], [1, 9], [2]]


async def test_an_error_comes_after_what_came_before_it() -> None:
    source = Source()
    source.put(1, 2, ValueError("broken"))
    found: list[int] = []

    async def read() -> None:
        async for some in together(source.read(), one, most=100):
            found.extend(some)

    with pytest.raises(ValueError, match="broken"):
        await read()
    assert found == [1, 2]


async def test_closing_it_ends_the_source() -> None:
    source = Source()
    source.put(1)
    async with aclosing(together(source.read(), one, most=100)) as lists:
        assert await anext(lists) == [1]
    assert source.closed
