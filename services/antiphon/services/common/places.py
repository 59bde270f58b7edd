"""Places for requests that are arriving: so many at once, none kept from others for long.

Callers take turns, and so do the connections of each, so that one with many calls or connections
keeps another waiting for one turn, not for all of them. While somebody waits, whoever has a place
is looked at now and then, and who was seen often enough has to leave it. Looks are counted, not
seconds: an event loop that is busy looks late, and takes in between what has arrived meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

LOOKS = 10


class PlaceWantedError(Exception):
    """Others waited for the place for too long."""


class Places:
    """Places that are held while a request arrives.

    Args:
        most: How many there are.
        seconds: How long one may be held while others wait.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.seconds = seconds
        self._free = most
        self._held: dict[asyncio.Timeout, int] = {}
        self._queues: dict[str, dict[str, deque[asyncio.Future[None]]]] = {}
        self._waiting = 0

    @asynccontextmanager
    async def place(self, caller: str, connection: str, seconds: float) -> AsyncIterator[None]:
        """Hold a place for the length of the block, once there is one.

        Args:
            caller: Whose turn it takes.
            connection: Of the caller's, the one whose turn it takes.
            seconds: Most seconds that the block may take.

        Raises:
            TimeoutError: It took more.
            PlaceWantedError: Others waited too long for the place.
        """
        await self._enter(caller, connection)
        looks = 0
        try:
            async with asyncio.timeout(seconds) as limit:
                self._held[limit] = 0
                try:
                    yield
                finally:
                    looks = self._held.pop(limit)
        except TimeoutError as error:
            if looks < LOOKS:
                raise
            raise PlaceWantedError from error
        finally:
            self._leave()

    async def _enter(self, caller: str, connection: str) -> None:
        if self._free:
            self._free -= 1
            return
        if not self._waiting:
            self._look_later()
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(caller, {}).setdefault(connection, deque()).append(turn)
        self._waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._leave()
            raise
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._looks.cancel()

    def _leave(self) -> None:
        """Give the place to the caller who waits longest for a turn."""
        while self._queues:
            caller = next(iter(self._queues))
            connections = self._queues.pop(caller)
            connection = next(iter(connections))
            queue = connections.pop(connection)
            turn = queue.popleft()
            if queue:
                connections[connection] = queue
            if connections:
                self._queues[caller] = connections
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._looks = loop.call_later(self.seconds / LOOKS, self._look)

    def _look(self) -> None:
        wanted = self._waiting
        for limit in self._held:
            self._held[limit] += 1
            if self._held[limit] >= LOOKS and wanted and not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())
                wanted -= 1
        self._look_later()
