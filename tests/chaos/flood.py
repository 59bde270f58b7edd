"""A flood: connections of noise, and calls of whom nobody knows."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

import grpc
import grpc.aio
from tests.chaos.plan import LEARNER

from antiphon.v1 import generation_pb2, learner_pb2, reward_pb2, transition_pb2

CONNECTIONS = 60
CALLS = 100
BYTES = 20_000
NOBODY = {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
"""How calls end that no server has answered."""


async def noise_at(address: str, dice: float) -> None:
    """Connections that say nothing, half of a greeting, or noise; dropped all at once."""
    host, _, port = address.rpartition(":")
    chance = random.Random(dice)
    sent = [
        b"",
        b"PRI * HTTP/2.0\r\n\r\nSM",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        chance.randbytes(BYTES),
    ]

    async def one(data: bytes) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(data)
                await writer.drain()
                if len(data) > 100:
                    await reader.read(100)
                else:
                    await asyncio.sleep(0)
            finally:
                writer.transport.abort()

    await asyncio.gather(*(one(sent[n % len(sent)]) for n in range(CONNECTIONS)))


_METHODS = {
    "agent-0": ("GenerationService/GetModelInfo", generation_pb2.GetModelInfoRequest()),
    "agent-1": ("GenerationService/GetModelInfo", generation_pb2.GetModelInfoRequest()),
    "reward": ("RewardService/Score", reward_pb2.ScoreRequest(run_id="nobody")),
    "transition": ("TransitionService/Transition", transition_pb2.TransitionRequest()),
    LEARNER: ("LearnerService/GetRun", learner_pb2.GetRunRequest()),
}


async def strangers_at(
    victim: str, address: str, credentials: grpc.ChannelCredentials | None
) -> Counter[str]:
    """Many calls at once without a token; how they ended."""
    name, request = _METHODS[victim]
    channel = (
        grpc.aio.insecure_channel(address)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials)
    )
    async with channel:
        method = channel.unary_unary(
            f"/antiphon.v1.{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=bytes,
        )

        async def one() -> str:
            try:
                await method(request, timeout=10)
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)
            return "OK"

        return Counter(await asyncio.gather(*(one() for _ in range(CALLS))))
