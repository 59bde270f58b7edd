"""A receiver of weights that stages what arrives and fails where a test says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from tests.integration.clients.servers import abort

from antiphon.clients.digest import chunk_checksum, tensor_checksum
from antiphon.clients.types import (
    LoadedWeights,
    PushHeader,
    PushResult,
    PushState,
    PushStatus,
    WeightsChunk,
)
from antiphon.clients.wire import (
    push_header_from_proto,
    push_request_from_proto,
    push_result_to_proto,
    push_status_request_from_proto,
    push_status_to_proto,
)
from antiphon.v1.generation_pb2_grpc import (
    GenerationServiceServicer,
    add_GenerationServiceServicer_to_server,
)

Failure = Callable[["Receiver", Any], Awaitable[None]]


class Receiver(GenerationServiceServicer):
    """Stages pushes, resumes them, and applies them when they are whole.

    `before_chunk[n]` runs before the n-th chunk (counted over all attempts, from 0) is taken;
    `before_apply` and `before_answer` run once, when everything has arrived and when it is
    applied.
    """

    def __init__(self) -> None:
        self.staged: list[bytearray] = []
        self.applied: list[bytes] = []
        self.header: PushHeader | None = None
        self.state = PushState.UNKNOWN
        self.loaded = LoadedWeights()
        self.chunks: list[list[WeightsChunk]] = []
        self.status_calls = 0
        self.count = 0
        self.before_chunk: dict[int, Failure] = {}
        self.before_apply: list[Failure] = []
        self.before_answer: list[Failure] = []
        self.damage_chunk: int | None = None
        self.largest_message = 0

    def register(self, server: grpc.aio.Server) -> None:
        add_GenerationServiceServicer_to_server(self, server)

    async def PushWeights(self, requests: Any, context: Any) -> Any:  # noqa: N802
        self.chunks.append([])
        async for message in requests:
            self.largest_message = max(self.largest_message, message.ByteSize())
            if message.HasField("header"):
                await self._open(push_header_from_proto(message.header))
                if self.state is PushState.APPLIED:
                    return self._answer()
                continue
            chunk = push_request_from_proto(message)
            assert isinstance(chunk, WeightsChunk)
            await self._take(chunk, context)
        return await self._apply(context)

    async def _open(self, header: PushHeader) -> None:
        if self.header is None or header.digest != self.header.digest:
            self.staged = [bytearray() for _ in header.tensors]
            self.state = PushState.STAGED
        self.header = header

    async def _take(self, chunk: WeightsChunk, context: Any) -> None:
        failure = self.before_chunk.pop(self.count, None)
        self.count += 1
        if failure is not None:
            await failure(self, context)
        self.chunks[-1].append(chunk)
        staged = self.staged[chunk.tensor_index]
        assert chunk.offset == len(staged), "a gap, or bytes sent twice"
        data = chunk.data
        if self.damage_chunk == self.count - 1:
            data = bytes([data[0] ^ 1]) + data[1:]
        if chunk_checksum(data) != chunk.checksum:
            code = grpc.StatusCode.DATA_LOSS
            await abort(context, code, "damaged", "PUSH_CHECKSUM_MISMATCH", tensor="a")
        staged += data

    async def _apply(self, context: Any) -> Any:
        assert self.header is not None
        for spec, staged in zip(self.header.tensors, self.staged, strict=True):
            assert tensor_checksum(staged) == spec.checksum
        if self.before_apply:
            await self.before_apply.pop()(self, context)
        self.applied = [bytes(staged) for staged in self.staged]
        self.state = PushState.APPLIED
        self.loaded = LoadedWeights("r", 1, self.header.version, self.header.digest)
        if self.before_answer:
            await self.before_answer.pop()(self, context)
        return self._answer()

    def _answer(self) -> Any:
        result = PushResult(self.loaded.version, self.loaded.digest, "i", "b", 0.0)
        return push_result_to_proto(result)

    async def GetPushStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.status_calls += 1
        query = push_status_request_from_proto(request)
        known = self.header is not None and query.digest == self.header.digest
        state = self.state if known else PushState.UNKNOWN
        received = tuple(map(len, self.staged)) if state is PushState.STAGED else ()
        return push_status_to_proto(PushStatus(state, received, self.loaded))


def fails(code: grpc.StatusCode, message: str = "scripted", reason: str = "") -> Failure:
    """End the call with this code."""

    async def failure(receiver: Receiver, context: Any) -> None:
        await abort(context, code, message, reason)

    return failure
