"""What the learner asks of services, answered by direct calls in its own process.

The loop, the engine with its thread, and the user's functions on the main thread are the product's.
Nothing is converted, framed, checked or sent: completions are handed over as objects, weights are
copied from tensor to tensor.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.types import (
    Completion,
    GenerateRequest,
    JointAction,
    LoadedWeights,
    ModelInfo,
    Score,
    ScoredJointAction,
    Task,
    TensorSpec,
    TransitionResult,
)
from antiphon.learner.local import LocalServices, save_without_weights
from antiphon.learner.rollout import judges
from antiphon.learner.run import assemble, connections
from antiphon.learner.weights.publisher import Publication
from antiphon.learner.weights.replicas import Replicas, RunIdentity
from antiphon.learner.weights.wire_weights import WireWeights
from antiphon.services.common.user_functions import RewardFunction, TransitionFunction
from antiphon.services.generation.engine import PushedTensor
from antiphon.services.generation.service import GenerationService
from antiphon.services.generation.serving import GenerationOptions, load_engine

DIGEST = b"one process"


class Generation:
    """The calls of `GenerationClient`, on an engine of this process."""

    made: Mapping[str, tuple[Any, GenerationService]] = {}

    def __init__(self, endpoint: Endpoint, **_: Any) -> None:
        self.engine, self._service = self.made[endpoint.address]

    async def get_model_info(self, _timeout: float, **_: object) -> ModelInfo:
        """What the engine runs."""
        return self._service.model_info()

    async def generate(self, request: GenerateRequest, **_: Any) -> AsyncIterator[Completion]:
        """Completions as they end."""
        async with contextlib.aclosing(self._service.generate(request)) as completions:
            async for completion in completions:
                yield completion

    async def close(self) -> None:
        """Ends the engine's thread."""
        await self.engine.stop()


class Publisher:
    """The part of `AgentPublisher` that the loop uses; weights go from tensor to tensor."""

    def __init__(
        self,
        identity: RunIdentity,
        agent: int,
        weights: WireWeights,
        replicas: Replicas,
        **_: Any,
    ) -> None:
        self._identity, self._agent, self._weights = identity, agent, weights
        (replica,) = replicas
        self._engine = replica.client.engine  # type: ignore[attr-defined]
        self.version = 0
        self.moving = asyncio.Lock()

    async def publish(self) -> Publication:
        """Copy the present weights into the engine."""
        self.version += 1
        weights = self._weights
        pushed = [
            PushedTensor(TensorSpec(name, weights.dtype, shape, 0), weights.present(name))
            for name, shape in weights.shapes().items()
        ]
        run, incarnation = self._identity.run_id, self._identity.incarnation
        loaded = LoadedWeights(run, incarnation, self.version, DIGEST)
        pause = await self._engine.apply(pushed, loaded)
        return Publication(self._agent, self.version, 0, 0.0, pause)

    async def close(self) -> None:
        """Nothing to close."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing is resumed."""
        return {"version": self.version}


class _Function:
    """A user's function on the main thread of this process."""

    local: LocalServices

    def __init__(self, _endpoint: object, **_: Any) -> None:
        self._run = self.local._host.main_thread.run

    async def close(self) -> None:
        """Nothing to close."""


class Rewards(_Function):
    """The calls of `RewardClient`."""

    async def score(
        self, _run_id: str, tasks: Sequence[Task], joint_actions: Sequence[JointAction], **_: Any
    ) -> list[Score]:
        """Scores in the order asked, one joint action a call."""
        setup = self.local._setup
        assert callable(setup.reward)
        function = RewardFunction(setup.reward, setup.num_roles, setup.config.reward_batch_size)
        known = {task.id: task for task in tasks}
        scores: list[Score] = []
        for batch in function.batches(joint_actions):
            scores += await self._run(
                lambda batch=batch: function(known, batch), timeout=None, what="reward"
            )
        return scores


class Transitions(_Function):
    """The calls of `TransitionClient`."""

    async def transition(
        self, _run_id: str, tasks: Sequence[Task], scored: Sequence[ScoredJointAction], **_: Any
    ) -> list[TransitionResult]:
        """What follows, in the order asked."""
        setup = self.local._setup
        assert callable(setup.transition)
        function = TransitionFunction(setup.transition, setup.num_roles)
        return [
            await self._run(
                lambda one=one: function(tasks[0], one), timeout=None, what="transition"
            )
            for one in scored
        ]


async def _generation(local: LocalServices) -> list[tuple[Endpoint, ...]]:
    """Engines as the children of a run have, in threads of this process."""
    setup, made = local._setup, {}
    for number, agent in enumerate(setup.agents):
        source = Path(local._folder) / "services" / f"agent_{number}"
        save_without_weights(source, agent.model, agent.tokenizer)
        options = GenerationOptions(model=str(source), weights=False, agent=number)
        engine = await asyncio.to_thread(load_engine, options)
        engine.start()
        service = GenerationService(engine, instance_id="here", boot_id="here", agent=number)
        made[f"unix:/agent-{number}"] = (engine, service)
    Generation.made = made
    _Function.local = local
    return [(Endpoint.of(address),) for address in made]


async def _here(_local: LocalServices) -> Endpoint:
    return Endpoint.of("unix:/here")


@contextlib.contextmanager
def in_one_process() -> Iterator[None]:
    """Runs within the block start no service and make no RPC."""
    with (
        mock.patch.object(connections, "GenerationClient", Generation),
        mock.patch.object(assemble, "AgentPublisher", Publisher),
        mock.patch.object(judges, "RewardClient", Rewards),
        mock.patch.object(judges, "TransitionClient", Transitions),
        mock.patch.object(LocalServices, "generation", _generation),
        mock.patch.object(LocalServices, "reward", _here),
        mock.patch.object(LocalServices, "transition", _here),
    ):
        yield
