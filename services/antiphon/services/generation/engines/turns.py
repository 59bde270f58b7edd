"""Many samples at once, or one swap alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Turns:
    """Samples begin while no swap waits; a swap begins once those under way have ended."""

    def __init__(self) -> None:
        self.sampling_now = 0
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._one_swap = asyncio.Lock()

    @asynccontextmanager
    async def sampling(self) -> AsyncGenerator[None]:
        """Waits for swaps that came earlier, then keeps later ones waiting."""
        while not self._open.is_set():  # Another swap may have come before this was woken.
            await self._open.wait()
        self.sampling_now += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.sampling_now -= 1
            if not self.sampling_now:
                self._idle.set()

    @asynccontextmanager
    async def swapping(self) -> AsyncGenerator[None]:
        """Waits until nothing is sampled and keeps it so."""
        async with self._one_swap:
            self._open.clear()
            try:
                await self._idle.wait()
                yield
            finally:
                self._open.set()
