"""Chunks of a push that lie in a store, read as if they had come over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import grpc

from antiphon.clients.own_thread import in_own_thread
from antiphon.clients.types import PushHeader, StoredChunks, WeightsChunk
from antiphon.services.common.errors import ServiceError
from antiphon.services.common.weights_store import (
    NotStoredError,
    WeightsStore,
    chunks_of,
    stored_reads,
)

READ_SECONDS = 30.0
"""In which a range must be read; a package for a store may try again for minutes."""


class StoredReader:
    """Reads a store, one range at a time: one that hangs is not asked for more until it answers.

    Args:
        store: Where to read; None for nowhere.
    """

    def __init__(self, store: WeightsStore | None) -> None:
        self._store = store
        self._under_way: asyncio.Task[memoryview] | None = None
        self._until = 0.0

    async def chunks(
        self,
        parts: AsyncIterator[PushHeader | WeightsChunk | StoredChunks],
        header: PushHeader,
        received: Sequence[int],
    ) -> AsyncGenerator[PushHeader | WeightsChunk]:
        """The parts of a push, with the chunks themselves instead of what stands for them.

        Args:
            parts: As they come.
            header: Of the push.
            received: Bytes of each tensor that have arrived before, which are not read again.

        Raises:
            FieldError: The chunks do not fit the header.
            ServiceError: FAILED_PRECONDITION with PUSH_NOT_STORED.
        """
        async for part in parts:
            if not isinstance(part, StoredChunks):
                yield part
                continue
            if self._store is None:
                raise _not_stored("this service reads no store (--weights-store)")
            for start, stop, chunks in stored_reads(header, part, received):
                data = await self._read(self._store, header, start, stop)
                for chunk in chunks_of(data, chunks):
                    yield chunk

    async def _read(
        self, store: WeightsStore, header: PushHeader, start: int, stop: int
    ) -> memoryview:
        now = asyncio.get_running_loop().time
        # A stream that has ended may have left a read, which ends soon unless the store hangs.
        while (left := self._under_way) is not None:
            if now() >= self._until:
                raise _not_stored(f"the store has not answered a read for {READ_SECONDS:g} s")
            await asyncio.wait({left}, timeout=self._until - now())
        self._until = now() + READ_SECONDS
        reading = asyncio.create_task(in_own_thread(store.read, header, start, stop))
        reading.add_done_callback(self._ended)
        self._under_way = reading
        try:
            async with asyncio.timeout_at(self._until):
                return await asyncio.shield(reading)
        except TimeoutError as error:
            path = store.path(header)
            raise _not_stored(f"{path} was not read in {READ_SECONDS:g} s") from error
        except NotStoredError as error:
            raise _not_stored(str(error)) from error

    def _ended(self, reading: asyncio.Task[memoryview]) -> None:
        self._under_way = None
        if not reading.cancelled():
            reading.exception()  # Its failure counts as seen where nobody waits for it any more.


def _not_stored(why: str) -> ServiceError:
    return ServiceError(
        grpc.StatusCode.FAILED_PRECONDITION,
        f"stored: {why}; ask GetPushStatus and send the chunks from where it says",
        reason="PUSH_NOT_STORED",
    )
