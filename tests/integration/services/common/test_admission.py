"""What a server takes at once, and how long it waits for its callers."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from antiphon.clients.endpoint import open_channel
from antiphon.services.common.admission import READS_AT_ONCE
from antiphon.services.common.server import Server, ServerSettings, StartError
from antiphon.v1 import learner_pb2, learner_pb2_grpc

SERVICE = "antiphon.v1.LearnerService"
MEGABYTE = 1 << 20
OK = grpc.StatusCode.OK


class Servicer(learner_pb2_grpc.LearnerServiceServicer):
    """Holds GetRun until told, answers StopRun at once, and tells a lot to those who watch.

    PauseRun keeps the event loop from everything else for a while.
    """

    BLOCK_SECONDS = 0.06

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.held = asyncio.Semaphore(0)
        self.told = 0

    async def GetRun(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.held.release()
        await self.release.wait()
        return learner_pb2.GetRunResponse()

    async def StopRun(self, request: Any, context: Any) -> Any:  # noqa: N802
        return learner_pb2.StopRunResponse()

    async def PauseRun(self, request: Any, context: Any) -> Any:  # noqa: N802
        time.sleep(self.BLOCK_SECONDS)  # noqa: ASYNC251
        return learner_pb2.PauseRunResponse()

    async def WatchRun(  # noqa: N802
        self, request: Any, context: Any
    ) -> AsyncGenerator[learner_pb2.WatchRunResponse]:
        note = learner_pb2.Note(text="x" * MEGABYTE)
        for number in range(64):
            self.told = number
            yield learner_pb2.WatchRunResponse(event=learner_pb2.RunEvent(note=note))


class Serving:
    """A server, its servicer and one channel."""

    def __init__(
        self,
        servicer: Servicer,
        server: Server,
        channel: grpc.aio.Channel,
        registry: CollectorRegistry,
    ) -> None:
        self.servicer, self.server, self.channel = servicer, server, channel
        self._registry = registry
        self.stub = learner_pb2_grpc.LearnerServiceStub(channel)

    async def code(self, call: Any) -> grpc.StatusCode:
        try:
            await call
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    async def stop_run(self, size: int = 0) -> grpc.StatusCode:
        """Calls with a reason of that many bytes."""
        request = learner_pb2.StopRunRequest(reason="x" * size)
        return await self.code(self.stub.StopRun(request, timeout=60))

    async def silent_calls(self, count: int) -> list[asyncio.Future[grpc.StatusCode]]:
        """Calls whose requests never come, once the server has got them all."""
        method = self.channel.stream_unary(f"/{SERVICE}/StopRun")
        calls = [asyncio.ensure_future(self.code(method(timeout=60))) for _ in range(count)]
        await self.calls_begun(count)
        return calls

    async def calls_begun(self, count: int) -> None:
        """Returns once the server has got that many calls."""
        async with asyncio.timeout(60):
            while self._calls_begun() < count:
                await asyncio.sleep(0.01)

    def _calls_begun(self) -> float:
        return sum(s.value for s in self._samples() if s.name == "grpc_server_started_total")

    def calls_ended(self, method: str) -> dict[str, float]:
        """How many of a method's calls have ended, by status."""
        return {
            s.labels["grpc_code"]: s.value
            for s in self._samples()
            if s.name == "grpc_server_handled_total" and s.labels["grpc_method"] == method
        }

    def _samples(self) -> list[Sample]:
        return [sample for metric in self._registry.collect() for sample in metric.samples]

    @asynccontextmanager
    async def another_connection(self) -> AsyncIterator[Serving]:
        """The same server, reached by somebody else."""
        alone = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self.server.address, options=alone) as channel:
            yield Serving(self.servicer, self.server, channel, self._registry)

    async def is_healthy(self) -> bool:
        stub = health_pb2_grpc.HealthStub(self.channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Serving]:
    servicer, registry = Servicer(), CollectorRegistry()
    server = Server(
        ServerSettings(**{"metrics_port": None, **settings}),
        name="test",
        services=[SERVICE],
        register=lambda s: learner_pb2_grpc.add_LearnerServiceServicer_to_server(servicer, s),
        registry=registry,
    )
    await server.start()
    try:
        async with open_channel(server.address) as channel:
            yield Serving(servicer, server, channel, registry)
    finally:
        await server.stop(0)


async def _rest(watch: Any) -> None:
    while await watch.read() is not grpc.aio.EOF:
        pass
    await watch


async def test_calls_beyond_the_most_at_once_are_refused_and_the_others_served() -> None:
    async with serving(max_calls=5) as found:
        calls = [
            asyncio.ensure_future(
                found.code(found.stub.GetRun(learner_pb2.GetRunRequest(), timeout=60))
            )
            for _ in range(40)
        ]
        refused, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        while len(refused) < 35:
            more, _ = await asyncio.wait(set(calls) - refused, return_when="FIRST_COMPLETED")
            refused |= more
        assert await found.is_healthy()
        assert await found.stop_run() is grpc.StatusCode.RESOURCE_EXHAUSTED
        found.servicer.release.set()
        codes = Counter(await asyncio.gather(*calls))
        assert codes == {grpc.StatusCode.OK: 5, grpc.StatusCode.RESOURCE_EXHAUSTED: 35}
        assert await found.stop_run() is grpc.StatusCode.OK


async def test_strangers_who_watch_health_keep_no_known_caller_from_it(tmp_path: Path) -> None:
    """Health is open to all, so whoever can connect can use up what is taken of strangers."""
    token = tmp_path / "token"
    token.write_text("a token of the run")
    known = [("authorization", "Bearer a token of the run")]
    wrong = [("authorization", "Bearer a token of nobody")]
    async with serving(max_calls=3, token_file=token) as found:
        stub, request = health_pb2_grpc.HealthStub(found.channel), health_pb2.HealthCheckRequest()
        watches = [stub.Watch(request, timeout=60, metadata=wrong) for _ in range(3)]
        for watch in watches:
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        for metadata in ([], wrong):
            call = stub.Check(request, timeout=60, metadata=metadata)
            assert await found.code(call) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await found.code(stub.Check(request, timeout=60, metadata=known)) is OK
        for watch in watches:
            watch.cancel()


async def test_a_burst_of_thousands_is_answered_and_none_cancelled() -> None:
    """gRPC by itself cancels calls by chance once a thousand wait."""
    async with serving() as found:
        codes = Counter(await asyncio.gather(*(found.stop_run() for _ in range(2500))))
        assert codes.keys() <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert codes[grpc.StatusCode.OK] >= 1024
        assert await found.is_healthy()


async def test_a_message_at_the_limit_is_taken_and_one_over_it_is_refused() -> None:
    envelope = len(learner_pb2.StopRunRequest(reason="x" * 65536).SerializeToString()) - 65536
    async with serving(max_message_bytes=65536 + envelope) as found:
        assert await found.stop_run(65536) is grpc.StatusCode.OK
        assert await found.stop_run(65537) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await found.stop_run() is grpc.StatusCode.OK


async def test_requests_together_are_held_to_a_size_that_is_free_again_afterwards() -> None:
    sizes = {"max_message_bytes": MEGABYTE, "max_request_bytes": MEGABYTE}
    async with serving(**sizes) as found:
        # A field that GetRun does not know travels as well.
        payload = learner_pb2.StopRunRequest(reason="x" * (MEGABYTE // 2)).SerializeToString()
        big = found.channel.unary_unary(f"/{SERVICE}/GetRun")(payload, timeout=60)
        held = asyncio.ensure_future(found.code(big))
        await found.servicer.held.acquire()
        assert await found.stop_run(MEGABYTE // 2) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await found.stop_run(1000) is grpc.StatusCode.OK
        found.servicer.release.set()
        assert await held is grpc.StatusCode.OK
        assert await found.stop_run(MEGABYTE // 2) is grpc.StatusCode.OK


async def test_a_request_that_was_answered_or_refused_is_gone_at_once() -> None:
    """Not when the collector comes: a burst of large requests would pile up until then."""
    sizes = {"max_message_bytes": MEGABYTE, "max_request_bytes": MEGABYTE}
    async with serving(**sizes) as found:
        payload = learner_pb2.StopRunRequest(reason="x" * (MEGABYTE - 100)).SerializeToString()
        held = learner_pb2.StopRunRequest(reason="x" * (MEGABYTE // 2)).SerializeToString()
        answered = found.channel.unary_unary(f"/{SERVICE}/StopRun")
        assert await found.code(answered(payload, timeout=60)) is OK
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(16):
                assert await found.code(answered(payload, timeout=60)) is OK
            waiting = found.channel.unary_unary(f"/{SERVICE}/GetRun")(held, timeout=60)
            under_way = asyncio.ensure_future(found.code(waiting))
            await found.servicer.held.acquire()
            for _ in range(16):
                refused = await found.code(answered(payload, timeout=60))
                assert refused is grpc.StatusCode.RESOURCE_EXHAUSTED
            found.servicer.release.set()
            assert await under_way is OK
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
        assert kept < 2 * MEGABYTE


async def test_a_strangers_health_check_takes_no_room_from_others(tmp_path: Path) -> None:
    """Health is open to all, and whoever watches it may do so for as long as they like."""
    token = tmp_path / "token"
    token.write_text("a token of the run")
    sizes = {"max_message_bytes": MEGABYTE, "max_request_bytes": MEGABYTE}
    async with serving(token_file=token, **sizes) as found:
        method = found.channel.unary_stream("/grpc.health.v1.Health/Watch")
        long = health_pb2.HealthCheckRequest(service="x" * (MEGABYTE // 2)).SerializeToString()
        watch = method(long, timeout=60)
        assert await watch.code() is grpc.StatusCode.INVALID_ARGUMENT
        short = method(health_pb2.HealthCheckRequest(service=SERVICE).SerializeToString())
        assert await short.read() is not grpc.aio.EOF
        request = learner_pb2.StopRunRequest(reason="x" * (MEGABYTE - 10))
        known = [("authorization", "Bearer a token of the run")]
        call = found.stub.StopRun(request, timeout=60, metadata=known)
        assert await found.code(call) is OK
        short.cancel()


async def test_a_request_that_does_not_come_ends_its_call() -> None:
    async with serving(stall_seconds=0.05) as found:
        method = found.channel.stream_unary(f"/{SERVICE}/StopRun")
        assert await found.code(method(timeout=60)) is grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.wait_for(found.server.calls_ended(), 60)


async def test_a_caller_who_sends_nothing_keeps_another_waiting_for_one_turn_only() -> None:
    """However many calls it has: those that are waited for end early, and the other's is next."""
    async with serving(stall_seconds=6) as found, found.another_connection() as other:
        silent = await found.silent_calls(20 * READS_AT_ONCE)
        assert await other.stop_run() is grpc.StatusCode.OK
        ended = [call.result() for call in silent if call.done()]
        assert len(ended) < len(silent) / 2, "it waited for all of them"
        assert set(ended) <= {grpc.StatusCode.RESOURCE_EXHAUSTED}
        for call in silent:
            call.cancel()


async def test_a_caller_with_many_connections_takes_turns_as_one(tmp_path: Path) -> None:
    """Who is known by a token is one caller, over however many connections it opens calls."""
    access = tmp_path / "access.toml"
    access.write_text(
        "".join(f'[{name}]\nroles = ["all"]\ntokens = ["{name * 16}"]\n' for name in "ab")
    )
    one, other = ([("authorization", "Bearer " + name * 16)] for name in "ab")
    alone = [("grpc.use_local_subchannel_pool", 1)]
    async with serving(stall_seconds=6, access_file=access) as found, AsyncExitStack() as stack:
        silent = []
        for _ in range(8 * READS_AT_ONCE):
            channel = grpc.aio.insecure_channel(found.server.address, options=alone)
            await stack.enter_async_context(channel)
            method = channel.stream_unary(f"/{SERVICE}/StopRun")
            call = found.code(method(timeout=60, metadata=one))
            silent.append(asyncio.ensure_future(call))
        await found.calls_begun(len(silent))
        request = learner_pb2.StopRunRequest()
        call = found.code(found.stub.StopRun(request, timeout=60, metadata=other))
        assert await call is grpc.StatusCode.OK
        ended = sum(call.done() for call in silent)
        assert ended <= 3 * READS_AT_ONCE, "it waited for all connections"
        for waiting in silent:
            waiting.cancel()


async def test_a_request_that_has_come_is_taken_however_late_the_server_looks() -> None:
    """The event loop is busy for longer than a request may be awaited while others wait."""
    async with serving(stall_seconds=12 * Servicer.BLOCK_SECONDS / 2) as found:
        payload = learner_pb2.StopRunRequest(reason="x" * MEGABYTE).SerializeToString()
        method = found.channel.unary_unary(f"/{SERVICE}/PauseRun")
        calls = [found.code(method(payload, timeout=60)) for _ in range(2 * READS_AT_ONCE)]
        assert set(await asyncio.gather(*calls)) == {grpc.StatusCode.OK}


async def test_a_request_without_a_message_is_the_callers_fault() -> None:
    async with serving() as found:
        call = found.channel.stream_unary(f"/{SERVICE}/StopRun")(timeout=60)
        await call.done_writing()
        assert await found.code(call) is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_reader_that_stops_reading_is_let_go_and_holds_nobody_up() -> None:
    async with serving(stall_seconds=0.2) as found:
        watch = found.stub.WatchRun(learner_pb2.WatchRunRequest(), timeout=60)
        assert len((await watch.read()).event.note.text) == MEGABYTE
        assert await found.is_healthy()
        await asyncio.wait_for(found.server.calls_ended(), 60)
        assert found.servicer.told < 63, "it was sent without having been read"
        assert await found.code(_rest(watch)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert found.calls_ended("WatchRun") == {"RESOURCE_EXHAUSTED": 1}
        assert await found.stop_run() is grpc.StatusCode.OK


async def test_a_slow_reader_gets_all_of_it() -> None:
    """In all it takes longer than the server waits for a reader that has stopped."""
    stall = 2.0
    async with serving(stall_seconds=stall) as found:
        watch = found.stub.WatchRun(learner_pb2.WatchRunRequest(), timeout=60)
        began, texts = time.monotonic(), 0
        async for answer in watch:
            texts += len(answer.event.note.text) == MEGABYTE
            await asyncio.sleep(0.05)
        assert texts == 64
        assert time.monotonic() - began > stall


async def test_what_is_refused_is_not_read(tmp_path: Path) -> None:
    """A caller without a token gets its answer before it has sent anything."""
    token = tmp_path / "token"
    token.write_text("secret")
    async with serving(token_file=token) as found:
        call = found.channel.stream_unary(f"/{SERVICE}/StopRun")(timeout=60)
        assert await found.code(call) is grpc.StatusCode.UNAUTHENTICATED


async def test_connections_beyond_the_most_are_closed_and_one_that_ends_makes_room() -> None:
    async with serving(max_connections=3) as found, AsyncExitStack() as stack:
        assert await found.stop_run() is OK
        host, _, port = found.server.address.rpartition(":")

        async def connected() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            return reader, writer

        async def is_open(reader: asyncio.StreamReader) -> bool:
            """Whether the server greets; one that it does not take is closed without a word."""
            async with asyncio.timeout(60):
                try:
                    return bool(await reader.read(1))
                except ConnectionError:
                    return False

        held = [await connected() for _ in range(2)]
        assert [await is_open(reader) for reader, _ in held] == [True, True]
        beyond, _ = await connected()
        assert not await is_open(beyond)
        assert await found.stop_run() is OK
        held[0][1].close()
        async with asyncio.timeout(60):
            while not await is_open((await connected())[0]):
                await asyncio.sleep(0.01)


async def test_connections_that_come_and_go_leave_nothing_behind() -> None:
    """Opened and dropped: silent, in the middle of a greeting, of a frame, with a reset."""
    greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    frame = greeting + b"\x00\x40\x00\x01\x04\x00\x00"
    openings = (b"", greeting[:9], greeting, frame, b"\xff" * 99)
    async with serving() as found:
        host, _, port = found.server.address.rpartition(":")
        files = psutil.Process().num_fds

        def drop(number: int) -> None:
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                if number % 2:
                    reset = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                connection.sendall(openings[number % len(openings)])

        before = files()
        for number in range(500):
            await asyncio.to_thread(drop, number)
        assert await found.is_healthy()
        async with AsyncExitStack() as stack, asyncio.timeout(60):
            while files() > before + 5:
                channel = await stack.enter_async_context(open_channel(found.server.address))
                await channel.channel_ready()
        assert await found.stop_run() is grpc.StatusCode.OK


def test_what_is_held_must_have_room_for_one_message() -> None:
    with pytest.raises(StartError, match=r"--max-request-bytes 10 .*--max-message-bytes 11"):
        ServerSettings(max_message_bytes=11, max_request_bytes=10).check()
