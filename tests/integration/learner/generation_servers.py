"""Generation services on this process's event loop, and what a learner holds of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
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
from antiphon.learner.weights.lease import LeaseWait
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import Replica, Replicas, RunIdentity
from antiphon.learner.weights.wire_weights import OwnWeights
from antiphon.services.common.models import load_model
from antiphon.services.common.server import Server, ServerSettings
from antiphon.services.common.tensors import wire_tensors
from antiphon.services.common.weights_store import WeightsStore
from antiphon.services.generation.choices import OnSwap
from antiphon.services.generation.engine import EngineRequest
from antiphon.services.generation.serving import (
    GenerationOptions,
    generation_server,
    load_engine,
)

QUICK = RetryPolicy(attempts=8, initial_backoff=0.02, max_backoff=0.2)
Generate = Callable[[EngineRequest], AsyncGenerator[Completion]]


class Service:
    """One generation service without weights on a unix socket; `restart` makes it forget."""

    def __init__(
        self,
        model: Path,
        socket: Path | str,
        on_swap: OnSwap = "finish",
        *,
        max_batch_size: int = 64,
        store: WeightsStore | None = None,
        run_lease_seconds: float = 60.0,
    ) -> None:
        self._store = store
        self.address = socket if isinstance(socket, str) else f"unix:{socket}"
        self._options = GenerationOptions(
            model=str(model),
            weights=False,
            on_swap=on_swap,
            max_batch_size=max_batch_size,
            run_lease_seconds=run_lease_seconds,
        )
        self._server: Server | None = None
        self.requests: list[EngineRequest] = []
        self.before_request: Callable[[], Awaitable[None]] | None = None

    async def start(self) -> None:
        self._engine = load_engine(self._options)
        host, _, port = self.address.rpartition(":")
        listens = {"host": self.address} if host == "unix" else {"host": host, "port": int(port)}
        settings = ServerSettings.model_validate(
            {**listens, "metrics_port": None, "drain_seconds": 0}
        )
        self._engine.generate = self._noted(self._engine.generate)  # type: ignore[method-assign]
        self._server = generation_server(
            settings,
            self._engine,
            run_lease_seconds=self._options.run_lease_seconds,
            store=self._store,
        )
        self._engine.start()
        await self._server.start()
        self.boot_id = self._server.boot_id

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """What its engine computes with."""
        return wire_tensors(self._engine.model)

    def _noted(self, generate: Generate) -> Generate:
        async def noted(request: EngineRequest) -> AsyncGenerator[Completion]:
            self.requests.append(request)
            if self.before_request is not None:
                await self.before_request()
            async with aclosing(generate(request)) as completions:
                async for completion in completions:
                    yield completion

        return noted

    async def stop(self, grace: float = 0) -> None:
        if self._server is not None:
            await self._server.stop(grace)
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
    replicas: Replicas


@asynccontextmanager
async def services(
    model: Path,
    directory: Path,
    count: int,
    on_swap: OnSwap = "finish",
    *,
    run_lease_seconds: float = 60.0,
) -> AsyncIterator[list[Service]]:
    """`count` services of a model, stopped at the end."""
    made = [
        Service(model, directory / f"{number}.sock", on_swap, run_lease_seconds=run_lease_seconds)
        for number in range(count)
    ]
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
    lease: LeaseWait | None = None,
) -> AsyncIterator[Learner]:
    """A learner's side of these services, nothing published yet."""
    identity = RunIdentity(run_id, incarnation)
    replicas = Replicas(
        (Replica(a, GenerationClient(a, retry=retry)) for a in addresses), lease=lease
    )
    weights = load_model(model, dtype=torch.float32)
    publisher = AgentPublisher(
        identity,
        0,
        OwnWeights(lambda: wire_tensors(weights), TensorDtype.BFLOAT16),
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
