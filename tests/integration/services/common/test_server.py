"""The server that every service is, over real connections."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from antiphon.clients.endpoint import Endpoint, open_channel
from antiphon.clients.types import FieldError
from antiphon.services.common.server import Server, ServerSettings, StartError
from antiphon.v1 import reward_pb2, reward_pb2_grpc

SERVICE = "antiphon.v1.RewardService"
INFO = reward_pb2.GetRewardInfoRequest()
Behaviour = Callable[[], Awaitable[str]]


class Servicer(reward_pb2_grpc.RewardServiceServicer):
    """Answers with what `behaviour` returns or raises."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour

    async def GetRewardInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return reward_pb2.GetRewardInfoResponse(name=await self.behaviour())

    async def Score(self, request: Any, context: Any) -> Any:  # noqa: N802
        return reward_pb2.ScoreResponse()


async def fine() -> str:
    return "fine"


def make(behaviour: Behaviour = fine, **settings: Any) -> Server:
    servicer = Servicer(behaviour)
    return Server(
        ServerSettings(**{"metrics_port": None, **settings}),
        name="test",
        services=[SERVICE],
        register=lambda s: reward_pb2_grpc.add_RewardServiceServicer_to_server(servicer, s),
        registry=CollectorRegistry(),
    )


@asynccontextmanager
async def serving(
    behaviour: Behaviour = fine, **settings: Any
) -> AsyncIterator[tuple[Server, grpc.aio.Channel]]:
    server = make(behaviour, **settings)
    await server.start()
    async with open_channel(server.address) as channel:
        yield server, channel
    await server.stop(0)


async def ask(channel: grpc.aio.Channel, **options: Any) -> str:
    stub = reward_pb2_grpc.RewardServiceStub(channel)
    return str((await stub.GetRewardInfo(INFO, timeout=20, **options)).name)


async def health(channel: grpc.aio.Channel, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    return int((await stub.Check(request, timeout=20)).status)


async def metrics(server: Server) -> str:
    url = f"http://{server.metrics_address}/metrics"

    def get() -> str:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(get)


async def refused(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_health_follows_set_serving_for_the_server_and_its_services() -> None:
    async with serving() as (server, channel):
        assert await health(channel) == await health(channel, SERVICE) == SERVING
        await server.set_serving(False)
        assert await health(channel) == await health(channel, SERVICE) == NOT_SERVING
        error = await refused(health(channel, "unknown.Service"))
        assert error.code() is grpc.StatusCode.NOT_FOUND


async def test_health_answers_while_a_handler_is_held() -> None:
    """S15: a handler that waits for its engine or its user's function holds nobody up."""
    release, begun = threading.Event(), asyncio.Event()

    async def held() -> str:
        begun.set()
        await asyncio.to_thread(release.wait, 60)
        return "released"

    async with serving(held) as (_, channel):
        call = asyncio.create_task(ask(channel))
        await begun.wait()
        assert await health(channel) == SERVING
        assert not call.done()
        release.set()
        assert await call == "released"


async def test_reflection_is_for_loopback_unless_asked_for() -> None:
    async def listed(channel: grpc.aio.Channel) -> list[str]:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([request]), timeout=20)
        answer = await call.read()
        return [entry.name for entry in answer.list_services_response.service]

    async with serving() as (_, channel):
        assert {SERVICE, "grpc.health.v1.Health"} <= set(await listed(channel))
    async with serving(reflection=False) as (_, channel):
        error = await refused(listed(channel))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    open_server = make(host="0.0.0.0", insecure=True)
    await open_server.start()
    async with open_channel(f"127.0.0.1:{open_server.address.rpartition(':')[2]}") as channel:
        assert await ask(channel) == "fine"
        error = await refused(listed(channel))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    await open_server.stop(0)


async def test_metrics_count_calls_by_method_and_code() -> None:
    async def broken() -> str:
        raise FieldError("a.b", 1, "2")

    async with serving(broken, metrics_port=0) as (server, channel):
        await refused(ask(channel))
        await health(channel)
        text = await metrics(server)
    labels = f'grpc_method="GetRewardInfo",grpc_service="{SERVICE}",grpc_type="unary"'
    assert f"grpc_server_started_total{{{labels}}} 1.0" in text
    assert f'grpc_server_handled_total{{grpc_code="INVALID_ARGUMENT",{labels}}} 1.0' in text
    assert f"grpc_server_handling_seconds_count{{{labels}}} 1.0" in text
    assert 'grpc_method="Check"' in text
    assert "antiphon_build_info{" in text


async def test_a_call_that_the_caller_gives_up_is_counted_as_such() -> None:
    begun = asyncio.Event()

    async def never() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async with serving(never, metrics_port=0) as (server, channel):
        call = asyncio.create_task(ask(channel))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(server.calls_ended(), 20)
        assert 'grpc_code="CANCELLED"' in await metrics(server)


async def test_an_unexpected_error_is_internal_and_tells_nothing_of_itself() -> None:
    async def broken() -> str:
        raise RuntimeError("password is hunter2")

    async with serving(broken) as (_, channel):
        error = await refused(ask(channel))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "hunter2" not in str(error)


async def test_bytes_that_are_no_message_are_the_callers_fault() -> None:
    """S17: each is answered with a canonical code, and the server serves on."""
    random_bytes = random.Random(0)
    async with serving() as (_, channel):
        call = channel.unary_unary(f"/{SERVICE}/Score")
        codes = set()
        for size in range(1, 200):
            try:
                await call(random_bytes.randbytes(size), timeout=20)
            except grpc.aio.AioRpcError as error:
                codes.add(error.code())
        assert codes == {grpc.StatusCode.INVALID_ARGUMENT}
        assert await ask(channel) == "fine"


async def test_a_stop_lets_calls_in_flight_finish_while_health_says_so() -> None:
    release, begun = asyncio.Event(), asyncio.Event()

    async def held() -> str:
        begun.set()
        await release.wait()
        return "finished"

    async with serving(held) as (server, channel):
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=SERVICE), timeout=60
        )
        assert (await watch.read()).status == SERVING
        call = asyncio.create_task(ask(channel))
        await begun.wait()
        stop = asyncio.create_task(server.stop(60))
        assert (await watch.read()).status == NOT_SERVING
        assert not call.done()
        release.set()
        assert await call == "finished"
        # The watch is still open; were it waited for, this would take the whole grace.
        await asyncio.wait_for(stop, 30)


async def test_a_stop_loses_no_answer_that_is_on_its_way() -> None:
    """It is made and not yet sent when nothing is in flight any more; somebody watches still."""
    for _ in range(80):
        release, begun = asyncio.Event(), asyncio.Event()

        async def held(begun: asyncio.Event = begun, release: asyncio.Event = release) -> str:
            begun.set()
            await release.wait()
            return "finished"

        async with serving(held) as (server, channel):
            watched = health_pb2.HealthCheckRequest(service=SERVICE)
            watch = health_pb2_grpc.HealthStub(channel).Watch(watched, timeout=60)
            assert (await watch.read()).status == SERVING
            call = asyncio.create_task(ask(channel))
            await begun.wait()
            stop = asyncio.create_task(server.stop(60))
            assert (await watch.read()).status == NOT_SERVING
            release.set()
            assert await call == "finished"
            await asyncio.wait_for(stop, 30)
            assert await watch.read() is grpc.aio.EOF


async def test_a_stop_ends_calls_that_outlive_the_grace() -> None:
    begun = asyncio.Event()

    async def never() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async with serving(never) as (server, channel):
        call = asyncio.create_task(ask(channel))
        await begun.wait()
        await asyncio.wait_for(server.stop(0.05), 30)
        error = await refused(call)
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def test_a_taken_port_is_an_error_that_says_so() -> None:
    async with serving(metrics_port=0) as (server, channel):
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{port}.*--port"):
            await make(port=port).start()
        metrics_port = int(server.metrics_address.rpartition(":")[2])
        with pytest.raises(StartError, match=f"metrics on 127.0.0.1:{metrics_port}"):
            await make(metrics_port=metrics_port).start()
        assert await ask(channel) == "fine"


async def test_a_living_unix_socket_is_not_taken_over_and_a_dead_one_is(tmp_path: Path) -> None:
    host = f"unix:{tmp_path / 's.sock'}"
    async with serving(host=host) as (server, channel):
        assert server.address == host
        with pytest.raises(StartError, match="another server listens"):
            await make(host=host).start()
        assert await ask(channel) == "fine"
    async with serving(host=host) as (_, channel):
        assert await ask(channel) == "fine"


async def test_the_health_port_serves_health_and_nothing_else(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    async with (
        serving(health_port=0, token_file=token) as (server, _),
        open_channel(server.health_address) as probe,
    ):
        assert await health(probe, SERVICE) == SERVING
        error = await refused(ask(probe))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        await server.set_serving(False)
        assert await health(probe, SERVICE) == NOT_SERVING


async def test_the_address_file_says_where_it_serves(tmp_path: Path) -> None:
    path = tmp_path / "new" / "address.json"
    async with serving(address_file=path, instance_id="replica-1", metrics_port=0) as (
        server,
        channel,
    ):
        told = json.loads(path.read_text())
        assert told["address"] == server.address
        assert told["metrics_address"] == server.metrics_address
        assert (told["pid"], told["boot_id"]) == (os.getpid(), server.boot_id)
        assert server.instance_id == "replica-1"
        assert [entry.name for entry in path.parent.iterdir()] == ["address.json"]
        assert await ask(channel) == "fine"


async def test_no_token_and_a_wrong_token_are_refused_without_saying_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S18"""
    token = tmp_path / "token"
    token.write_text("correct-secret\n")
    caplog.set_level("DEBUG")
    async with serving(token_file=token, metrics_port=0) as (server, channel):
        for metadata in (
            (),
            (("authorization", "Bearer wrong-secret"),),
            (("authorization", "correct-secret"),),
            (("authorization", "Bearer correct-secret-and-more"),),
            (("authorization", "Bearer "),),
        ):
            error = await refused(ask(channel, metadata=metadata))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "correct-secret" not in str(error)
        endpoint = Endpoint(address=server.address, token_file=token)
        assert await ask(channel, metadata=endpoint.metadata()) == "fine"
        assert await health(channel, SERVICE) == SERVING
        assert 'grpc_code="UNAUTHENTICATED"' in await metrics(server)
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("antiphon")]
    assert any("UNAUTHENTICATED" in line for line in ours)
    assert not any("-secret" in line for line in ours)


async def test_messages_of_many_megabytes_pass_both_ways() -> None:
    """S1: far over gRPC's own limit of 4 MiB."""
    size = 20 * 1024 * 1024

    async def large() -> str:
        return "x" * size

    async with serving(large) as (_, channel):
        assert len(await ask(channel)) == size
        stub = reward_pb2_grpc.RewardServiceStub(channel)
        await stub.Score(reward_pb2.ScoreRequest(run_id="x" * size), timeout=60)
