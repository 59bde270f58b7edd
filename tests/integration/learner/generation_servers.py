"""Generation services on this process's event loop, and what a learner holds of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from antiphon.clients.generation import GenerationClient
from antiphon.clients.retry import RetryPolicy
from antiphon.clients.types import (
    Completion,
    PromptSamples,
    SamplingParameters,
    TensorDtype,
    TokenIds,
)
from antiphon.learner.rollout.agents import Agent
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import Replica, RunIdentity
from antiphon.services.common.models import load_model
from antiphon.services.common.server import Server, ServerSettings
from antiphon.services.common.tensors import wire_tensors
from antiphon.services.generation.serving import (
    GenerationOptions,
    generation_server,
    load_engine,
)
from antiphon.services.generation.transformers_engine import OnSwap

QUICK = RetryPolicy(attempts=8, initial_backoff=0.02, max_backoff=0.2)


class Service:
    """One generation service without weights on a unix socket; `restart` makes it forget."""

    def __init__(self, model: Path, socket: Path, on_swap: OnSwap = "finish") -> None:
        self.address = f"unix:{socket}"
        self._options = GenerationOptions(model=str(model), weights=False, on_swap=on_swap)
        self._server: Server | None = None

    async def start(self) -> None:
        self._engine = load_engine(self._options)
        settings = ServerSettings.model_validate({"host": self.address, "metrics_port": None})
        self._server = generation_server(settings, self._engine)
        self._engine.start()
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            await self._engine.stop()
            self._server = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()


@dataclass
class Learner:
    """What a learner of one agent holds: its publisher and its replicas."""

    publisher: AgentPublisher
    agent: Agent
    replicas: list[Replica]


@asynccontextmanager
async def services(
    model: Path, directory: Path, count: int, on_swap: OnSwap = "finish"
) -> AsyncIterator[list[Service]]:
    """`count` services of a model, stopped at the end."""
    made = [Service(model, directory / f"{number}.sock", on_swap) for number in range(count)]
    try:
        for service in made:
            await service.start()
        yield made
    finally:
        for service in made:
            await service.stop()


@asynccontextmanager
async def learner(
    model: Path,
    addresses: Sequence[str],
    *,
    run_id: str = "run",
    incarnation: int = 1,
    max_new_tokens: int = 8,
    retry: RetryPolicy = QUICK,
    timeout: float = 20,
) -> AsyncIterator[Learner]:
    """A learner's side of these services, nothing published yet."""
    identity = RunIdentity(run_id, incarnation)
    replicas = [Replica(a, GenerationClient(a, retry=retry)) for a in addresses]
    weights = load_model(model, dtype=torch.float32)
    publisher = AgentPublisher(
        identity,
        0,
        lambda: wire_tensors(weights),
        TensorDtype.BFLOAT16,
        replicas,
        timeout=timeout,
    )
    agent = Agent(
        identity,
        0,
        replicas,
        publisher,
        sampling=SamplingParameters(1.0, None, None, max_new_tokens),
        context_length=256,
        timeout=timeout,
    )
    try:
        yield Learner(publisher, agent, replicas)
    finally:
        for replica in replicas:
            await replica.client.close()


def prompts(count: int, samples: int = 2) -> list[PromptSamples]:
    """Prompts with different ids and seeds."""
    return [
        PromptSamples(TokenIds((5 + index, 6, 7)), tuple(100 * index + s for s in range(samples)))
        for index in range(count)
    ]


async def sampled(
    agent: Agent,
    asked: Sequence[PromptSamples],
    seen: Callable[[Completion], None] = lambda c: None,
) -> dict[tuple[int, int], Completion]:
    """All completions by place; fails where one comes twice."""
    came: dict[tuple[int, int], Completion] = {}

    def deliver(completion: Completion) -> None:
        place = (completion.prompt_index, completion.sample_index)
        assert place not in came
        came[place] = completion
        seen(completion)

    await agent.generate(asked, deliver)
    return came
