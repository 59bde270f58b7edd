"""Chunks of a push that lie in a store, read as if they had come over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import grpc

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


async def read_stored(
    parts: AsyncIterator[PushHeader | WeightsChunk | StoredChunks],
    header: PushHeader,
    received: Sequence[int],
    store: WeightsStore | None,
) -> AsyncGenerator[PushHeader | WeightsChunk]:
    """The parts of a push, with the chunks themselves instead of what stands for them.

    Args:
        parts: As they come.
        header: Of the push.
        received: Bytes of each tensor that have arrived before, which are not read again.
        store: Where to read; None for nowhere.

    Raises:
        FieldError: The chunks do not fit the header.
        ServiceError: FAILED_PRECONDITION with PUSH_NOT_STORED.
    """
    async for part in parts:
        if not isinstance(part, StoredChunks):
            yield part
            continue
        if store is None:
            raise _not_stored("this service reads no store (--weights-store)")
        for start, stop, chunks in stored_reads(header, part, received):
            try:
                async with asyncio.timeout(READ_SECONDS):
                    data = await asyncio.to_thread(store.read, header, start, stop)
            except TimeoutError as error:
                path = store.path(header)
                raise _not_stored(f"{path} was not read in {READ_SECONDS:g} s") from error
            except NotStoredError as error:
                raise _not_stored(str(error)) from error
            for chunk in chunks_of(data, chunks):
                yield chunk


def _not_stored(why: str) -> ServiceError:
    return ServiceError(
        grpc.StatusCode.FAILED_PRECONDITION,
        f"stored: {why}; ask GetPushStatus and send the chunks from where it says",
        reason="PUSH_NOT_STORED",
    )
