"""What a generation server makes of the messages of a push before its service sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from antiphon.clients.types import PushResult, WeightsChunk
from antiphon.clients.wire import chunk_to_bytes, push_result_to_proto
from antiphon.services.generation.servicer import SERVICE_NAME, GenerationServicer, add_to_server
from antiphon.v1 import generation_pb2 as pb


class Recorder(GenerationServicer):
    """Keeps the messages of pushes as they come."""

    def __init__(self) -> None:
        self.came: list[Any] = []

    async def PushWeights(  # noqa: N802
        self, request_iterator: AsyncIterator[Any], _context: Any
    ) -> pb.PushWeightsResponse:
        self.came = [message async for message in request_iterator]
        return push_result_to_proto(PushResult(1, b"d" * 32, "i", "b", 0.0))


async def test_chunks_reach_the_service_without_a_copy_of_their_bytes() -> None:
    """A header as protobuf's message; of a chunk a view into what gRPC received."""
    chunk = WeightsChunk(3, 5, b"abc" * 1000, 7)
    header = pb.PushWeightsRequest(header=pb.PushHeader(run_id="r", version=3))

    async def messages() -> AsyncIterator[bytes]:
        yield header.SerializeToString()
        yield chunk_to_bytes(chunk)

    recorder, server = Recorder(), grpc.aio.server()
    add_to_server(recorder, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await channel.stream_unary(f"/{SERVICE_NAME}/PushWeights")(messages(), timeout=30)
    finally:
        await server.stop(0)
    assert recorder.came == [header, chunk]
    assert isinstance(recorder.came[1].data, memoryview)
