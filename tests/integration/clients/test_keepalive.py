"""S14: a silent connection is kept by pings that the server permits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
from tests.integration.clients.servers import serving, within

from antiphon.clients.channel_options import (
    PING_SECONDS,
    SERVER_MIN_PING_SECONDS,
    client_options,
    server_options,
)
from antiphon.v1 import learner_pb2 as pb
from antiphon.v1.learner_pb2_grpc import (
    LearnerServiceServicer,
    LearnerServiceStub,
    add_LearnerServiceServicer_to_server,
)

# gRPC pings at most once a second; the real ratio of both sides is kept.
CLIENT_SECONDS = 1.0
SERVER_SECONDS = CLIENT_SECONDS * SERVER_MIN_PING_SECONDS / PING_SECONDS
# Long enough for more pings than a server bears when they come too often.
SILENCE = 6.0


class Silent(LearnerServiceServicer):
    """Streams nothing until it is told to end."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    async def WatchRun(  # noqa: N802
        self, request: Any, context: Any
    ) -> AsyncIterator[pb.WatchRunResponse]:
        await self.end.wait()
        yield pb.WatchRunResponse()


async def survives_silence(server_seconds: float) -> bool:
    """Whether a silent stream still answers after many pings."""
    service = Silent()
    async with serving(
        lambda server: add_LearnerServiceServicer_to_server(service, server),
        options=[*server_options(server_seconds)],
    ) as target:
        options = client_options(CLIENT_SECONDS)
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            call = LearnerServiceStub(channel).WatchRun(pb.WatchRunRequest())
            broken = asyncio.Event()
            call.add_done_callback(lambda _: broken.set())
            try:
                async with asyncio.timeout(SILENCE):
                    await broken.wait()
            except TimeoutError:
                service.end.set()
                response: Any = await within(call.read())
                return isinstance(response, pb.WatchRunResponse)
            return False


async def test_pings_that_both_sides_agree_on_keep_a_silent_stream() -> None:
    """S14: at the ratio of our settings nothing is killed; at the opposite one it is."""
    fits, does_not_fit = await asyncio.gather(
        survives_silence(SERVER_SECONDS), survives_silence(CLIENT_SECONDS * 60)
    )
    assert fits
    assert not does_not_fit
