"""A learner that pushes what changed, and real services that restart or have it already."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.integration.learner.generation_servers import (
    QUICK,
    Learner,
    prompts,
    sampled,
    services,
)

from antiphon.clients.digest import weights_digest
from antiphon.clients.generation import GenerationClient
from antiphon.clients.types import PushKind, SamplingParameters, TensorDtype
from antiphon.learner.rollout.agents import Agent
from antiphon.learner.weights.connect import model_infos
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import Replica, Replicas, RunIdentity
from antiphon.learner.weights.wire_weights import OwnWeights
from antiphon.services.common.models import load_model
from antiphon.services.common.tensors import tensor_specs, wire_tensors

BF16 = TensorDtype.BFLOAT16


@dataclass
class Trained(Learner):
    """A learner whose weights a test moves."""

    model: torch.nn.Module

    def step(self, offset: int = 0) -> None:
        """Moves one element in fifty of every tensor by some bf16 units."""
        with torch.no_grad():
            for tensor in wire_tensors(self.model).values():
                flat = tensor.view(-1)
                flat[offset::50] *= 1.02
                flat.copy_(flat.to(torch.bfloat16).float())

    async def loaded(self) -> list[tuple[int, bool]]:
        """The version of each replica, and whether its weights are the learner's, bit for bit."""
        infos = await model_infos(self.replicas, start_timeout=5, timeout=5)
        digest = weights_digest(tensor_specs(wire_tensors(self.model), BF16))
        return [(info.loaded.version, info.loaded.digest == digest) for info in infos]


@asynccontextmanager
async def trained(
    folder: Path, addresses: Sequence[str], incarnation: int = 1
) -> AsyncIterator[Trained]:
    """A learner that has met its services."""
    identity = RunIdentity("run", incarnation)
    replicas = Replicas(Replica(a, GenerationClient(a, retry=QUICK)) for a in addresses)
    model = load_model(folder, dtype=torch.float32)
    for tensor in wire_tensors(model).values():
        tensor.copy_(tensor.to(torch.bfloat16).float())
    await model_infos(replicas, start_timeout=20, timeout=20)
    weights = OwnWeights(lambda: wire_tensors(model), BF16)
    publisher = AgentPublisher(identity, 0, weights, replicas, timeout=20)
    sampling = SamplingParameters(1.0, None, None, 8)
    agent = Agent(
        identity, 0, replicas, publisher, sampling=sampling, context_length=256, timeout=20
    )
    try:
        yield Trained(publisher, agent, replicas, model)
    finally:
        for replica in replicas:
            await replica.client.close()


async def test_a_restarted_replica_gets_all_while_the_other_gets_what_changed(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    """S3: noticed at the next publish, and in the middle of sampling; the weights are the same."""
    async with (
        services(tiny_model_folder, tmp_path, 2) as (one, two),
        trained(tiny_model_folder, [one.address, two.address]) as side,
    ):
        first = await side.publisher.publish()
        side.step()
        second = await side.publisher.publish()
        assert (first.kind, second.kind) == (PushKind.FULL, PushKind.DELTA)
        assert second.nbytes < first.nbytes / 4
        assert await side.loaded() == [(2, True), (2, True)]
        await two.restart()
        side.step(1)
        third = await side.publisher.publish()
        assert third.kind is PushKind.FULL
        assert first.nbytes / 2 < third.nbytes < first.nbytes
        assert await side.loaded() == [(3, True), (3, True)]
        await two.restart()
        came = await sampled(side.agent, prompts(4))
        assert len(came) == 8
        assert {c.weights_spans[0].weights_version for c in came.values()} == {3}
        assert await side.loaded() == [(3, True), (3, True)]


async def test_a_resumed_run_finds_its_weights_there_and_goes_on_with_what_changes(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    """S7: the later incarnation takes the same bytes over by an empty delta, under its version."""
    async with services(tiny_model_folder, tmp_path, 1) as (one,):
        async with trained(tiny_model_folder, [one.address]) as before:
            await before.publisher.publish()
            state = before.publisher.state_dict()
        async with trained(tiny_model_folder, [one.address], incarnation=2) as after:
            after.publisher.load_state_dict(state)
            again = await after.publisher.publish()
            assert (again.version, again.kind, again.nbytes) == (1, PushKind.DELTA, 0)
            after.step()
            published = await after.publisher.publish()
            assert (published.version, published.kind) == (2, PushKind.DELTA)
            assert await after.loaded() == [(2, True)]
