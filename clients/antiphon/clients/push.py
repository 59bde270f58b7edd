"""How weights are pushed: in chunks inside tensors, going on where a broken push stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import grpc

from antiphon.clients.batches import split
from antiphon.clients.digest import chunk_checksum
from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.retry import Attempts
from antiphon.clients.types import (
    FieldError,
    PushHeader,
    PushResult,
    PushState,
    PushStatus,
    StoredChunks,
    WeightsChunk,
)
from antiphon.clients.waiting import progressed
from antiphon.clients.wire import chunk_to_bytes, push_request_to_proto, push_result_from_proto
from antiphon.v1 import generation_pb2 as pb

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
"""Bytes in one message of a push: 1 MiB was the fastest size that every receiver takes."""

READ_BYTES = 16 << 20
"""Bytes of tensors that are read at a time, where one tensor is not more."""

ReadTensor = Callable[[int], memoryview]
PushOnce = Callable[[AsyncGenerator[bytes, None], float], Awaitable[pb.PushWeightsResponse]]
GetStatus = Callable[[PushHeader, float], Awaitable[PushStatus]]

STATUS_SECONDS = 30.0
"""Longest deadline of a GetPushStatus call between two attempts."""


async def push_weights(
    push_once: PushOnce,
    get_status: GetStatus,
    header: PushHeader,
    read_tensor: ReadTensor,
    *,
    timeout: float,
    chunk_bytes: int,
    attempts: Attempts,
    address: str,
    stored: StoredChunks | None = None,
) -> PushResult:
    """Push until the service answers that exactly these weights are applied.

    See `GenerationClient.push_weights`, whose work this is.
    """
    received: Sequence[int] = ()
    while True:
        try:
            if stored is not None:
                messages = stored_messages(header, stored)
            else:
                messages = push_messages(header, read_tensor, received, chunk_bytes)
            response = await push_once(messages, timeout)
            progressed()
            break
        except CallError as error:
            if stored is not None and (_damaged(error) or error.reason == "PUSH_NOT_STORED"):
                logger.warning("%s is sent what it does not find in the store: %s", address, error)
                stored = None
            else:
                await attempts.pause_after(error, transient=error.transient or _damaged(error))
        arrived = _arrived(await get_status(header, min(timeout, STATUS_SECONDS)), header, address)
        if sum(arrived) > sum(received):
            attempts.progressed()
        received = arrived
    result = push_result_from_proto(response)
    if (result.weights_version, result.digest) != (header.version, header.digest):
        raise ContractError(
            address,
            "PushWeights",
            f"applied version {result.weights_version} with digest {result.digest.hex()}, pushed "
            f"version {header.version} with digest {header.digest.hex()}",
        )
    return result


async def stored_messages(header: PushHeader, stored: StoredChunks) -> AsyncGenerator[bytes, None]:
    """Yield the serialised messages of a push whose chunks lie in a store."""
    yield push_request_to_proto(header).SerializeToString()
    yield push_request_to_proto(stored).SerializeToString()


async def push_messages(
    header: PushHeader,
    read_tensor: ReadTensor,
    received: Sequence[int] = (),
    chunk_bytes: int = CHUNK_BYTES,
) -> AsyncGenerator[bytes, None]:
    """Yield the serialised messages: the header, then chunks that the service does not have yet.

    Args:
        header: What is pushed.
        read_tensor: Gives a tensor's bytes, of a DELTA its encoded change; called in a thread.
        received: Bytes that have arrived of each tensor from its start; empty for none.
        chunk_bytes: Most bytes in one chunk.

    Raises:
        FieldError: A tensor does not have the bytes that the header says.
    """
    yield push_request_to_proto(header).SerializeToString()
    sizes = header.sizes
    arrived = [*received, *[0] * len(sizes)][: len(sizes)]
    wanted = [index for index, size in enumerate(sizes) if arrived[index] < size]
    # Small tensors are read together: a model has hundreds of them.
    for group in split(wanted, [sizes[index] for index in wanted], most=0, most_bytes=READ_BYTES):
        tensors = await asyncio.to_thread(list, map(read_tensor, group))
        for index, tensor in zip(group, tensors, strict=True):
            spec, size, data = header.tensors[index], sizes[index], tensor.cast("B")
            if data.nbytes != size:
                raise FieldError(
                    f"read_tensor({index})",
                    f"{data.nbytes} bytes",
                    f"{size} for {spec.name} of shape {spec.shape} in {spec.dtype}",
                )
            for offset in range(arrived[index], size, chunk_bytes):
                part = data[offset : offset + chunk_bytes]
                yield chunk_to_bytes(WeightsChunk(index, offset, part, chunk_checksum(part)))


def _damaged(error: CallError) -> bool:
    """Whether bytes were damaged on the way: nothing was applied, so they are sent again."""
    return error.code is grpc.StatusCode.DATA_LOSS and error.reason == "PUSH_CHECKSUM_MISMATCH"


def _arrived(status: PushStatus, header: PushHeader, address: str) -> Sequence[int]:
    """Bytes of each tensor that need not be sent again."""
    sizes = header.sizes
    if status.state in (PushState.APPLYING, PushState.APPLIED):
        return sizes
    if status.state is PushState.UNKNOWN:
        return [0] * len(sizes)
    received = status.received_bytes
    if len(received) != len(sizes) or any(
        got > size for got, size in zip(received, sizes, strict=False)
    ):
        raise ContractError(
            address,
            "GetPushStatus",
            f"received_bytes {list(received)[:10]} do not fit {len(sizes)} tensors of "
            f"{list(sizes[:10])} bytes",
        )
    return received
