"""A learner of one agent and generation services that share a store of pushes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from tests.integration.learner.generation_servers import QUICK, Service

from antiphon.clients.generation import GenerationClient
from antiphon.clients.types import PushHeader, PushKind, PushResult, TensorDtype
from antiphon.learner.weights.connect import model_infos
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import Replica, Replicas, RunIdentity
from antiphon.learner.weights.wire_weights import OwnWeights
from antiphon.services.common.models import load_model
from antiphon.services.common.tensors import wire_tensors
from antiphon.services.common.weights_store import WeightsStore


class Counted(GenerationClient):
    """Notes the pushes that it makes, and the bytes of weights that are read to be sent."""

    def __init__(self, address: str) -> None:
        super().__init__(address, retry=QUICK)
        self.sent = 0
        self.pushed: list[tuple[PushKind, int]] = []

    async def push_weights(
        self,
        header: PushHeader,
        read_tensor: Callable[[int], memoryview],
        **options: Any,
    ) -> PushResult:
        def read(index: int) -> memoryview:
            data = read_tensor(index)
            self.sent += data.nbytes
            return data

        self.pushed.append((header.kind, header.version))
        return await super().push_weights(header, read, **options)


class Cluster:
    """A learner of one agent and its services, which share a store."""

    def __init__(self, model: Path, url: str) -> None:
        self.model = load_model(model, dtype=torch.float32)
        self.store = WeightsStore(url)
        self.store.create()
        self.clients: list[Counted] = []
        self.replicas = Replicas()
        self.publisher = AgentPublisher(
            RunIdentity("run", 1),
            0,
            OwnWeights(lambda: wire_tensors(self.model), TensorDtype.BFLOAT16),
            self.replicas,
            timeout=20,
            store=self.store,
        )

    async def add(self, service: Service) -> Replica:
        self.clients.append(Counted(service.address))
        replica = Replica(service.address, self.clients[-1])
        await model_infos([replica], start_timeout=20, timeout=20)
        self.replicas.add(replica)
        return replica

    async def bring(self, service: Service) -> Counted:
        """As a replica that joined in the middle of a run is."""
        replica = await self.add(service)
        replica.reachable = False
        await self.publisher.bring(replica)
        assert replica.reachable
        return self.clients[-1]

    def step(self) -> None:
        """A small change of some weights."""
        with torch.no_grad():
            for tensor in wire_tensors(self.model).values():
                tensor.view(-1)[::50] *= 1.5

    @property
    def nbytes(self) -> int:
        """Of all tensors on the wire."""
        return sum(2 * tensor.numel() for tensor in wire_tensors(self.model).values())

    async def digests(self) -> set[bytes]:
        """Of what the services have loaded, all of one version."""
        infos = [await client.get_model_info(5) for client in self.clients]
        assert {info.loaded.version for info in infos} == {self.publisher.version}
        return {info.loaded.digest for info in infos}


@asynccontextmanager
async def cluster(
    model: Path, url: str, sockets: Path, *stores: bool
) -> AsyncIterator[tuple[Cluster, list[Service]]]:
    """The learner, and a service for each of `stores`, with a store or without, not yet added."""
    made = Cluster(model, url)
    services = [
        Service(model, sockets / f"{number}.sock", store=made.store if store else None)
        for number, store in enumerate(stores)
    ]
    try:
        for service in services:
            await service.start()
        yield made, services
    finally:
        await made.publisher.close()
        for client in made.clients:
            await client.close()
        for service in services:
            await service.stop()
