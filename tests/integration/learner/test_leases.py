"""A run keeps its services: each replica's lease is renewed on its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import torch
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.generation import GenerationClient
from antiphon.clients.types import LoadedWeights, TensorDtype
from antiphon.learner.weights import membership as membership_module
from antiphon.learner.weights.membership import Membership
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import Replica, Replicas, RunIdentity
from antiphon.learner.weights.wire_weights import OwnWeights
from antiphon.v1 import generation_pb2 as pb
from antiphon.v1.generation_pb2_grpc import (
    GenerationServiceServicer,
    add_GenerationServiceServicer_to_server,
)


class Leased(GenerationServiceServicer):  # type: ignore[misc]
    """Counts renewals; one that is held answers none."""

    def __init__(self, *, held: bool) -> None:
        self.held = held
        self.renewals = 0
        self.address = ""
        self._changed = asyncio.Condition()

    async def GetPushStatus(self, request: Any, context: Any) -> pb.GetPushStatusResponse:  # noqa: N802
        async with self._changed:
            self.renewals += 1
            self._changed.notify_all()
        if self.held:
            await asyncio.Event().wait()
        return pb.GetPushStatusResponse(state=pb.PushState.PUSH_STATE_APPLIED)

    async def renewed(self, more: int) -> None:
        wanted = self.renewals + more
        async with self._changed:
            await self._changed.wait_for(lambda: self.renewals >= wanted)


@asynccontextmanager
async def served(*, held: bool) -> AsyncIterator[Leased]:
    server, leased = grpc.aio.server(), Leased(held=held)
    add_GenerationServiceServicer_to_server(leased, server)  # type: ignore[no-untyped-call]
    healthy = health.aio.HealthServicer()
    await healthy.set("antiphon.v1.GenerationService", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    leased.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield leased
    finally:
        await server.stop(0)


def followed(names: Path, connect: Callable[[Endpoint], Replica]) -> tuple[Membership, Replicas]:
    async def admit(replica: Replica) -> None:
        """Whoever it is fits."""

    replicas = Replicas(patience=20.0)
    publisher = AgentPublisher(
        RunIdentity("run", 1),
        0,
        OwnWeights(lambda: {"w": torch.ones(1)}, TensorDtype.FLOAT32),
        replicas,
        timeout=20,
    )
    membership = Membership(
        [Endpoint(address=f"file://{names}")],
        replicas,
        publisher,
        connect=connect,
        admit=admit,
        every=0.01,
        timeout=20,
    )
    return membership, replicas


async def test_a_replica_that_hangs_or_leaves_takes_no_lease_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A call in flight ends as cancelled when the channel of a replica that left is closed."""
    caplog.set_level("INFO")
    monkeypatch.setattr(membership_module, "RENEW_SECONDS", 0.001)
    names, made = tmp_path / "replicas", list[Replica]()

    def connect(endpoint: Endpoint) -> Replica:
        made.append(Replica(endpoint.address, GenerationClient(endpoint)))  # type: ignore[arg-type]
        made[-1].acknowledged, made[-1].bound = LoadedWeights("run", 1, 7, b"d" * 32), True
        return made[-1]

    async with (
        asyncio.timeout(60),
        served(held=True) as hangs,
        served(held=False) as works,
        AsyncExitStack() as stack,
    ):
        names.write_text(f"{hangs.address}\n{works.address}\n")
        membership, replicas = followed(names, connect)
        membership.start(stack)
        await hangs.renewed(1)
        await works.renewed(3)
        assert hangs.renewals == 1, "one call at a time"
        names.write_text(f"{works.address}\n")
        await replicas.until(lambda: len(replicas) == 1)
        await works.renewed(3)
        assert f"the lease of {hangs.address} is not renewed: its channel is closed" in caplog.text
    for replica in made:
        await replica.client.close()
