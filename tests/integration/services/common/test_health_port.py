"""What the health port takes: everybody who can connect may call it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from antiphon.services.common.server import Server, ServerSettings

CHECK = health_pb2.HealthCheckRequest()
SERVING = health_pb2.HealthCheckResponse.SERVING
MAX_CALLS = 10


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    settings = ServerSettings.model_validate(
        {"health_port": 0, "metrics_port": None, "max_calls": MAX_CALLS}
    )
    made = Server(
        settings, name="t", services=[], register=lambda _: None, registry=CollectorRegistry()
    )
    await made.start()
    yield made
    await made.stop(0)


@asynccontextmanager
async def channel_from(host: str, server: Server) -> AsyncIterator[grpc.aio.Channel]:
    """The health port, reached from an address of this machine's loopback."""
    _, _, port = server.health_address.rpartition(":")
    copies = set[asyncio.Task[None]]()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        finally:
            writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", int(port), local_addr=(host, 0))
        for ends in ((reader, there[1]), (there[0], writer)):
            copies.add(asyncio.create_task(copy(*ends)))

    relay = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    target = "{}:{}".format(*relay.sockets[0].getsockname())
    async with relay, grpc.aio.insecure_channel(target) as channel:
        yield channel
    for copying in copies:
        copying.cancel()
    await asyncio.gather(*copies, return_exceptions=True)


async def first_of(watch: Any) -> grpc.StatusCode:
    """OK for a watch that is taken and goes on, else how it was refused."""
    try:
        await watch.read()
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_watches_are_taken_up_to_a_bound_and_leave_room_for_other_hosts(
    server: Server,
) -> None:
    """Whoever probes must not be kept from it by another host: they would restart the process."""
    async with (
        channel_from("127.0.0.1", server) as channel,
        channel_from("127.0.0.2", server) as prober,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(CHECK, timeout=60) for _ in range(4 * MAX_CALLS)]
        codes = Counter(await asyncio.gather(*map(first_of, watches)))
        assert codes == {grpc.StatusCode.OK: 5, grpc.StatusCode.RESOURCE_EXHAUSTED: 35}
        for _ in range(MAX_CALLS):
            answer = await health_pb2_grpc.HealthStub(prober).Check(CHECK, timeout=60)
            assert answer.status == SERVING
        for watch in watches:
            watch.cancel()


async def test_hosts_together_are_held_to_a_bound(server: Server) -> None:
    async with (
        channel_from("127.0.0.1", server) as one,
        channel_from("127.0.0.2", server) as two,
        channel_from("127.0.0.3", server) as three,
    ):
        codes = Counter[grpc.StatusCode]()
        watches = []
        for channel in (one, two, three):
            stub = health_pb2_grpc.HealthStub(channel)
            found = [stub.Watch(CHECK, timeout=60) for _ in range(MAX_CALLS)]
            codes.update(await asyncio.gather(*map(first_of, found)))
            watches += found
        assert codes == {grpc.StatusCode.OK: 10, grpc.StatusCode.RESOURCE_EXHAUSTED: 20}
        for watch in watches:
            watch.cancel()


async def test_a_large_message_is_refused(server: Server) -> None:
    request = health_pb2.HealthCheckRequest(service="x" * (1 << 20))
    async with grpc.aio.insecure_channel(server.health_address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Check(request, timeout=60)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Check(CHECK, timeout=60)).status == SERVING
