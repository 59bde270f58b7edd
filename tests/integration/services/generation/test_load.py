"""More calls than a generation service takes at once, and a caller that does not read."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.integration.services.generation.harness import Hold, Replica, replica, request

from antiphon.clients.endpoint import open_channel
from antiphon.clients.wire import generate_request_to_proto

Folders = Callable[..., Path]


async def code_of(served: Replica, samples: int = 1) -> grpc.StatusCode:
    """How a call ends that reads all of its answer."""
    asked = generate_request_to_proto(request(samples=samples))
    try:
        async for _ in served.stub.Generate(asked, timeout=60):
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_more_calls_than_are_taken_are_refused_and_the_others_served(
    tiny_folders: Folders,
) -> None:
    async with replica(tiny_folders(), listens={"max_calls": 16}) as served:
        hold = Hold(served.engine)
        calls = [asyncio.ensure_future(code_of(served)) for _ in range(64)]
        refused: set[asyncio.Task[grpc.StatusCode]] = set()
        while len(refused) < 48:
            waits = set(calls) - refused
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            refused |= done
        await hold.entered()
        async with open_channel(served.server.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        hold.release()
        codes = Counter(await asyncio.gather(*calls))
        assert codes == {grpc.StatusCode.OK: 16, grpc.StatusCode.RESOURCE_EXHAUSTED: 48}


async def test_who_does_not_read_is_let_go_and_holds_nobody_up(tiny_folders: Folders) -> None:
    async with replica(tiny_folders(), listens={"stall_seconds": 0.2}) as served:
        asked = generate_request_to_proto(request(samples=2000, max_new_tokens=4))
        silent = served.stub.Generate(asked, timeout=60)
        await silent.wait_for_connection()
        assert await code_of(served) is grpc.StatusCode.OK
        await asyncio.wait_for(served.server.calls_ended(), 60)
        assert not silent.done()
        silent.cancel()
        assert await code_of(served) is grpc.StatusCode.OK
